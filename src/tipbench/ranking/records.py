"""What `compare` says, as records: `--json` prints them as they are. Keys are added, never renamed."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from tipbench.records import Record

if TYPE_CHECKING:
    from tipbench.ranking.details import ComparedJudges, Contrast, JudgedSitting

By = Literal["arm", "model", "prompt"]
Tier = Literal["none", "lazy", "auto", "lazy+auto"]
BoardTier = Literal["lazy", "auto"]
AUTOMATIC = "automatic, not for promotion"
"""What stands on every outlet of a board of the auto tier."""


class Interval(Record):
    """How far `name` is ahead of `to`, with the 95 % interval."""

    name: str
    to: str
    difference: float
    low: float
    high: float


class Standing(Record):
    """One line of the leaderboard. Numbers that nobody gave yet are absent.

    An arm has a model and a prompt; a line of models has no prompt, one of prompts no model. `tier` says
    which verdicts its composite rests on, `verdicts` how many. `auto_composite` is the automatic judge's own
    mean, which carries its bias and ranks nobody but on its own board. `sittings` are the tokens of the
    sittings that count here.
    """

    name: str
    place: int | None = None
    tied_for_first: bool = False
    tier: Tier = "none"
    verdicts: int = 0
    failures_drawn: int = 0
    composite: float | None = None
    against_best: Interval | None = None
    gap: Interval | None = None
    """How far it is ahead of the best other one; its bounds, at 95 % each, say who is tied for first."""
    parts: dict[str, float] = Field(default_factory=dict)
    cells: int = 0
    candidates: int = 0
    answered: int = 0
    computed: dict[str, float] = Field(default_factory=dict)
    diversity: float | None = None
    latency_seconds: float | None = None
    tokens_per_second: float | None = None
    pinned: bool = True
    auto_verdicts: int = 0
    auto_composite: float | None = None
    rank_best: int | None = None
    rank_worst: int | None = None
    p_best: float | None = None
    sittings: tuple[str, ...] = ()
    prompt_tokens: float | None = None
    output_tokens: float | None = None
    model: str | None = None
    prompt: str | None = None
    scored_cells: int = 0
    """Cells that a judge of another program scored as a whole; they rank nobody."""
    cell_scores: dict[str, float] = Field(default_factory=dict)
    """The means of those scores, `composite` among them."""


class CountedSitting(Record):
    """A sitting whose verdicts count on the board; `number` is what tables call it."""

    number: int
    sitting: str
    tier: Literal["lazy", "auto"]
    judged_by: str
    verdicts: int


class Tiers(Record):
    """Which tier the board rests on, and how far the automatic judge agrees with the lazy ones.

    `slope` says how much of a candidate's auto lead within its cell counts, 0 for nothing. `said` is the same
    in one line.
    """

    used: Tier = "none"
    lazy: int = 0
    auto: int = 0
    slope: float = 0.0
    pairs: int = 0
    alpha: float | None = None
    alpha_low: float | None = None
    alpha_high: float | None = None
    bias: float | None = None
    bias_spread: float | None = None
    said: str = ""


class Length(Record):
    """Whether length paid, among the `tips` whose verdicts rank; the number of words is known of `known`.

    `slope` is in points a word within `blocks`, with its 95 % interval; `longest_won` is the share of these
    blocks whose longest tip got the most, `chance` what it would be by chance.
    """

    tips: int
    known: int
    blocks: int
    slope: float | None = None
    low: float | None = None
    high: float | None = None
    longest_won: float | None = None
    chance: float | None = None


class Report(Record):
    """What `compare` says. `tier` is whose verdicts rank; `mark` says what a board may not be used for."""

    experiment: str
    by: str
    judged: int
    candidates: int
    waiting: int
    judging_closed: bool
    scenarios: int
    rubric: str
    lowest: float
    highest: float
    winner: str | None
    standings: tuple[Standing, ...]
    pairs: tuple[Interval, ...]
    set_aside: tuple[str, ...]
    remarks: tuple[str, ...]
    tiers: Tiers = Tiers()
    sittings: tuple[CountedSitting, ...] = ()
    tier: BoardTier = "lazy"
    mark: str = ""
    made_by_tipbench: bool = True
    length: Length | None = None

    @property
    def ranked(self) -> list[Standing]:
        """The lines with a place, best first."""
        return [standing for standing in self.standings if standing.place is not None]

    @property
    def exit_code(self) -> int:
        """0 a winner, 3 a tie that more judging of these candidates cannot break, 4 not decided yet."""
        if self.winner is not None:
            return 0
        return 3 if len(self.ranked) > 1 and self.scenarios > 1 and not self.waiting else 4


# What the page shows beyond the leaderboard, read from the store once.


@dataclass(frozen=True)
class Side:
    """What an arm is made of."""

    model: str
    prompt: str


@dataclass(frozen=True)
class Details:
    """`arms` is the leaderboard of arms, whatever the report ranks; `sides` says what they are made of."""

    arms: Report
    sides: Mapping[str, Side]
    sittings: "tuple[JudgedSitting, ...]"
    judges: "tuple[ComparedJudges, ...]"
    contrasts: "tuple[Contrast, ...]"
    made_ms: int
