"""Calls `tipbench`, installed in an environment of its own, by argument list. It never outlives the task."""

from __future__ import annotations

import ctypes
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Collection, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import IO, Any

DONE, NO, UNDECIDED = 0, 3, 4
ANSWERS = (DONE, NO, UNDECIDED)
"""Exit codes of commands that answer a question: no and not yet are answers."""

POLITE = ((signal.SIGINT, 3.0), (signal.SIGTERM, 0.5))
"""How a command is ended, and how long each signal may take: Airflow itself waits five seconds."""
PR_SET_PDEATHSIG = 1
ENDED_BY_SIGTERM = 143


class TipbenchFailed(RuntimeError):
    """The command failed; its own words are in the log above."""


@dataclass(frozen=True)
class Answer:
    """How a command ended, and what it printed for machines."""

    code: int
    text: str

    def json(self) -> Any:
        """What it printed."""
        return json.loads(self.text)


def run_tipbench(*arguments: str, passing: Collection[int] = (DONE,)) -> Answer:
    """Runs the command; what it says to people goes into the log of the task, line by line.

    Raises:
        TipbenchFailed: it ended with a code that is not in `passing`.
    """
    for_machines = "--json" in arguments
    print("$", shlex.join(["tipbench", *arguments]), flush=True)
    with tempfile.TemporaryFile() as printed:
        running = _start(arguments, printed if for_machines else None)
        # Leaving `running` closes its pipes; it has ended by then.
        with running, _ended_with_task(running):
            for line in running.stderr or running.stdout or ():
                print(line.decode(errors="replace").rstrip(), flush=True)
            code = running.wait()
        printed.seek(0)
        text = printed.read().decode()
    if code not in passing:
        raise TipbenchFailed(f"tipbench {arguments[0]} ended with exit code {code}: see the lines above")
    return Answer(code, text)


def _start(arguments: Collection[str], printed: IO[bytes] | None) -> subprocess.Popen[bytes]:
    """The command; what it prints goes into the file, if there is one, and what it says into a pipe."""
    command = tipbench_command(arguments, os.environ)
    try:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=printed or subprocess.PIPE,
            stderr=subprocess.PIPE if printed else subprocess.STDOUT,
            env=tipbench_environment(os.environ),
            preexec_fn=_die_with_parent,  # noqa: PLW1509 - two system calls, nothing that a thread could hold
        )
    except OSError as error:
        raise TipbenchFailed(explain_start(command[0], error)) from error


def explain_start(program: str, error: OSError) -> str:
    """Why there is no such command, and what to do."""
    return (
        f"{program!r} cannot be started: {error.strerror}; set TIPBENCH_BIN in the environment of this part"
    )


def tipbench_command(arguments: Collection[str], environ: Mapping[str, str]) -> list[str]:
    """The command of tipbench's own environment with these arguments."""
    return [environ.get("TIPBENCH_BIN", "tipbench"), *arguments]


def tipbench_environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The environment without what belongs to Airflow: its secrets, its path of modules."""
    ours = {name: value for name, value in environ.items() if not name.startswith(("AIRFLOW_", "PYTHON"))}
    return ours | {"PYTHONUNBUFFERED": "1"}


@contextmanager
def _ended_with_task(running: subprocess.Popen[bytes]) -> Generator[None, None, None]:
    """The command is gone when this is left: by an error, a timeout, or because somebody ends the task.

    Airflow ends a task by SIGTERM to its process, and takes its group along only since 3.3.1.
    """

    def end(*_: object) -> None:
        _end(running)
        os._exit(ENDED_BY_SIGTERM)

    restore = _on_sigterm(end)
    # Should Airflow's worker be killed, this process hears of it, and takes the command along.
    _set_death_signal(signal.SIGTERM)
    try:
        yield
    finally:
        _end(running)
        restore()


def _on_sigterm(end: Callable[..., None]) -> Callable[[], object]:
    if threading.current_thread() is not threading.main_thread():
        return lambda: None
    before = signal.signal(signal.SIGTERM, end)
    return lambda: signal.signal(signal.SIGTERM, before)


def _end(running: subprocess.Popen[bytes]) -> None:
    for number, seconds in POLITE:
        if running.poll() is not None:
            return
        running.send_signal(number)
        try:
            running.wait(seconds)
        except subprocess.TimeoutExpired:
            continue
    running.kill()
    running.wait()


def _die_with_parent() -> None:
    # In the new process: whoever ignores Ctrl-C would pass that on, and it is what lets a model be unloaded.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    _set_death_signal(signal.SIGTERM)


def _set_death_signal(number: signal.Signals) -> None:
    """The kernel sends it to this process when its parent ends, however that ends. Linux only."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
