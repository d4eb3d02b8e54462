"""What every outlet shows alike: the conclusion, and numbers as text."""

import shlex
from collections.abc import Mapping, Sequence

from tipbench.ranking.records import Report, Standing


def conclude(report: Report) -> str:
    """The answer in one sentence, with the mark of the board; a winner only if there is one."""
    answer = _conclude(report)
    return f"{answer.removesuffix('.')} ({report.mark})." if report.mark else answer


def _conclude(report: Report) -> str:
    ranked = report.ranked
    if not report.made_by_tipbench:
        name = shlex.quote(report.experiment)
        return f"Read only: another program made this. To judge it: tipbench import --experiment {name}"
    if report.winner is not None:
        return f"Winner: {report.winner}"
    if not report.judged and not ranked:
        return (
            f"No winner yet: 0 of {report.candidates} candidates are judged."
            if report.candidates
            else "No winner yet: no candidate has a text to judge."
        )
    if len(ranked) < 2:
        return f"No winner yet: fewer than two {report.by}s are judged in the same scenarios."
    tied = sum(line.tied_for_first for line in ranked)
    if report.exit_code == 4:
        left = "1 candidate is" if report.waiting == 1 else f"{report.waiting} candidates are"
        return f"No winner yet: {tied} of {len(ranked)} are still in the running; {left} left to judge."
    return f"No winner: {tied} of {len(ranked)} are tied for first."


def tell_result(report: Report) -> str:
    """What came of it, without a name: for whoever may not know arms."""
    ranked = report.ranked
    tied = sum(line.tied_for_first for line in ranked)
    if report.winner is not None:
        return "There is a winner"
    if not report.judged and not ranked:
        return "Not judged yet" if report.candidates else "No tip came out"
    if len(ranked) < 2:
        return "Not enough judged to compare"
    if report.exit_code == 4:
        return f"No winner yet: {tied} of {len(ranked)} in the running"
    return f"No winner: {tied} of {len(ranked)} tied for first"


TIERS = {"none": "nobody yet", "lazy": "people, agents", "auto": "automatic", "lazy+auto": "both"}
"""Whose verdicts a line rests on, for people."""


def show_place(line: Standing, report: Report) -> str:
    """Its place; those who could be first share it."""
    if line.name == report.winner:
        return "winner"
    if line.place is None:
        return ""
    return "tied 1" if line.tied_for_first and report.winner is None else str(line.place)


def show_interval(line: Standing) -> str:
    """Difference to the best other one, with the interval that says who could be first."""
    against = line.gap or line.against_best
    if against is None:
        return "no interval yet"
    return f"{against.difference:+.2f} [{against.low:+.2f}, {against.high:+.2f}]"


def show_ranks(line: Standing) -> str:
    """The ranks it can have."""
    if line.rank_best is None or line.rank_worst is None:
        return ""
    return str(line.rank_best) if line.rank_best == line.rank_worst else f"{line.rank_best}–{line.rank_worst}"


def show_sittings(tokens: Sequence[str], numbers: Mapping[str, int]) -> str:
    """Sittings by their numbers, neighbours joined: `1–3 5`."""
    places = sorted(numbers[token] for token in tokens if token in numbers)
    runs: list[list[int]] = []
    for place in places:
        if runs and place == runs[-1][-1] + 1:
            runs[-1].append(place)
        else:
            runs.append([place])
    return " ".join(str(run[0]) if len(run) == 1 else f"{run[0]}–{run[-1]}" for run in runs)


def number_sittings(report: Report) -> dict[str, int]:
    """Token → the number that tables call it."""
    return {each.sitting: each.number for each in report.sittings}


def show_number(value: float | None, form: str) -> str:
    """The number; nothing where there is none."""
    return "" if value is None else format(value, form)


def show_chance(value: float | None) -> str:
    """A chance that was drawn for: never certainty."""
    if value is None:
        return ""
    return "<1%" if value < 0.005 else ">99%" if value > 0.995 else f"{value:.0%}"


def show_share(value: float | None) -> str:
    """In per cent."""
    return "" if value is None else f"{value:.0%}"
