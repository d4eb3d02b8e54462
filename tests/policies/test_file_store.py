"""What only files promise: one process, a log that survives, snapshots that are never trusted blindly."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.policies.stores import decided, no_file_above, open_files, rewarded
from tipbench.errors import NewerSchema
from tipbench.policies.events import StoreInUse, StoreUnavailable
from tipbench.policies.stores.file import FileStore, encode_user, find_differences, same_bits, snapshot_name


def fill(store: FileStore, count: int, *, first: int = 0, users: int = 3) -> None:
    for n in range(first, first + count):
        decision = decided(f"a{n}", user=f"user {n % users}", x=(1.0, n / 7), kind=f"k{n % 2}", at_ms=n)
        store.decide(decision)
        if n % 3:
            store.reward(rewarded(decision, (n % 5) / 4))


def test_a_second_process_is_refused_and_the_first_goes_on(files: Path) -> None:
    store = open_files(files)
    with pytest.raises(StoreInUse, match="another process has the policy files"):
        open_files(files)
    code = "import sys; from tests.policies.stores import *; open_files(Path(sys.argv[1]))"
    other = subprocess.run([sys.executable, "-c", code, files], capture_output=True, text=True, check=False)
    assert "StoreInUse" in other.stderr
    fill(store, 3)
    store.close()
    open_files(files).close()


def test_what_was_learned_is_there_after_a_clean_end_and_after_a_kill(files: Path) -> None:
    store = open_files(files)
    fill(store, 20)
    before = {user: store.read(user, "egreedy-v1") for user in ("user 0", "user 1", "user 2")}
    # As after kill -9: nothing is written down, only the log is there.
    copy = files.parent / "copy"
    copy.mkdir()
    for segment in files.glob("log-*.jsonl"):
        (copy / segment.name).write_bytes(segment.read_bytes())
    store.close()
    for folder in (files, copy):
        again = open_files(folder)
        assert all(same_bits(again.read(user, "egreedy-v1"), learned) for user, learned in before.items())
        assert again.problems == []
        again.close()


def test_a_snapshot_bears_the_name_of_user_and_policy(files: Path) -> None:
    store = open_files(files)
    store.decide(decided("a1", user="Ann_B", policy="egreedy-v2"))
    store.close()
    assert (files / "%41nn%5f%42_egreedy_v2.json").exists()


@pytest.mark.parametrize("damage", ["", "{", '{"schema": 1}', "cut", "changed", "other"])
def test_a_damaged_snapshot_is_set_aside_rebuilt_and_reported(files: Path, damage: str) -> None:
    store = open_files(files)
    fill(store, 12)
    before = store.read("user 1", "egreedy-v1")
    store.close()
    path = files / snapshot_name("user 1", "egreedy-v1")
    text = path.read_text()
    damaged = {"cut": text[: len(text) // 2], "changed": text.replace('"total": 0.', '"total": 9.', 1)}
    damaged["other"] = (files / snapshot_name("user 2", "egreedy-v1")).read_text()
    path.write_text(damaged.get(damage, damage))
    again = open_files(files)
    assert same_bits(again.read("user 1", "egreedy-v1"), before)
    assert "damaged, rebuilt from the log" in again.problems[0]
    assert (files / "damaged" / path.name).read_text() == damaged.get(damage, damage)
    fill(again, 6, first=100)
    again.close()
    last = open_files(files)
    assert find_differences(last) == (3, [])
    last.close()


def test_a_missing_snapshot_is_rebuilt_and_reported(files: Path) -> None:
    store = open_files(files)
    fill(store, 12)
    before = store.read("user 1", "egreedy-v1")
    store.close()
    (files / snapshot_name("user 1", "egreedy-v1")).unlink()
    again = open_files(files)
    assert same_bits(again.read("user 1", "egreedy-v1"), before)
    assert "missing, rebuilt from the log" in again.problems[0]
    assert again.read("somebody new", "egreedy-v1").decisions == 0
    assert len(again.problems) == 1
    again.close()


def test_a_damaged_checkpoint_only_costs_time(files: Path) -> None:
    store = open_files(files)
    fill(store, 12)
    store.close()
    (files / "checkpoint.json").write_text("{")
    again = open_files(files)
    assert find_differences(again) == (3, [])
    again.close()


def test_a_torn_last_line_was_never_acknowledged_and_goes(files: Path) -> None:
    store = open_files(files)
    fill(store, 5)
    store.close()
    segment = max(files.glob("log-*.jsonl"))
    whole = segment.read_bytes()
    segment.write_bytes(whole + whole.splitlines()[0][:-20])
    again = open_files(files)
    assert "torn" in again.problems[0]
    assert segment.read_bytes() == whole
    fill(again, 5, first=50)
    assert find_differences(again) == (3, [])
    again.close()


def test_a_damaged_line_is_reported_and_its_number_is_not_given_again(files: Path) -> None:
    store = open_files(files)
    fill(store, 6)
    store.close()
    segment = max(files.glob("log-*.jsonl"))
    lines = segment.read_bytes().splitlines(keepends=True)
    segment.write_bytes(b"".join([*lines[:-1], lines[-1].replace(b'"reward', b'"rewaxd', 1)]))
    (files / "checkpoint.json").unlink()
    again = open_files(files)
    assert f"line {len(lines)}: damaged" in again.problems[0]
    fill(again, 3, first=50)
    again.close()
    numbers = [line.split(b'"n":')[1].split(b",")[0] for line in segment.read_bytes().splitlines()]
    assert len(set(numbers)) == len(numbers)


def test_a_log_of_a_newer_tipbench_is_refused(files: Path) -> None:
    store = open_files(files)
    fill(store, 1)
    store.close()
    segment = max(files.glob("log-*.jsonl"))
    segment.write_bytes(segment.read_bytes().replace(b'"schema":1', b'"schema":99'))
    (files / "checkpoint.json").unlink()
    with pytest.raises(NewerSchema, match="schema 99"):
        open_files(files)


def test_states_that_are_let_go_come_back_the_same(files: Path) -> None:
    store = open_files(files, kept_states=2)
    fill(store, 60, users=7)
    assert find_differences(store) == (7, [])
    store.close()


def test_full_segments_are_followed_by_new_ones_and_a_start_reads_only_the_last(files: Path) -> None:
    store = open_files(files, segment_bytes=3_000)
    fill(store, 60, users=5)
    assert find_differences(store) == (5, [])
    store.close()
    segments = sorted(files.glob("log-*.jsonl"))
    assert len(segments) > 3
    # What is in snapshots is not read again: the first segment could be away on another disk.
    segments[0].rename(files / "elsewhere")
    again = open_files(files, segment_bytes=3_000)
    assert again.read("user 1", "egreedy-v1").decisions == 12
    assert again.problems == []
    again.close()


def test_a_reset_lasts_whatever_is_left_of_the_snapshots(files: Path) -> None:
    store = open_files(files)
    fill(store, 9)
    store.checkpoint()
    path = files / snapshot_name("user 1", "egreedy-v1")
    old = path.read_bytes()
    store.reset("user 1", at_ms=99)
    assert not path.exists()
    # As after kill -9: the checkpoint still tells of a snapshot.
    shutil.copytree(files, files.parent / "killed")
    killed = open_files(files.parent / "killed")
    assert (killed.read("user 1", "egreedy-v1").epoch, killed.problems) == (1, [])
    killed.close()
    store.close()
    path.write_bytes(old)
    again = open_files(files)
    assert (again.read("user 1", "egreedy-v1").epoch, again.read("user 1", "egreedy-v1").decisions) == (1, 0)
    assert find_differences(again) == (3, [])
    again.close()


def test_on_a_full_disk_nothing_is_acknowledged_and_nothing_acknowledged_is_lost(files: Path) -> None:
    store = open_files(files)
    fill(store, 10)
    acknowledged = max(files.glob("log-*.jsonl")).read_bytes()
    with no_file_above(len(acknowledged) + 100), pytest.raises(StoreUnavailable, match="cannot be written"):
        fill(store, 1, first=50)
    with pytest.raises(StoreUnavailable):
        store.check()
    with pytest.raises(StoreUnavailable):
        fill(store, 1, first=51)
    store.close()
    assert max(files.glob("log-*.jsonl")).read_bytes() == acknowledged
    again = open_files(files)
    assert find_differences(again) == (3, [])
    fill(again, 5, first=60)
    again.close()


@pytest.mark.parametrize(
    "user",
    ["../../etc/passwd", "a/b", ".", "..", "A", "a", "ä", "a%41", "x" * 128, "漢" * 128, "a\\b", "nul"],
)
def test_names_of_users_become_plain_names_of_files(user: str) -> None:
    name = encode_user(user)
    assert len(name) <= 150
    assert name == name.lower()
    assert not set(name) & set("/\\._\0")


def test_no_two_users_share_a_file() -> None:
    users = ["A", "a", "%41", "=", "a_egreedy", "漢" * 128, "漢" * 127, "x" * 128, "X" * 128]
    assert len({encode_user(user) for user in users}) == len(users)
