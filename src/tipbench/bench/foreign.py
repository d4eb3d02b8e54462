"""Experiments of the program that tipbench replaces: its runs, read as they are. Nothing is written there.

One run is one cell, as with us, but a judge scored the cell as a whole, and nobody was blind.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from tipbench.errors import ExperimentNotFound
from tipbench.tracking.runs import Experiment, Run
from tipbench.tracking.tracking import Tracking

SCORES = ("relevance", "actionability", "tone", "format_ok", "overlong", "composite")
MARKS = ("judge_pending", "judge_kind", "rubric")
LIKELY = {
    "model": ("model", "model_name", "model_tag", "llm"),
    "prompt": ("prompt", "prompt_version", "prompt_name", "version"),
    "scenario": ("scenario", "scenario_id", "scenario_name", "case"),
}
"""What is named by which param; the first that a run has is taken."""


@dataclass(frozen=True)
class ParamNames:
    """Which params name model, prompt and scenario, where it is not one of the likely ones."""

    model: str = ""
    prompt: str = ""
    scenario: str = ""

    def find(self, run: Run, what: str) -> str:
        """What the run says, in its params or else in its tags; empty if it says nothing."""
        names = (getattr(self, what),) if getattr(self, what) else LIKELY[what]
        said = (values.get(name, "").strip() for values in (run.params, run.tags) for name in names)
        return next((each for each in said if each), "")


@dataclass(frozen=True)
class ForeignCell:
    """One run of the original. `scores` are of the whole cell; none where nobody judged it."""

    run: Run
    model: str
    prompt: str
    scenario: str
    scores: Mapping[str, float]

    @property
    def arm(self) -> str:
        return f"{self.model}+{self.prompt}"

    @property
    def judged_by(self) -> str:
        return self.run.tags.get("judged_by", "").strip() or "somebody"


@dataclass(frozen=True)
class ForeignExperiment:
    """What could be read of it; `left_out` says of which runs what was not taken, and why."""

    experiment: Experiment
    cells: tuple[ForeignCell, ...]
    left_out: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])


def read_foreign(tracking: Tracking, name: str, *, params: ParamNames | None = None) -> ForeignExperiment:
    """The experiment of that name, which holds runs of the original.

    Raises:
        ExperimentNotFound: there is none, or it is ours, or nothing in it is like the original's.
    """
    experiment = tracking.find_foreign(name)
    runs = [run for run in tracking.search_runs([experiment.id]) if is_foreign_cell(run)]
    if not runs:
        raise ExperimentNotFound(
            f"experiment {name!r} holds nothing of tipbench on {tracking.url}",
            hint=f"A run of the original has a tag {' or '.join(map(repr, MARKS))}, or a metric 'composite'.",
        )
    return _sort_out(experiment, runs, params or ParamNames())


def is_foreign_cell(run: Run) -> bool:
    """Whether the original made it: by its tags, or by the scores that somebody logged."""
    if "tipbench.kind" in run.tags:
        return False
    return any(name in run.tags for name in MARKS) or "composite" in run.metrics


def _sort_out(experiment: Experiment, runs: Sequence[Run], params: ParamNames) -> ForeignExperiment:
    cells: dict[tuple[str, str, str], ForeignCell] = {}
    left_out: dict[str, list[str]] = {}
    # The newest run of a cell stands for it, but one that was judged before one that was not.
    for run in sorted(runs, key=lambda run: (bool(_read_scores(run.metrics)), run.start_time, run.run_id)):
        names = {what: params.find(run, what) for what in LIKELY}
        if missing := [what for what, said in names.items() if not said]:
            had = ", ".join(sorted(run.params)) or "none"
            why = f"no param names the {' and the '.join(missing)} (its params: {had})"
            left_out.setdefault(why, []).append(run.run_id)
            continue
        cell = ForeignCell(run, **names, scores=_read_scores(run.metrics))
        place = (cell.model, cell.prompt, cell.scenario)
        if place in cells:
            left_out.setdefault("another run of the same cell is newer, or was judged", []).append(
                cells[place].run.run_id
            )
        cells[place] = cell
    ordered = sorted(cells.values(), key=lambda cell: (cell.run.start_time, cell.run.run_id))
    return ForeignExperiment(experiment, tuple(ordered), {why: tuple(ids) for why, ids in left_out.items()})


def _read_scores(metrics: Mapping[str, float]) -> dict[str, float]:
    return {name: metrics[name] for name in SCORES if math.isfinite(metrics.get(name, math.nan))}


def describe_left_out(left_out: Mapping[str, Iterable[str]]) -> list[str]:
    """A line for each reason, with how many runs it concerns and the first of them."""
    lines: list[str] = []
    for why, run_ids in left_out.items():
        ids = list(run_ids)
        more = f" and {len(ids) - 3} more" if len(ids) > 3 else ""
        lines.append(f"left out, {len(ids)} runs: {why}: {', '.join(ids[:3])}{more}")
    return lines
