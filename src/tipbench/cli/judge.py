"""`tipbench judge`: hand out, take in, let a model judge; sittings, judges and anchors."""

import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tipbench.cli.session import (
    FilePath,
    Function,
    Session,
    check_reason,
    experiment_option,
    find_judge_name,
    find_user,
    given_options,
    has_subcommand,
    judge_here,
    judge_with_agent,
    judge_with_bar,
    mlflow_options,
    open_session,
    publish_verdicts,
    say_enough,
    say_nothing_left,
    start_session,
)
from tipbench.errors import JudgedEnough, TipbenchError, UsageError

if TYPE_CHECKING:
    from tipbench.judging.agent import AgentOutcome
    from tipbench.judging.auto.run import AutoOutcome
    from tipbench.judging.handout import Handout
    from tipbench.judging.records import SittingLine
    from tipbench.judging.request import SittingRequest
    from tipbench.judging.service import AppliedSheet

WHERE = ("experiment", "mlflow_url", "home")
WISHES = {"judge_kind", "champion", "next", "second_opinion", "disagreements"}
"""What may be asked for where items are handed out."""
GOES_WITH = {
    "export": {*WISHES, "judged_by", "as_json"},
    "apply": {"sheet", "close", "judged_by", "as_json"},
    "interactive": {*WISHES, "judged_by"},
    "auto": {"judge_model", "budget", "anyway", "as_json"},
    "agent": {"as_json"},
}
"""The ways to judge, and the options that each takes."""
UNINFORMATIVE = REFUSED = 3
"""Exit code: no, this judge's verdicts are not used; no, a sitting of the sheet does not count."""


class Share(click.ParamType[float]):
    """A share, written as `10%`."""

    name = "PERCENT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """The share as a number above 0, at most 1."""
        if isinstance(value, float):
            return value
        text = str(value).strip()
        try:
            share = float(text.removesuffix("%")) / 100
        except ValueError:
            share = 0.0
        if not text.endswith("%") or not 0 < share <= 1:
            self.fail(f"{text!r} is not a share: write it as 10%", param, ctx)
        return share


def hand_out_options(function: Function) -> Function:
    """The options that say what to hand out."""
    for option in (
        click.option(
            "--judge-kind",
            type=click.Choice(["claude-code", "human"]),
            help="Only cells that were collected for this kind of judge [default: any].",
        ),
        click.option(
            "--second-opinion",
            type=Share(),
            help="Judge a share of what others judged again, as 10%: for agreement, not for the board.",
        ),
        click.option(
            "--disagreements",
            type=click.IntRange(min=1),
            metavar="N",
            help="Check the N most doubtful automatic verdicts: for agreement and Δ, not for the board.",
        ),
        click.option(
            "--champion", metavar="MODEL+PROMPT", help="With --next: the arm that a winner must beat."
        ),
        click.option(
            "--next",
            type=click.IntRange(min=1),
            metavar="N",
            help="Only about N items: those that tell most about the winner.",
        ),
    ):
        function = option(function)
    return function


def delta_option(function: Function) -> Function:
    """How far apart is too far."""
    return click.option(
        "--delta",
        type=click.FloatRange(min=0, min_open=True),
        help="Flag automatic verdicts that are further off [default: learnt from the pairs there are].",
    )(function)


@click.group(name="judge", invoke_without_command=True)
@click.option("--export", "export", type=FilePath, help="Write what is left to judge to this file.")
@click.option("--apply", "apply", type=FilePath, help="Take in the verdicts from this file.")
@click.option(
    "--sheet",
    type=FilePath,
    help="With --apply, when the file holds only answers, one JSON object a line: the sheet they answer.",
)
@click.option("--interactive", is_flag=True, help="Judge here, at the keyboard.")
@click.option("--close", is_flag=True, help="With --apply: also close sittings that are only partly filled.")
@hand_out_options
@click.option("--judged-by", help="Who judges [default: your user name; with --apply what the sheet says].")
@click.option("--auto", is_flag=True, help="Let a model judge everything it did not judge yet.")
@click.option(
    "--judge-model",
    help="With --auto: a local model, openai:NAME, litellm:PROVIDER/NAME, or command:PROGRAM.",
)
@click.option(
    "--budget",
    type=click.FloatRange(min=0),
    help="With --auto: at most so many US dollars [default: the setting judge_budget].",
)
@click.option(
    "--anyway", is_flag=True, help="With --auto: go on even when the anchors show that it cannot judge."
)
@click.option("--agent", is_flag=True, help="Let the coding agent of the setting judge_command judge.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@experiment_option
@mlflow_options
@click.pass_context
def command(ctx: click.Context, **given: Any) -> None:
    """Judge blind: at the keyboard (--interactive), or by file (--export FILE, fill it in, --apply FILE).

    What is handed out in one go is a sitting: whole blocks (one tip of every arm for one scenario) among
    hidden checks.
    """
    if has_subcommand(ctx):
        return
    ways = [way for way in GOES_WITH if given[way]]
    if len(ways) != 1:
        raise UsageError(
            "judge takes exactly one of --export FILE, --apply FILE, --interactive, --auto and --agent",
            hint="To judge here yourself: tipbench judge --interactive",
        )
    (way,) = ways
    _check_options(given_options(ctx), way)
    run = {
        "export": _export,
        "apply": _apply,
        "interactive": _judge_at_keyboard,
        "auto": _judge_by_model,
        "agent": _judge_by_agent,
    }
    ctx.exit(run[way](given))


def _check_options(given: Mapping[str, str], way: str) -> None:
    """Refuses what does not go together.

    Raises:
        UsageError: names the options.
    """
    for name in sorted(set(given) - GOES_WITH[way] - {way, *WHERE}):
        raise UsageError(f"{given[name]} does not go with --{way}")
    if WISHES & set(given):
        from tipbench.judging.request import check_wishes

        check_wishes(given, written=lambda name: f"--{name.replace('_', '-')}")


def _flags(given: Mapping[str, Any], *more: str) -> dict[str, object]:
    return {name: given[name] for name in (*WHERE, *more)}


def _make_request(given: Mapping[str, Any], *, judged_by: str) -> "SittingRequest":
    from tipbench.judging.request import SittingRequest

    return SittingRequest(
        judged_by,
        judge_kind=given["judge_kind"],
        items=given["next"],
        champion=given["champion"],
        second_share=given["second_opinion"],
        spots=given["disagreements"],
    )


def _export(given: Mapping[str, Any]) -> int:
    path, as_json = given["export"], given["as_json"]
    with open_session(_flags(given, "judged_by"), for_machines=as_json) as session:
        request = _make_request(given, judged_by=find_judge_name(session.settings))
        try:
            handout = session.workbench.judging.hand_out(
                path, request, experiment=session.settings.experiment
            )
        except JudgedEnough as enough:
            say_enough(session, enough)
            if as_json:
                click.echo(json.dumps({"file": None, "sections": 0, "items": 0, "reason": enough.message}))
            return enough.exit_code
        _print_export(session, path, handout, as_json=as_json)
    return 0


def _print_export(session: Session, path: Path, handout: "Handout | None", *, as_json: bool) -> None:
    sections = len(handout.sheet.sections) if handout else 0
    items = sum(len(section.items) for section in handout.sheet.sections) if handout else 0
    if as_json:
        click.echo(json.dumps({"file": str(path) if handout else None, "sections": sections, "items": items}))
        return
    say = session.say
    for remark in handout.remarks if handout else ():
        say.print(f"· {remark}", markup=False)
    if handout is None:
        say_nothing_left(session)
    else:
        parts = "1 section" if sections == 1 else f"{sections} sections"
        say.print(f"{items} items in {parts} (each a sitting of its own) in {path}", markup=False)
        if sections > 1:
            say.print("Judge them one after the other, each in one go, and apply after each.")
        say.print("Fill in the scores there, or answer in a file of its own, one JSON object a line. Then:")
        say.print(f"  tipbench judge --apply {path}", markup=False)
        say.print(f"  tipbench judge --apply ANSWERS.jsonl --sheet {path}", markup=False)
        schema = path.with_suffix(".schema.json").name
        say.print(
            f"({schema} is its JSON Schema, for editors and programs; no judge needs it.)", markup=False
        )


def _apply(given: Mapping[str, Any]) -> int:
    file, sheet = given["apply"], given["sheet"]
    with open_session(_flags(given, "judged_by"), for_machines=given["as_json"]) as session:
        taken = session.workbench.judging.take_in(
            sheet or file,
            experiment=given["experiment"],
            judged_by=given["judged_by"],
            close=given["close"],
            answers=file if sheet else None,
        )
        refused = taken.find_refused()
        if given["as_json"]:
            click.echo(json.dumps(_applied_as_json(taken, refused)))
        else:
            _print_apply(session, taken, refused, sheet=sheet or file)
        if session.settings.publish_after_apply:
            publish_verdicts(session, taken.experiment)
    return REFUSED if refused else 0


def _tell_why(taken: "AppliedSheet", refused: "Mapping[str, SittingLine]") -> dict[str, list[str]]:
    """Sitting → why it does not count."""
    from tipbench.show.sittings import tell_refused, tell_unblinded

    why = {line.sitting: [tell_unblinded(line)] for line in taken.status.sittings if line.only_agreement}
    why |= {token: tell_refused(line, experiment=taken.experiment) for token, line in refused.items()}
    return why


def _applied_as_json(taken: "AppliedSheet", refused: "Mapping[str, SittingLine]") -> list[dict[str, Any]]:
    from dataclasses import asdict

    why = _tell_why(taken, refused)
    return [
        asdict(each)
        | {
            "stored": each.stored.model_dump(),
            "refused": why[each.sitting][0] if each.sitting in refused else None,
        }
        for each in taken.sections
    ]


def _print_apply(
    session: Session, taken: "AppliedSheet", refused: "Mapping[str, SittingLine]", *, sheet: Path
) -> None:
    from tipbench.show.sittings import tell_stored

    why = _tell_why(taken, refused)
    for section in taken.sections:
        answered = f"{section.answered} of {section.items} answered"
        session.say.print(
            f"sitting {section.sitting} by {section.judged_by}: {answered}, {section.outcome}", markup=False
        )
        for line in (*tell_stored(section.stored), *why.get(section.sitting, ())):
            session.say.print(f"  {line}", markup=False, soft_wrap=True)
    _say_next(session, taken, sheet=sheet)


def _say_next(session: Session, taken: "AppliedSheet", *, sheet: Path) -> None:
    """What is left to do, in items: who knows how many candidates there are knows how many are checks.

    Nobody is sent to the board who still has items to judge, or may take some: it names the arms.
    """
    judges = {section.judged_by for section in taken.sections}
    left = sum(
        section.items - section.answered
        for section in taken.sections
        if section.outcome in {"open", "not begun"}
    )
    if not left:
        session.say.print("All sittings of this sheet are closed.")
    session.say.print("Next:")
    name, status = shlex.quote(taken.experiment), taken.status
    if left:
        session.say.print(f"  answer the other {left} items of this sheet, then apply it again")
    elif any(line.state == "open" and line.judged_by in judges for line in status.sittings):
        session.say.print("  judge the sitting that is still open: you have its items elsewhere")
    elif status.sittings_waiting and status.ended is None:
        from tipbench.judging.sheet import free_sheet
        from tipbench.show.sittings import tell_sittings

        session.say.print(f"  about {tell_sittings(status.sittings_waiting)}; to judge on:", markup=False)
        path = shlex.quote(str(free_sheet(sheet)))
        session.say.print(f"  tipbench judge --experiment {name} --export {path}", markup=False)
    else:
        session.say.print(f"  tipbench compare --experiment {name}", markup=False)


def _judge_at_keyboard(given: Mapping[str, Any]) -> int:
    with open_session(_flags(given, "judged_by")) as session:
        return judge_here(session, _make_request(given, judged_by=find_judge_name(session.settings)))


def _judge_by_model(given: Mapping[str, Any]) -> int:
    from tipbench.engines import open_engines
    from tipbench.judging.auto.run import AutoOrder
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console
    from tipbench.show.sittings import print_judged
    from tipbench.workbench import find_judge

    settings = read_settings(_flags(given, "judge_model"))
    anyway, as_json = given["anyway"], given["as_json"]
    say = make_console(stderr=as_json)
    if settings.judge_model is None:
        raise UsageError(
            "--auto needs a judge", hint="Name one: --judge-model smollm2, or judge_model in tipbench.toml."
        )
    with open_engines(settings, report=lambda line: say.print(line, markup=False)) as engines:
        judge = find_judge(settings.judge_model, settings, engines)
        with start_session(settings, say=say) as session:
            budget = settings.judge_budget if given["budget"] is None else given["budget"]
            order = AutoOrder(judge, budget_usd=budget, anyway=anyway)
            try:
                outcome = judge_with_bar(session, order, quiet=as_json)
            except KeyboardInterrupt:
                raise TipbenchError(
                    "stopped", hint="What was judged is kept. Run the same command again to go on."
                ) from None
            if as_json:
                click.echo(json.dumps(_as_json(outcome)))
            else:
                print_judged(outcome, say, judge=judge, experiment=settings.experiment, anyway=anyway)
    return UNINFORMATIVE if outcome is not None and not outcome.grade.informative and not anyway else 0


def _judge_by_agent(given: Mapping[str, Any]) -> int:
    as_json = given["as_json"]
    with open_session(_flags(given), for_machines=as_json) as session:
        outcome = judge_with_agent(session, session.settings.experiment)
        if as_json:
            click.echo(json.dumps(_agent_as_json(outcome)))
        if outcome is None:
            return 0
        outcome.check(session.settings.judge_command_minutes)
    return outcome.exit_code


def _agent_as_json(outcome: "AgentOutcome | None") -> dict[str, object] | None:
    if outcome is None:
        return None
    return {
        "agent_code": outcome.agent_code,
        "judged": outcome.judged,
        "waiting": outcome.waiting,
        "refused": [line.sitting for line in outcome.refused],
    }


def _as_json(outcome: "AutoOutcome | None") -> dict[str, object] | None:
    if outcome is None:
        return None
    return {
        "sitting": outcome.sitting,
        "state": outcome.state,
        "informative": outcome.grade.informative,
        "grade": outcome.grade.model_dump(),
        "judged": outcome.judged,
        "candidates": outcome.candidates,
        "failures": outcome.failures,
        "spent": outcome.spent.model_dump(),
    }


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
        found = session.workbench.status(settings.experiment, fresh=fresh)
        if as_json:
            click.echo(found.model_dump_json(indent=1))
        else:
            from tipbench.records import AGENT
            from tipbench.show.sittings import print_status

            print_status(found, session.say, asked_by={find_judge_name(settings), AGENT})


@command.command(name="judges", short_help="Drift of every sitting, agreement of the judges.")
@click.option("--experiment", help="Only this experiment [default: all].")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@delta_option
@mlflow_options
def list_judges(*, experiment: str | None, as_json: bool, **flags: object) -> None:
    """Every sitting with its drift, and how far the judges agree."""
    with open_session(flags, for_machines=as_json) as session:
        names = [experiment] if experiment else [each.name for each in session.tracking.list_experiments()]

        def pass_over(name: str, error: TipbenchError) -> None:
            session.say.print(f"· {name} is left out: {error.message}", markup=False)

        report = session.workbench.judging.judges(
            names, delta=session.settings.delta, pass_over=None if experiment else pass_over
        )
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            from tipbench.show.sittings import print_judges

            print_judges(report, session.say)


@command.command(short_help="Let a refused sitting count.")
@click.argument("sitting")
@click.option("--reason", required=True, help="Why its verdicts may count.")
@click.option("--with-late", is_flag=True, help="Answers that came after the close count too.")
@experiment_option
@mlflow_options
def accept(*, sitting: str, reason: str, with_late: bool, **flags: object) -> None:
    """Let the verdicts of a closed SITTING count, whatever the drift rule said of it."""
    _decide(sitting, flags, accept=True, reason=reason, with_late=with_late)


@command.command(short_help="Let no verdict of a sitting count.")
@click.argument("sitting")
@click.option("--reason", required=True, help="Why its verdicts must not count.")
@experiment_option
@mlflow_options
def refuse(*, sitting: str, reason: str, **flags: object) -> None:
    """Let no verdict of a closed SITTING count; they are kept, its items wait again."""
    _decide(sitting, flags, accept=False, reason=reason)


def _decide(
    sitting: str, flags: Mapping[str, object], *, accept: bool, reason: str, with_late: bool = False
) -> None:
    """Stores a person's word on the sitting and says what it is now."""
    from tipbench.bench.sittings import Decision

    decision = Decision(sitting=sitting, accept=accept, reason=check_reason(reason), by=find_user())
    with open_session(flags) as session:
        name = session.settings.experiment
        found = session.workbench.judging.decide(decision, experiment=name, with_late=with_late)
        session.say.print(f"sitting {sitting} is {found.state}: {decision.reason}", markup=False)
        session.say.print(f"  tipbench compare --experiment {shlex.quote(name)}", markup=False)


@command.command(name="release", short_help="Take a sitting back from its judge.")
@click.argument("sitting")
@experiment_option
@mlflow_options
def release_sitting(*, sitting: str, **flags: object) -> None:
    """Take SITTING back from its judge (a lost file): complete blocks count, the rest waits again."""
    with open_session(flags) as session:
        released = session.workbench.judging.release(sitting, experiment=session.settings.experiment)
        session.say.print(f"sitting {sitting} is {released.state}", markup=False)


@command.command(name="close", short_help="End judging of an experiment.")
@click.option("--reason", required=True, help="Why judging ends here.")
@experiment_option
@mlflow_options
def close_judging(*, reason: str, **flags: object) -> None:
    """End judging of an experiment: what is not judged stays so."""
    with open_session(flags) as session:
        name = session.settings.experiment
        session.workbench.judging.end(check_reason(reason), experiment=name, by=find_user())
        session.say.print(f"judging of {name!r} is closed: {reason}", markup=False)


@command.command(name="reopen")
@click.option("--reason", required=True, help="Why judging goes on.")
@experiment_option
@mlflow_options
def reopen_judging(*, reason: str, **flags: object) -> None:
    """Open judging of an experiment again."""
    with open_session(flags) as session:
        name = session.settings.experiment
        session.workbench.judging.reopen(check_reason(reason), experiment=name, by=find_user())
        session.say.print(f"judging of {name!r} is open again: {reason}", markup=False)


@command.command(short_help="New anchors from what three judges agree on.")
@click.option(
    "--pack", "folder", required=True, type=click.Path(file_okay=False, path_type=Path), help="The pack."
)
@click.option("--write", is_flag=True, help="Add them; without it they are only shown.")
@experiment_option
@mlflow_options
def anchors(*, folder: Path, write: bool, **flags: object) -> None:
    """New anchors for the pack in this folder: candidates on which three different judges agree."""
    from tipbench.judging.new_anchors import propose_anchors, write_anchors
    from tipbench.pack import read_pack
    from tipbench.show.sittings import print_proposal

    pack = read_pack(folder)
    with open_session(flags) as session:
        name, judging, say = session.settings.experiment, session.workbench.judging, session.say
        proposal = propose_anchors(judging.open(name, fresh=True), pack)
        print_proposal(proposal, say)
        if proposal.new and write:
            write_anchors(folder, proposal)
            say.print(f"written to {folder / 'anchors.jsonl'}, references sealed", markup=False)
            say.print(
                f"the pack's hash was {pack.hash} and is {proposal.grown.hash}: experiments keep the pack "
                "they were collected with, and their drift stays as it was measured. The new anchors are "
                "used for cells that are collected with this folder from now on; no cell has to be generated "
                "again:"
            )
            say.print(f"  tipbench collect --pack {folder} --experiment NEW --reuse-from …", markup=False)
        elif proposal.new:
            say.print("Nothing was written. To add them: the same command with --write")


@command.command(name="install-command", short_help="The slash command for Claude Code.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    default=Path(),
    help="The project that gets it [default: this folder].",
)
@click.option("--mcp", "with_server", is_flag=True, help="Also name the MCP server in .mcp.json.")
@click.option("--force", is_flag=True, help="Replace files that were changed.")
def install_command(folder: Path, *, with_server: bool, force: bool) -> None:
    """Install the slash command /judge-mlflow for Claude Code into a project."""
    import shutil

    from tipbench.inert import make_inert_line
    from tipbench.judging.slash_command import MCP_ENTRY, MCP_FILE, NAME, SERVER, install

    for path, is_new in install(folder, with_server=with_server, force=force).items():
        click.echo(f"{'wrote' if is_new else 'unchanged'} {make_inert_line(str(path), limit=1_000)}")
    if not with_server:
        click.echo(f"\nWith the MCP server nothing has to be exported. For {MCP_FILE}, or with --mcp:")
        click.echo(json.dumps({"mcpServers": {SERVER: MCP_ENTRY}}, indent=2))
    if shutil.which("tipbench") is None:
        click.echo("\n· `tipbench` is not on the PATH here: in the entry, write its full path as `command`.")
    click.echo(f"\nIn Claude Code: /{NAME} EXPERIMENT")
