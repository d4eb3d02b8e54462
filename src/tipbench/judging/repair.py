"""Repair: what people see on the cells, made anew from the verdicts that count. Only views are written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tipbench.judging.backlog import Backlog, read_backlog
from tipbench.judging.views import AUTO_TAGS, JUDGE_TAGS, View, make_views, score_names
from tipbench.records import Rubric
from tipbench.tracking import Experiment, Tracking
from tipbench.tracking.cells import StoredCell, read_cells
from tipbench.tracking.locks import hold_lock


@dataclass(frozen=True)
class Change:
    """One value that was wrong on a cell; `now` is None when the value has to go."""

    run_id: str
    run_name: str
    name: str
    was: str | None
    now: str | None


@dataclass(frozen=True)
class Repaired:
    """What was changed in one experiment, and what MLflow gives no way to change."""

    experiment: str
    cells: int
    changes: tuple[Change, ...]
    left: tuple[Change, ...]


@dataclass(frozen=True)
class _Finding:
    """A cell's view, and what stands on the cell without a verdict behind it."""

    view: View
    unfounded_tags: tuple[str, ...] = ()
    unfounded_scores: tuple[str, ...] = ()

    @property
    def is_wrong(self) -> bool:
        return bool(self.view.wrong_metrics or self.view.wrong_tags or self.unfounded_tags)


def repair_experiment(
    tracking: Tracking, experiment: Experiment, *, locks: Path, now_ms: int, dry_run: bool
) -> Repaired:
    """Brings every view of the experiment in line with its verdicts; `dry_run` only says what it would do."""
    with hold_lock(locks / f"judge-{experiment.uid}.lock"):
        if not dry_run:
            tracking.deliver_left_over()
        findings = _look_at(read_backlog(tracking, experiment, now_ms=now_ms, packs={}, fresh=True))
        for finding in findings:
            if finding.is_wrong and not dry_run:
                tracking.overrule(
                    finding.view.cell.run.run_id,
                    metrics=finding.view.wrong_metrics,
                    tags=finding.view.wrong_tags,
                    without_tags=finding.unfounded_tags,
                )
    return Repaired(
        experiment=experiment.name,
        cells=len(findings),
        changes=tuple(change for finding in findings for change in _changes(finding)),
        left=tuple(change for finding in findings for change in _left(finding)),
    )


def _look_at(backlog: Backlog) -> list[_Finding]:
    evidence = backlog.evidence
    kept = {cell.run.run_id for cell in evidence.cells}

    def rubric_of(cell: StoredCell) -> Rubric:
        return backlog.pack_of(cell.facts.pack_hash).rubric

    findings: list[_Finding] = []
    for view in make_views(read_cells(backlog.runs), evidence=evidence, rubric_of=rubric_of):
        run = view.cell.run
        if run.run_id not in kept:
            # A retired cell or a duplicate waits for nobody and keeps the scores it had: it may come back.
            findings.append(_Finding(view))
            continue
        findings.append(
            _Finding(
                view,
                unfounded_tags=tuple(
                    name for name in (*JUDGE_TAGS, *AUTO_TAGS) if name in run.tags and name not in view.tags
                ),
                unfounded_scores=tuple(
                    name
                    for name in score_names(rubric_of(view.cell))
                    if name in run.metrics and name not in view.metrics
                ),
            )
        )
    return findings


def _changes(finding: _Finding) -> Iterator[Change]:
    run = finding.view.cell.run
    for name, value in finding.view.wrong_metrics.items():
        was = str(run.metrics[name]) if name in run.metrics else None
        yield Change(run.run_id, run.name, name, was, str(value))
    for name, value in finding.view.wrong_tags.items():
        yield Change(run.run_id, run.name, name, run.tags.get(name), value)
    for name in finding.unfounded_tags:
        yield Change(run.run_id, run.name, name, run.tags[name], None)


def _left(finding: _Finding) -> Iterator[Change]:
    run = finding.view.cell.run
    for name in finding.unfounded_scores:
        yield Change(run.run_id, run.name, name, str(run.metrics[name]), None)
