"""Repair: what people see on the cells, made anew from the verdicts that count. Only views are written."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell, read_cells
from tipbench.bench.evidence import GivenVerdict
from tipbench.bench.sittings import StoredSitting
from tipbench.bench.views import AUTO_TAGS, JUDGE_TAGS, View, make_views, score_names
from tipbench.clock import Stamps
from tipbench.files import hold_lock
from tipbench.records import Rubric
from tipbench.tracking import Experiment, Tracking
from tipbench.tracking.traces import Assessment, SourceType, Trace, make_hex_id


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
    tracking: Tracking, experiment: Experiment, *, locks: Path, stamps: Stamps, dry_run: bool
) -> Repaired:
    """Brings every view of the experiment in line with its verdicts; `dry_run` only says what it would do."""
    with hold_lock(locks / f"judge-{experiment.uid}.lock"):
        if not dry_run:
            tracking.deliver_left_over()
        findings = _look_at(Bench(tracking, experiment, stamps, fresh=True))
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


def _look_at(bench: Bench) -> list[_Finding]:
    evidence = bench.evidence
    kept = {cell.run.run_id for cell in evidence.cells}
    findings: list[_Finding] = []
    for view in make_views(read_cells(bench.runs), evidence=evidence, rubric_of=bench.rubric_of):
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
                    for name in score_names(bench.rubric_of(view.cell))
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


# Publish: verdicts that count, as assessments for MLflow's own evaluation views. A copy, never read back.


Place = tuple[str, int]
"""Run id of a cell, slot."""


def publish_verdicts(bench: Bench) -> tuple[int, int]:
    """Writes one trace per judged candidate; gives how many, and how many verdicts are on them.

    May be repeated: what stands there is replaced, nothing is doubled.
    """
    by_place: dict[Place, list[GivenVerdict]] = {}
    evidence = bench.evidence
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if not given.verdict.failed:
            place = (given.cell.run.run_id, given.verdict.slot)
            by_place.setdefault(place, []).append(given)
    for trace in _make_traces(by_place, bench):
        bench.tracking.publish_trace(trace)
    return len(by_place), sum(map(len, by_place.values()))


def _make_traces(by_place: dict[Place, list[GivenVerdict]], bench: Bench) -> Iterator[Trace]:
    for cell in bench.evidence.cells:
        run_id = cell.run.run_id
        slots = [slot for slot in cell.answered_slots if (run_id, slot) in by_place]
        if not slots:
            continue
        prompt = bench.read_artifact(cell.run, "prompt.txt")
        candidates = bench.candidates_of(cell)
        rubric = bench.rubric_of(cell)
        for slot in slots:
            yield Trace(
                id="tr-" + make_hex_id(bench.experiment.uid, run_id, slot),
                experiment_id=bench.experiment.id,
                request=prompt,
                response=candidates[slot].text,
                at_ms=cell.run.start_time,
                run_id=run_id,
                tags=_tags(cell, slot),
                assessments=tuple(
                    assessment
                    for given in by_place[run_id, slot]
                    for assessment in _assess(
                        given, rubric, bench.reasons_of(given.sitting).get((run_id, slot), "")
                    )
                ),
            )


def _tags(cell: StoredCell, slot: int) -> dict[str, str]:
    facts = cell.facts
    named = {"model": facts.model, "prompt": facts.prompt, "scenario": facts.scenario, "slot": str(slot)}
    return {f"tipbench.{name}": value[:250] for name, value in named.items()}


def _assess(given: GivenVerdict, rubric: Rubric, reason: str) -> Iterator[Assessment]:
    sitting, verdict = given.sitting, given.verdict
    values: dict[str, float | bool] = {**verdict.scores, **verdict.flags}
    values["composite"] = rubric.composite(verdict.scores, verdict.flags)
    for name, value in values.items():
        yield Assessment(
            id="a-" + make_hex_id(sitting.facts.token, given.cell.run.run_id, verdict.slot, name),
            name=name,
            value=value,
            source_type=_source_type(sitting),
            source_id=sitting.judged_by,
            at_ms=sitting.closed_ms,
            rationale=reason,
            run_id=sitting.run.run_id,
        )


def _source_type(sitting: StoredSitting) -> SourceType:
    return "HUMAN" if sitting.facts.judge_kind == "human" else "LLM_JUDGE"
