"""The power goes at any moment: what was acknowledged is there afterwards, and everything starts.

`tests/support/power_loss.py` says what a disk may lose. The inner ring runs few rounds of each program.
"""

import os
import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.policies.stores import decided
from tests.support.power_loss import check_disks, record
from tests.support.system_calls import STRACE
from tipbench.jobs.records import Database
from tipbench.policies.serving.app import read_token
from tipbench.policies.serving.tips import ActiveFile
from tipbench.policies.stores.file import FileStore, find_differences
from tipbench.tracking.journal import Journal, journal_folder, left_over_journals
from tipbench.tracking.managed.files import read_server_file

pytestmark = pytest.mark.skipif(STRACE is None, reason="no strace: make programs installs it where it may")
rounds = pytest.mark.parametrize("rounds", [1, pytest.param(3, marks=pytest.mark.slow)])
Check = Callable[[Path, tuple[str, ...]], None]
SERVER = "a server"


@pytest.fixture(autouse=True)
def _do_not_wait(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    """What is opened after a loss lies in a folder of the test: it need not last."""

    def skip(*_: int) -> None: ...

    monkeypatch.setattr(os, "fsync", skip)
    monkeypatch.setattr(os, "sync", skip)


TABLES = "CREATE TABLE IF NOT EXISTS words (word)"


def record_and_check(program: str, folder: Path, check: Check, *, follow: bool = True) -> int:
    recording = record(program, folder / "recorded" / "root", follow=follow)
    count = check_disks(recording, folder / "disk", check)
    print(f"{len(recording.steps)} steps, {count} disks")
    return count


IN_PLACE = """
def put(name, text, *, sync_file=True, sync_folder=True):
    part = os.open(root / "part", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.write(part, text)
    if sync_file:
        os.fsync(part)
    os.rename(root / "part", root / name)
    if sync_folder:
        folder = os.open(root, os.O_RDONLY)
        os.fsync(folder)
put("file", b"old")
acknowledge("old")
"""
LOSSES = [
    ('put("file", b"new")', {"old", "new"}, {"new"}),
    ('put("file", b"new", sync_file=False)', {"old", "", "n", "new"}, {"", "n", "new"}),
    ('put("file", b"new", sync_folder=False)', {"old", "new"}, {"old", "new"}),
    ('os.ftruncate(os.open(root / "file", os.O_RDWR), 0); put("file", b"new")', {"old", "", "new"}, {"new"}),
]


@pytest.mark.parametrize(("program", "anytime", "acknowledged"), LOSSES)
def test_a_disk_keeps_what_was_synced_and_may_lose_what_was_not(
    tmp_path: Path, program: str, anytime: set[str], acknowledged: set[str]
) -> None:
    """The simulation itself, on the right way to replace a file and on three wrong ones."""
    found: list[tuple[int, str]] = []

    def check(root: Path, told: tuple[str, ...]) -> None:
        if told:
            found.append((len(told), (root / "file").read_text()))

    record_and_check(f"{IN_PLACE}{program}\nacknowledge('new')", tmp_path, check)
    assert {text for _, text in found} == anytime
    assert {text for told, text in found if told == 2} == acknowledged


JOURNAL = """
from tests.tracking.writing import make_write
from tipbench.tracking import Experiment
from tipbench.tracking.journal import Event, Journal, journal_folder
experiment = Experiment(id="1", name="e", uid="u", artifact_location="")
for book in range(ROUNDS + 1):
    journal = Journal.create(journal_folder(root / "home", "a server"), name=f"book{book}", server="a server")
    for n in range(ROUNDS + 1):
        write = make_write(experiment, attempt=f"{book}-{n}", artifacts={})
        journal.append(Event(kind="write", write=write), durable=True)
        acknowledge(write.attempt)
"""


@rounds
def test_a_write_that_was_submitted_waits_in_the_journal(tmp_path: Path, rounds: int) -> None:
    def check(root: Path, told: tuple[str, ...]) -> None:
        waiting: set[str] = set()
        for path in left_over_journals(journal_folder(root / "home", SERVER)):
            journal = Journal.adopt(path)
            assert journal is not None
            waiting |= {each.write.attempt for each in journal.read()[0]}
            journal.close(finished=False)
        assert waiting >= set(told)

    assert record_and_check(f"ROUNDS = {rounds}{JOURNAL}", tmp_path, check) > 20


POLICIES = """
from tests.policies.stores import decided, rewarded
from tipbench.policies.stores.file import FileStore
for life in range(ROUNDS + 1):
    # So small that states are written down and let go, segments are filled, checkpoints made.
    store = FileStore(root / "home" / "policies" / "state", kept_states=1, segment_bytes=900)
    for n in range(ROUNDS):
        for user in ("ann", "bo"):
            decision = decided(f"{life}-{n}", user=user)
            store.decide(decision)
            acknowledge(f"decision {user}")
            store.reward(rewarded(decision))
            acknowledge(f"reward {user}")
    if life:
        store.reset("cy", at_ms=1)
        acknowledge("reset cy")
    store.close()
"""


@rounds
def test_what_a_policy_was_told_is_in_its_state_and_the_state_is_the_log(tmp_path: Path, rounds: int) -> None:
    def check(root: Path, told: tuple[str, ...]) -> None:
        store = FileStore(root / "home" / "policies" / "state")
        for user in ("ann", "bo"):
            learned = store.read(user, "egreedy-v1")
            assert learned.decisions >= told.count(f"decision {user}")
            assert sum(model.count for model in learned.models.values()) >= told.count(f"reward {user}")
        assert store.read("cy", "egreedy-v1").epoch >= told.count("reset cy")
        before = store.read("ann", "egreedy-v1").decisions
        store.decide(decided("after"))
        assert find_differences(store)[1] == []
        store.close()
        again = FileStore(root / "home" / "policies" / "state")
        assert again.read("ann", "egreedy-v1").decisions == before + 1
        again.close()

    assert record_and_check(f"ROUNDS = {rounds}{POLICIES}", tmp_path, check) > 50


ACTIVE = """
from tipbench.policies.serving.app import read_token
from tipbench.policies.serving.tips import ActiveFile, ActivePolicy
folder = root / "home" / "policies"
acknowledge(read_token(folder))
active = ActiveFile(folder, default="random")
for n in range(ROUNDS + 1):
    name = ("egreedy-v1", "egreedy-v2")[n % 2]
    active.write(ActivePolicy(policy=name, since_ms=n, evidence="run"))
    acknowledge(name)
"""


@rounds
def test_the_active_policy_and_the_token_are_those_that_were_told(tmp_path: Path, rounds: int) -> None:
    def check(root: Path, told: tuple[str, ...]) -> None:
        folder = root / "home" / "policies"
        token, *names = told or (read_token(folder),)
        assert read_token(folder) == token
        # The one before, or already the one that is being written.
        following = {"random": "egreedy-v1", "egreedy-v1": "egreedy-v2", "egreedy-v2": "egreedy-v1"}
        last = names[-1] if names else "random"
        assert ActiveFile(folder, default="random").name() in {last, following[last]}

    assert record_and_check(f"ROUNDS = {rounds}{ACTIVE}", tmp_path, check) > 8


ADMIN = """
from tipbench.jobs.records import Database
database = Database(root / "home" / "admin.db", "CREATE TABLE IF NOT EXISTS words (word)")
def say(word):
    with database.change() as change:
        change.execute("INSERT INTO words VALUES (?)", (word,))
    acknowledge(word)
for n in range(ROUNDS):
    say(f"alone {n}")
    # As in a busy panel: the log is not folded in as long as somebody reads.
    with database.read() as view:
        view.execute("SELECT * FROM words").fetchall()
        say(f"busy {n}")
"""


@rounds
def test_what_the_admin_database_took_it_still_has(tmp_path: Path, rounds: int) -> None:
    def check(root: Path, told: tuple[str, ...]) -> None:
        database = Database(root / "home" / "admin.db", TABLES)
        with database.read() as view:
            assert {word for (word,) in view.execute("SELECT word FROM words")} >= set(told)
        with closing(sqlite3.connect(database.path)) as opened:
            assert opened.execute("PRAGMA integrity_check").fetchone() == ("ok",)

    assert record_and_check(f"ROUNDS = {rounds}{ADMIN}", tmp_path, check) > 20


MANAGED = """
from tipbench.tracking.tracking import open_managed_folder
from tipbench.tracking.managed.files import read_server_file
managed = open_managed_folder(root / "home")
for _ in range(2):
    acknowledge(managed.start().server_id)
    managed.stop()
"""


@pytest.mark.slow
def test_the_managed_server_keeps_the_identity_under_which_writes_wait_for_it(tmp_path: Path) -> None:
    def check(root: Path, told: tuple[str, ...]) -> None:
        file = read_server_file(root / "home" / "mlflow")
        assert not told or (file is not None and {file.server_id} == set(told))

    assert record_and_check(MANAGED, tmp_path, check, follow=False) > 8
