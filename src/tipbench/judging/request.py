"""What a judge may ask for, checked in one place for command line, MCP and API."""

from collections.abc import Callable, Collection
from dataclasses import dataclass

from tipbench.bench.plans import FixedPlan
from tipbench.errors import UsageError
from tipbench.records import Drawn

ALONE = ("next", "second_opinion", "disagreements")
"""Of these at most one."""
WITH_NEXT = ("order", "champion")


@dataclass(frozen=True)
class SittingRequest:
    """What to hand out, to whom. `judge_kind` narrows to the cells that wait for that kind.

    `sits` is the kind of judge who sits there, when that is known. With `items` whole blocks of at least so
    many are handed out, those that decide the winner, if it is not to be `at_random`; `champion` is the arm
    that a winner must beat. `second_share` asks for that share of what others have judged, `spots` for so
    many automatic verdicts that are worth checking. With the gate's `plan`, cells that wait for an
    automatic judge are handed out too, as many as it counts with.
    """

    judged_by: str
    judge_kind: str | None = None
    blocks: int | None = None
    sits: str | None = None
    items: int | None = None
    at_random: bool = False
    champion: str | None = None
    second_share: float | None = None
    spots: int | None = None
    plan: FixedPlan | None = None
    checks: int = 6
    """How many of them are hidden in a sitting."""

    @property
    def decisive(self) -> bool:
        """Whether what decides the winner is asked for."""
        return self.items is not None and not self.at_random

    @property
    def plain(self) -> bool:
        """Whether it asks for whatever there is."""
        return self.items is None and self.second_share is None and self.spots is None

    @property
    def drawn(self) -> Drawn:
        """How its items are drawn."""
        if self.spots is not None:
            return "spot"
        return "block" if self.second_share is None else "second"


def check_wishes(given: Collection[str], *, written: Callable[[str], str] = str) -> None:
    """Refuses what does not go together; `written` is how a wish is spelled where it was made.

    Raises:
        UsageError: names the wishes.
    """
    several = [written(name) for name in ALONE if name in given]
    if len(several) > 1:
        raise UsageError(f"{' and '.join(several)} do not go together", hint="Ask for one of them.")
    for name in WITH_NEXT:
        if name in given and "next" not in given:
            wish, following = written(name), written("next")
            raise UsageError(f"{wish} goes with {following}", hint=f"Give {following}, or leave {wish} out.")
