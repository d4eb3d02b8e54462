"""`tipbench plan`: what a design can see before anything is generated."""

from dataclasses import dataclass

import click

from tipbench.judging.anchors import ANCHORS_PER_SITTING
from tipbench.judging.blocks import SECTION_ITEMS


@click.command(name="plan")
@click.option("--models", help="Comma-separated model tags.")
@click.option("--prompts", help="Comma-separated prompt versions.")
@click.option("--scenarios", metavar="core|wide|all|N", help="A set of the pack, or a number.")
@click.option("--n-tips", type=click.IntRange(1, 50), help="Candidates per cell.")
@click.option("--pack", help="A pack's folder; `tip` is built in.")
@click.option("--difference", type=float, help="What should be seen: how many scenarios does that need?")
@click.option(
    "--seconds",
    type=click.FloatRange(min=0, min_open=True),
    default=20.0,
    show_default=True,
    help="What one verdict takes.",
)
def command(*, difference: float | None, seconds: float, **flags: object) -> None:
    """The smallest lead over a champion that the gate would see with 80 % probability.

    With --difference: the scenarios and verdicts that seeing it needs.
    """
    from tipbench.cli.session import make_console
    from tipbench.grid import open_pack
    from tipbench.settings import read_settings

    settings = read_settings(flags)
    pack = open_pack(settings.pack)
    work = _Work(
        arms=_count(settings.models) * _count(settings.prompts), n_tips=settings.n_tips, seconds=seconds
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
        remark = f"The pack {pack.name!r} has {len(pack.scenarios)} scenarios."
    say.print(title, style="bold")
    say.print(table)
    say.print(remark, style="dim")


@dataclass(frozen=True)
class _Work:
    arms: int
    n_tips: int
    seconds: float

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
    from tipbench.stats import Design, smallest_difference

    lines: list[tuple[str, ...]] = []
    for depth in work.depths():
        design, blocks = Design(work.arms, scenarios, depth), scenarios * depth
        lead = smallest_difference(design)
        seen = f"{lead:.2f}" if lead < float("inf") else "none: the gate needs 4 scenarios"
        lines.append((f"{depth}", f"{design.verdicts}", seen, f"{work.sittings(blocks)}", work.time(blocks)))
    return _table(("verdicts a cell", "verdicts", "lead seen with 80 %", "sittings", "judging"), lines)


def _needed_table(work: _Work, difference: float) -> object:
    from tipbench.stats import Design, scenarios_needed

    lines: list[tuple[str, ...]] = []
    for depth in work.depths():
        needed = scenarios_needed(difference, arms=work.arms, per_cell=depth)
        verdicts, blocks = Design(work.arms, needed, depth).verdicts, needed * depth
        lines.append((f"{depth}", f"{needed}", f"{verdicts}", f"{work.sittings(blocks)}", work.time(blocks)))
    return _table(("verdicts a cell", "scenarios", "verdicts", "sittings", "judging"), lines)


def _table(headings: tuple[str, ...], lines: list[tuple[str, ...]]) -> object:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*line)
    return table
