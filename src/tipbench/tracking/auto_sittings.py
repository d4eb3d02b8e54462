"""What a sitting of the auto tier carries beside the others: how good its judge is, and what it cost."""

from collections.abc import Mapping
from typing import TypeVar

from pydantic import Field

from tipbench.records import Record
from tipbench.stats import Alpha
from tipbench.tracking.sittings import StoredSitting

GRADE_TAG = "tipbench.judge_grade"
PROGRESS_TAG = "tipbench.progress"
R = TypeVar("R", bound=Record)
ENOUGH_ANCHORS = 0.8
"""A judge that holds the format answers at least this share of the anchors."""


class JudgeGrade(Record):
    """Krippendorff's α of an auto judge against the anchors' references, with its interval."""

    alpha: float | None
    low: float | None
    high: float | None
    answered: int
    anchors: int

    @property
    def holds_format(self) -> bool:
        """Whether it answered the anchors as it was asked to."""
        return self.answered >= ENOUGH_ANCHORS * self.anchors

    @property
    def informative(self) -> bool:
        """Whether it certainly agrees with the references more than by chance."""
        return self.holds_format and self.low is not None and self.low > 0.0

    @property
    def shown(self) -> str:
        """In words, for one line."""
        if self.alpha is None or self.low is None or self.high is None:
            return f"no α against {self.answered} of {self.anchors} anchors (nothing varies)"
        rough = ", rough" if Alpha(self.alpha, self.low, self.high, self.answered).rough else ""
        over = f"{self.answered} of {self.anchors} anchors{rough}"
        return f"α {self.alpha:.2f} [{self.low:.2f}, {self.high:.2f}] over {over}"

    @property
    def metrics(self) -> dict[str, float]:
        """For charts in MLflow."""
        found = {"alpha": self.alpha, "alpha_low": self.low, "alpha_high": self.high}
        return {name: value for name, value in found.items() if value is not None}


class Spent(Record):
    """What calls of a judge took. A call whose end is not known counts with all that was reserved for it."""

    calls: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    output_tokens: int = 0
    seconds: float = 0.0
    usd: float = 0.0

    def plus(self, other: "Spent") -> "Spent":
        """Both together."""
        mine, theirs = self.model_dump(), other.model_dump()
        return Spent.model_validate({name: mine[name] + theirs[name] for name in mine})

    @property
    def metrics(self) -> dict[str, float]:
        """As metrics of the sitting's run."""
        totals = {
            "judge.calls": float(self.calls),
            "judge.failed": float(self.failed),
            "judge.prompt_tokens": float(self.prompt_tokens),
            "judge.output_tokens": float(self.output_tokens),
            "judge.cost_usd": self.usd,
        }
        return totals | ({"judge.latency_seconds": self.seconds / self.calls} if self.calls else {})


class StoredProgress(Record):
    """What a sitting took so far, by the ledger it was written down in: one for each data folder."""

    ledgers: dict[str, Spent] = Field(default_factory=dict[str, Spent])

    def with_ledger(self, ledger: str, spent: Spent) -> "StoredProgress":
        """The same with what one ledger says now."""
        return StoredProgress(ledgers={**self.ledgers, ledger: spent})

    @property
    def total(self) -> Spent:
        """Over all ledgers."""
        total = Spent()
        for spent in self.ledgers.values():
            total = total.plus(spent)
        return total


def read_grade(sitting: StoredSitting) -> JudgeGrade | None:
    """How good its judge is; None before it was closed, and of a lazy judge."""
    return _read(sitting.run.tags, GRADE_TAG, JudgeGrade)


def read_progress(sitting: StoredSitting) -> StoredProgress:
    """What it took so far, as far as it was stored."""
    return _read(sitting.run.tags, PROGRESS_TAG, StoredProgress) or StoredProgress()


def _read(tags: Mapping[str, str], name: str, record: type[R]) -> R | None:
    return record.model_validate_json(tags[name]) if name in tags else None
