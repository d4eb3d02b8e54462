"""What the gate says, for people and for machines."""

from tipbench.bench.plans import Answer, GateRule, LookResult
from tipbench.records import Record

EXIT_CODES: dict[Answer, int] = {"promote": 0, "no": 3, "undecided": 4}


class NextLook(Record):
    """What would decide: so many verdicts more, best on these scenarios (scenario → candidates)."""

    look: int
    at: int
    missing: int
    waiting: int
    blocks: dict[str, int]
    remark: str = ""


class GateReport(Record):
    """The gate's answer with every rule behind it. Looks are counted from 1."""

    experiment: str
    pack: str
    champion: str
    version: int | None
    champion_run: str
    against: str
    asked_for: str | None
    answer: Answer
    promoted: str | None = None
    challenger: str | None = None
    rules: tuple[GateRule, ...] = ()
    counted: int
    budget: int | None = None
    looks: tuple[float, ...] = ()
    alpha: float | None = None
    look: int | None = None
    looked_at: int | None = None
    level: float | None = None
    difference: float | None = None
    bound: float | None = None
    auto_difference: float | None = None
    plan_run: str = ""
    look_run: str = ""
    next_look: NextLook | None = None
    doubtful: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()

    @property
    def exit_code(self) -> int:
        """0 promote, 3 do not, 4 not decided."""
        return EXIT_CODES[self.answer]

    @property
    def words(self) -> str:
        """The answer as a sentence."""
        if self.answer == "promote":
            return f"Promote {self.promoted}: it is better than the champion {self.champion}."
        failed = ", ".join(rule.name for rule in self.rules if not rule.passed)
        if self.answer == "no":
            return f"Do not promote: {failed or 'doubtful'}. {self.champion} stays champion."
        return f"Not decided{': ' + failed if failed else ''}."


class GatePreview(Record):
    """The gate on a page: nothing was planned, looked at or repaired for it, and it decides nothing.

    `champion` is empty before there is one. `last_look` was taken in this experiment and is not what `report`
    tells. `trouble` says why nothing can be read: the registry belongs to others too.
    """

    champion: str = ""
    trouble: str = ""
    report: GateReport | None = None
    last_look: LookResult | None = None
