"""The process of one job: claims it, runs its steps one by one, and ends them when it is cancelled."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, BinaryIO, cast

from tipbench.errors import TipbenchError
from tipbench.files import make_folder, open_private, try_lock
from tipbench.jobs.orders import check_step
from tipbench.jobs.records import Job, Step
from tipbench.jobs.store import JobStore
from tipbench.processes import end_command
from tipbench.settings import Settings

LOOK_SECONDS = 0.3
POLITE = ((signal.SIGINT, 20.0), (signal.SIGTERM, 5.0))
"""Signals for a cancelled command, and how long each may take: the first lets it unload its model."""
BEGIN = 'read -r word && exec "$@" </dev/null'
"""Waits for a word on standard input and becomes the command; without one, it never begins."""
OUTCOMES = {
    ("compare", 0): "There is a winner.",
    ("compare", 3): "No winner: the first ones are too close to tell apart.",
    ("compare", 4): "No winner yet: more scores can make one.",
    ("judge", 3): "The automatic judge may not judge here: it is too far from the known scores.",
    ("judge", 4): "The automatic judge may spend no more. The rest waits.",
    ("agent", 3): "The agent's sitting does not count: it is too far from the known scores.",
    ("agent", 4): "The agent left something to judge.",
    ("improve", 0): "There is a better version.",
    ("improve", 3): "No better version was found.",
    ("improve", 4): "It needs scores before it can go on.",
}
"""What a last step and its exit code say to people."""


@dataclass(frozen=True)
class Worker:
    """Runs one job in this process. `command` is what `tipbench` is called as."""

    store: JobStore
    settings: Settings
    command: tuple[str, ...]

    def work(self, job_id: str) -> bool:
        """Runs the job to its end or to where it waits; False when it was somebody else's or not its turn."""
        path = self.store.lock_of(self.store.get(job_id).id)
        make_folder(path.parent)
        with os.fdopen(open_private(path), "ab") as lock:
            if not try_lock(lock.fileno()):
                return False
            job = self.store.claim(job_id)
            if job is None:
                return False
            # Whoever started the server with `&` made it deaf to this; our commands must hear it.
            signal.signal(signal.SIGINT, signal.default_int_handler)
            with _open_log(self.store.log_of(job_id)) as log:
                self._run_steps(job, log=log, lock=lock.fileno())
        return True

    def _run_steps(self, job: Job, *, log: BinaryIO, lock: int) -> None:
        code: int | None = None
        if job.message:
            _say(log, f"goes on: {job.message}")
        for step in job.steps[job.step :]:
            if step.waits:
                waits = self.store.wait(job.id) == "waiting"
                _say(log, "waits for scores; nothing runs meanwhile" if waits else "stopped")
                return
            try:
                check_step(step, self.settings)
                code = self._run(step, job_id=job.id, log=log, lock=lock)
            except TipbenchError as error:
                _say(log, f"{error.message}\n→ {error.hint}")
                self.store.finish(job.id, "failed", exit_code=None, message=error.message)
                return
            if self.store.get(job.id).cancel_ms is not None:
                _say(log, "stopped")
                self.store.finish(job.id, "cancelled", exit_code=code, message=f"stopped during {step.name}")
                return
            if code not in step.passing:
                message = f"{step.name} ended with exit code {code}: see the log"
                self.store.finish(job.id, "failed", exit_code=code, message=message)
                return
            self.store.advance(job.id)
        self.store.finish(
            job.id, "done", exit_code=code, message=OUTCOMES.get((job.steps[-1].name, code or 0), "")
        )

    def _run(self, step: Step, *, job_id: str, log: BinaryIO, lock: int) -> int:
        _say(log, f"$ tipbench {shlex.join(step.arguments)}")
        # The lock goes with the command: should this process be killed, the job is alive until it ends.
        running = subprocess.Popen(
            ["/bin/sh", "-c", BEGIN, "sh", *self.command, *step.arguments],
            stdin=subprocess.PIPE,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | self._environ,
            pass_fds=(lock,),
            process_group=0,
        )
        self.store.note_group(job_id, running.pid)
        # Only what others can find and end may begin: killed before this line, nothing runs.
        with suppress(BrokenPipeError), cast(IO[bytes], running.stdin) as begin:
            begin.write(b"begin\n")
        try:
            return self._wait(running, cancelled=lambda: self.store.get(job_id).cancel_ms is not None)
        finally:
            self.store.note_group(job_id, None)

    @property
    def _environ(self) -> dict[str, str]:
        """What a command of a job is told beside the settings: without a budget it may cost nothing."""
        return {
            "PYTHONUNBUFFERED": "1",
            "TIPBENCH_HOME": str(self.settings.home),
            "TIPBENCH_JUDGE_BUDGET": str(self.settings.judge_budget or 0.0),
        }

    def _wait(self, running: subprocess.Popen[bytes], *, cancelled: Callable[[], bool]) -> int:
        while True:
            with suppress(subprocess.TimeoutExpired):
                return running.wait(timeout=LOOK_SECONDS)
            if cancelled():
                return end_command(running, POLITE)


def own_command() -> tuple[str, ...]:
    """How this program is called from this environment."""
    return (sys.executable, "-m", "tipbench")


@contextmanager
def _open_log(path: Path) -> Generator[BinaryIO]:
    descriptor = open_private(path)
    with os.fdopen(descriptor, "ab", buffering=0) as log:
        yield log


def _say(log: BinaryIO, line: str) -> None:
    log.write(f"[{time.strftime('%Y-%m-%d %H:%M:%S UTC', time.gmtime())}] {line}\n".encode())
