"""What every command that talks to MLflow needs: settings, the door, the clock, a console."""

import os
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.text import Text

from tipbench.clock import Stamps
from tipbench.errors import TipbenchError
from tipbench.inert import make_inert
from tipbench.settings import Settings, read_settings
from tipbench.tracking import Tracking
from tipbench.workbench import Workbench, open_workbench

Function = TypeVar("Function", bound=Callable[..., object])
PLAIN_WIDTH = 132
ROOM_BYTES = 100_000_000


@dataclass(frozen=True)
class Session:
    """One command's view of the world. `say` is for people: on stderr when stdout is for machines."""

    workbench: Workbench
    say: Console

    @property
    def settings(self) -> Settings:
        return self.workbench.settings

    @property
    def tracking(self) -> Tracking:
        return self.workbench.tracking

    @property
    def stamps(self) -> Stamps:
        return self.workbench.stamps


@contextmanager
def open_session(flags: Mapping[str, object], *, for_machines: bool = False) -> Generator[Session]:
    """Settings read, MLflow found; the first line says which one."""
    settings = read_settings(flags)
    with start_session(settings, say=make_console(stderr=for_machines)) as session:
        yield session


@contextmanager
def start_session(settings: Settings, *, say: Console) -> Generator[Session]:
    """The same with settings at hand."""
    check_room(settings)
    with open_workbench(settings) as workbench:
        say.print(workbench.tracking.description, style="dim", highlight=False, soft_wrap=True)
        yield Session(workbench, say)


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


def check_room(settings: Settings) -> None:
    """Refuses to begin on a full disk.

    Raises:
        TipbenchError: there is no room, or the data folder cannot be made.
    """
    try:
        settings.home.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(settings.home).free
    except OSError as error:
        raise TipbenchError(
            f"the data folder {str(settings.home)!r} cannot be used: {error.strerror}",
            hint="Set TIPBENCH_HOME to a folder you can write to.",
        ) from error
    if free < ROOM_BYTES:
        raise TipbenchError(
            f"only {free // 1_000_000} MB are free for {str(settings.home)!r}",
            hint="Make room, or set TIPBENCH_HOME to a folder on another disk.",
        )


def mlflow_options(function: Function) -> Function:
    """The options of every command that talks to MLflow."""
    for option in (
        click.option("--mlflow-url", help="MLflow server [default: localhost:5000, else the managed one]."),
        click.option("--home", help="Data folder [default: $TIPBENCH_HOME]."),
    ):
        function = option(function)
    return function


def experiment_option(function: Function) -> Function:
    """The experiment, as everywhere."""
    return click.option("--experiment", help="MLflow experiment [default: tip-bench-auto].")(function)
