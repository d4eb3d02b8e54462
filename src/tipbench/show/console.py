"""The console that people read: wide enough off a terminal, and nothing in a text acts on it."""

import os
import sys
from typing import Any

from rich.console import Console
from rich.text import Text

from tipbench.inert import make_inert

PLAIN_WIDTH = 132


class InertConsole(Console):
    """Shows every text inert: names and reasons come from files, servers and other people."""

    def render_str(self, text: str, **how: Any) -> Text:
        """The text as rich would have it, without anything that acts on a terminal."""
        return super().render_str(make_inert(text), **how)


def make_console(*, stderr: bool = False) -> Console:
    """A console; off a terminal wide enough for a leaderboard."""
    stream = sys.stderr if stderr else sys.stdout
    wide = None if stream.isatty() or os.environ.get("COLUMNS") else PLAIN_WIDTH
    return InertConsole(stderr=stderr, width=wide, highlight=False)
