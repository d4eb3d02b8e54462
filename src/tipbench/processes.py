"""Processes that we start: children that end with us, others that outlive us, and how politely they end.

As a program, `python -m tipbench.processes COMMAND…` runs a command in a process group of its own and ends
the whole group when its standard input closes, that is when whoever started it is done or gone. With
`--stdin=DESCRIPTOR` before it, the command reads from there.
"""

import fcntl
import os
import select
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Self, cast

MODULE = "tipbench.processes"
LIFELINE = 0
TAIL_BYTES = 4_000
LONGEST_LINE_BYTES = 64_000
LONGEST_ANSWER_BYTES = 64_000
STDIN = "--stdin="
LOOK_SECONDS = 0.1
TERMINATE = ((signal.SIGTERM, 15.0),)
"""For a server that unloads its models when it is asked to end."""

Process = subprocess.Popen[bytes]


class Child:
    """A module of ours, run in a session of its own, that ends when its standard input closes.

    That is a pipe on which nothing is ever written, its lifeline: it closes when we let go of it, or die.
    The child inherits the descriptors that it `keeps`. At the end of the `with` it is gone, unless it
    `may_outlive` us because it has still work to do. What it prints is kept, or if it is `piped` followed.
    """

    def __init__(
        self,
        module: str,
        *arguments: str,
        keeps: Sequence[int] = (),
        environment: Mapping[str, str] | None = None,
        patience_seconds: float | None = None,
        may_outlive: bool = False,
        piped: bool = False,
    ) -> None:
        self._patience_seconds = patience_seconds
        self._may_outlive = may_outlive
        self._log = tempfile.TemporaryFile()  # noqa: SIM115
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE if piped else self._log,
            stderr=subprocess.STDOUT,
            pass_fds=tuple(keeps),
            # Ctrl-C goes to the whole process group: the child is ours to end, not the terminal's.
            start_new_session=True,
        )
        self.pid = self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self.end(0.0 if self._may_outlive else self._patience_seconds) is None:
            if self._may_outlive:
                _reap(self._process)
            else:
                self.kill()
        self._log.close()
        if self._process.stdout:
            self._process.stdout.close()

    def is_running(self) -> bool:
        return self._process.poll() is None

    def end(self, seconds: float | None) -> int | None:
        """Lets go of the lifeline and waits; gives the exit code, or None if it is still there."""
        if self._process.stdin:
            self._process.stdin.close()
        with suppress(subprocess.TimeoutExpired):
            return self._process.wait(seconds)
        return None

    def wait(self) -> int:
        """Its exit code, when it has ended; negative is the signal that ended it."""
        return self._process.wait()

    def follow(self, tell: Callable[[str], None], *, seconds: float) -> bool:
        """Tells each line that it prints as it comes, until it ends; False if the time is up before that."""
        pipe = cast(IO[bytes], self._process.stdout).fileno()
        until = time.monotonic() + seconds
        said = b""
        in_time = True
        while in_time:
            was_running = self.is_running()
            if select.select([pipe], [], [], LOOK_SECONDS if was_running else 0)[0]:
                if not (more := os.read(pipe, TAIL_BYTES)):
                    break
                *lines, said = (said + more).split(b"\n")
                if len(said) > LONGEST_LINE_BYTES:
                    lines, said = [*lines, said], b""
                for line in lines:
                    tell(line.decode(errors="replace"))
            elif not was_running:
                # What it started may hold the pipe open for ever.
                break
            in_time = time.monotonic() < until or not self.is_running()
        if said:
            tell(said.decode(errors="replace"))
        return in_time

    def kill(self) -> None:
        self._process.kill()
        self._process.wait()

    def last_lines(self, count: int) -> list[str]:
        """What it said last."""
        self._log.seek(max(0, self._log.seek(0, os.SEEK_END) - TAIL_BYTES))
        return self._log.read().decode(errors="replace").strip().splitlines()[-count:]


@dataclass(frozen=True)
class CommandAnswer:
    """What a command wrote, and its exit code; None when it was ended, for its time or its output."""

    code: int | None
    output: bytes
    errors: str

    @property
    def too_long(self) -> bool:
        return len(self.output) > LONGEST_ANSWER_BYTES


def ask_command(
    words: Sequence[str], question: bytes, *, environment: Mapping[str, str], folder: Path, seconds: float
) -> CommandAnswer:
    """Runs a command that reads `question` and answers; nothing of it is left running.

    It is ended when its time is up or it has written more than an answer may be. Of what it says on standard
    error the end is kept.
    """
    with tempfile.TemporaryFile() as asked:
        asked.write(question)
        asked.seek(0)
        guard = subprocess.Popen(
            [sys.executable, "-P", "-m", MODULE, f"{STDIN}{asked.fileno()}", *words],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            pass_fds=(asked.fileno(),),
            start_new_session=True,
        )
    try:
        return _hear_out(guard, until=time.monotonic() + seconds)
    finally:
        for stream in filter(None, (guard.stdin, guard.stdout, guard.stderr)):
            stream.close()
        guard.wait()


def _hear_out(guard: Process, *, until: float) -> CommandAnswer:
    answers, complaints = (cast(IO[bytes], stream).fileno() for stream in (guard.stdout, guard.stderr))
    said = {answers: b"", complaints: b""}
    open_pipes = [answers, complaints]
    while open_pipes and time.monotonic() < until and len(said[answers]) <= LONGEST_ANSWER_BYTES:
        was_running = guard.poll() is None
        ready = select.select(open_pipes, [], [], LOOK_SECONDS if was_running else 0)[0]
        if not ready and not was_running:
            # What it started may hold the pipes open for ever.
            break
        for pipe in ready:
            more = os.read(pipe, TAIL_BYTES)
            if not more:
                open_pipes.remove(pipe)
            said[pipe] += more
        said[complaints] = said[complaints][-TAIL_BYTES:]
    code = None
    if len(said[answers]) <= LONGEST_ANSWER_BYTES:
        with suppress(subprocess.TimeoutExpired):
            code = guard.wait(max(0.0, until - time.monotonic()))
    return CommandAnswer(code, said[answers], said[complaints].decode(errors="replace"))


def end_with_parent() -> None:
    """From now on the end of the lifeline ends this process, even while C code holds the interpreter."""
    signal.signal(signal.SIGIO, signal.SIG_DFL)
    fcntl.fcntl(LIFELINE, fcntl.F_SETOWN, os.getpid())
    fcntl.fcntl(LIFELINE, fcntl.F_SETFL, fcntl.fcntl(LIFELINE, fcntl.F_GETFL) | os.O_ASYNC)
    if select.select([LIFELINE], [], [], 0)[0]:
        sys.exit("the parent was gone before its child began")


def start_detached(
    command: Sequence[str],
    *,
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    log: IO[bytes] | None = None,
    keeps: Sequence[int] = (),
    umask: int = -1,
) -> int:
    """Starts a command that outlives us and leads a group of its own; gives its process id.

    Without a `log`, what it prints is dropped and its errors are shown where ours are.
    Without a `umask` it has ours.
    """
    process = subprocess.Popen(
        command,
        cwd=folder,
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=log or subprocess.DEVNULL,
        stderr=log,
        start_new_session=True,
        pass_fds=tuple(keeps),
        umask=umask,
    )
    _reap(process)
    return process.pid


def _reap(process: Process) -> None:
    """Somebody takes note of its end if it ends before us, so that it does not linger as a zombie."""
    threading.Thread(target=process.wait, name="tipbench-reaper", daemon=True).start()


def signal_group(group: int, number: signal.Signals) -> None:
    """Sends a signal to every process of the group, if there are any."""
    with suppress(ProcessLookupError):
        os.killpg(group, number)


def end_command(process: Process, politely: Sequence[tuple[signal.Signals, float]]) -> int:
    """Ends a command that leads a group, with everything it started; gives its exit code.

    `politely` are the signals it is sent before it is killed, and how many seconds each may take.
    """
    for number, seconds in politely:
        signal_group(process.pid, number)
        with suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
            break
    # What it started and left behind goes too; the group lives as long as one of them does.
    signal_group(process.pid, signal.SIGKILL)
    return process.wait()


def free_port() -> int:
    """A port of this machine that nobody listens on, for a server that has to be told one."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    """Runs the command until it ends by itself or nobody needs it any more."""
    words, source = sys.argv[1:], subprocess.DEVNULL
    if words[0].startswith(STDIN):
        source = int(words.pop(0).removeprefix(STDIN))
    try:
        process = subprocess.Popen(words, stdin=source, start_new_session=True)
    except OSError as error:
        sys.exit(f"{words[0]!r} cannot be run: {error.strerror}")
    while process.poll() is None:
        if select.select([LIFELINE], [], [], LOOK_SECONDS)[0]:
            break
    sys.exit(end_command(process, TERMINATE))


if __name__ == "__main__":
    main()
