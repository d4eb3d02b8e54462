"""Where judging stands, as records: `judge status --json` prints them as they are."""

from tipbench.bench.sittings import Decision, StoredDrift
from tipbench.records import Record, TimeText


class SittingLine(Record):
    """One sitting as people see it."""

    sitting: str
    judged_by: str
    judge_kind: str
    state: str
    items: int
    anchors: int
    repeats: int = 0
    """Judged candidates that are there as checks."""
    blocks: int
    blocks_counted: int
    submissions: int
    drawn: str
    expires: TimeText
    drift: StoredDrift | None = None
    decision: Decision | None = None
    late: int = 0
    unblinded: str = ""
    """What its judge had seen of the arms before; its verdicts then count for agreement only, unless a
    person accepts it."""
    only_agreement: bool = False

    @property
    def handed(self) -> int:
        """How many items its judge was handed, checks included."""
        return self.items + self.anchors + self.repeats


class Disagreement(Record):
    """How far the automatic judge is from the lazy one in an experiment. Names no arm: judges may see it."""

    experiment: str
    pairs: int
    threshold: float | None
    """Δ: what a pair may be apart; None while there are too few pairs.

    One that was learnt is asked of |auto − lazy − bias|; one that was set by hand of |auto − lazy| as it
    stands: who sets a limit means the scores that are shown.
    """
    set_by_hand: bool
    bias: float
    """Median of auto − lazy."""
    flagged: int
    bias_spread: float | None = None
    """How unevenly it treats the arms: what makes an auto board wrong. Left out where it would take long."""


class FlaggedPair(Record):
    """A candidate of which the two tiers say too different things. Not for judges: it names the arm."""

    experiment: str
    arm: str
    scenario: str
    candidate: int
    """Its number in the cell, from 1."""
    judges: tuple[str, str]
    auto: float
    lazy: float
    gap: float
    """auto − lazy − bias."""
    difference: float
    """auto − lazy."""


class Status(Record):
    """What was judged, what waits, and who has it. `ended` says why nobody waits for judging any more."""

    experiment: str
    cells: int
    candidates: int
    judged: int
    waiting: int
    waiting_for_auto: int
    close_reason: str | None
    ended: str | None
    by_judge: dict[str, int]
    sittings: tuple[SittingLine, ...]
    disagreement: Disagreement | None = None
    damaged: tuple[str, ...] = ()
    """What cannot be read, and counts for nothing: kind and run, tag, and what is wrong."""
    sittings_waiting: int = 0
    """About how many sittings what waits for a lazy judge makes; equal texts are one item."""

    def for_judges(self) -> "JudgeStatus":
        """What is told to whoever judges here."""
        return JudgeStatus(
            experiment=self.experiment,
            sittings_waiting=self.sittings_waiting,
            close_reason=None if self.close_reason is None else "a person closed it",
            ended=None if self.ended is None else "judging is over",
            sittings=tuple(
                JudgeStatusLine(
                    sitting=line.sitting,
                    judged_by=line.judged_by,
                    state=line.state,
                    items=line.handed,
                    expires=line.expires,
                )
                for line in self.sittings
            ),
        )


class JudgeStatusLine(Record):
    """One sitting as judges see it: its items, and not what they are."""

    sitting: str
    judged_by: str
    state: str
    items: int
    expires: TimeText


class JudgeStatus(Record):
    """Where judging stands for whoever judges: nothing that can be counted, no text of a person, which may
    name an arm, and not what the gate said."""

    experiment: str
    sittings_waiting: int
    close_reason: str | None
    ended: str | None
    sittings: tuple[JudgeStatusLine, ...]
