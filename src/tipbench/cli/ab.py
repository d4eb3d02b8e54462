"""`tipbench ab`, and what it shares with `tipbench improve`."""

import getpass
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
from click.core import ParameterSource

from tipbench.bench.evidence import read_evidence
from tipbench.cli.collect import CollectRun
from tipbench.cli.judge_auto import find_judge, judge_with_bar, print_outcome
from tipbench.cli.promote import show_outcome
from tipbench.cli.session import (
    Function,
    Session,
    check_room,
    experiment_option,
    make_console,
    mlflow_options,
    start_session,
)
from tipbench.engines import Engines, open_engines
from tipbench.errors import CannotHoldFormat
from tipbench.grid import Cell, add_champion, prepare_grid
from tipbench.improve.run import Deciding, Desk, Hands, Stop
from tipbench.judging.auto.run import AutoOrder
from tipbench.promotion.gate import Asked
from tipbench.promotion.succession import settle
from tipbench.settings import read_settings
from tipbench.show.terminal import print_report

FilePath = click.Path(dir_okay=False, path_type=Path)


def bench_options(function: Function) -> Function:
    """What is asked and who judges, in both commands."""
    for option in (
        click.option("--n-tips", type=int, help="Candidates per cell (1-50)."),
        click.option("--n-scenarios", type=int, help="Cap on scenarios, 0 = all."),
        click.option("--temperature", type=float, help="Sampling temperature (0-2)."),
        click.option("--seed", type=int, help="Seed of the whole grid."),
        click.option("--pack", help="A built-in pack or a folder."),
        click.option("--judge-model", help="The automatic judge [default: judge_model in tipbench.toml]."),
        click.option("--judged-by", help="Whom sheets are for [default: claude-code-session]."),
        click.option(
            "--sheet",
            type=FilePath,
            default=Path("sheet.json"),
            show_default=True,
            help="What waits for a lazy judge; taken in when it is filled and the command runs again.",
        ),
        experiment_option,
        mlflow_options,
    ):
        function = option(function)
    return function


@click.command(name="ab")
@click.argument("prompts", metavar="PROMPT,PROMPT,…")
@click.option("--models", help="Comma-separated models: names or paths of .gguf files.")
@click.option("--scenarios", help="Scenario set: core, wide, all, or one of your pack's.")
@bench_options
@click.pass_context
def command(ctx: click.Context, *, prompts: str, sheet: Path, **flags: object) -> None:
    """Compare PROMPTs and promote the better one: collect, judge, gate, promote.

    Runs until lazy verdicts are needed: exit code 4, with the command that goes on. Then 0: promoted, 3: not.
    """
    settings = read_settings(flags | {"prompts": prompts})
    check_room(settings)
    say = make_console()

    def report(line: str) -> None:
        say.print(line, markup=False)

    with open_engines(settings, report=report) as engines, start_session(settings, say=say) as session:
        cells = prepare_grid(settings, find_model=engines.admit)
        found = settle(session.tracking, cells[0].pack.name, stamps=session.stamps)
        if found is not None:
            cells = add_champion(cells, found.arm, find_model=engines.admit, report=report)
        deciding = open_deciding(session, engines, sheet=sheet)
        said = deciding.bench(cells, settings.experiment)
        stop = deciding.decide(Asked(settings.experiment), promote=True).after(*said)
        show_stop(ctx, session, stop)
    ctx.exit(stop.exit_code)


def open_deciding(session: Session, engines: Engines, *, sheet: Path) -> Deciding:
    """Everything that leads to a decision, as this command sees it."""
    settings = session.settings
    if settings.judge_model is None and settings.gate.require == "both":
        session.say.print(
            "· no judge_model is set: the gate wants an automatic judge too (gate.require = both)",
            markup=False,
            style="dim",
        )
    desk = Desk(session.workbench.judging, settings.judged_by, sheet)
    engine_hands = EngineHands(session, engines)
    hands = Hands(collect=engine_hands.collect, judge_auto=engine_hands.judge)
    return Deciding(session.workbench.promoting(getpass.getuser()), desk, hands)


@dataclass(frozen=True)
class EngineHands:
    """Generates and judges on the engines of this machine."""

    session: Session
    engines: Engines

    def collect(self, cells: Sequence[Cell], experiment: str) -> None:
        """Generates every missing cell."""
        session = self._in(experiment)
        session.say.print(f"Collecting into {experiment!r}", markup=False)
        CollectRun(session, last=False).run(list(cells), self.engines.engine_of)

    def judge(self, experiment: str) -> None:
        """Lets the model judge that the settings name, if they do; one that showed it cannot is not asked."""
        session = self._in(experiment)
        name = session.settings.judge_model
        if name is None:
            return
        judge = find_judge(name, session.settings, self.engines)
        stored = session.tracking.find_experiment(experiment)
        sittings = read_evidence(session.tracking.read_runs(stored)).sittings
        if any(s.facts.judge_digest == judge.digest and s.state == "refused" for s in sittings):
            session.say.print(f"· {judge.name} judged before and is uninformative", markup=False, style="dim")
            return
        try:
            outcome = judge_with_bar(session, AutoOrder(judge), quiet=not session.say.is_terminal)
        except CannotHoldFormat as error:
            session.say.print(f"· {error.message}", markup=False)
            return
        if outcome is not None:
            print_outcome(session, judge, outcome, anyway=False)

    def _in(self, experiment: str) -> Session:
        return replace(self.session, workbench=self.session.workbench.within(experiment))


def show_stop(ctx: click.Context, session: Session, stop: Stop) -> None:
    """Where the command ended, and the command that goes on."""
    for line in stop.first:
        session.say.print(line, markup=False)
    if stop.outcome is not None:
        show_outcome(session, stop.outcome, as_json=False)
    if stop.board is not None:
        print_report(stop.board, session.say)
    for line in stop.said:
        session.say.print(line, markup=False)
    if stop.go_on is not None:
        session.say.print(f"  {repeat_command(ctx, stop.go_on)}", markup=False, soft_wrap=True)


def repeat_command(ctx: click.Context, more: Sequence[str]) -> str:
    """The command as it was given, without the files of a round, with these options."""
    words = ["tipbench", str(ctx.info_name)]
    for option in ctx.command.params:
        name = option.name or ""
        if ctx.get_parameter_source(name) is not ParameterSource.COMMANDLINE or name in {"export", "apply"}:
            continue
        value = str(ctx.params[name])
        words += [value] if isinstance(option, click.Argument) else [option.opts[0], value]
    return shlex.join([*words, *more])
