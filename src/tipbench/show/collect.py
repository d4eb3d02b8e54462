"""How far a phase is: a bar on a terminal, plain lines elsewhere, JSON lines for machines."""

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass

import click
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from tipbench.collect.candidates import NO_TIP
from tipbench.collect.run import CollectedCell
from tipbench.inert import make_inert_line
from tipbench.judging.anchors import ANCHORS_PER_SITTING
from tipbench.judging.draw import SECTION_ITEMS
from tipbench.records import Pack, Record
from tipbench.stats import (
    AutoJudge,
    CellVariance,
    Design,
    scenarios_needed,
    smallest_difference,
    spend_budget,
    unsharpened_variance,
    usual_variance,
)
from tipbench.stats.agreement import ASSUMED_NOISE
from tipbench.stats.gating import FEWEST_SCENARIOS

PLAIN_STEP_BYTES = 20_000_000
Report = Callable[[int, int], None]
"""Is told how many of how many are done."""


def show_progress(collected: Iterable[CollectedCell], *, total: int, say: Console) -> int:
    """Shows each cell as it comes; returns how many came."""
    if not say.is_terminal:
        return _show_lines(collected, total=total, say=say)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("cells"),
        TextColumn("{task.fields[speed]:5.1f} tokens/s"),
        TimeRemainingColumn(),
    )
    done = 0
    with Progress(*columns, console=say) as progress:
        task = progress.add_task("collect", total=total, speed=0.0)
        for done, each in enumerate(collected, start=1):
            if each.failure:
                progress.console.print(_line(each, done, total))
            progress.update(
                task, advance=1, description=escape(make_inert_line(each.cell.model.name)), speed=_speed(each)
            )
    return done


def show_json(collected: Iterable[CollectedCell], *, total: int) -> int:
    """One JSON object per cell on stdout; returns how many came."""
    done = 0
    for done, each in enumerate(collected, start=1):
        event = {
            "event": "cell",
            "done": done,
            "of": total,
            "arm": f"{each.cell.model.name}+{each.cell.prompt.name}",
            "scenario": each.cell.scenario.id,
            "answered": sum(candidate.answered for candidate in each.candidates),
            "slots": len(each.candidates),
            "seconds": round(each.generation.seconds, 3),
            "output_tokens": each.generation.output_tokens,
            "reused": each.reused,
            "failure": each.failure,
        }
        click.echo(json.dumps(event, ensure_ascii=False))
    return done


def _show_lines(collected: Iterable[CollectedCell], *, total: int, say: Console) -> int:
    done = 0
    for done, each in enumerate(collected, start=1):
        say.print(_line(each, done, total), soft_wrap=True)
    return done


def _line(each: CollectedCell, done: int, total: int) -> str:
    if each.failure:
        why = "the answer was not a list" if each.failure == NO_TIP else each.failure
        outcome = f"0 of {len(each.candidates)} tips: {why}"
    elif each.reused:
        outcome = "reused"
    else:
        answered = sum(candidate.answered for candidate in each.candidates)
        seconds = each.generation.seconds
        outcome = f"{answered} of {len(each.candidates)} tips, {seconds:.1f} s, {_speed(each):.0f} tokens/s"
    return escape(f"[{done}/{total}] {each.cell.name}: {outcome}")


def _speed(each: CollectedCell) -> float:
    return each.generation.output_tokens / each.generation.seconds if each.generation.seconds else 0.0


@contextmanager
def judging_bar(say: Console, *, quiet: bool) -> Generator[Report]:
    """A bar of verdicts."""
    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=say, disable=quiet) as bar:
        task = bar.add_task("judging", total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def runs_bar(what: str, say: Console) -> Generator[Report]:
    """A bar of runs on a terminal, nothing elsewhere."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=say, disable=not say.is_terminal, transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


@contextmanager
def fetching_bar(name: str, say: Console) -> Generator[Report]:
    """A bar of bytes on a terminal, a line now and then elsewhere."""
    if not say.is_terminal:
        yield _fetching_lines(name, say)
        return
    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Progress(*columns, console=say) as bar:
        task = bar.add_task(escape(name), total=None)
        yield lambda done, of: bar.update(task, completed=done, total=of)


def _fetching_lines(name: str, say: Console) -> Report:
    shown = 0

    def show(done: int, of: int) -> None:
        nonlocal shown
        if done - shown >= PLAIN_STEP_BYTES or shown < done == of:
            shown = done
            say.print(f"{name}: {done // 10**6} of {of // 10**6} MB", markup=False)

    return show


# What a design can see before anything is generated, on a terminal.


POWER = 0.80


@dataclass(frozen=True)
class JudgingWork:
    """What is judged, and how long a verdict takes. `like` is how the cells of an earlier experiment vary."""

    arms: int
    n_tips: int
    seconds: float
    like: CellVariance | None
    auto: AutoJudge | None = None
    """The automatic judge as the gate asks it: `gate.require`."""
    budget: int = 0
    """Of lazy verdicts, 0 for every candidate."""

    @property
    def assumed(self) -> str:
        """Where the variance comes from."""
        if self.like is None:
            return (
                f"The variance of a cell is the usual one ({ASSUMED_NOISE}), from simulated arms. "
                "Real arms, weak "
                "models among them, varied twice as much (docs/campaign.md): --like EXPERIMENT takes it from "
                "an earlier experiment of yours."
            )
        seen = f"{self.like.variance:.2f} with {self.like.per_cell:.3g} verdicts a cell"
        noise = make_inert_line(self.like.noise, limit=120)
        return f"The variance of a cell is that of the earlier experiment: {seen}; {noise}."

    def variance(self, depth: float) -> float | None:
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


class PlannedDesign(Record):
    """A design with so many verdicts a cell. `lead` over a champion is seen with 80 %, by whoever is asked;
    None: the gate takes no such design."""

    verdicts_a_cell: int
    scenarios: int
    verdicts: int
    sittings: int
    lead: float | None
    lead_by_lazy_tier: float | None


def list_seen(work: JudgingWork, scenarios: int) -> list[PlannedDesign]:
    """What is seen with so many scenarios."""

    def lead(design: Design, auto: AutoJudge | None) -> float | None:
        found = smallest_difference(design, variance=work.variance(design.per_cell), auto=auto)
        return found if found < float("inf") else None

    designs = [Design(work.arms, scenarios, depth) for depth in work.depths()]
    return [_plan(work, each, leads=(lead(each, work.auto), lead(each, None))) for each in designs]


def list_needed(work: JudgingWork, difference: float) -> list[PlannedDesign]:
    """What seeing such a lead needs."""
    auto = work.auto if work.auto and _auto_can_agree(work.auto, difference) else None
    made: list[PlannedDesign] = []
    for depth in work.depths():
        variance = work.variance(depth)
        needed = scenarios_needed(difference, arms=work.arms, per_cell=depth, variance=variance, auto=auto)
        alone = difference if auto is None else None
        made.append(_plan(work, Design(work.arms, needed, depth), leads=(difference, alone)))
    return made


def _plan(work: JudgingWork, design: Design, *, leads: tuple[float | None, float | None]) -> PlannedDesign:
    depth = int(design.per_cell)
    return PlannedDesign(
        verdicts_a_cell=depth,
        scenarios=design.scenarios,
        verdicts=int(design.verdicts),
        sittings=work.sittings(design.scenarios * depth),
        lead=leads[0],
        lead_by_lazy_tier=leads[1],
    )


def print_seen(work: JudgingWork, say: Console, *, scenarios: int) -> None:
    """The smallest lead over a champion that the gate would see with so many scenarios."""
    table = _seen_table(work, scenarios)
    say.print(f"{work.arms} arms × {scenarios} scenarios × {work.n_tips} candidates", style="bold")
    say.print(table)
    if work.budget:
        say.print(_tell_budget(work, scenarios))
    say.print(
        "Scenarios are the sample: to see a smaller lead, take more of them before judging deeper.",
        style="dim",
    )
    say.print(work.assumed, style="dim")


def print_needed(work: JudgingWork, say: Console, *, difference: float, pack: Pack) -> None:
    """The scenarios and verdicts that seeing such a lead needs."""
    table = _needed_table(work, difference)
    say.print(f"{work.arms} arms, a lead of {difference:g} over the champion", style="bold")
    say.print(table)
    say.print(
        f"The pack {pack.name!r} has {len(pack.scenarios)} scenarios.{_doubt(work, difference)}", style="dim"
    )
    say.print(work.assumed, style="dim")


def _seen_table(work: JudgingWork, scenarios: int) -> Table:
    lines: list[tuple[str, ...]] = []
    for each in list_seen(work, scenarios):
        seen = "none: the gate needs 4 scenarios" if each.lead is None else f"{each.lead:.2f}"
        alone = "" if each.lead_by_lazy_tier is None else f"{each.lead_by_lazy_tier:.2f}"
        work_to_do = (f"{each.sittings}", work.time(each.scenarios * each.verdicts_a_cell))
        lines.append((f"{each.verdicts_a_cell}", f"{each.verdicts}", seen, alone, *work_to_do))
    seen_by = ("lead seen with 80 %", "without automatic judge")
    return _table(("verdicts a cell", "verdicts", *seen_by, "sittings", "judging"), lines)


def _tell_budget(work: JudgingWork, scenarios: int) -> str:
    """What a small lazy budget sees, with the automatic judge on everything and without."""
    design = spend_budget(work.budget, arms=work.arms, scenarios=scenarios)
    blocks = work.budget // work.arms
    where = f"{blocks} blocks in {design.scenarios} scenarios"
    made = f"A budget of {work.budget} verdicts (gate.verdicts): {where}"
    if design.scenarios < FEWEST_SCENARIOS:
        least = FEWEST_SCENARIOS * work.arms
        return f"{made}: the gate needs {FEWEST_SCENARIOS} scenarios, so {least} verdicts at least."
    alone = unsharpened_variance(design.per_cell, work.n_tips)
    sharpened = smallest_difference(design, variance=work.variance(design.per_cell), auto=work.auto)
    plain = smallest_difference(
        design,
        variance=alone * (1.0 if work.like is None else work.like.at(1) / usual_variance(1)),
        auto=None,
    )
    return (
        f"{made}. Lead seen with 80 %: {sharpened:.2f} with the automatic judge on everything, "
        f"{plain:.2f} without one; {work.sittings(blocks)} sittings, {work.time(blocks)}."
    )


def _needed_table(work: JudgingWork, difference: float) -> Table:
    lines = [
        (
            f"{each.verdicts_a_cell}",
            f"{each.scenarios}",
            f"{each.verdicts}",
            f"{each.sittings}",
            work.time(each.scenarios * each.verdicts_a_cell),
        )
        for each in list_needed(work, difference)
    ]
    return _table(("verdicts a cell", "scenarios", "verdicts", "sittings", "judging"), lines)


def _auto_can_agree(auto: AutoJudge, difference: float) -> bool:
    """Whether the usual auto judge lets the better arm pass often enough, given scenarios without end."""
    return auto.agrees(difference) > POWER


def _doubt(work: JudgingWork, difference: float) -> str:
    if work.auto is None or _auto_can_agree(work.auto, difference):
        return ""
    return (
        f" The usual automatic judge sees a lead of {difference:g} in only "
        f"{work.auto.agrees(difference):.0%} of "
        "campaigns, so the table is for people and agents alone."
    )


def _table(headings: tuple[str, ...], lines: list[tuple[str, ...]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right")
    for line in lines:
        table.add_row(*line)
    return table
