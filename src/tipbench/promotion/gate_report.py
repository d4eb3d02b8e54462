"""What the gate says, for people and for machines."""

import shlex

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tipbench.bench.plans import Answer, GateRule
from tipbench.inert import make_inert_line
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


def print_gate(report: GateReport, console: Console) -> None:
    """The rules with their numbers, the plan, the answer, and what would decide."""
    version = f", version {report.version}" if report.version else ""
    shown = f"{report.experiment}: challengers against {report.champion} ({report.against}{version})"
    console.print(shown, markup=False, style="bold")
    console.print(_plan_line(report), markup=False)
    if report.rules:
        table = Table("", "rule", "numbers", box=None, pad_edge=False, show_header=False)
        for rule in report.rules:
            mark = "[green]pass[/green]" if rule.passed else "[red]FAIL[/red]"
            table.add_row(mark, rule.name, escape(rule.detail))
        console.print(table)
    if report.challenger is not None and report.challenger != report.promoted:
        console.print(f"· best challenger: {make_inert_line(report.challenger)}", markup=False, style="dim")
    for remark in (*report.remarks, *_doubts(report)):
        console.print(f"· {remark}", markup=False, style="dim")
    console.print(report.words, markup=False, style="bold")
    for line in _next_lines(report):
        console.print(line, markup=False)


def _plan_line(report: GateReport) -> str:
    if report.budget is None:
        return f"{report.counted} lazy verdicts count; no look was spent"
    shares = ", ".join(f"{share:.0%}" for share in report.looks)
    plan = f"plan: looks at {shares} of {report.budget} lazy verdicts, level {report.alpha:g}"
    if report.look is None:
        return f"{plan}; {report.counted} count now; no look was spent"
    return f"{plan}; this is look {report.look}, with the {report.looked_at} that counted then"


def _doubts(report: GateReport) -> list[str]:
    if not report.doubtful:
        return []
    return [f"doubtful: it rests on sittings that were refused since: {', '.join(report.doubtful)}"]


def _next_lines(report: GateReport) -> list[str]:
    found = report.next_look
    if found is None:
        if report.answer == "no" and report.look is not None:
            return ["Every planned look was taken. To ask again, collect into a new experiment."]
        return []
    more = f"{found.missing} more lazy verdicts" if found.missing else "no more verdicts: run it again"
    lines = [f"Look {found.look} needs {found.at}: {more}, {found.waiting} candidates wait."]
    if found.blocks and found.missing:
        where = ", ".join(f"{make_inert_line(name)} ({count})" for name, count in found.blocks.items())
        lines.append(f"  best on: {where}")
        name = shlex.quote(report.experiment)
        lines.append(f"  tipbench judge --experiment {name} --next {found.missing} --export sheet.json")
    return [*lines, f"  {found.remark}"] if found.remark else lines
