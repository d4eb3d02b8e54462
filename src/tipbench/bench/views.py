"""Views of the cells for people: scores as metrics, who judged and when. Never read back."""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import Evidence, GivenVerdict
from tipbench.errors import UsageError
from tipbench.records import SCHEMA, Rubric
from tipbench.tracking.write import MAX_KEY, Write

JUDGE_TAGS = ("judged_at", "judged_by")
AUTO = "auto."
AUTO_TAGS = ("auto_judged_at", "auto_judged_by")
"""Tags of a cell that was judged, by a lazy judge and by an automatic one; one that was not has none."""


@dataclass(frozen=True)
class View:
    """What people should see on a cell."""

    cell: StoredCell
    metrics: Mapping[str, float]
    tags: Mapping[str, str]

    @property
    def wrong_metrics(self) -> dict[str, float]:
        """Those that show something else now, with the value they should show."""
        shown = self.cell.run.metrics
        return {name: value for name, value in self.metrics.items() if shown.get(name) != value}

    @property
    def wrong_tags(self) -> dict[str, str]:
        """The same for tags."""
        shown = self.cell.run.tags
        return {name: value for name, value in self.tags.items() if shown.get(name) != value}


def make_views(
    cells: Iterable[StoredCell], *, evidence: Evidence, rubric_of: Callable[[StoredCell], Rubric]
) -> list[View]:
    """The views of these cells, from the verdicts that count."""
    judged, auto = evidence.lazy_by_cell(), evidence.auto_by_cell()
    waiting = evidence.waiting_slots()
    views: list[View] = []
    for cell in cells:
        given = [g for g in judged.get(cell.run.run_id, {}).values() if not g.verdict.failed]
        by_auto = list(auto.get(cell.run.run_id, {}).values())
        rubric = rubric_of(cell)
        metrics = _mean_scores(given, rubric)
        metrics |= {AUTO + name: value for name, value in _mean_scores(by_auto, rubric).items()}
        tags = {"judge_pending": str(cell.run.run_id in waiting).lower()}
        tags |= _judge_tags(given, JUDGE_TAGS) | _judge_tags(by_auto, AUTO_TAGS)
        views.append(View(cell, metrics, tags))
    return views


def view_writes(
    cells: Iterable[StoredCell],
    *,
    evidence: Evidence,
    rubric_of: Callable[[StoredCell], Rubric],
    make_blank: Callable[[], Write],
) -> list[Write]:
    """The writes that bring the views of these cells up to date; none for a cell whose view stands."""
    return [
        make_blank().model_copy(
            update={
                "run_id": view.cell.run.run_id,
                "metrics": dict(view.metrics),
                "tags": dict(view.tags),
            }
        )
        for view in make_views(cells, evidence=evidence, rubric_of=rubric_of)
        if view.wrong_metrics or view.wrong_tags
    ]


def score_names(rubric: Rubric) -> tuple[str, ...]:
    """The metrics that only verdicts may set."""
    names = (*(scale.name for scale in rubric.scales), *(flag.name for flag in rubric.flags), "composite")
    return (*names, *(AUTO + name for name in names))


def _mean_scores(given: Sequence[GivenVerdict], rubric: Rubric) -> dict[str, float]:
    if not given:
        return {}
    verdicts = [g.verdict for g in given]
    means = {scale.name: fmean(v.scores[scale.name] for v in verdicts) for scale in rubric.scales}
    means |= {flag.name: fmean(v.flags[flag.name] for v in verdicts) for flag in rubric.flags}
    return means | {"composite": fmean(rubric.composite(v.scores, v.flags) for v in verdicts)}


def _judge_tags(given: Sequence[GivenVerdict], names: tuple[str, str]) -> dict[str, str]:
    if not given:
        return {}
    closed_ms = max(int(g.sitting.run.tags.get("tipbench.closed_ms", "0")) for g in given)
    judges = sorted({g.sitting.closed.judged_by for g in given if g.sitting.closed})
    at = datetime.fromtimestamp(closed_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    return dict(zip(names, (at, ", ".join(judges)[:5_000]), strict=True))


# Files that go into MLflow for people: a sheet, a leaderboard. Nothing reads them back.


def read_texts(paths: Sequence[Path]) -> dict[str, str]:
    """Name → text of the files.

    Raises:
        UsageError: one of them is no text, or two have the same name.
    """
    texts: dict[str, str] = {}
    for path in paths:
        name = re.sub(r"[^A-Za-z0-9._-]", "_", path.name)
        if name in texts:
            raise UsageError(f"two files are called {name!r}", hint="Keep them one by one.")
        try:
            texts[name] = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UsageError(f"{str(path)!r} cannot be read as text: {error}") from error
    return texts


def texts_write(texts: Mapping[str, str], *, name: str, write: Write) -> Write:
    """The run that holds the texts."""
    return write.model_copy(
        update={
            "run_name": name[:MAX_KEY],
            "tags_at_create": {
                "tipbench.kind": "kept",
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
            },
            "artifacts": dict(texts),
            "tags": {"tipbench.state": "complete"},
            "end_time": write.start_time,
        }
    )
