"""`tipbench plan`: what a design can see before anything is generated."""

from dataclasses import dataclass

import click

from tipbench.cli.session import make_console, mlflow_options, start_session
from tipbench.judging.anchors import ANCHORS_PER_SITTING
from tipbench.judging.draw import SECTION_ITEMS
from tipbench.settings import Settings, read_settings
from tipbench.stats import AutoJudge, CellVariance, Design, scenarios_needed, smallest_difference

POWER = 0.80


@click.command(name="plan")
@click.option("--models", help="Comma-separated model tags.")
@click.option("--prompts", help="Comma-separated prompt versions.")
@click.option("--scenarios", metavar="core|wide|all|N", help="A set of the pack, or a number.")
@click.option("--n-tips", type=click.IntRange(1, 50), help="Candidates per cell.")
@click.option("--pack", help="A pack's folder; `tip` is built in.")
@click.option("--difference", type=float, help="What should be seen: how many scenarios does that need?")
@click.option("--like", metavar="EXPERIMENT", help="An earlier experiment: its cells vary as these will.")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="What one verdict takes.",
)
@mlflow_options
def command(*, difference: float | None, like: str | None, seconds: float, **flags: object) -> None:
    """The smallest lead over a champion that the gate would see with 80 % probability.

    With --difference: the scenarios and verdicts that seeing it needs.
    """
    from tipbench.grid import open_pack

    settings = read_settings(flags)
    pack = open_pack(settings.pack)
    work = _Work(
        arms=_count(settings.models) * _count(settings.prompts),
        n_tips=settings.n_tips,
        seconds=seconds,
        like=None if like is None else _read_variance(settings, like),
    )
    say = make_console()
    if difference is None:
        scenarios = _count_scenarios(settings.scenarios, {s.id: s.set for s in pack.scenarios})
        title = f"{work.arms} arms × {scenarios} scenarios × {work.n_tips} candidates"
        table = _seen_table(work, scenarios)
        remark = "Scenarios are the sample: to see a smaller lead, take more of them before judging deeper."
    else:
        title = f"{work.arms} arms, a lead of {difference:g} over the champion"
        table = _needed_table(work, difference)
        remark = f"The pack {pack.name!r} has {len(pack.scenarios)} scenarios.{_doubt(difference)}"
    say.print(title, style="bold")
    say.print(table)
    say.print(remark, style="dim")
    say.print(work.assumed, style="dim")


def _read_variance(settings: Settings, name: str) -> CellVariance:
    from tipbench.ranking.compare import read_cell_variance

    with start_session(settings, say=make_console()) as session:
        return read_cell_variance(session.workbench.open(name))


@dataclass(frozen=True)
class _Work:
    arms: int
    n_tips: int
    seconds: float
    like: CellVariance | None

    @property
    def assumed(self) -> str:
        """Where the variance comes from."""
        if self.like is None:
            return "The variance of a cell is the usual one; --like takes it from an earlier experiment."
        seen = f"{self.like.variance:.2f} with {self.like.per_cell:.3g} verdicts a cell"
        return f"The variance of a cell is that of the earlier experiment: {seen}."

    def variance(self, depth: int) -> float | None:
        """Of a cell with so many verdicts; None: the usual one."""
        return None if self.like is None else self.like.at(depth)

    def sittings(self, blocks: int) -> int:
        """Whole blocks, at least one a sitting."""
        return -(-blocks // max(1, SECTION_ITEMS // self.arms))

    def time(self, blocks: int) -> str:
        """Verdicts and hidden anchors."""
        items = blocks * self.arms + ANCHORS_PER_SITTING * self.sittings(blocks)
        minutes = items * self.seconds / 60.0
        return f"{minutes:.0f} min" if minutes < 90 else f"{minutes / 60.0:.1f} h"

    def depths(self) -> list[int]:
        """Verdicts a cell worth showing."""
        return sorted({depth for depth in (1, 2, 3, 5, self.n_tips) if depth <= self.n_tips})


def _count(names: str) -> int:
    return len({name.strip() for name in names.split(",") if name.strip()})


def _count_scenarios(asked: str, sets: dict[str, str]) -> int:
    from tipbench.errors import UsageError

    if asked.isdecimal():
        return int(asked)
    count = sum(asked in ("all", of) for of in sets.values())
    if not count:
        known = ", ".join([*dict.fromkeys(sets.values()), "all"])
        raise UsageError(f"unknown scenario set {asked!r}", hint=f"There are: {known}, or give a number.")
    return count


def _seen_table(work: _Work, scenarios: int) -> object:
    lines: list[tuple[str, ...]] = []
    for depth in work.depths():
        design, blocks = Design(work.arms, scenarios, depth), scenarios * depth
        both = smallest_difference(design, variance=work.variance(depth))
        alone = smallest_difference(design, variance=work.variance(depth), auto=None)
        seen = f"{both:.2f}" if both < float("inf") else "none: the gate needs 4 scenarios"
        lines.append(
            (
                f"{depth}",
                f"{design.verdicts}",
                seen,
                f"{alone:.2f}" if alone < float("inf") else "",
                f"{work.sittings(blocks)}",
                work.time(blocks),
            )
        )
    seen_by = ("lead seen with 80 %", "by the lazy tier alone")
    return _table(("verdicts a cell", "verdicts", *seen_by, "sittings", "judging"), lines)


def _needed_table(work: _Work, difference: float) -> object:
    auto = AutoJudge() if _auto_can_agree(difference) else None
    lines: list[tuple[str, ...]] = []
    for depth in work.depths():
        needed = scenarios_needed(
            difference, arms=work.arms, per_cell=depth, variance=work.variance(depth), auto=auto
        )
        verdicts, blocks = Design(work.arms, needed, depth).verdicts, needed * depth
        lines.append((f"{depth}", f"{needed}", f"{verdicts}", f"{work.sittings(blocks)}", work.time(blocks)))
    return _table(("verdicts a cell", "scenarios", "verdicts", "sittings", "judging"), lines)


def _auto_can_agree(difference: float) -> bool:
    """Whether the usual auto judge sees the better arm ahead often enough, given scenarios without end."""
    return AutoJudge().agrees(difference) > POWER


def _doubt(difference: float) -> str:
    if _auto_can_agree(difference):
        return ""
    return (
        f" The usual auto judge sees a lead of {difference:g} in {AutoJudge().agrees(difference):.0%} only, "
        "so the table is for the lazy tier alone."
    )


def _table(headings: tuple[str, ...], lines: list[tuple[str, ...]]) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*line)
    return table
