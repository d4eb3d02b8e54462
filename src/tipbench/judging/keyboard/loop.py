"""Judging at the keyboard: one tip at a time, blind. Every complete answer is stored at once."""

import os
import select
import signal
import sys
import termios
import tty
from codecs import getincrementaldecoder
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Lock
from types import FrameType, TracebackType
from typing import Any

from tipbench.bench.sittings import Answer
from tipbench.errors import TipbenchError, TrackingUnavailable, UsageError
from tipbench.judging.keyboard.screen import HELP, Draft, KeyboardSitting, Screen, ShownItem
from tipbench.judging.service import Judging
from tipbench.judging.sheet import LiveSitting

# Single keys from a terminal, and the signals about it. The terminal is given back whatever happens.


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
        self.take()
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
        self.take()
        come_back()

    def take(self) -> None:
        """Takes the terminal; also after somebody else stopped us: the shell had it meanwhile."""
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


# Answers are stored in the background, one submission at a time: no key waits for the server.


class Storing:
    """What of a live sitting is stored, and what is on its way."""

    def __init__(self, judging: Judging, sitting: LiveSitting, *, wake: Callable[[], None]) -> None:
        self._judging, self._sitting, self._wake = judging, sitting, wake
        self._lock = Lock()
        self._waiting: dict[str, Answer] = {}
        self._stored: dict[str, Answer] = dict(sitting.answers)
        self._worker = ThreadPoolExecutor(max_workers=1)
        self._failure: Exception | None = None
        self.trouble: TrackingUnavailable | None = None
        """Why answers still wait; the next answer and the end try again."""

    @property
    def stored(self) -> int:
        """Items whose last answer is in the store."""
        with self._lock:
            return len(self._stored.keys() - self._waiting.keys())

    @property
    def waiting(self) -> int:
        """Items whose last answer is on its way."""
        with self._lock:
            return len(self._waiting)

    def put(self, item_id: str, answer: Answer) -> None:
        """Sends an answer on its way."""
        with self._lock:
            self._waiting[item_id] = answer
        self._worker.submit(self._run)

    def check(self) -> None:
        """Says what went wrong for good.

        Raises:
            TipbenchError: the sitting takes no more answers.
        """
        if self._failure is not None:
            raise self._failure

    def finish(self) -> None:
        """Waits until everything is stored, and tries once more what could not be.

        Raises:
            TipbenchError: some answers could not be stored; says how many.
        """
        try:
            if self._worker.submit(lambda: bool(self._waiting)).result():
                self._worker.submit(self._run).result()
            self.check()
            if self.trouble is not None:
                raise self.trouble
        except TipbenchError as error:
            raise TipbenchError(
                f"{self.waiting} answers were not stored: {error.message}", hint=error.hint
            ) from error
        finally:
            self._worker.shutdown()

    def _run(self) -> None:
        try:
            while batch := self._batch():
                seen = self._judging.submit(
                    self._sitting.token, batch, experiment=self._sitting.experiment, keep_open=True
                )
                self._settle(batch, seen.answers)
                self.trouble = None
                self._wake()
        except TrackingUnavailable as error:
            self.trouble = error
        except Exception as error:
            self._failure = error
            raise
        finally:
            self._wake()

    def _batch(self) -> dict[str, Answer]:
        with self._lock:
            return dict(self._waiting)

    def _settle(self, batch: Mapping[str, Answer], stored: Mapping[str, Answer]) -> None:
        with self._lock:
            self._stored = dict(stored)
            for item_id, answer in batch.items():
                # Changed again while it was on its way: the newer one still waits.
                if self._waiting.get(item_id) == answer:
                    del self._waiting[item_id]


COMMENT_LENGTH = 1_000
STOPS = {"terminate": 128 + 15, "hang up": 128 + 1}
"""Signals that end it, with the exit code that says so."""


@dataclass(frozen=True)
class LeftSitting:
    """How a judge left: `sitting` as it is then, `stored` items of it, `exit_code` after a signal."""

    sitting: LiveSitting
    stored: int
    exit_code: int = 0


class _Leave(Exception):
    """The judge leaves; not an error."""

    def __init__(self, exit_code: int = 0) -> None:
        super().__init__()
        self.exit_code = exit_code


def judge_at_keyboard(judging: Judging, sitting: LiveSitting, *, screen: Screen) -> LeftSitting:
    """Lets the judge work until everything is judged and handed in, or they leave.

    Raises:
        UsageError: the rubric cannot be judged with single keys.
        TipbenchError: some answers could not be stored; says how many.
    """
    check_scales(sitting)
    exit_code, done = 0, False
    with Keyboard() as keyboard:
        storing = Storing(judging, sitting, wake=keyboard.wake)
        screen.enter()
        try:
            _KeyLoop(sitting, keyboard, screen, storing).work()
            done = True
        except (_Leave, KeyboardInterrupt) as left:
            exit_code = left.exit_code if isinstance(left, _Leave) else 0
        finally:
            try:
                storing.finish()
            finally:
                screen.leave()
    look = judging.close if done else judging.look
    return LeftSitting(look(sitting.token, experiment=sitting.experiment), storing.stored, exit_code)


def check_scales(sitting: LiveSitting) -> None:
    """One key is one score.

    Raises:
        UsageError: a scale goes beyond the digits.
    """
    for name, (minimum, maximum) in sitting.rubric.scales.items():
        if minimum < 0 or maximum > 9:
            raise UsageError(
                f"the scale {name!r} goes from {minimum} to {maximum}: no single key gives such a score",
                hint=f"Judge by file: tipbench judge --experiment {sitting.experiment!r} --export FILE",
            )


class _KeyLoop:
    """The loop: draw, read a key, act."""

    def __init__(self, sitting: LiveSitting, keyboard: Keyboard, screen: Screen, storing: Storing) -> None:
        self._sitting, self._keyboard, self._screen, self._storing = sitting, keyboard, screen, storing
        self._seat = KeyboardSitting(sitting)
        self._scenarios = {scenario.label: scenario for scenario in sitting.section.scenarios}
        self._message, self._typed, self._scroll = "", "", 0
        self._actions: dict[str, Callable[[Draft], None]] = {
            "f": self._change_flag,
            "u": lambda _: self._undo(),
            "s": self._skip,
            "c": self._comment,
            "r": lambda _: self._read_page(self._sitting.rubric.text),
            "?": lambda _: self._read_page(HELP),
            "up": lambda _: self._move(-1),
            "down": lambda _: self._move(1),
            " ": lambda _: self._move(3),
        }

    def work(self) -> None:
        """Returns when everything is judged and the judge handed it in.

        Raises:
            _Leave: they left before.
            TipbenchError: the sitting takes no more answers.
        """
        while True:
            draft = self._seat.draft
            key = self._ask(self._draw)
            if draft is None:
                if key == "enter":
                    return
                if key == "u":
                    self._undo()
            elif key.isdecimal():
                self._score(draft, int(key))
            elif key in self._actions:
                self._message = ""
                self._actions[key](draft)

    def _ask(self, draw: Callable[[], None]) -> str:
        """Draws, and the next key that is not about the terminal itself; `q` leaves wherever one is."""
        while True:
            self._storing.check()
            key = self._show_and_read(draw)
            if key in STOPS:
                raise _Leave(STOPS[key])
            if key in {"q", "end"} and draw != self._draw_comment:
                raise _Leave
            if key == "suspend":
                self._keyboard.suspend(leave=self._screen.leave, come_back=self._screen.enter)
            elif key == "continue":
                self._keyboard.take()
                self._screen.enter()
            elif key not in {"wake", "resize"}:
                return key

    def _show_and_read(self, draw: Callable[[], None]) -> str:
        try:
            draw()
        except OSError:
            return "hang up"  # The terminal is gone.
        return self._keyboard.read()

    def _draw(self) -> None:
        draft = self._seat.draft
        if draft is None:
            text = f"All {self._seat.total} are judged, {self._shown().stored} stored.\n"
            self._screen.show_page(text, scroll=0, last="Enter hand in · u change the last one · q leave")
            return
        self._screen.show_item(
            draft,
            scenario=self._scenarios[draft.item.scenario],
            rubric=self._sitting.rubric,
            shown=self._shown(),
            scroll=self._scroll,
        )

    def _shown(self) -> ShownItem:
        message = self._message
        if not message and self._storing.trouble is not None:
            message = f"not stored yet, your next answer tries again: {self._storing.trouble.message}"
        return ShownItem(
            place=self._seat.place,
            total=self._seat.total,
            stored=self._storing.stored,
            waiting=self._storing.waiting,
            judged_by=self._sitting.judged_by,
            changes=self._seat.changes,
            message=message,
        )

    def _score(self, draft: Draft, score: int) -> None:
        scale = draft.next_scale or ""
        minimum, maximum = self._sitting.rubric.scales[scale]
        self._message = ""
        if not minimum <= score <= maximum:
            self._message = f"{scale} goes from {minimum} to {maximum}"
            return
        complete = self._seat.give(score)
        if complete is not None:
            self._scroll = 0
            self._storing.put(*complete)

    def _undo(self) -> None:
        self._message = "" if self._seat.undo() else "there is nothing to undo"
        self._scroll = 0

    def _skip(self, _: Draft) -> None:
        self._message = "" if self._seat.skip() else "this is the last one"
        self._scroll = 0

    def _move(self, by: int) -> None:
        self._scroll = max(0, self._scroll + by)

    def _change_flag(self, draft: Draft) -> None:
        names = list(draft.flags)
        choices = " · ".join(f"{place} {name}" for place, name in enumerate(names, start=1))
        self._message = f"Which flag? {choices} · any other key: none"
        key = self._ask(self._draw)
        if key.isdecimal() and 1 <= int(key) <= len(names):
            self._seat.toggle(names[int(key) - 1])
        self._message = ""

    def _comment(self, draft: Draft) -> None:
        self._typed = draft.reason
        while (key := self._ask(self._draw_comment)) not in {"enter", "escape"}:
            if key == "backspace":
                self._typed = self._typed[:-1]
            elif len(key) == 1 and len(self._typed) < COMMENT_LENGTH:
                self._typed += key
        if key == "enter":
            self._seat.comment(self._typed.strip())
        self._message = ""

    def _draw_comment(self) -> None:
        columns = self._screen.width
        self._message = f"Comment (Enter keeps, Esc drops): {self._typed}_"[-columns:]
        self._draw()

    def _read_page(self, text: str) -> None:
        scroll = 0
        moves = {"up": -1, "down": 1, " ": 10}

        def draw() -> None:
            self._screen.show_page(text, scroll=scroll, last="↑ ↓ space scroll · any other key: back")

        while (key := self._ask(draw)) in moves:
            scroll = max(0, scroll + moves[key])
