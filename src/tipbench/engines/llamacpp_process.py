"""The engine's side of a child process that holds one model."""

import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from typing import IO

from tipbench.errors import EngineUnavailable
from tipbench.records import Record

CHILD = "tipbench.engines.llamacpp_child"
END_SECONDS = 10.0
TAIL_BYTES = 4000
TAIL_LINES = 8
AGAIN = "Run the same command again: what is finished is kept."
DEATHS = {
    signal.SIGKILL: "killed by somebody, or by the kernel because memory ran out",
    signal.SIGBUS: "the model file changed while it was loaded",
    signal.SIGILL: "this processor lacks an instruction that llama.cpp was built with",
}


class ModelProcess:
    """A running child. Every request gets one reply, or the child is gone."""

    def __init__(
        self,
        process: "subprocess.Popen[bytes]",
        *,
        connection: socket.socket,
        replies: IO[bytes],
        log: IO[bytes],
    ) -> None:
        self._process = process
        self._connection = connection
        self._replies = replies
        self._log = log

    @property
    def pid(self) -> int:
        """The child's process id."""
        return self._process.pid

    def ask(self, request: Record, *, timeout_seconds: float) -> bytes:
        """The reply, one line of JSON.

        Raises:
            EngineUnavailable: the child ended, or did not reply in time and was ended.
        """
        self._connection.settimeout(timeout_seconds)
        try:
            self._connection.sendall(request.model_dump_json().encode() + b"\n")
            reply = self._replies.readline()
        except TimeoutError as error:
            self._process.kill()
            self._process.wait()
            raise EngineUnavailable(
                f"no reply within {timeout_seconds:g} s; the model was unloaded",
                hint="Is the machine overloaded? Ask for fewer tokens or use a smaller model. " + AGAIN,
            ) from error
        except (BrokenPipeError, ConnectionResetError):
            reply = b""
        if not reply.endswith(b"\n"):
            raise EngineUnavailable(self._describe_end(), hint=AGAIN)
        return reply

    def _describe_end(self) -> str:
        code = self._process.wait()
        if code >= 0:
            what = f"exit code {code}"
        else:
            death = signal.Signals(-code)
            what = f"{death.name}: {DEATHS.get(death, 'a crash')}"
        tail = self._log_tail()
        return f"its process ended ({what})" + (f"; its last words:\n{tail}" if tail else "")

    def _log_tail(self) -> str:
        end = self._log.seek(0, os.SEEK_END)
        self._log.seek(max(0, end - TAIL_BYTES))
        lines = self._log.read().decode(errors="replace").splitlines()
        return "\n".join(f"  {line}" for line in lines[-TAIL_LINES:])


@contextmanager
def start_model_process(*, lock: int) -> Generator[ModelProcess]:
    """A child that keeps the lock's descriptor as long as it lives; at the end it is gone for certain."""
    with ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile())
        ours, theirs = socket.socketpair()
        stack.enter_context(ours)
        stack.enter_context(theirs)
        replies = stack.enter_context(ours.makefile("rb"))
        read_end, write_end = os.pipe()
        stack.enter_context(open(read_end, "rb", buffering=0))  # noqa: PTH123
        lifeline = stack.enter_context(open(write_end, "wb", buffering=0))  # noqa: PTH123
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", CHILD, str(theirs.fileno())],
            stdin=read_end,
            stdout=log,
            stderr=log,
            pass_fds=(theirs.fileno(), lock),
            # Ctrl-C goes to the whole process group: the child is ours to end, not the terminal's.
            start_new_session=True,
        )
        try:
            theirs.close()
            yield ModelProcess(process, connection=ours, replies=replies, log=log)
        finally:
            lifeline.close()
            _wait_for_end(process)


def _wait_for_end(process: "subprocess.Popen[bytes]") -> None:
    try:
        process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
