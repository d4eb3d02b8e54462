"""What `tipbench judge --export` and `--interactive` may be asked for."""

from typing import Any

import click

from tipbench.cli.session import Function
from tipbench.errors import UsageError
from tipbench.judging.handout import SittingRequest


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
            self.fail(f"{text!r} is no share: write it as 10%", param, ctx)
        return share


OPTIONS = {
    "blocks": "--blocks",
    "next_items": "--next",
    "order": "--order",
    "champion": "--champion",
    "second_opinion": "--second-opinion",
    "disagreements": "--disagreements",
    "judge_kind": "--judge-kind",
}
ALONE = {"next_items", "blocks", "second_opinion", "disagreements"}
"""Of these at most one."""


def hand_out_options(function: Function) -> Function:
    """The options that say what to hand out."""
    for option in (
        click.option(
            "--judge-kind",
            type=click.Choice(["claude-code", "human"]),
            help="Only cells that wait for this kind of judge.",
        ),
        click.option(
            "--second-opinion",
            type=Share(),
            help="This share of what others judged, as 10%: it counts for agreement, not for the board.",
        ),
        click.option(
            "--disagreements",
            type=click.IntRange(min=1),
            metavar="N",
            help="The N most doubtful automatic verdicts, to check: for agreement and Δ, not for the board.",
        ),
        click.option(
            "--champion", metavar="MODEL+PROMPT", help="With --next: the arm that a winner must beat."
        ),
        click.option(
            "--order",
            type=click.Choice(["decisive", "random"]),
            help="With --next: what decides, or drawn at random [default: decisive].",
        ),
        click.option(
            "--next",
            "next_items",
            type=click.IntRange(min=1),
            metavar="N",
            help="About N items, in whole blocks: those that matter for deciding the winner.",
        ),
        click.option("--blocks", type=click.IntRange(min=1), help="At most so many blocks."),
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


def check_wishes(wishes: dict[str, Any], *, way: str) -> None:
    """Refuses what does not go together.

    Raises:
        UsageError: names the options.
    """
    given = [name for name in OPTIONS if wishes.get(name) is not None]
    if given and way == "--apply":
        raise UsageError(f"{OPTIONS[given[0]]} does not go with --apply")
    several = [OPTIONS[name] for name in given if name in ALONE]
    if len(several) > 1:
        raise UsageError(f"{' and '.join(several)} do not go together")
    for name in ("order", "champion"):
        if name in given and "next_items" not in given:
            raise UsageError(f"{OPTIONS[name]} goes with --next")


def make_request(wishes: dict[str, Any], *, judged_by: str) -> SittingRequest:
    """What the judge phase is asked for."""
    return SittingRequest(
        judged_by,
        judge_kind=wishes["judge_kind"],
        blocks=wishes["blocks"],
        items=wishes["next_items"],
        at_random=wishes["order"] == "random",
        champion=wishes["champion"],
        second_share=wishes["second_opinion"],
        spots=wishes["disagreements"],
    )


def split_wishes(flags: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of this module, and the others."""
    wishes = {name: value for name, value in flags.items() if name in OPTIONS}
    return wishes, {name: value for name, value in flags.items() if name not in OPTIONS}
