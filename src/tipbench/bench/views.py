"""Views of the cells for people: scores as metrics, who judged and when. Never read back.

A cell whose kind of judge is an automatic one shows that judge's scores under the plain names too.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean

from tipbench.bench.bench import Bench
from tipbench.bench.cells import RETIRED_TAG, StoredCell, read_cells
from tipbench.bench.damage import KIND_TAG
from tipbench.bench.evidence import CountedVerdict, Evidence, check_contents
from tipbench.bench.kept import mark_code
from tipbench.bench.scores import find_auto_judges, find_levels, find_values, make_auto_scores, make_scores
from tipbench.bench.sittings import StoredSitting
from tipbench.bench.words import is_word
from tipbench.clock import Stamps
from tipbench.errors import MixedContents, TrackingUnavailable, UsageError
from tipbench.files import hold_lock
from tipbench.records import LAZY_KINDS, SCHEMA, Rubric
from tipbench.tracking import Experiment, Tracking
from tipbench.tracking.runs import MAX_KEY, Assessment, Run, SourceType, Trace, Write, make_hex_id

JUDGE_TAGS = ("judged_at", "judged_by")
AUTO = "auto."
AUTO_TAGS = ("auto_judged_at", "auto_judged_by")
"""Tags of a cell that was judged, by a lazy judge and by an automatic one; one that was not has none."""
BOARD_VALUE = "board_composite"
BOARD_TAGS = {"": "on_board", AUTO: "on_auto_board"}
"""The value that a board counts for the cell, and the tag that says whether the cell is on it.

MLflow deletes no metric: of a cell that left the board the old value stays, so the tag tells."""
VIEWS = "views"
"""Under that name it is kept beside the runs that their views are right."""
ROUNDING = 1e-10
"""What is closer than that to the value it should show is not written again: the board would agree."""


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
        return {
            name: value
            for name, value in self.metrics.items()
            if name not in shown or not abs(shown[name] - value) <= ROUNDING
        }

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
    waiting, boards = evidence.waiting_slots(), _read_boards(evidence, rubric_of)
    views: list[View] = []
    for cell in cells:
        run_id, rubric = cell.run.run_id, rubric_of(cell)
        given = [g for g in judged.get(run_id, {}).values() if not g.verdict.failed]
        by_auto = list(auto.get(run_id, {}).values())
        awaited = given if cell.facts.judge_kind in LAZY_KINDS else by_auto
        metrics = _mean_scores(awaited, rubric)
        metrics |= {AUTO + name: value for name, value in _mean_scores(by_auto, rubric).items()}
        tags = {"judge_pending": str(run_id in waiting).lower()}
        if (word := cell.words.last) is not None:
            tags[RETIRED_TAG] = word.said.content
        tags |= _judge_tags(awaited, JUDGE_TAGS) | _judge_tags(by_auto, AUTO_TAGS)
        for tier, values in boards.items():
            if run_id in values:
                metrics[tier + BOARD_VALUE] = values[run_id]
                tags[BOARD_TAGS[tier]] = "true"
            elif BOARD_TAGS[tier] in cell.run.tags:
                tags[BOARD_TAGS[tier]] = "false"
        views.append(View(cell, metrics, tags))
    return views


def _read_boards(
    evidence: Evidence, rubric_of: Callable[[StoredCell], Rubric]
) -> dict[str, dict[str, float]]:
    """Tier → run id → the value that its board of arms counts there, of the cells that are on it."""
    boards: dict[str, dict[str, float]] = {tier: {} for tier in BOARD_TAGS}
    if not evidence.lazy and not evidence.auto:
        return boards
    try:
        check_contents(evidence.cells, experiment="")
    except MixedContents:
        return boards  # Nobody is compared until one content is retired.
    rubric = rubric_of(evidence.cells[-1])
    run_of = {(cell.facts.arm, cell.facts.scenario): cell.run.run_id for cell in evidence.cells}
    if evidence.lazy:
        levels = find_levels(evidence, rubric)
        scores = make_scores(evidence, evidence.cells, rubric=rubric, levels=levels)
        boards[""] = {run_of[place]: value for place, value in find_values(scores).items()}
    if judges := find_auto_judges(evidence):
        scores = make_auto_scores(judges[0], evidence.cells, rubric=rubric)
        boards[AUTO] = {run_of[place]: value for place, value in find_values(scores).items()}
    return boards


def refresh_views(bench: Bench) -> int:
    """Brings the views of all cells up to date and returns how many changed.

    Raises:
        TrackingUnavailable: the server went away; what waits is in the journal, and what counts is stored.
    """
    # An open sitting changes no view: where nothing else is new, they are as they were left.
    settled = (run.run_id for run in bench.runs if not _is_open_sitting(run))
    mark = bench.found.mark_runs(settled)
    if bench.found.find_made(VIEWS, mark_code(), mark=mark):
        return 0
    evidence = bench.evidence
    kept = {cell.run.run_id for cell in evidence.cells}
    # A retired cell or a duplicate keeps what it shows, but is on no board.
    left = [
        cell
        for cell in bench.stored_cells.values()
        if cell.run.run_id not in kept
        and (_hides_word(cell) or any(_is_on_board(cell, tag) for tag in BOARD_TAGS.values()))
    ]
    views = make_views([*evidence.cells, *left], evidence=evidence, rubric_of=bench.rubric_of)
    changed = [view for view in views if view.wrong_metrics or view.wrong_tags]
    for view in changed:
        write = bench.blank().model_copy(
            update={
                "run_id": view.cell.run.run_id,
                "metrics": dict(view.metrics),
                "tags": dict(view.tags),
            }
        )
        bench.tracking.submit(write)
    if changed and (waiting := bench.tracking.flush().left_in_journal):
        raise TrackingUnavailable(
            f"MLflow went away: {waiting} cells do not show their scores yet",
            hint="All verdicts count. The next judging command shows them, or: tipbench mlflow repair",
        )
    if not changed:
        bench.found.keep_made(VIEWS, mark_code(), "right", mark=mark)
    return len(changed)


def _is_open_sitting(run: Run) -> bool:
    """Whether it is a sitting of which nobody has said anything yet that counts."""
    is_open = run.tags.get(KIND_TAG) == "sitting" and run.tags.get("tipbench.state") == "open"
    return is_open and "closed" not in run.params and not any(map(is_word, run.params))


def _is_on_board(cell: StoredCell, tag: str) -> bool:
    return cell.run.tags.get(tag) == "true"


def _hides_word(cell: StoredCell) -> bool:
    """Whether its tag shows another word than the last one."""
    word = cell.words.last
    return word is not None and cell.run.tags.get(RETIRED_TAG) != word.said.content


def score_names(rubric: Rubric) -> tuple[str, ...]:
    """The metrics that only verdicts may set."""
    names = (*(scale.name for scale in rubric.scales), *(flag.name for flag in rubric.flags), "composite")
    return (*names, *(AUTO + name for name in names))


def _mean_scores(given: Sequence[CountedVerdict], rubric: Rubric) -> dict[str, float]:
    if not given:
        return {}
    verdicts = [g.verdict for g in given]
    means = {scale.name: fmean(v.scores[scale.name] for v in verdicts) for scale in rubric.scales}
    means |= {flag.name: fmean(v.flags[flag.name] for v in verdicts) for flag in rubric.flags}
    return means | {"composite": fmean(rubric.composite(v.scores, v.flags) for v in verdicts)}


def _judge_tags(given: Sequence[CountedVerdict], names: tuple[str, str]) -> dict[str, str]:
    if not given:
        return {}
    closed_ms = max(g.sitting.closed_ms for g in given)
    judges = sorted({g.sitting.closed.judged_by for g in given if g.sitting.closed})
    at = datetime.fromtimestamp(closed_ms / 1000, tz=UTC).isoformat(timespec="seconds")
    return dict(zip(names, (at, ", ".join(judges)[:5_000]), strict=True))


# Files that go into MLflow for people: a sheet, a leaderboard. Nothing reads them back.


def read_texts(paths: Sequence[Path]) -> dict[str, str]:
    """Name → text of the files.

    Raises:
        UsageError: one of them is not text, or two have the same name.
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


# Repair: what people see on the cells, made again from the verdicts that count. Only views are written.


@dataclass(frozen=True)
class Change:
    """One value that was wrong on a cell; `now` is None when the value has to go."""

    run_id: str
    run_name: str
    name: str
    was: str | None
    now: str | None


@dataclass(frozen=True)
class RepairReport:
    """What was changed in one experiment, and what MLflow gives no way to change."""

    experiment: str
    cells: int
    changes: tuple[Change, ...]
    left: tuple[Change, ...]
    damaged: tuple[str, ...] = ()
    """What cannot be read, and counts for nothing."""


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
) -> RepairReport:
    """Brings every view of the experiment in line with its verdicts; `dry_run` only says what it would do."""
    with hold_lock(locks / f"judge-{experiment.uid}.lock"):
        if not dry_run:
            tracking.deliver_left_over()
        bench = Bench(tracking, experiment, stamps, fresh=True)
        findings = _look_at(bench)
        for finding in findings:
            if finding.is_wrong and not dry_run:
                tracking.overrule(
                    finding.view.cell.run.run_id,
                    metrics=finding.view.wrong_metrics,
                    tags=finding.view.wrong_tags,
                    without_tags=finding.unfounded_tags,
                )
    return RepairReport(
        experiment=experiment.name,
        cells=len(findings),
        changes=tuple(change for finding in findings for change in _changes(finding)),
        left=tuple(change for finding in findings for change in _left(finding)),
        damaged=bench.evidence.damaged,
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
    by_place: dict[Place, list[CountedVerdict]] = {}
    evidence = bench.evidence
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if not given.verdict.failed:
            place = (given.cell.run.run_id, given.verdict.slot)
            by_place.setdefault(place, []).append(given)
    for trace in _make_traces(by_place, bench):
        bench.tracking.publish_trace(trace)
    return len(by_place), sum(map(len, by_place.values()))


def _make_traces(by_place: dict[Place, list[CountedVerdict]], bench: Bench) -> Iterator[Trace]:
    for cell in bench.evidence.cells:
        run_id = cell.run.run_id
        slots = [slot for slot in cell.answered_slots if (run_id, slot) in by_place]
        if not slots:
            continue
        prompt = bench.texts_of(cell).prompt
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


def _assess(given: CountedVerdict, rubric: Rubric, reason: str) -> Iterator[Assessment]:
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
