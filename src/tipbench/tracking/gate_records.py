"""What the gate stores: a plan, the frozen list a look is computed from, and what the look said."""

from typing import Literal

from tipbench.records import Record

Answer = Literal["promote", "no", "undecided"]


class PlanFacts(Record):
    """What was fixed before anybody looked: how many lazy verdicts, when to look, how often to err."""

    champion: str
    arm_hash: str
    budget: int
    looks: tuple[float, ...]
    alpha: float
    counted: int
    """Verdicts that counted when the plan was made."""


class FrozenScore(Record):
    """One slot with what the tiers had said of it."""

    arm: str
    scenario: str
    slot: int
    lazy: float | None = None
    auto: float | None = None
    sitting: str | None = None


class FrozenArm(Record):
    """What was known of an arm without any judge. `well_formed` is a share of all slots."""

    arm: str
    cells: int
    well_formed: float | None
    latency_seconds: float | None


class FrozenSitting(Record):
    """A sitting whose verdicts counted. `grade` says how far an auto judge agrees with the anchors."""

    token: str
    tier: Literal["lazy", "auto"]
    judged_by: str
    verdicts: int
    unanchored: bool
    informative: bool
    grade: str = ""


class FrozenTerms(Record):
    """What the gate asked for at this look. `unanchored` says whether sittings without anchors may count."""

    margin: float
    require: Literal["both", "lazy"]
    scenarios: int
    unanchored: bool
    format_drop: float
    latency_ratio: float


class Frozen(Record):
    """Everything a look is computed from, fixed before it was claimed."""

    champion: str
    counted: int
    scores: tuple[FrozenScore, ...]
    arms: tuple[FrozenArm, ...]
    sittings: tuple[FrozenSitting, ...]
    terms: FrozenTerms


class GateRule(Record):
    """One rule with its numbers."""

    name: str
    passed: bool
    detail: str


class GateAnswer(Record):
    """What a look says of one challenger, or of the best one."""

    answer: Answer
    promoted: str | None
    challenger: str | None
    difference: float | None
    bound: float | None
    auto_difference: float | None
    level: float
    rules: tuple[GateRule, ...]


class LookResult(Record):
    """The answers of a look: for whoever is best, and for every arm that might be asked for."""

    look: int
    of: int
    counted: int
    champion: str
    best: GateAnswer
    by_arm: dict[str, GateAnswer]


class PlainAnswer(Record):
    """An answer that no look was spent on."""

    answer: Answer
    rules: tuple[GateRule, ...] = ()
    remarks: tuple[str, ...] = ()
