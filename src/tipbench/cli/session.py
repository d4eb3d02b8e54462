"""What commands share: settings, MLflow, a console, options, and phases that run while somebody watches.

Nothing heavy is imported before a command runs: `--help` is instant.
"""

import gc
import json
import os
import shlex
import shutil
import sys
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, TypeVar

import click
from click.core import ParameterSource

from tipbench.errors import (
    ExperimentNotFound,
    JudgedEnough,
    TipbenchError,
    TrackingRefused,
    TrackingUnavailable,
    UsageError,
)
from tipbench.run_keys import RUN_KEYS

if TYPE_CHECKING:
    from rich.console import Console

    from tipbench.bench.bench import Bench
    from tipbench.clock import Stamps
    from tipbench.collect.run import Plan
    from tipbench.engines.protocol import Engine
    from tipbench.grid import Cell
    from tipbench.judging.agent import AgentOutcome
    from tipbench.judging.auto.run import AutoOrder, AutoOutcome
    from tipbench.judging.request import SittingRequest
    from tipbench.ranking.records import Report
    from tipbench.records import Model
    from tipbench.settings import Settings
    from tipbench.tracking import Delivery, Tracking
    from tipbench.workbench import Workbench

Function = TypeVar("Function", bound=Callable[..., object])
FilePath = click.Path(dir_okay=False, path_type=Path)
ROOM_BYTES = 100_000_000
PORTABLE = ".tipbench"
"""How a file ends that holds a whole experiment."""
NAMED = ("experiment", "models", "prompts", "scenarios")
"""Keys whose values a shell completes."""


@dataclass(frozen=True)
class Session:
    """One command's view of the world. `say` is for people: on stderr when stdout is for machines."""

    workbench: "Workbench"
    say: "Console"

    @property
    def settings(self) -> "Settings":
        return self.workbench.settings

    @property
    def tracking(self) -> "Tracking":
        return self.workbench.tracking

    @property
    def stamps(self) -> "Stamps":
        return self.workbench.stamps


@contextmanager
def open_session(flags: Mapping[str, object], *, for_machines: bool = False) -> Generator[Session]:
    """Settings read, MLflow found; the first line says which one."""
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    settings = read_settings(flags)
    with start_session(settings, say=make_console(stderr=for_machines)) as session:
        try:
            yield session
        except ExperimentNotFound as error:
            if "experiment" in flags and flags["experiment"] is None:
                error.hint = _offer_newest(session.tracking) or error.hint
            raise


def _offer_newest(tracking: "Tracking") -> str:
    """What somebody may have meant who named no experiment."""
    from tipbench.bench.bench import find_newest

    name = find_newest(tracking)
    return f"The newest one with cells: --experiment {shlex.quote(name)}" if name else ""


@contextmanager
def start_session(settings: "Settings", *, say: "Console") -> Generator[Session]:
    """The same with settings at hand."""
    from tipbench.workbench import open_workbench

    # 10,000 runs are half a million objects that live to the end: looking for garbage among them again and
    # again takes a fifth of the time.
    gc.set_threshold(500_000)
    check_room(settings)
    with open_workbench(settings) as workbench:
        say.print(workbench.tracking.description, style="dim", highlight=False, soft_wrap=True)
        yield Session(workbench, say)


def check_room(settings: "Settings") -> None:
    """The data folder is there, its owner's alone; refuses to begin on a full disk.

    Raises:
        TipbenchError: there is no room, or the data folder cannot be made.
    """
    from tipbench.files import make_private

    try:
        if make_private(settings.home):
            click.echo(
                f"· {settings.home} was open to other users of this machine; it is yours alone now", err=True
            )
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


LOOPBACK = {"127.0.0.1", "localhost", "::1"}


def check_host(host: str, *, expose: bool, hint: str) -> None:
    """Returns if the address is this machine's alone, or was meant to be more.

    Raises:
        UsageError: others can reach it, and nobody said that they may.
    """
    if host not in LOOPBACK and not expose:
        raise UsageError(f"{host} can be reached from elsewhere: that needs --expose", hint=hint)


def run_app(app: str, *, workers: int, **options: Any) -> None:
    """Serves the app that this factory makes, in one process or several, until stopped."""
    import socket

    import uvicorn
    from uvicorn.supervisors import Multiprocess

    options |= {"factory": True, "log_level": "warning"}
    if workers == 1:
        uvicorn.run(app, **options)
        return
    config = uvicorn.Config(app, workers=workers, **options)
    listening = config.bind_socket()
    # asyncio switches Nagle's algorithm off where a socket says that it is TCP. The one that workers share
    # does not: answers would wait 40 ms for an acknowledgement. Accepted sockets inherit the option.
    listening.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    Multiprocess(config, sockets=[listening]).run()


def check_extra(extra: str, *modules: str) -> None:
    """Refuses to go on without what the extra brings, before anything is imported that would break.

    Raises:
        TipbenchError: one of the modules is not installed; says what to install.
    """
    if any(find_spec(module) is None for module in modules):
        raise TipbenchError(
            f"this needs the extra `{extra}`", hint=f"Install it: pip install 'tipbench[{extra}]'"
        )


def check_reason(reason: str) -> str:
    """A reason that can be stored.

    Raises:
        UsageError: it is empty or too long.
    """
    if not reason.strip() or len(reason) > 2_000:
        raise UsageError("the reason must have 1 to 2,000 characters", hint="Say it in a sentence.")
    return reason.strip()


def find_judge_name(settings: "Settings") -> str:
    """Who judges here: as told or set, else the user of this machine. Agents tell.

    Raises:
        UsageError: the machine has no name for the user.
    """
    return settings.judged_by or find_user("Say who you are: --judged-by NAME, or set USER.")


def find_user(hint: str = "Say who you are: set USER.") -> str:
    """Who sits at this machine.

    Raises:
        UsageError: the machine does not know.
    """
    import getpass

    try:
        return getpass.getuser()
    except (OSError, KeyError, ImportError) as error:
        raise UsageError("this machine has no name for you", hint=hint) from error


def find_pack_name(settings: "Settings") -> str:
    """The name of the pack in the settings: of a folder the name that is written in it.

    Raises:
        UsageError: it is not a name, or the folder does not hold a sound pack.
    """
    import re

    from tipbench.grid import open_pack
    from tipbench.pack.check import NAME

    if Path(settings.pack).expanduser().is_dir():
        return open_pack(settings.pack).name
    if not re.match(NAME, settings.pack):
        raise UsageError(f"{settings.pack!r} is neither a folder nor the name of a pack")
    return settings.pack


def write_whole(path: Path, text: str) -> None:
    """Puts the text in its place in one step.

    Raises:
        TipbenchError: the disk is full, or the place cannot be written; what stood there is as it was.
    """
    with open_whole(path) as file:
        file.write(text.encode())


@contextmanager
def open_whole(path: Path) -> Generator[BinaryIO]:
    """The same for what is written bit by bit: it is in its place when the block ends well."""
    from tipbench import files

    try:
        with files.replace_whole(path) as file:
            yield file
    except OSError as error:
        raise TipbenchError(
            f"{str(path)!r} cannot be written: {error.strerror}", hint="Choose another file."
        ) from error


def write_page(session: Session, bench: "Bench", report: "Report", path: Path) -> None:
    """The report with plots, candidates and what the gate says, as one HTML file.

    Raises:
        TipbenchError: the file cannot be written.
    """
    from tipbench.ranking.compare import read_details
    from tipbench.show.page import make_page

    gate = session.workbench.gate.preview(bench)
    write_whole(path, make_page(report, read_details(bench, report), gate))


def mlflow_options(function: Function) -> Function:
    """The options of every command that talks to MLflow."""
    for option in (
        run_option("mlflow_url"),
        home_option,
    ):
        function = option(function)
    return function


def home_option(function: Function) -> Function:
    """The data folder, as everywhere."""
    return click.option(
        "--home", help="Data folder [default: $TIPBENCH_HOME, else ~/.local/share/tipbench]."
    )(function)


def experiment_option(function: Function) -> Function:
    """The experiment, as everywhere."""
    return run_option("experiment")(function)


def run_option(name: str, **other: Any) -> Callable[[Function], Function]:
    """The option of a key of a run, as it is declared. Its limits are checked with the settings."""
    key = RUN_KEYS[name]
    spelling = f"--{name.replace('_', '-')}"
    usual = "" if key.default is None or key.type is bool else f" [default: {key.default}]"
    how: dict[str, Any] = {"help": f"{key.hint}{usual}"} | other
    if name in NAMED:
        how["shell_complete"] = complete_names(name)
    if key.type is bool:
        return click.option(f"{spelling}/--no-{spelling[2:]}", default=None, **how)
    return click.option(spelling, type=click.Choice(list(key.choices)) if key.choices else key.type, **how)


def publish_verdicts(session: Session, experiment: str) -> None:
    """Copies the verdicts that count into MLflow's evaluation views, and says so."""
    from tipbench.bench import views

    with session.workbench.judging.locked(experiment) as bench:
        traces, verdicts = views.publish_verdicts(bench.again(fresh=True))
    told = f"{verdicts} verdicts on {traces} candidates are in MLflow's traces of {experiment!r}"
    session.say.print(told, markup=False)


# What a shell is told while somebody types a name: nothing where that cannot be found out at once.


def complete_names(what: str) -> Callable[[click.Context, click.Parameter, str], list[str]]:
    """Completes a name, of a list with commas the last one."""

    def complete(ctx: click.Context, _: click.Parameter, incomplete: str) -> list[str]:
        from tipbench.settings import read_settings

        before, comma, last = incomplete.rpartition(",")
        flags = {name: ctx.params.get(name) for name in ("home", "mlflow_url", "ollama_url", "pack")}
        try:
            names = _FIND_NAMES[what](read_settings(flags))
        except TipbenchError:
            return []
        return [f"{before}{comma}{name}" for name in names if name.startswith(last)]

    return complete


def _find_experiments(settings: "Settings") -> list[str]:
    from tipbench.tracking.client import TimeLimits
    from tipbench.tracking.tracking import open_tracking, peek_tracking

    limits = TimeLimits(1.0, 3.0, 3.0, 3.0)
    if peek_tracking(settings, limits=limits) is None:
        return []
    with open_tracking(settings, limits=limits) as tracking:
        return sorted(each.name for each in tracking.list_experiments())


def _find_models(settings: "Settings") -> list[str]:
    from tipbench.engines import open_engines

    with open_engines(settings.model_copy(update={"ollama_serve": False}), report=lambda _: None) as engines:
        return sorted(model.name for model in engines.list_models(pass_over=lambda _: None))


def _find_prompts(settings: "Settings") -> list[str]:
    from tipbench.grid import open_pack

    return [prompt.name for prompt in open_pack(settings.pack).prompts]


def _find_sets(settings: "Settings") -> list[str]:
    from tipbench.grid import open_pack

    return [*dict.fromkeys(scenario.set for scenario in open_pack(settings.pack).scenarios), "all"]


_FIND_NAMES: dict[str, Callable[["Settings"], list[str]]] = {
    "experiment": _find_experiments,
    "models": _find_models,
    "prompts": _find_prompts,
    "scenarios": _find_sets,
}


def content_options(function: Function) -> Function:
    """What decides what is generated."""
    names = ("models", "prompts", "scenarios", "n_scenarios", "n_tips", "temperature", "diversity", "seed")
    for option in (pack_option, *map(run_option, reversed(names))):
        function = option(function)
    return function


def pack_option(function: Function) -> Function:
    """The pack, as everywhere."""
    return click.option("--pack", help="A built-in pack or a folder [default: tip].")(function)


def given_options(ctx: click.Context) -> dict[str, str]:
    """The options that were typed: name → spelling."""
    return {
        str(each.name): each.opts[0]
        for each in ctx.command.params
        if ctx.get_parameter_source(str(each.name)) is ParameterSource.COMMANDLINE
    }


def has_subcommand(ctx: click.Context) -> bool:
    """Whether a sub-command follows, which then takes the options.

    Raises:
        UsageError: some stand before it.
    """
    if ctx.invoked_subcommand is None:
        return False
    if given := list(given_options(ctx).values()):
        raise UsageError(
            f"{', '.join(given)} stands before `{ctx.invoked_subcommand}`",
            hint=f"Write: tipbench {ctx.info_name} {ctx.invoked_subcommand} … {given[0]} …",
        )
    return True


@dataclass(frozen=True)
class CollectRun:
    """One collect as it is shown. `last` says that the command ends with it."""

    session: Session
    reuse_from: str | None = None
    as_json: bool = False
    last: bool = True

    def run(self, cells: "list[Cell]", engine_of: "Callable[[Model], Engine]") -> None:
        """Collects, shows progress, and says what comes next."""
        from tipbench.show.collect import show_json, show_progress

        workbench, say = self.session.workbench, self.session.say
        left = workbench.tracking.deliver_left_over()
        if left.delivered:
            say.print(f"{left.delivered} writes that an earlier run left were delivered")
        for message in (*left.notes, *(f"refused by MLflow: {message}" for _, message in left.refused)):
            say.print(f"· {message}", markup=False)
        collection = workbench.collecting.begin(
            cells, experiment=workbench.settings.experiment, reuse_from=self.reuse_from
        )
        plan = collection.plan
        if not self.as_json:
            say.print(
                f"{len(plan.cells)} cells: {len(plan.cells) - len(plan.missing)} stored, "
                f"{len(plan.to_reuse)} to reuse, {len(plan.to_generate)} to generate"
            )
        with collection.generate(engine_of) as collected:
            if self.as_json:
                done = show_json(collected, total=len(plan.missing))
            else:
                done = show_progress(collected, total=len(plan.missing), say=say)
        self._finish(collection.deliver(), plan, done=done)

    def _finish(self, report: "Delivery", plan: "Plan", *, done: int) -> None:
        if self.as_json:
            summary = {"event": "done", "collected": done, "cells": len(plan.cells)}
            summary["left"] = report.left_in_journal
            click.echo(json.dumps(summary))
        if report.refused:
            for _, message in report.refused:
                self.session.say.print(f"refused by MLflow: {message}", markup=False)
            raise TrackingRefused(
                f"MLflow refused {len(report.refused)} writes: they are kept in "
                f"{str(self.session.settings.home / 'journal')!r} but do not count",
                hint="Fix what MLflow complains about, then run the same command again.",
            )
        if report.left_in_journal:
            raise TrackingUnavailable(
                f"{report.left_in_journal} writes are safe in the journal but not in MLflow",
                hint="Run the same command again when MLflow answers: nothing is generated twice.",
            )
        if self.last and not self.as_json:
            self._say_what_is_next(plan)

    def _say_what_is_next(self, plan: "Plan") -> None:
        from tipbench.bench.measured import tell_against_champion

        settings, say = self.session.settings, self.session.say
        name = settings.experiment
        # Known before anybody judges, so it is said before anybody judges.
        for line in tell_against_champion(self.session.workbench.open(name), settings.gate):
            say.print(f"· {line}", markup=False)
        say.print(f"{len(plan.cells)} cells are in experiment {name!r}. Next:", markup=False)
        if plan.close_reason is None:
            for how in _how_to_judge(settings):
                say.print(f"  tipbench judge --experiment {shlex.quote(name)} {how}", markup=False)
        else:
            say.print(f"  judging was closed: {plan.close_reason}. To open it again:", markup=False)
            say.print(f"  tipbench judge reopen --experiment {shlex.quote(name)} --reason …", markup=False)
        say.print(f"  tipbench compare --experiment {shlex.quote(name)}", markup=False)


def _how_to_judge(settings: "Settings") -> list[str]:
    """The options of the judges that the cells wait for: a person may always judge."""
    from tipbench.records import LAZY_KINDS

    if settings.judge_kind not in LAZY_KINDS:
        return ["--auto" if settings.judge_model else "--auto --judge-model NAME"]
    here = ["--interactive  # you, here"]
    agent = ["--export sheet.json  # a coding agent, by file"]
    return here if settings.judge_kind == "human" else [*here, *agent]


def judge_with_bar(session: Session, order: "AutoOrder", *, quiet: bool) -> "AutoOutcome | None":
    """Lets a model judge, with a bar that shows how far it is."""
    from tipbench.show.collect import judging_bar

    with judging_bar(session.say, quiet=quiet) as report:
        return session.workbench.auto_judging(report).run(order, experiment=session.settings.experiment)


def judge_with_agent(session: Session, experiment: str) -> "AgentOutcome | None":
    """Lets the agent of the settings judge, shows what it prints and what came of it.

    Raises:
        NoAgent: none is set, or it cannot be started.
    """
    from tipbench.show.sittings import print_agent

    def show(line: str) -> None:
        session.say.print(f"│ {line}", markup=False, highlight=False, soft_wrap=True)

    outcome = session.workbench.agent_judging(show, os.environ).run(experiment)
    print_agent(outcome, session.say, experiment=experiment)
    return outcome


def judge_here(session: Session, request: "SittingRequest") -> int:
    """Lets the judge work at the keyboard, then says what the sitting became. Gives the exit code.

    Raises:
        UsageError: this is not a terminal.
    """
    from tipbench.judging.keyboard.loop import judge_at_keyboard
    from tipbench.show.screen import TerminalScreen
    from tipbench.show.sittings import tell_left

    name, judging = session.settings.experiment, session.workbench.judging
    if not can_draw(session):
        raise UsageError(
            "judge --interactive needs a terminal it can draw on",
            hint=f"Judge by file: tipbench judge --experiment {shlex.quote(name)} --export sheet.json",
        )
    try:
        sitting = judging.open_sitting(replace(request, sits="human"), experiment=name)
    except JudgedEnough as enough:
        say_enough(session, enough)
        return enough.exit_code
    if sitting is None:
        say_nothing_left(session)
        return 0
    left = judge_at_keyboard(judging, sitting, screen=TerminalScreen(session.say))
    if left.exit_code:
        return left.exit_code
    lines = {line.sitting: line for line in judging.status(experiment=name).sittings}
    for text in tell_left(left, lines[sitting.token]):
        session.say.print(text, markup=False)
    return 0


def can_draw(session: Session) -> bool:
    """Whether a person sits at a terminal that can be drawn on."""
    return sys.stdin.isatty() and sys.stdout.isatty() and not session.say.is_dumb_terminal


def say_nothing_left(session: Session) -> None:
    """Why there is nothing to judge."""
    from tipbench.show.sittings import tell_nothing_left

    name = session.settings.experiment
    session.say.print(tell_nothing_left(session.workbench.judging.status(experiment=name)))
    session.say.print(f"  tipbench judge status --experiment {shlex.quote(name)}", markup=False)


def say_enough(session: Session, enough: JudgedEnough) -> None:
    """That is not a failure: nothing is handed out because nothing would come of it."""
    session.say.print(enough.message, markup=False)
    session.say.print(enough.hint, markup=False)


def fetch_with_progress(name: str, settings: "Settings", say: "Console") -> None:
    """Fetches the weights unless they are there."""
    from tipbench.engines.weights import fetch_weights
    from tipbench.show.collect import fetching_bar

    with fetching_bar(name, say) as report:
        path = fetch_weights(name, settings.models_folder, environment=os.environ, report=report)
    say.print(f"{name} is ready: {path}", markup=False, soft_wrap=True)
