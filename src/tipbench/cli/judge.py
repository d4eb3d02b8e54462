"""`tipbench judge`: export, apply, status, close."""

import json
from dataclasses import asdict
from pathlib import Path

import click
from click.core import ParameterSource
from rich.markup import escape
from rich.table import Table

from tipbench.cli.handing_out import (
    check_wishes,
    delta_option,
    hand_out_options,
    make_request,
    split_wishes,
)
from tipbench.cli.install_command import install_command
from tipbench.cli.interactive import judge_here, pick_judge, say_enough
from tipbench.cli.session import Session, experiment_option, mlflow_options, open_session
from tipbench.errors import JudgedEnough, UsageError
from tipbench.inert import make_inert_line
from tipbench.judging.draw import Disagreement
from tipbench.judging.handout import Handout, SittingRequest
from tipbench.judging.service import Taken
from tipbench.judging.status import Status

FilePath = click.Path(dir_okay=False, path_type=Path)


@click.group(name="judge", invoke_without_command=True)
@click.option("--export", "export", type=FilePath, help="Write what waits for a lazy judge to this file.")
@click.option("--apply", "apply", type=FilePath, help="Take the verdicts of this file in.")
@click.option("--interactive", is_flag=True, help="Judge here, at the keyboard.")
@click.option("--close", is_flag=True, help="With --apply: close sittings that are filled in part.")
@hand_out_options
@click.option("--judged-by", help="Who judges [default: claude-code-session, or what the sheet says].")
@click.option("--auto", is_flag=True, help="Let a model judge everything it did not judge yet.")
@click.option("--judge-model", help="With --auto: a local model, openai:NAME, or litellm:PROVIDER/NAME.")
@click.option("--budget", type=click.FloatRange(min=0), help="With --auto: at most so many US dollars.")
@click.option("--anyway", is_flag=True, help="With --auto: judge on when the anchors show it cannot.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@experiment_option
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    export: Path | None,
    apply: Path | None,
    interactive: bool,
    close: bool,
    judged_by: str | None,
    auto: bool,
    judge_model: str | None,
    budget: float | None,
    anyway: bool,
    as_json: bool,
    experiment: str | None,
    **flags: object,
) -> None:
    """Hand out what waits for a judge: to a file (--export FILE), whose verdicts are then taken in
    (--apply FILE), or to you (--interactive)."""
    given_first = [
        f"--{name.removeprefix('as_').removesuffix('_items').replace('_', '-')}"
        for name in ctx.params
        if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE
    ]
    if ctx.invoked_subcommand is not None:
        if given_first:
            raise UsageError(
                f"{', '.join(given_first)} stands before `{ctx.invoked_subcommand}`",
                hint=f"Write: tipbench judge {ctx.invoked_subcommand} … {given_first[0]} …",
            )
        return
    wishes, flags = split_wishes(flags)
    ways = {
        "--export": export is not None,
        "--apply": apply is not None,
        "--interactive": interactive,
        "--auto": auto,
    }
    if sum(ways.values()) != 1:
        raise UsageError("judge takes exactly one of --export FILE, --apply FILE, --interactive and --auto")
    if auto:
        from tipbench.cli.judge_auto import check_options, run_auto

        check_options(given_first)
        given = flags | {"experiment": experiment, "judge_model": judge_model}
        ctx.exit(run_auto(given, budget=budget, anyway=anyway, as_json=as_json))
    way = next(name for name, chosen in ways.items() if chosen)
    check_wishes(wishes, way=way)
    foreign = {"--export": {"--close"}, "--apply": set[str](), "--interactive": {"--close", "--json"}}[way]
    foreign |= {"--judge-model", "--budget", "--anyway"}
    for name in sorted(foreign & set(given_first)):
        raise UsageError(f"{name} does not go with {way}")
    given = flags | {"experiment": experiment, "judged_by": judged_by}
    with open_session(given, for_machines=as_json) as session:
        if export is not None:
            request = make_request(wishes, judged_by=session.settings.judged_by)
            _export(session, export, request, as_json=as_json)
        elif apply is not None:
            taken = session.workbench.judging.take_in(
                apply, experiment=experiment, judged_by=judged_by, close=close
            )
            _print_apply(session, taken, as_json=as_json)
        else:
            request = make_request(wishes, judged_by=pick_judge(session, judged_by))
            ctx.exit(judge_here(session, session.workbench.judging, request))


command.add_command(install_command)


@command.command()
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--fresh", is_flag=True, help="Read everything again, also what was edited by hand in MLflow.")
@delta_option
@experiment_option
@mlflow_options
def status(*, as_json: bool, fresh: bool, **flags: object) -> None:
    """Where judging stands: judged, waiting, and who has what."""
    with open_session(flags, for_machines=as_json) as session:
        settings = session.settings
        found = session.workbench.judging.status(
            experiment=settings.experiment, fresh=fresh, delta=settings.delta
        )
        if as_json:
            click.echo(found.model_dump_json(indent=1))
        else:
            _print_status(session, found)


@command.command(name="close")
@click.option("--reason", required=True, help="Why judging ends here.")
@experiment_option
@mlflow_options
def close_judging(*, reason: str, **flags: object) -> None:
    """End judging of an experiment: what is not judged stays so."""
    with open_session(flags) as session:
        name = session.settings.experiment
        session.workbench.judging.end(check_reason(reason), experiment=name)
        session.say.print(f"judging of {name!r} is closed: {reason}", markup=False)


@command.command(name="reopen")
@click.option("--reason", required=True, help="Why judging goes on.")
@experiment_option
@mlflow_options
def reopen_judging(*, reason: str, **flags: object) -> None:
    """Open judging of an experiment again."""
    with open_session(flags) as session:
        name = session.settings.experiment
        session.workbench.judging.reopen(check_reason(reason), experiment=name)
        session.say.print(f"judging of {name!r} is open again: {reason}", markup=False)


@command.command(name="release")
@click.argument("sitting")
@experiment_option
@mlflow_options
def release_sitting(*, sitting: str, **flags: object) -> None:
    """Take SITTING back from its judge (a lost file): complete blocks count, the rest waits again."""
    with open_session(flags) as session:
        state = session.workbench.judging.release(sitting, experiment=session.settings.experiment)
        session.say.print(f"sitting {sitting} is {state}", markup=False)


def check_reason(reason: str) -> str:
    """A reason that can be stored.

    Raises:
        UsageError: it is empty or too long.
    """
    if not reason.strip() or len(reason) > 2_000:
        raise UsageError("the reason must have 1 to 2,000 characters", hint="Say it in a sentence.")
    return reason.strip()


def tell_disagreement(found: Disagreement) -> str:
    """Δ, bias and how many pairs are beyond it, in a line."""
    spread = "" if found.bias_spread is None else f", between arms ± {found.bias_spread:.2f}"
    start = f"automatic against lazy, {found.pairs} pairs: bias {found.bias:+.2f}{spread}"
    if found.threshold is None:
        return f"{start}; too few for Δ: nothing is flagged"
    origin = "set" if found.set_by_hand else "from the data"
    return f"{start}, Δ {found.threshold:.2f} ({origin}), {found.flagged} flagged"


def _export(session: Session, path: Path, request: SittingRequest, *, as_json: bool) -> None:
    try:
        handout = session.workbench.judging.hand_out(path, request, experiment=session.settings.experiment)
    except JudgedEnough as enough:
        say_enough(session, enough)
        if as_json:
            click.echo(json.dumps({"file": None, "sections": 0, "items": 0, "reason": enough.message}))
        return
    _print_export(session, path, handout, as_json=as_json)


def _print_export(session: Session, path: Path, handout: Handout | None, *, as_json: bool) -> None:
    sections = len(handout.sheet.sections) if handout else 0
    items = sum(len(section.items) for section in handout.sheet.sections) if handout else 0
    if as_json:
        click.echo(json.dumps({"file": str(path) if handout else None, "sections": sections, "items": items}))
        return
    say = session.say
    for remark in handout.remarks if handout else ():
        say.print(f"· {remark}", markup=False)
    if handout is None:
        say.print("nothing waits for a lazy judge that is not with one already")
        say.print(f"  tipbench judge status --experiment {session.settings.experiment}", markup=False)
    else:
        say.print(f"{items} items in {sections} sections (one sitting each) in {path}", markup=False)
        say.print("Fill in the scores, then:")
        say.print(f"  tipbench judge --apply {path}", markup=False)


def _print_apply(session: Session, taken: Taken, *, as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps([asdict(section) for section in taken.sections]))
        return
    for section in taken.sections:
        answered = f"{section.answered} of {section.items} answered"
        session.say.print(
            f"sitting {section.sitting} by {section.judged_by}: {answered}, {section.outcome}", markup=False
        )
    session.say.print(f"judged {taken.status.judged} of {taken.status.candidates}. Next:")
    session.say.print(f"  tipbench compare --experiment {taken.experiment}", markup=False)


def _print_status(session: Session, found: Status) -> None:
    auto = f", {found.waiting_for_auto} for an automatic one" if found.waiting_for_auto else ""
    ended = f"; {found.ended}" if found.ended else ""
    session.say.print(
        f"{found.experiment}: judged {found.judged} of {found.candidates} candidates in {found.cells} cells, "
        f"{found.waiting} wait for a lazy judge{auto}{ended}",
        markup=False,
    )
    if found.disagreement is not None:
        session.say.print(tell_disagreement(found.disagreement), markup=False)
    if not found.sittings:
        return
    table = Table("sitting", "judge", "state", "drawn", "items", "anchors", "blocks counted", "expires")
    for line in found.sittings:
        table.add_row(
            line.sitting,
            escape(make_inert_line(line.judged_by)),
            line.state,
            line.drawn,
            str(line.items),
            str(line.anchors),
            f"{line.blocks_counted} of {line.blocks}",
            line.expires if line.state == "open" else "",
        )
    session.say.print(table)
