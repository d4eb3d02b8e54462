"""Backup and restore: whole or not at all, also under writers, also when interrupted."""

import gzip
import io
import json
import os
import resource
import shlex
import shutil
import sqlite3
import subprocess
import sys
import tarfile
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from uuid import uuid4

import pytest
from click.testing import CliRunner

from tests.policies.stores import decided
from tests.support.rights import open_to_others
from tests.support.waiting import eventually
from tests.tracking.writing import TEXTS, make_write
from tipbench.cli.mlflow import command
from tipbench.errors import BackupError, NewerSchema, TipbenchError, TrackingError, UsageError
from tipbench.files import hold_lock
from tipbench.jobs.dispatcher import LOCK
from tipbench.jobs.records import Database
from tipbench.policies.stores.file import FileStore, find_differences
from tipbench.tracking import Experiment, Run, Tracking
from tipbench.tracking.client import Pace, Rest
from tipbench.tracking.journal import Event, Journal, count_waiting, journal_folder
from tipbench.tracking.managed.backup import SEAL_BYTES, back_up, check_archive, unpack_archive
from tipbench.tracking.managed.files import (
    ServerFile,
    managed_folder,
    managed_name,
    read_server_file,
    write_server_file,
)
from tipbench.tracking.managed.restore import Restore
from tipbench.tracking.tracking import open_managed_folder

NOW = datetime(2026, 11, 16, 12, 0, 0, tzinfo=UTC)
NOWHERE = "http://127.0.0.1:9"

CHANGES = frozenset({"os.rename", "os.mkdir", "os.remove", "os.rmdir", "os.truncate", "shutil.rmtree"})
LOOKS = frozenset({"open", "os.scandir", "os.listdir", "sqlite3.connect"})


@dataclass(frozen=True)
class Saved:
    """A data folder whose server ran while it was backed up, and what was there at that time."""

    home: Path
    experiment: str
    runs: list[Run]
    backup: Path
    waiting: str
    delivered: list[str] = field(default_factory=list[str])
    """Attempts of two busy writers that were through before the backup began."""


def open_managed(home: Path, url: str, server_id: str) -> Tracking:
    """The door to the managed server of this folder, whatever listens at the default address."""
    return Tracking(
        Rest(url),
        home=home,
        description="",
        new_id=lambda: uuid4().hex,
        server=managed_name(server_id),
        pace=Pace(tries=1),
    )


def leave_in_journal(home: Path, server_id: str, tracking: Tracking, experiment: str) -> str:
    """Submits a write while the server is out of reach; gives its attempt id."""
    write = make_write(tracking.find_experiment(experiment))
    with open_managed(home, NOWHERE, server_id) as unreachable:
        unreachable.submit(write)
    return write.attempt


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Saved]:
    home = tmp_path_factory.mktemp("data folder ?#é")
    managed = open_managed_folder(home)
    server = managed.start()
    with open_managed(home, server.url, server.server_id) as tracking:
        experiment = tracking.ensure_experiment("saved")
        for _ in range(3):
            tracking.deliver(make_write(experiment))
        runs = tracking.read_runs(experiment)
        attempt = leave_in_journal(home, server.server_id, tracking, "saved")
    say(home, "saved")
    store = FileStore(home / STATE)
    for n in range(3):
        store.decide(decided(str(n)))
    store.close()
    yield Saved(home, "saved", runs, home.parent / "saved.tar.gz", attempt)
    managed.stop()


STATE = "policies/state"


def say(home: Path, word: str) -> None:
    """Something in the database of users and jobs."""
    with Database(home / "admin.db", "CREATE TABLE IF NOT EXISTS words (word)").change() as change:
        change.execute("INSERT INTO words VALUES (?)", (word,))


def said(database: Path) -> list[str]:
    with closing(sqlite3.connect(database)) as opened:
        return [word for (word,) in opened.execute("SELECT word FROM words")]


def count_decisions(home: Path) -> int:
    store = FileStore(home / STATE)
    try:
        assert find_differences(store)[1] == store.problems == []
        return store.read("ann", "egreedy-v1").decisions
    finally:
        store.close()


def write_until(done: threading.Event, tracking: Tracking, *, experiment: str, through: list[str]) -> None:
    other = tracking.ensure_experiment(experiment)
    while not done.is_set():
        write = make_write(other)
        tracking.deliver(write)
        through.append(write.attempt)


@pytest.fixture(scope="module")
def backup(saved: Saved) -> Path:
    """A backup made while two writers write."""
    server = open_managed_folder(saved.home).find()
    assert server is not None
    done = threading.Event()
    through: list[str] = []
    with open_managed(saved.home, server.url, server.server_id) as tracking:
        writers = [
            threading.Thread(
                target=write_until,
                args=(done, tracking),
                kwargs={"experiment": f"busy-{n}", "through": through},
                daemon=True,
            )
            for n in range(2)
        ]
        for writer in writers:
            writer.start()
        eventually(lambda: len(through) >= 4, "four writes are through")
        saved.delivered.extend(through)
        told = CliRunner().invoke(command, ["backup", str(saved.backup), "--home", str(saved.home)])
        done.set()
        for writer in writers:
            writer.join()
    assert told.exit_code == 0, told.output
    assert f"tipbench mlflow restore {saved.backup}" in told.output
    return saved.backup


@pytest.fixture
def home(backup: Path, tmp_path: Path) -> Path:
    """A data folder with older data in it: the backup without its artifacts, and a mark."""
    folder = tmp_path / "home"
    restore(folder, backup)
    shutil.rmtree(managed_folder(folder) / "artifacts")
    (managed_folder(folder) / "mark").write_text("old")
    say(folder, "old")
    (folder / "policies" / "mark").write_text("old")
    return folder


def restore(home: Path, backup: Path, *, stop: bool = False) -> Path | None:
    managed = open_managed_folder(home)
    return Restore(managed, new_id=lambda: uuid4().hex, now=NOW).run(backup, stop=stop).aside


def is_old(home: Path) -> bool:
    return (managed_folder(home) / "mark").exists()


def rewrite(backup: Path, target: Path, change: Callable[[tarfile.TarInfo, bytes], bytes | None]) -> Path:
    """The backup with changed members; None leaves one out."""
    with tarfile.open(backup) as old, tarfile.open(target, "w:gz") as new:
        for info in old:
            file = old.extractfile(info)
            assert file is not None
            data = change(info, file.read())
            if data is not None:
                info.size = len(data)
                new.addfile(info, io.BytesIO(data))
    return target


def test_what_a_backup_refers_to_is_in_it_although_writers_wrote(backup: Path, tmp_path: Path) -> None:
    manifest = check_archive(backup)
    assert backup.stat().st_mode & 0o777 == 0o600
    unpack_archive(backup, manifest, tmp_path)
    with closing(sqlite3.connect(tmp_path / "mlflow.db")) as database:
        complete = database.execute(
            "SELECT r.artifact_uri FROM runs r JOIN tags t ON t.run_uuid = r.run_uuid"
            " WHERE t.key = 'tipbench.state' AND t.value = 'complete'"
        ).fetchall()
    assert len(complete) > 3
    for (uri,) in complete:
        folder = tmp_path / "artifacts" / uri.removeprefix("mlflow-artifacts:/")
        assert {name: (folder / name).read_text() for name in TEXTS} == TEXTS


def back_up_while_delivering(home: Path, target: Path, *, at: int) -> bool:
    """Backs up in a process that delivers what waits at its n-th look at the data; whether it came to that.

    Delivered as the courier does it: first it is in the database, then its journal is removed.
    """
    child = os.fork()
    if child:
        ended = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        assert ended in {0, 7}
        return ended == 0
    looks = 0

    def deliver(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal looks
        looks += event in LOOKS and str(arguments[0]).startswith(str(home))
        if looks == at:
            looks += 1
            with closing(sqlite3.connect(managed_folder(home) / "mlflow.db")) as database, database:
                database.execute("CREATE TABLE delivered (attempt)")
            for journal in (home / "journal").rglob("*.jsonl"):
                journal.unlink()

    status = 1
    try:
        sys.addaudithook(deliver)
        back_up(home, target, now=NOW)
        status = 0 if looks > at else 7
    finally:
        os._exit(status)


def test_a_write_that_is_delivered_while_a_backup_is_made_is_in_it(tmp_path: Path) -> None:
    nowhere = Experiment(id="1", name="", uid="", artifact_location="")
    looks = 0
    delivered = True
    while delivered:
        looks += 1
        home, target, out = (tmp_path / f"{kind}-{looks}" for kind in ("home", "backup", "out"))
        managed_folder(home).mkdir(parents=True)
        write_server_file(managed_folder(home), ServerFile(server_id="mine"))
        sqlite3.connect(managed_folder(home) / "mlflow.db").close()
        name = managed_name("mine")
        left = Journal.create(journal_folder(home, name), name="left", server=name)
        left.append(Event(kind="write", write=make_write(nowhere)))
        left.close(finished=False)

        delivered = back_up_while_delivering(home, target, at=looks)

        manifest = check_archive(target)
        unpack_archive(target, manifest, out)
        with closing(sqlite3.connect(out / "mlflow.db")) as database:
            is_stored = database.execute("SELECT 1 FROM sqlite_master WHERE name = 'delivered'").fetchone()
        assert is_stored or "journal/left.jsonl" in manifest.files, f"lost at look {looks}"
    assert looks > 5


def test_a_backup_is_not_overwritten_and_not_put_where_it_reads(saved: Saved, backup: Path) -> None:
    before = backup.read_bytes()
    with pytest.raises(UsageError, match="exists already"):
        back_up(saved.home, backup, now=NOW)
    assert backup.read_bytes() == before
    with pytest.raises(UsageError, match="inside of what is backed up"):
        back_up(saved.home, saved.home / "mlflow" / "artifacts" / "b.tar.gz", now=NOW)
    other = backup.with_name("other.tar.gz")
    other.write_text("to be replaced")
    back_up(saved.home, other, now=NOW, force=True)
    assert check_archive(other).made_at == "2026-11-16T12:00:00+00:00"
    assert not list(backup.parent.glob(".tipbench-backup-*"))


def test_without_a_managed_server_there_is_nothing_to_back_up(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing to back up"):
        back_up(tmp_path, tmp_path / "b.tar.gz", now=NOW)


def test_restored_data_is_what_was_saved_and_the_way_back_is_told(saved: Saved, backup: Path) -> None:
    managed = open_managed_folder(saved.home)
    old = managed.find()
    assert old is not None
    with open_managed(saved.home, old.url, old.server_id) as tracking:
        experiment = tracking.find_experiment(saved.experiment)
        tracking.deliver(make_write(experiment))
        tracking.delete_run(saved.runs[0].run_id)
        assert len(tracking.read_runs(experiment)) == 3
        leave_in_journal(saved.home, old.server_id, tracking, saved.experiment)
    with pytest.raises(BackupError, match="runs") as raised:
        restore(saved.home, backup)
    assert "--stop" in raised.value.hint
    told = CliRunner().invoke(command, ["restore", str(backup), "--stop", "--home", str(saved.home)])
    assert told.exit_code == 0, told.output

    new = managed.start()
    assert new.server_id != old.server_id
    with open_managed(saved.home, new.url, new.server_id) as tracking:
        experiment = tracking.find_experiment(saved.experiment)
        assert tracking.read_runs(experiment) == saved.runs
        assert tracking.read_artifact(saved.runs[0], "candidates.json") == TEXTS["candidates.json"]
        assert tracking.deliver_left_over().delivered >= 1
        runs = tracking.read_runs(experiment)
        assert runs == tracking.read_runs(experiment, fresh=True)
        attempts = {run.tags["tipbench.attempt"] for run in runs}
        assert attempts == {run.tags["tipbench.attempt"] for run in saved.runs} | {saved.waiting}
        busy = [tracking.find_experiment(f"busy-{n}").id for n in range(2)]
        attempts = [run.tags["tipbench.attempt"] for run in tracking.search_runs(busy)]
        assert set(saved.delivered) <= set(attempts)
        assert len(attempts) == len(set(attempts)), "what was on its way is delivered once"
    assert count_waiting(saved.home / "journal") == {managed_name(old.server_id): 2}
    managed.stop()

    way_back = told.output.splitlines()[-1].partition(";")[2]
    subprocess.run(["sh", "-c", way_back], check=True)
    file = read_server_file(managed.folder)
    assert file is not None
    assert file.server_id == old.server_id


def test_users_and_policies_are_restored_and_who_serves_them_is_not_disturbed(
    backup: Path, home: Path, tmp_path: Path
) -> None:
    store = FileStore(home / STATE)
    with pytest.raises(BackupError, match="running `tipbench policies serve`"):
        restore(home, backup)
    store.close()
    with hold_lock(home / "jobs" / LOCK), pytest.raises(BackupError, match="running `tipbench serve`"):
        restore(home, backup)
    assert is_old(home)
    aside = restore(home, backup)
    assert aside is not None
    check_beside(home)
    assert open_to_others(managed_folder(home)) == open_to_others(home / "policies") == []
    # The way back: what is put aside brings its own with it.
    managed_folder(home).rename(home / "mlflow-restored")
    aside.rename(managed_folder(home))
    told = CliRunner().invoke(command, ["backup", str(tmp_path / "b.tar.gz"), "--home", str(home)])
    assert "in it too, of the data folder: admin.db, policies" in told.output
    assert said(home / "admin.db") == ["saved", "old"]
    assert (home / "policies" / "mark").exists()


def test_a_policy_that_learns_while_a_backup_is_made_is_whole_in_it(tmp_path: Path) -> None:
    """Decisions come in before each file is copied: log, states and checkpoint fit together all the same."""
    home = make_small_home(tmp_path / "home")
    store = FileStore(home / STATE, kept_states=1, segment_bytes=500)
    store.decide(decided("first"))
    store.checkpoint()
    told: list[str] = []
    is_listening = True

    def learn(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal is_listening
        if is_listening and event == "open" and "/policies/" in str(arguments[0]) and arguments[1] == "r":
            is_listening = False
            for user in ("ann", "bo"):
                told.append(user)
                store.decide(decided(f"busy {len(told)}", user=user))
            store.checkpoint()
            is_listening = True

    sys.addaudithook(learn)
    back_up(home, tmp_path / "b.tar.gz", now=NOW)
    is_listening = False
    store.close()
    restore(tmp_path / "new", tmp_path / "b.tar.gz")
    assert len(told) > 4
    assert count_decisions(tmp_path / "new") > 2


def test_a_restore_elsewhere_needs_no_data_there(backup: Path, tmp_path: Path) -> None:
    told = CliRunner().invoke(command, ["restore", str(backup), "--home", str(tmp_path / "new")])
    assert told.exit_code == 0, told.output
    assert "put aside" not in told.output
    assert (managed_folder(tmp_path / "new") / "mlflow.db").exists()


def make_small_home(home: Path) -> Path:
    """With a database as MLflow's, and one text."""
    folder = managed_folder(home)
    (folder / "artifacts").mkdir(parents=True)
    (folder / "artifacts" / "raw.txt").write_text("a tip")
    with closing(sqlite3.connect(folder / "mlflow.db")) as database, database:
        database.execute("CREATE TABLE alembic_version (version_num)")
        database.execute("CREATE TABLE experiments (lifecycle_stage)")
        database.execute("CREATE TABLE runs (lifecycle_stage)")
    return home


@pytest.fixture(scope="module")
def small_backup(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """A backup small enough to damage every byte of it."""
    home = make_small_home(tmp_path_factory.mktemp("small"))
    back_up(home, home / "backup.tar.gz", now=NOW)
    return (home / "backup.tar.gz").read_bytes()


def flip(data: bytes, *, at: int) -> bytes:
    """The data with one bit of this byte turned over; every bit has its turn."""
    return data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :]


def test_a_flipped_bit_anywhere_is_found_before_anything_is_touched(
    small_backup: bytes, home: Path, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.tar.gz"
    for at in range(len(small_backup)):
        broken.write_bytes(flip(small_backup, at=at))
        with pytest.raises(BackupError, match="damaged"):
            restore(home, broken)
        assert is_old(home), f"byte {at}"


def test_a_backup_without_a_seal_is_read_and_what_gzip_can_find_in_it_is_found(
    small_backup: bytes, tmp_path: Path
) -> None:
    sealed, unsealed = tmp_path / "sealed.tar.gz", tmp_path / "unsealed.tar.gz"
    sealed.write_bytes(small_backup)
    old = small_backup[:-SEAL_BYTES]
    unsealed.write_bytes(old)
    assert check_archive(unsealed) == check_archive(sealed)
    for at in range(len(old) - 8, len(old)):
        unsealed.write_bytes(flip(old, at=at))
        with pytest.raises(BackupError, match="damaged"):
            check_archive(unsealed)
    for tail in (b"\0", small_backup):
        unsealed.write_bytes(old + tail)
        with pytest.raises(BackupError, match="not what its checksum says"):
            check_archive(unsealed)


def test_tar_and_gzip_see_nothing_of_the_seal(small_backup: bytes) -> None:
    assert gzip.decompress(small_backup) == gzip.decompress(small_backup[:-SEAL_BYTES])


@pytest.mark.parametrize("share", [0.0, 0.3, 0.99])
def test_a_backup_that_was_cut_off_is_refused(backup: Path, home: Path, tmp_path: Path, share: float) -> None:
    data = backup.read_bytes()
    (tmp_path / "cut.tar.gz").write_bytes(data[: int(len(data) * share)])
    with pytest.raises(BackupError, match="damaged"):
        restore(home, tmp_path / "cut.tar.gz")
    assert is_old(home)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "artifacts/../../evil", "server.json", "artifacts"])
def test_a_member_that_leads_elsewhere_is_refused(
    backup: Path, home: Path, tmp_path: Path, name: str
) -> None:
    def rename(info: tarfile.TarInfo, data: bytes) -> bytes:
        if info.name.endswith("raw.txt"):
            info.name = name
        return data

    with pytest.raises(BackupError, match="does not belong"):
        restore(home, rewrite(backup, tmp_path / "evil.tar.gz", rename))
    assert is_old(home)


def test_a_link_in_a_backup_is_refused(backup: Path, home: Path, tmp_path: Path) -> None:
    def link(info: tarfile.TarInfo, data: bytes) -> bytes:
        if info.name.endswith("raw.txt"):
            info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
            return b""
        return data

    with pytest.raises(BackupError, match="does not belong"):
        restore(home, rewrite(backup, tmp_path / "evil.tar.gz", link))


def test_a_member_more_or_less_is_found(backup: Path, home: Path, tmp_path: Path) -> None:
    def drop(info: tarfile.TarInfo, data: bytes) -> bytes | None:
        return None if info.name.endswith("raw.txt") else data

    with pytest.raises(BackupError, match="are not what they were"):
        restore(home, rewrite(backup, tmp_path / "less.tar.gz", drop))
    assert is_old(home)


def test_a_manifest_or_a_header_of_any_size_is_refused_unread(small_backup: bytes, tmp_path: Path) -> None:
    def pad(info: tarfile.TarInfo, data: bytes) -> bytes:
        return data + b" " * 70_000_000 if info.name == "manifest.json" else data

    (tmp_path / "sound").write_bytes(small_backup)
    with pytest.raises(BackupError, match="its manifest would be 70"):
        check_archive(rewrite(tmp_path / "sound", tmp_path / "padded", pad))
    with tarfile.open(tmp_path / "long", "w:gz") as tar:
        tar.addfile(tarfile.TarInfo("artifacts/" + "a" * 2_000_000))
    with pytest.raises(BackupError, match="a header in it is too long"):
        check_archive(tmp_path / "long")


def test_the_room_that_is_needed_is_what_a_backup_holds_whatever_it_says(
    small_backup: bytes, tmp_path: Path
) -> None:
    def understate(info: tarfile.TarInfo, data: bytes) -> bytes:
        told = json.loads(data) | {"size_bytes": 1} if info.name == "manifest.json" else None
        return json.dumps(told).encode() if told else data

    (tmp_path / "sound").write_bytes(small_backup)
    lying = rewrite(tmp_path / "sound", tmp_path / "lying", understate)
    assert check_archive(lying).size_bytes == check_archive(tmp_path / "sound").size_bytes > 10_000


def test_a_newer_schema_is_refused(backup: Path, home: Path, tmp_path: Path) -> None:
    def renew(info: tarfile.TarInfo, data: bytes) -> bytes:
        if info.name != "manifest.json":
            return data
        return json.dumps(json.loads(data) | {"tipbench_schema": 99, "unheard_of": 1}).encode()

    with pytest.raises(NewerSchema, match="schema 99"):
        restore(home, rewrite(backup, tmp_path / "newer.tar.gz", renew))
    assert is_old(home)


def test_a_backup_of_a_newer_mlflow_is_refused(backup: Path, home: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    restore(other, backup)
    with closing(sqlite3.connect(managed_folder(other) / "mlflow.db")) as database, database:
        database.execute("UPDATE alembic_version SET version_num = 'ffffffffffff'")
    back_up(other, tmp_path / "newer.tar.gz", now=NOW)
    with pytest.raises(TrackingError, match="newer MLflow"):
        restore(home, tmp_path / "newer.tar.gz")
    assert is_old(home)


def test_no_file_is_a_clear_error(home: Path, tmp_path: Path) -> None:
    with pytest.raises(TipbenchError, match="no file"):
        restore(home, tmp_path / "nothing.tar.gz")


def test_without_room_nothing_is_begun(
    backup: Path, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shutil, "disk_usage", lambda _: shutil._ntuple_diskusage(10, 9, 1))  # pyright: ignore
    with pytest.raises(BackupError, match="no room"):
        back_up(home, tmp_path / "b.tar.gz", now=NOW)
    with pytest.raises(BackupError, match="no room"):
        restore(home, backup)
    assert is_old(home)
    assert not (tmp_path / "b.tar.gz").exists()


def test_a_disk_that_fills_up_in_the_middle_leaves_nothing_behind(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "out" / "b.tar.gz"
    child = os.fork()
    if not child:
        resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
        try:
            back_up(home, target, now=NOW)
        except BackupError:
            os._exit(7)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert list(target.parent.iterdir()) == []


def restore_until(home: Path, backup: Path, *, stop_at: int) -> bool:
    """Restores in a process that dies at its n-th change of the disk; whether it came to its end before."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    seen = 0

    def count(event: str, arguments: tuple[object, ...]) -> None:
        nonlocal seen
        opens = event == "open" and str(arguments[0]).startswith(str(home)) and arguments[1] != "rb"
        seen += opens or event in CHANGES
        if seen == stop_at:
            os._exit(9)

    sys.addaudithook(count)
    restore(home, backup)
    os._exit(0)


@pytest.mark.parametrize("step", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_a_restore_that_is_killed_anywhere_leaves_the_old_or_the_new(
    backup: Path, home: Path, tmp_path: Path, step: int
) -> None:
    whole = {name for name in check_archive(backup).files if not name.startswith("journal/")}
    (waiting,) = count_waiting(home / "journal").values()
    found_in_place: list[str] = []
    finished = False
    while not finished:
        case = tmp_path / "case"
        shutil.copytree(home, case)
        finished = restore_until(case, backup, stop_at=len(found_in_place) * step + 1)
        found_in_place.append(look_at(case, whole))
        restore(case, backup)
        assert not is_old(case)
        assert sum((aside / "mark").exists() for aside in case.glob("mlflow-before-*")) == 1
        check_beside(case)
        servers = [read_server_file(folder) for folder in case.glob("mlflow*/")]
        expected = {managed_name(server.server_id): waiting for server in servers if server}
        assert count_waiting(case / "journal") == expected, "no journal is lost, none has no server"
        shutil.rmtree(case)
    # One moment lies between the two; larger steps meet it by chance.
    between = "next command finishes it"
    states = [state for state in dict.fromkeys(found_in_place) if step == 1 or state != between]
    assert states == (["old", between, "new"] if step == 1 else ["old", "new"])


def check_beside(home: Path) -> None:
    """What was saved is in place, and what was there before is kept in one place."""
    assert (said(home / "admin.db"), count_decisions(home)) == (["saved"], 3)
    assert not (home / "policies" / "mark").exists()
    (old,) = home.glob("mlflow-before-*/policies/mark")
    assert said(old.parents[1] / "admin.db") == ["saved", "old"]


def look_at(home: Path, whole: set[str]) -> str:
    """What is in place after a restore was killed; all of it is there."""
    folder = managed_folder(home)
    if is_old(home):
        return "old"
    state = "new"
    if not folder.exists():
        folder, state = home / "mlflow.restored", "next command finishes it"
    roots = (folder, home)
    there = {
        path.relative_to(root).as_posix() for root in roots for path in root.rglob("*") if path.is_file()
    }
    assert whole <= there
    return state


def test_the_way_back_survives_a_folder_with_spaces(backup: Path, tmp_path: Path) -> None:
    home = tmp_path / "data folder"
    restore(home, backup)
    told = CliRunner().invoke(command, ["restore", str(backup), "--home", str(home)]).output
    assert shlex.split(told.splitlines()[-1])[-1] == str(managed_folder(home))
