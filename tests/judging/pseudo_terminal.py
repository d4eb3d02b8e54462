"""A command at a real pseudo-terminal: keys in, a screen out."""

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import sys
import termios
import time
from collections.abc import Callable

COMMAND = (sys.executable, "-m", "tipbench")
# The shell's part of job control: the command in a group of its own, which has the terminal.
SHELL = """
import os, signal, subprocess, sys
signal.signal(signal.SIGTTOU, signal.SIG_IGN)
child = subprocess.Popen(sys.argv[1:], process_group=0)
os.tcsetpgrp(0, child.pid)
pid, status = os.waitpid(child.pid, os.WUNTRACED)
while os.WIFSTOPPED(status):
    os.tcsetpgrp(0, os.getpgrp())
    print("STOPPED", flush=True)
    sys.stdin.readline()
    os.tcsetpgrp(0, child.pid)
    os.kill(child.pid, signal.SIGCONT)
    pid, status = os.waitpid(child.pid, os.WUNTRACED)
sys.exit(os.waitstatus_to_exitcode(status))
"""
_PIECE = re.compile(r"\x1b\[(?P<row>\d+);1H|\x1b\[\?(?P<mode>\d+)(?P<set>[hl])|\x1b\[[\d;]*[A-Za-z]|[^\x1b]+")


class PseudoTerminal:
    """A child at a pseudo-terminal. `output` is everything it wrote."""

    def __init__(
        self, *arguments: str, columns: int = 80, lines: int = 24, under_shell: bool = False, **environ: str
    ) -> None:
        command = [*COMMAND, *arguments]
        if under_shell:
            command = [sys.executable, "-c", SHELL, *command]
        keep = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        environ = keep | {"TERM": "xterm-256color", "PYTHONPATH": os.pathsep.join(sys.path)} | environ
        self.output = ""
        self.pid, self._master = pty.fork()
        if self.pid == 0:
            with contextlib.suppress(OSError):
                os.execvpe(command[0], command, environ)
            os._exit(127)
        self.resize(columns, lines)
        self.attributes = termios.tcgetattr(self._master)
        self.code: int | None = None

    def resize(self, columns: int, lines: int) -> None:
        """Another size of the window; the kernel tells the child."""
        self._lines = lines
        fcntl.ioctl(self._master, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))

    def send(self, keys: str) -> None:
        os.write(self._master, keys.encode())

    def signal(self, number: int) -> None:
        os.kill(self.pid, number)

    @property
    def rows(self) -> dict[int, str]:
        """What stands on the screen, by row."""
        rows: dict[int, str] = {}
        at = 0
        for piece in _PIECE.finditer(self.output):
            if piece["row"]:
                at = int(piece["row"])
                rows[at] = ""
            elif piece["mode"] == "1049":
                rows = {}
            elif not piece[0].startswith("\x1b") and at in rows:
                rows[at] += piece[0].rstrip("\r\n")
        return rows

    @property
    def screen(self) -> str:
        rows = self.rows
        return "\n".join(rows[row].rstrip() for row in sorted(rows))

    @property
    def on_alternate_screen(self) -> bool:
        return self.output.rfind("\x1b[?1049h") > self.output.rfind("\x1b[?1049l")

    def in_order(self) -> bool:
        """Whether the terminal is as it was: its mode, its screen, its cursor."""
        shown = self.output.rfind("\x1b[?25h") > self.output.rfind("\x1b[?25l")
        return termios.tcgetattr(self._master) == self.attributes and not self.on_alternate_screen and shown

    def wait_for(self, text: str, *, seconds: float = 120) -> str:
        """The screen once the text stands there."""
        self._read_until(lambda: self._whole() and text in self.screen, text, seconds)
        return self.screen

    def _whole(self) -> bool:
        """Whether the last line was drawn too, and nothing more comes."""
        rows = re.findall(r"\x1b\[(\d+);1H(?=.)", self.output[-4_096:])
        drawn = bool(rows) and int(rows[-1]) == self._lines
        return drawn and not select.select([self._master], [], [], 0.05)[0]

    def wait_for_output(self, text: str, *, seconds: float = 120) -> None:
        """Returns once the text was written, on the screen or below it."""
        self._read_until(lambda: text in self.output, text, seconds)

    def settle(self) -> None:
        """Reads what comes within a moment."""
        with contextlib.suppress(TimeoutError):
            self._read_until(lambda: False, "", 0.5)

    def end(self) -> int:
        """The exit code, once it ends."""
        self._read_until(self._ended, "the end", 120)
        assert self.code is not None
        return self.code

    def hang_up(self) -> int:
        """The window is closed; the exit code of the child."""
        os.close(self._master)
        self._master = -1
        self.code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.code

    def close(self) -> None:
        """Whatever is left of it."""
        if not self._ended():
            self.signal(signal.SIGKILL)
            self.end()
        if self._master >= 0:
            os.close(self._master)

    def _ended(self) -> bool:
        if self.code is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self._read_rest()
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is not None

    def _read_rest(self) -> None:
        while select.select([self._master], [], [], 0.2)[0] and self._read():
            pass

    def _read(self) -> bool:
        try:
            data = os.read(self._master, 65_536)
        except OSError:
            return False
        self.output += data.decode(errors="replace")
        return bool(data)

    def _read_until(self, is_true: Callable[[], bool], what: str, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not is_true():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{what!r} did not come:\n{self.screen}\n{self.output[-2_000:]!r}")
            if select.select([self._master], [], [], 0.1)[0] and not self._read() and not self._ended():
                time.sleep(0.05)
