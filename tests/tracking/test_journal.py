"""What was submitted survives the death of the process; what is broken is set aside and named."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy, Plan
from tests.support.waiting import PATIENCE_SECONDS
from tests.tracking.writing import impatient, make_write
from tipbench.errors import NewerSchema
from tipbench.settings import Settings
from tipbench.tracking import Experiment, Tracking, open_tracking
from tipbench.tracking.journal import Event, Journal, count_waiting_in, left_over_journals
from tipbench.tracking.runs import prepare_write

NOWHERE = "http://127.0.0.1:9"
SUBMIT_AND_WAIT = """
import sys, time
from pathlib import Path
from tests.tracking.writing import impatient
from tipbench.tracking import Write
url, home, write, count = sys.argv[1:]
tracking = impatient(url, Path(home), tries=1000)
for n in range(int(count)):
    tracking.submit(Write.model_validate_json(write.replace("NUMBER", f"{n:08}")))
print("submitted", flush=True)
time.sleep(3600)
"""

FILL_THE_DISK = """
import resource, signal, sys
from pathlib import Path
from tests.tracking.writing import impatient
from tipbench.errors import TrackingError
from tipbench.tracking import Write
url, home, write = sys.argv[1:]
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (10_000, 10_000))
tracking = impatient(url, Path(home))
write = Write.model_validate_json(write)
tracking.submit(write.model_copy(update={"attempt": "small-one"}))
try:
    tracking.submit(write.model_copy(update={"artifacts": {"big.txt": "x" * 20_000}}))
except TrackingError as error:
    print(error.message, "|", error.hint)
tracking.submit(write.model_copy(update={"attempt": "small-two"}))
print(tracking.flush().delivered)
tracking.close()
"""


def run_python(code: str, *arguments: str) -> "subprocess.Popen[str]":
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(["src", "."])}
    return subprocess.Popen(
        [sys.executable, "-c", code, *arguments], env=environment, stdout=subprocess.PIPE, text=True
    )


def journals(home: Path) -> list[Path]:
    return sorted((home / "journal").glob("*/*.jsonl"))


@pytest.mark.parametrize("at", ["create", "log-batch", "update"])
def test_what_a_killed_process_submitted_is_delivered_by_the_next_one(
    mlflow_url: str, tracking: Tracking, experiment: Experiment, tmp_path: Path, at: str
) -> None:
    home = tmp_path / "other"
    write = make_write(experiment, attempt="attempt-NUMBER", artifacts={"a.txt": "text"})
    with FaultProxy(mlflow_url) as proxy:
        proxy.plan = Plan(fault="kill_client", at=2, only=at, kill_client=lambda: child.kill())  # noqa: PLW0108
        with run_python(SUBMIT_AND_WAIT, proxy.url, str(home), write.model_dump_json(), "6") as child:
            assert child.wait(timeout=PATIENCE_SECONDS) == -signal.SIGKILL
        assert len(journals(home)) == 1
        proxy.plan = Plan()
        with impatient(proxy.url, home) as next_one:
            delivery = next_one.deliver_left_over()
    assert delivery.left_in_journal == 0
    assert journals(home) == []
    runs = tracking.search_runs([experiment.id])
    assert {run.tags["tipbench.state"] for run in runs} == {"complete"}
    attempts = sorted(run.tags["tipbench.attempt"] for run in runs)
    assert len(attempts) == len(set(attempts)), "nothing is doubled"
    assert len(attempts) >= 3
    assert {run.status for run in runs} == {"FINISHED"}


def test_a_write_is_on_disk_before_it_counts_as_submitted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: dict[int, int] = {}

    def note(descriptor: int, sync: Callable[[int], None] = os.fsync) -> None:
        sync(descriptor)
        file = os.fstat(descriptor)
        synced[file.st_ino] = file.st_size

    monkeypatch.setattr(os, "fsync", note)
    somewhere = Experiment(id="1", name="", uid="", artifact_location="")
    with impatient(NOWHERE, tmp_path, tries=1) as tracking:
        for _ in range(2):
            tracking.submit(make_write(somewhere))
            (journal,) = journals(tmp_path)
            assert synced[journal.stat().st_ino] == journal.stat().st_size


def test_the_journal_of_a_living_process_is_left_alone(
    mlflow_url: str, tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    home = tmp_path / "other"
    write = make_write(experiment, attempt="attempt-NUMBER", artifacts={}).model_dump_json()
    with FaultProxy(mlflow_url) as proxy, proxy.away():
        with run_python(SUBMIT_AND_WAIT, proxy.url, str(home), write, "2") as child:
            assert child.stdout
            assert child.stdout.readline() == "submitted\n"
            with impatient(proxy.url, home) as other:
                assert other.deliver_left_over().left_in_journal == 0
            child.kill()
        with impatient(proxy.url, home, tries=2) as other:
            assert other.deliver_left_over().left_in_journal == 2
    assert len(journals(home)) == 1


def test_torn_and_damaged_lines_are_named_and_the_rest_is_delivered(
    tracking: Tracking, experiment: Experiment, settings: Settings
) -> None:
    away = Journal.create(journal_folder(tracking, settings.home), name="left", server=tracking.url)
    for n in range(3):
        write = make_write(experiment, attempt=f"attempt-{n}", artifacts={})
        away.append(Event(kind="write", write=prepare_write(write)), durable=True)
    lines = away.path.read_bytes().split(b"\n")
    lines[2] = lines[2].replace(b"complete", b"complEte")
    away.path.write_bytes(b"\n".join(lines) + lines[1][: len(lines[1]) // 2])
    away.close(finished=False)

    delivery = tracking.deliver_left_over()

    assert (delivery.delivered, delivery.left_in_journal) == (2, 0)
    damaged, torn = delivery.notes
    assert "line 3: damaged, set aside in" in damaged
    assert "line 5: torn" in torn
    (aside,) = (settings.home / "journal").rglob("damaged/left.jsonl")
    assert b"attempt-1" in aside.read_bytes()
    assert {run.tags["tipbench.attempt"] for run in tracking.read_runs(experiment)} == {
        "attempt-0",
        "attempt-2",
    }
    assert journals(settings.home) == []


def journal_folder(tracking: Tracking, home: Path) -> Path:
    """Where this server's journals are, seen from outside."""
    with impatient(tracking.url, home, tries=1) as probe:
        probe.submit(make_write(Experiment(id="no", name="", uid="", artifact_location=""), artifacts={}))
        probe.flush()
        (refused,) = (home / "journal").rglob("refused/*.json")
        return refused.parent.parent


def test_a_journal_of_a_newer_tipbench_is_refused(
    tracking: Tracking, experiment: Experiment, settings: Settings
) -> None:
    left = Journal.create(journal_folder(tracking, settings.home), name="left", server=tracking.url)
    left.append(Event(kind="write", write=make_write(experiment)), durable=True)
    newer = [
        json.loads(line) | {"schema": 999} for line in left.path.read_text(encoding="utf-8").splitlines()
    ]
    left.path.write_text("".join(json.dumps(line) + "\n" for line in newer), encoding="utf-8")
    left.close(finished=False)
    with pytest.raises(NewerSchema, match="schema 999"):
        tracking.deliver_left_over()
    tracking.close()
    assert len(journals(settings.home)) == 1, "it waits for the newer one"


def test_a_full_disk_is_told_before_a_write_counts_as_submitted(
    mlflow_url: str, tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    write = make_write(experiment, artifacts={}).model_dump_json()
    with run_python(FILL_THE_DISK, mlflow_url, str(tmp_path / "other"), write) as child:
        out, _ = child.communicate(timeout=PATIENCE_SECONDS)
    told, delivered = out.splitlines()
    assert "the journal cannot be written" in told
    assert "Nothing was submitted" in told
    assert delivered == "2"
    assert len(tracking.read_runs(experiment)) == 2


def test_what_is_left_for_an_experiment_that_is_now_another_one_is_refused(
    tracking: Tracking, experiment: Experiment, settings: Settings
) -> None:
    folder = journal_folder(tracking, settings.home)
    left = Journal.create(folder, name="left", server=tracking.url)
    other = experiment.model_copy(update={"name": "of a server that is gone"})
    left.append(Event(kind="write", write=make_write(other, artifacts={})), durable=True)
    left.close(finished=False)
    delivery = tracking.deliver_left_over()
    assert "not 'of a server that is gone'" in delivery.refused[0][1]
    assert tracking.search_runs([experiment.id]) == []


def test_only_one_of_two_processes_delivers_what_was_left(
    tracking: Tracking, experiment: Experiment, settings: Settings
) -> None:
    left = Journal.create(journal_folder(tracking, settings.home), name="left", server=tracking.url)
    for _ in range(10):
        left.append(Event(kind="write", write=make_write(experiment, artifacts={})), durable=True)
    left.close(finished=False)
    with open_tracking(settings) as one, open_tracking(settings) as two:
        delivered = [one.deliver_left_over().delivered, two.deliver_left_over().delivered]
    assert sorted(delivered) == [0, 10]
    assert len(tracking.read_runs(experiment)) == 10


def test_journals_that_are_finished_while_they_are_looked_for_disturb_nobody(tmp_path: Path) -> None:
    left = Journal.create(tmp_path, name="left", server="here")
    left.close(finished=False)
    # The folder lists it, and whoever opens it finds nothing: as one that is finished in between.
    (tmp_path / "finished.jsonl").symlink_to(tmp_path / "gone")
    assert left_over_journals(tmp_path) == [left.path]
    assert count_waiting_in(tmp_path) == {"here": 0}
