"""Single keys from a terminal, and the signals about it. The terminal is given back whatever happens."""

import os
import select
import signal
import sys
import termios
import tty
from codecs import getincrementaldecoder
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Any

ESCAPE_SECONDS = 0.05
"""The rest of an arrow key comes at once; a lone Escape has no rest."""
NAMES = {
    "\r": "enter", "\n": "enter", "\x7f": "backspace", "\b": "backspace", "\x1b": "escape", "\x04": "end",
    "\x1b[A": "up", "\x1bOA": "up", "\x1b[B": "down", "\x1bOB": "down", "\x1b[5~": "up", "\x1b[6~": "down",
}  # fmt: skip
SIGNALS = {
    signal.SIGWINCH: "resize",
    signal.SIGTSTP: "suspend",
    signal.SIGCONT: "continue",
    signal.SIGTERM: "terminate",
    signal.SIGHUP: "hang up",
}
BY_NUMBER = {int(number): name for number, name in SIGNALS.items()}


def _leave_to_the_loop(_: int, __: FrameType | None) -> None:
    """The number arrives over the wake-up pipe, where a key can arrive too."""


class Keyboard:
    """A terminal that gives key by key. Use as a context."""

    def __init__(self, descriptor: int | None = None) -> None:
        self._descriptor = sys.stdin.fileno() if descriptor is None else descriptor
        self._decode = getincrementaldecoder("utf-8")("replace").decode
        self._typed: list[str] = []
        self._before: list[Any] = []
        self._handlers: dict[signal.Signals, Any] = {}
        self._old_wakeup = -1
        self._bell, self._alarm = os.pipe()

    def __enter__(self) -> "Keyboard":
        self._before = termios.tcgetattr(self._descriptor)
        os.set_blocking(self._alarm, False)
        os.set_blocking(self._bell, False)
        self._old_wakeup = signal.set_wakeup_fd(self._alarm, warn_on_full_buffer=False)
        self._handlers = {number: signal.signal(number, _leave_to_the_loop) for number in SIGNALS}
        self._take()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._give_back()
        signal.set_wakeup_fd(self._old_wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        os.close(self._bell)
        os.close(self._alarm)

    def wake(self) -> None:
        """Makes a waiting `read` return "wake"; from any thread."""
        os.write(self._alarm, b"\0")

    def read(self) -> str:
        """The next key or signal by its name, a character as itself; "hang up" when the terminal is gone."""
        while not self._typed:
            ready = select.select([self._descriptor, self._bell], [], [])[0]
            if self._bell in ready:
                self._typed += [BY_NUMBER.get(number, "wake") for number in os.read(self._bell, 1)]
            elif self._descriptor in ready:
                self._typed += self._read_keys()
        return self._typed.pop(0)

    def suspend(self, *, leave: Callable[[], None], come_back: Callable[[], None]) -> None:
        """Stops this process as Ctrl-Z does, with the terminal as it was, and goes on when told to."""
        leave()
        self._give_back()
        signal.signal(signal.SIGTSTP, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGTSTP)
        signal.signal(signal.SIGTSTP, _leave_to_the_loop)
        self._take()
        come_back()

    def take_again(self) -> None:
        """After somebody else stopped us: the shell had the terminal meanwhile."""
        self._take()

    def _take(self) -> None:
        # Not raw: Ctrl-C and Ctrl-Z stay what they are everywhere.
        tty.setcbreak(self._descriptor, termios.TCSADRAIN)

    def _give_back(self) -> None:
        try:
            termios.tcsetattr(self._descriptor, termios.TCSADRAIN, self._before)
        except termios.error:
            return  # The terminal is gone: there is nobody to give it back to.

    def _read_keys(self) -> list[str]:
        try:
            data = os.read(self._descriptor, 1024)
        except OSError:
            data = b""
        if not data:
            return ["hang up"]
        if data == b"\x1b" and select.select([self._descriptor], [], [], ESCAPE_SECONDS)[0]:
            data += os.read(self._descriptor, 16)
        return _name_keys(self._decode(data))


def _name_keys(text: str) -> list[str]:
    """Keys of what was typed; sequences that nobody knows are left out."""
    keys: list[str] = []
    while text:
        length = _sequence_length(text)
        piece, text = text[:length], text[length:]
        if piece in NAMES:
            keys.append(NAMES[piece])
        elif piece.isprintable():
            keys.append(piece)
    return keys


def _sequence_length(text: str) -> int:
    if not text.startswith(("\x1b[", "\x1bO")):
        return 1
    for place, char in enumerate(text[2:], start=3):
        if "@" <= char <= "~":
            return place
    return len(text)
