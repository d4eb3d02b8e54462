"""How far a phase is: a bar on a terminal, plain lines elsewhere, JSON lines for machines."""

import json
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager

import click
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

from tipbench.collect.run import Collected
from tipbench.inert import make_inert_line

PLAIN_STEP_BYTES = 20_000_000
Report = Callable[[int, int], None]
"""Is told how many of how many are done."""


def show_progress(collected: Iterable[Collected], *, total: int, say: Console) -> int:
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


def show_json(collected: Iterable[Collected], *, total: int) -> int:
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


def _show_lines(collected: Iterable[Collected], *, total: int, say: Console) -> int:
    done = 0
    for done, each in enumerate(collected, start=1):
        say.print(_line(each, done, total), soft_wrap=True)
    return done


def _line(each: Collected, done: int, total: int) -> str:
    if each.failure:
        outcome = f"failed: {each.failure}"
    elif each.reused:
        outcome = "reused"
    else:
        answered = sum(candidate.answered for candidate in each.candidates)
        seconds = each.generation.seconds
        outcome = f"{answered} of {len(each.candidates)} tips, {seconds:.1f} s, {_speed(each):.0f} tokens/s"
    return escape(f"[{done}/{total}] {each.cell.name}: {outcome}")


def _speed(each: Collected) -> float:
    return each.generation.output_tokens / each.generation.seconds if each.generation.seconds else 0.0


@contextmanager
def judging_bar(say: Console, *, quiet: bool) -> Generator[Report]:
    """A bar of verdicts."""
    columns = (TextColumn("judging"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=say, disable=quiet) as bar:
        task = bar.add_task("judging", total=None)
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
