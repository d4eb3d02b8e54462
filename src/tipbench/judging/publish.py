"""Publish: verdicts that count, as assessments for MLflow's own evaluation views. A copy, never read back."""

from collections.abc import Iterator

from tipbench.judging.backlog import Backlog
from tipbench.judging.closing import Registrar, read_answers
from tipbench.records import Rubric
from tipbench.tracking.cells import StoredCell, read_candidates
from tipbench.tracking.evidence import GivenVerdict
from tipbench.tracking.sittings import StoredSitting
from tipbench.tracking.traces import Assessment, SourceType, Trace, make_hex_id

Place = tuple[str, int]
"""Run id of a cell, slot."""


def publish_verdicts(backlog: Backlog, registrar: Registrar) -> tuple[int, int]:
    """Writes one trace per judged candidate; gives how many, and how many verdicts are on them.

    May be repeated: what stands there is replaced, nothing is doubled.
    """
    by_place: dict[Place, list[GivenVerdict]] = {}
    evidence = backlog.evidence
    for given in (*evidence.lazy, *evidence.auto, *evidence.doubles):
        if not given.verdict.failed:
            place = (given.cell.run.run_id, given.verdict.slot)
            by_place.setdefault(place, []).append(given)
    reasons = _read_reasons(backlog, registrar)
    for trace in _make_traces(by_place, reasons, backlog, registrar):
        registrar.tracking.publish_trace(trace)
    return len(by_place), sum(map(len, by_place.values()))


def _make_traces(
    by_place: dict[Place, list[GivenVerdict]],
    reasons: dict[tuple[str, Place], str],
    backlog: Backlog,
    registrar: Registrar,
) -> Iterator[Trace]:
    for cell in backlog.evidence.cells:
        run_id = cell.run.run_id
        slots = [slot for slot in cell.answered_slots if (run_id, slot) in by_place]
        if not slots:
            continue
        prompt = backlog.read_artifact(cell.run, "prompt.txt")
        candidates = read_candidates(backlog.read_artifact(cell.run, "candidates.json"))
        rubric = backlog.pack_of(cell.facts.pack_hash).rubric
        for slot in slots:
            yield Trace(
                id="tr-" + make_hex_id(registrar.experiment.uid, run_id, slot),
                experiment_id=registrar.experiment.id,
                request=prompt,
                response=candidates[slot].text,
                at_ms=cell.run.start_time,
                run_id=run_id,
                tags=_tags(cell, slot),
                assessments=tuple(
                    assessment
                    for given in by_place[run_id, slot]
                    for assessment in _assess(
                        given, rubric, reasons.get((given.sitting.facts.token, (run_id, slot)), "")
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


def _read_reasons(backlog: Backlog, registrar: Registrar) -> dict[tuple[str, Place], str]:
    """Why a judge said what it said: (sitting, candidate) → reason."""
    reasons: dict[tuple[str, Place], str] = {}
    for sitting in backlog.evidence.sittings:
        if not sitting.counts or sitting.closed is None:
            continue
        answers = read_answers(sitting, sitting.closed.submissions, registrar)
        for item in backlog.key_of(sitting).items:
            if item.cell and item.id in answers and answers[item.id].reason:
                reasons[sitting.facts.token, (item.cell, item.slot)] = answers[item.id].reason
    return reasons
