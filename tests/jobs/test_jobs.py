"""The queue, the worker and the dispatcher, with real processes."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.jobs.conftest import SCRIPT, AtOnce, Bench
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.clock import make_stamps
from tipbench.errors import TipbenchError, UsageError
from tipbench.jobs.dispatcher import Dispatcher, LocalProcess
from tipbench.jobs.records import SCHEMA, Step
from tipbench.jobs.store import (
    DIED,
    MAX_ALIVE,
    NewJob,
    RepeatedDifferently,
    TooManyJobs,
    open_jobs,
    read_piece,
    read_progress,
    read_tail,
)
from tipbench.settings import Settings

SLEEP = "import time; print('begun', flush=True); time.sleep(60)"


def in_background(bench: Bench, job_id: str, *, fault: str = "") -> subprocess.Popen[bytes]:
    """The worker as a process of its own."""
    program = (
        "import sys; from pathlib import Path; from tipbench.settings import Settings;"
        "from tipbench.clock import make_stamps; from tipbench.jobs.store import open_jobs;"
        f"from tipbench.jobs.worker import Worker; {fault}\n"
        "s = Settings(home=Path(sys.argv[1]));"
        "Worker(open_jobs(s, make_stamps()), s, tuple(sys.argv[3:])).work(sys.argv[2])"
    )
    return subprocess.Popen([sys.executable, "-c", program, str(bench.settings.home), job_id, *SCRIPT])


def test_a_job_runs_its_steps_in_order_and_keeps_what_they_print(bench: Bench) -> None:
    job = bench.add("print('one')", "print('two')")
    assert bench.work(job)
    found = bench.store.get(job.id)
    assert (found.state, found.step, found.exit_code) == ("done", 2, 0)
    printed = bench.printed(job)
    assert printed.index("one") < printed.index("two")
    assert bench.store.log_of(job.id).stat().st_mode & 0o777 == 0o600


def test_the_database_is_its_owners_alone(bench: Bench) -> None:
    bench.add("pass")
    files = [path for path in bench.settings.home.iterdir() if path.name.startswith("admin.db")]
    assert files
    assert all(path.stat().st_mode & 0o077 == 0 for path in files)


def test_a_step_that_fails_ends_the_job_and_says_which(bench: Bench) -> None:
    job = bench.add("print('one')", "raise SystemExit(7)", "print('never')")
    bench.work(job)
    found = bench.store.get(job.id)
    assert (found.state, found.exit_code) == ("failed", 7)
    assert "step 2 ended with exit code 7" in found.message
    assert "never" not in bench.printed(job)


@pytest.mark.parametrize(("budget", "told"), [(None, "0.0"), (2.5, "2.5")])
def test_a_command_of_a_job_spends_no_more_than_the_setting_says_and_else_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, budget: float | None, told: str
) -> None:
    monkeypatch.delenv("TIPBENCH_JUDGE_BUDGET", raising=False)
    settings = Settings(home=tmp_path, judge_budget=budget)
    bench = Bench(settings, open_jobs(settings, make_stamps()))
    job = bench.add("import os; print(os.environ['TIPBENCH_JUDGE_BUDGET'])")
    bench.work(job)
    assert told in bench.printed(job)


def test_an_exit_code_that_is_an_outcome_is_no_failure(bench: Bench) -> None:
    job = bench.add("raise SystemExit(4)", passing=(0, 3, 4))
    bench.work(job)
    assert bench.store.get(job.id).state == "done"


def test_a_waiting_job_has_no_process_and_no_place_in_the_queue(bench: Bench) -> None:
    waiting, other = bench.add("print('one')", "", "print('two')", kind="pipeline"), bench.add("print('x')")
    bench.work(waiting)
    assert bench.store.get(waiting.id).state == "waiting"
    assert not bench.store.is_alive(waiting.id)
    next_one = bench.store.next_queued()
    assert next_one is not None
    assert next_one.id == other.id
    assert bench.work(other)
    bench.store.resume(waiting.id, reason="nothing waits for a judge")
    assert bench.work(waiting)
    assert bench.store.get(waiting.id).state == "done"
    assert bench.printed(waiting).count("one") == 1


def test_the_dispatcher_wakes_a_job_when_judging_is_done(bench: Bench) -> None:
    job = bench.add("pass", "", "pass", kind="pipeline")
    judged = False
    seconds = [0.0]
    dispatcher = Dispatcher(
        bench.store,
        local=AtOnce(bench),
        find_end=lambda _: "judging was closed: enough" if judged else None,
        count_waiting=lambda _: 3,
        clock=lambda: seconds[0],
    )
    for _ in range(3):
        dispatcher.tick()
        seconds[0] += 20
    assert bench.store.get(job.id).state == "waiting"
    judged = True
    dispatcher.tick()
    queued = bench.store.get(job.id)
    assert (queued.state, queued.message) == ("queued", "judging was closed: enough")
    dispatcher.tick()
    assert bench.store.get(job.id).state == "done"
    assert "goes on: judging was closed: enough" in bench.store.log_of(job.id).read_text()


def test_one_job_runs_at_a_time_and_a_second_worker_of_it_does_nothing(bench: Bench) -> None:
    first, second = bench.add(SLEEP), bench.add("print('second')")
    process = in_background(bench, first.id)
    eventually(lambda: bench.store.get(first.id).state == "running")
    assert not bench.work(first), "somebody works on it"
    assert not bench.work(second), "it is not its turn"
    assert bench.store.next_queued() is None
    assert bench.store.get(second.id).state == "queued"
    bench.store.cancel(first.id)
    process.wait(30)
    assert bench.work(second)


def test_of_many_workers_at_once_exactly_one_runs_the_job(bench: Bench, tmp_path: Path) -> None:
    job = bench.add(f"open({str(tmp_path / 'ran')!r}, 'a').write('x')")
    # The signal handler is the main thread's to set: the workers are processes.
    processes = [in_background(bench, job.id) for _ in range(4)]
    outcomes = [process.wait(60) == 0 for process in processes]
    assert all(outcomes)
    assert (tmp_path / "ran").read_text() == "x"
    assert bench.store.get(job.id).state == "done"


def test_cancel_is_written_first_and_ends_everything_the_command_started(bench: Bench) -> None:
    # The command hears the interrupt; its child inherits deafness to it and would sleep on.
    program = (
        "import signal, subprocess, time;"
        "signal.signal(signal.SIGINT, signal.SIG_IGN);"
        f"child = subprocess.Popen(['sleep', '{2 * PATIENCE_SECONDS:g}']);"
        "signal.signal(signal.SIGINT, signal.default_int_handler);"
        "print('child', child.pid, flush=True); time.sleep(60)"
    )
    job = bench.add(program)
    process = in_background(bench, job.id)
    eventually(lambda: any(line.startswith("child ") for line in bench.printed(job)))
    (child,) = [int(line.split()[1]) for line in bench.printed(job) if line.startswith("child ")]
    assert bench.store.cancel(job.id).cancel_ms is not None
    process.wait(40)
    assert bench.store.get(job.id).state == "cancelled"
    eventually(lambda: not Path(f"/proc/{child}").exists() or _is_zombie(child))
    with pytest.raises(UsageError, match="has ended"):
        bench.store.cancel(job.id)


def _is_zombie(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] == "Z"
    except FileNotFoundError:
        return True


def test_a_cancelled_command_hears_the_interrupt_even_if_the_server_was_started_deaf(bench: Bench) -> None:
    program = (
        "import time\n"
        "try:\n print('begun', flush=True); time.sleep(60)\n"
        "except KeyboardInterrupt:\n print('unloaded', flush=True)"
    )
    job = bench.add(program)
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        process = in_background(bench, job.id)
    finally:
        signal.signal(signal.SIGINT, before)
    eventually(lambda: "begun" in bench.printed(job))
    bench.store.cancel(job.id)
    process.wait(40)
    assert "unloaded" in bench.printed(job)


def test_what_is_queued_or_waits_is_cancelled_at_once(bench: Bench) -> None:
    queued, waiting = bench.add("pass"), bench.add("pass", "")
    bench.work(waiting)
    assert bench.store.cancel(queued.id).state == "cancelled"
    assert bench.store.cancel(waiting.id).state == "cancelled"
    assert not bench.work(queued)


def test_what_is_cancelled_just_before_it_waits_ends(bench: Bench) -> None:
    job = bench.add("pass", "", "pass", kind="pipeline")
    with bench.store.database.change() as change:
        change.execute("UPDATE jobs SET state = 'running' WHERE id = ?", (job.id,))
    assert bench.store.cancel(job.id).state == "running", "its worker is to end it"
    bench.store.wait(job.id)
    assert bench.store.get(job.id).state == "cancelled"


def test_a_killed_worker_leaves_a_job_that_is_alive_until_its_command_ends(bench: Bench) -> None:
    job = bench.add(SLEEP)
    process = in_background(bench, job.id)
    eventually(lambda: "begun" in bench.printed(job))
    group = bench.store.get(job.id).group
    assert group is not None
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    assert bench.store.bury() == []
    assert bench.store.is_alive(job.id)
    os.killpg(group, signal.SIGKILL)
    eventually(lambda: not bench.store.is_alive(job.id))
    assert bench.store.bury() == [job.id]
    found = bench.store.get(job.id)
    assert (found.state, found.message) == ("failed", DIED)


def test_a_worker_killed_before_its_command_can_be_found_leaves_no_command(bench: Bench) -> None:
    job = bench.add(SLEEP)
    fault = "import os; from tipbench.jobs.store import JobStore; JobStore.note_group = lambda *_: os.abort()"
    in_background(bench, job.id, fault=fault).wait(30)
    eventually(lambda: not bench.store.is_alive(job.id))
    assert "begun" not in bench.printed(job)
    assert bench.store.bury() == [job.id]


def test_a_cancelled_job_without_a_worker_is_ended_by_the_dispatcher(bench: Bench) -> None:
    job = bench.add(SLEEP)
    process = in_background(bench, job.id)
    eventually(lambda: "begun" in bench.printed(job))
    process.send_signal(signal.SIGKILL)
    process.wait(10)
    bench.store.cancel(job.id)
    with bench.store.database.change() as change:
        change.execute("UPDATE jobs SET cancel_ms = cancel_ms - 60000")
    local = LocalProcess(bench.store, SCRIPT, home=bench.settings.home)
    dispatcher = Dispatcher(bench.store, local=local, find_end=lambda _: None, count_waiting=lambda _: 0)
    dispatcher.tick()
    eventually(lambda: not bench.store.is_alive(job.id))
    dispatcher.tick()
    assert bench.store.get(job.id).state == "cancelled"


def test_jobs_survive_a_restart_of_everything(open_bench: Callable[[], Bench]) -> None:
    first = open_bench()
    job = first.add("print('late')")
    second = open_bench()
    found = second.store.next_queued()
    assert found is not None
    assert found.id == job.id
    assert second.work(found)


def test_the_same_key_gives_the_same_job_and_another_request_is_refused(bench: Bench) -> None:
    def new(request: str, by: str = "anna") -> NewJob:
        steps = (Step(name="s", arguments=("pass",)),)
        job_id = make_stamps().new_id()
        return NewJob("collect", "e", by, steps, job_id, repeat_key="k", request=request)

    first = bench.store.add(new("a"))
    assert bench.store.add(new("a")).id == first.id
    assert bench.store.add(new("a", by="ben")).id != first.id
    with pytest.raises(RepeatedDifferently):
        bench.store.add(new("b"))


def test_the_queue_takes_no_more_than_it_bears(bench: Bench) -> None:
    jobs = [bench.add("pass") for _ in range(MAX_ALIVE)]
    with pytest.raises(TooManyJobs, match="200 jobs are queued, running or waiting"):
        bench.add("pass")
    bench.store.cancel(jobs[7].id)
    assert bench.add("pass").state == "queued"


def test_jobs_and_events_that_are_long_over_are_forgotten_with_their_folders(tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, webhook_urls="http://127.0.0.1:9", webhook_secret="x" * 16)
    bench = Bench(settings, open_jobs(settings, make_stamps()))
    old, young, queued = bench.add("pass"), bench.add("pass"), bench.add("pass")
    for job in (old, young):
        bench.work(job)
    bench.store.tell_wait(old, 3)
    with bench.store.database.change() as change:
        change.execute("UPDATE jobs SET ended_ms = 1 WHERE id = ?", (old.id,))
        change.execute("UPDATE deliveries SET at_ms = 1 WHERE body LIKE ?", (f"%{old.id}%",))
    Dispatcher(bench.store, local=AtOnce(bench), find_end=lambda _: None, count_waiting=lambda _: 0).tick()
    assert {job.id for job in bench.store.list_jobs()} == {young.id, queued.id}
    assert {path.name for path in bench.store.folder.iterdir() if path.is_dir()} == {young.id, queued.id}
    with bench.store.database.read() as view:
        events = view.execute("SELECT body FROM deliveries").fetchall()
    assert all(old.id not in row["body"] for row in events)
    assert any(young.id in row["body"] for row in events)


def test_a_database_of_a_newer_tipbench_is_refused_and_left_alone(bench: Bench) -> None:
    with bench.store.database.change() as change:
        change.execute(f"PRAGMA user_version = {SCHEMA + 1}")
    with pytest.raises(TipbenchError, match="written by a newer tipbench"):
        open_jobs(bench.settings, make_stamps())
    assert sqlite3.connect(bench.store.database.path).execute("PRAGMA user_version").fetchone() == (
        SCHEMA + 1,
    )


def test_of_many_requests_at_once_with_one_key_there_is_one_job(bench: Bench) -> None:
    found: list[str] = []

    def add() -> None:
        steps = (Step(name="s", arguments=("pass",)),)
        new = NewJob("collect", "e", "anna", steps, make_stamps().new_id(), repeat_key="k", request="r")
        found.append(bench.store.add(new).id)

    threads = [threading.Thread(target=add) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1
    assert len(bench.store.list_jobs()) == 1


def test_a_log_is_read_in_whole_lines_and_inert(tmp_path: Path) -> None:
    path = tmp_path / "log.txt"
    path.write_bytes(b"one\n\x1b[31mred\n[3/12] m\nhal")
    piece = read_piece(path, 0)
    assert piece.text == "one\n␛[31mred\n[3/12] m\n"
    assert read_piece(path, piece.end).text == ""
    with path.open("ab") as file:
        file.write(b"f\n")
    assert read_piece(path, piece.end).text == "half\n"
    progress = read_progress(path)
    assert progress is not None
    assert (progress.done, progress.of) == (3, 12)
    assert read_tail(path).text.endswith("half\n")
    assert read_piece(tmp_path / "none", 0).text == ""
