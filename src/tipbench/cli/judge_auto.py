"""`tipbench judge --auto`: a model judges what it did not judge yet."""

import json
import shlex
from collections.abc import Mapping, Sequence

import click

from tipbench.cli.session import Session, make_console, start_session
from tipbench.engines import Engines, open_engines
from tipbench.errors import TipbenchError, UsageError
from tipbench.judging.auto.graders import JudgeModel, Price, judge_on_engine
from tipbench.judging.auto.run import AutoOrder, AutoOutcome
from tipbench.settings import Settings, read_settings

LITELLM = "litellm:"
OPTIONS = {
    "--auto",
    "--judge-model",
    "--budget",
    "--anyway",
    "--json",
    "--experiment",
    "--mlflow-url",
    "--home",
}
UNINFORMATIVE = 3
"""Exit code: no, this judge's verdicts are not used."""


def check_options(given: Sequence[str]) -> None:
    """Refuses options of other ways to judge.

    Raises:
        UsageError: names the first one.
    """
    for name in sorted(set(given) - OPTIONS):
        raise UsageError(f"{name} does not go with --auto")


def run_auto(flags: Mapping[str, object], *, budget: float | None, anyway: bool, as_json: bool) -> int:
    """Judges, shows how it goes, and gives the exit code."""
    settings = read_settings(flags)
    say = make_console(stderr=as_json)
    if settings.judge_model is None:
        raise UsageError(
            "--auto needs a judge", hint="Name one: --judge-model smollm2, or judge_model in tipbench.toml."
        )

    def report(line: str) -> None:
        say.print(line, markup=False)

    with open_engines(settings, report=report) as engines:
        judge = find_judge(settings.judge_model, settings, engines)
        with start_session(settings, say=say) as session:
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
                print_outcome(session, judge, outcome, anyway=anyway)
    return UNINFORMATIVE if outcome is not None and not outcome.grade.informative and not anyway else 0


def find_judge(name: str, settings: Settings, engines: Engines) -> JudgeModel:
    """The judge of that name: behind LiteLLM, or a model of one of our engines.

    Raises:
        ModelRefused: nobody has it, or it is too big.
    """
    if name.startswith(LITELLM):
        from tipbench.judging.auto.graders import judge_behind_litellm

        return judge_behind_litellm(name.removeprefix(LITELLM), price=_price(settings))
    model = engines.admit(name)
    return judge_on_engine(model, engines.engine_of(model), price=_price(settings))


def _price(settings: Settings) -> Price | None:
    prompt, output = settings.judge_price_prompt, settings.judge_price_output
    if (prompt is None) != (output is None):
        raise UsageError("judge_price_prompt and judge_price_output belong together: set both")
    return None if prompt is None or output is None else Price(prompt / 1000, output / 1000)


def judge_with_bar(session: Session, order: AutoOrder, *, quiet: bool) -> AutoOutcome | None:
    """Judges, with a bar that shows how far it is."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=session.say, disable=quiet) as bar:
        task = bar.add_task("judging", total=None)
        return session.workbench.auto_judging(
            lambda done, of: bar.update(task, completed=done, total=of)
        ).run(order, experiment=session.settings.experiment)


def print_outcome(session: Session, judge: JudgeModel, outcome: AutoOutcome | None, *, anyway: bool) -> None:
    """What became of it, and what to do next."""
    say, name = session.say, shlex.quote(session.settings.experiment)
    if outcome is None:
        say.print(f"nothing waits for {judge.name!r}: it judged every answered candidate", markup=False)
        return
    spent, grade = outcome.spent, outcome.grade
    say.print(f"{judge.name} against the anchors: {grade.shown}", markup=False)
    say.print(
        f"sitting {outcome.sitting} is {outcome.state}: judged {outcome.judged} of {outcome.candidates} "
        f"candidates in {spent.calls} calls, {spent.prompt_tokens} + {spent.output_tokens} tokens, "
        f"{spent.usd:.4f} USD, {spent.seconds / max(spent.calls, 1):.1f} s a call",
        markup=False,
    )
    for item, message in list(outcome.failures.items())[:5]:
        say.print(f"· item {item} has no verdict: {message}", markup=False)
    if not grade.informative:
        say.print("uninformative: it does not agree with the references more than by chance", markup=False)
        how = (
            "Its verdicts are stored but not used." if anyway else "No candidate was judged (--anyway does)."
        )
        say.print(f"{how} Ask a person or a coding agent:", markup=False)
        say.print(f"  tipbench judge --experiment {name} --export sheet.json", markup=False)
    else:
        say.print(f"  tipbench compare --experiment {name}", markup=False)


def _as_json(outcome: AutoOutcome | None) -> dict[str, object] | None:
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
