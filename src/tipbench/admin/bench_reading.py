"""Experiments, cells and candidates for API and panel, read from the store. Texts leave inert."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipbench.admin.bench_records import (
    CandidateLine,
    CellDetail,
    CellLine,
    ExperimentLine,
    VerdictLine,
)
from tipbench.admin.door import Door
from tipbench.errors import TipbenchError, TrackingRefused, TrackingUnavailable
from tipbench.inert import make_inert
from tipbench.jobs.records import NotThere
from tipbench.pack import parse_pack
from tipbench.records import Pack, Rubric
from tipbench.tracking import Experiment, Run
from tipbench.tracking.cells import StoredCell, read_candidates
from tipbench.tracking.evidence import Evidence, GivenVerdict, read_evidence
from tipbench.tracking.packs import read_pack_files
from tipbench.tracking.sittings import KEY_FILE, BlindKey, StoredSitting, Submission, submission_file


@dataclass(frozen=True)
class BenchView:
    """An experiment as it is shown."""

    door: Door
    experiment: Experiment
    runs: Sequence[Run]
    evidence: Evidence

    def pack(self) -> Pack:
        """The pack of its newest cells."""
        opened = self.door.open()
        pack_hash = self.evidence.cells[-1].facts.pack_hash
        if pack_hash not in opened.judging.packs:
            files = read_pack_files(self.runs, pack_hash, tracking=opened.tracking)
            opened.judging.packs[pack_hash] = parse_pack(files)
        return opened.judging.packs[pack_hash]

    def cells(self, wanted: Mapping[str, str | None]) -> list[StoredCell]:
        """The cells whose arm, model, prompt and scenario are as wanted; None wants everything."""
        return [
            cell
            for cell in self.evidence.cells
            if all(value is None or getattr(cell.facts, name) == value for name, value in wanted.items())
        ]

    def lines(self, cells: Sequence[StoredCell]) -> list[CellLine]:
        """Cells as lines."""
        lazy, auto = self.evidence.lazy_by_cell(), self.evidence.auto_by_cell()
        rubric = self.pack().rubric if self.evidence.cells else None
        link = self.door.experiment_link(self.experiment)
        return [
            _line(
                cell,
                lazy=[each for each in lazy.get(cell.run.run_id, {}).values() if not each.verdict.failed],
                auto=auto.get(cell.run.run_id, {}),
                rubric=rubric,
                link=link,
            )
            for cell in cells
        ]

    def detail(self, run_id: str) -> CellDetail:
        """One cell with its texts and everything that was said.

        Raises:
            NotThere: the experiment has no such cell.
        """
        cell = next((cell for cell in self.evidence.cells if cell.run.run_id == run_id), None)
        if cell is None:
            raise NotThere(f"experiment {self.experiment.name!r} has no cell {run_id!r}")
        read = self.door.open().tracking.read_artifact
        said = [
            given
            for given in (*self.evidence.lazy, *self.evidence.auto, *self.evidence.doubles)
            if given.cell.run.run_id == run_id and not given.verdict.failed
        ]
        rubric = self.pack().rubric
        reasons = {given.sitting.facts.token: self._reasons(given.sitting, run_id) for given in said}
        doubles = {id(given) for given in self.evidence.doubles}
        candidates = [
            CandidateLine(
                slot=candidate.slot,
                text=make_inert(candidate.text),
                failure=make_inert(candidate.failure),
                flags=candidate.flags,
                verdicts=tuple(
                    _verdict_line(
                        given,
                        rubric,
                        counts=id(given) not in doubles,
                        reason=reasons[given.sitting.facts.token].get(candidate.slot, ""),
                    )
                    for given in said
                    if given.verdict.slot == candidate.slot
                ),
            )
            for candidate in read_candidates(read(cell.run, "candidates.json"))
        ]
        return CellDetail(
            cell=self.lines([cell])[0],
            candidates=tuple(candidates),
            prompt_text=make_inert(read(cell.run, "prompt.txt")),
            raw=make_inert(read(cell.run, "raw.txt")),
        )

    def _reasons(self, sitting: StoredSitting, run_id: str) -> dict[int, str]:
        """Slot → what the judge wrote beside the scores."""
        read = self.door.open().tracking.read_artifact
        submissions: Sequence[int] = sitting.closed.submissions if sitting.closed else ()
        if not submissions:
            return {}
        try:
            key = BlindKey.model_validate_json(read(sitting.run, KEY_FILE))
            answers = Submission.model_validate_json(
                read(sitting.run, submission_file(max(submissions)))
            ).answers
        except TrackingRefused:
            return {}
        return {
            item.slot: make_inert(answers[item.id].reason)
            for item in key.items
            if item.cell == run_id and item.id in answers
        }


def read_view(door: Door, name: str) -> BenchView:
    """The experiment as it is now.

    Raises:
        ExperimentNotFound: there is none.
    """
    tracking = door.open().tracking
    experiment = tracking.find_experiment(name)
    runs = tracking.read_runs(experiment)
    return BenchView(door, experiment, runs, read_evidence(runs))


def describe_experiment(door: Door, experiment: Experiment) -> ExperimentLine:
    """One line of the list; an experiment that cannot be read says why."""
    link = door.experiment_link(experiment)
    if not experiment.uid:
        return ExperimentLine(name=experiment.name, mlflow=link, made_by_tipbench=False)
    try:
        evidence = read_evidence(door.open().tracking.read_runs(experiment))
    except TrackingUnavailable:
        raise
    except TipbenchError as error:
        return ExperimentLine(name=experiment.name, mlflow=link, problem=make_inert(error.message))
    lazy, auto = evidence.count_waiting()
    return ExperimentLine(
        name=experiment.name,
        cells=len(evidence.cells),
        candidates=sum(cell.answered_count for cell in evidence.cells),
        judged=sum(not given.verdict.failed for given in evidence.lazy),
        pending=lazy,
        pending_auto=auto,
        judging_closed=evidence.judging_closed,
        mlflow=link,
    )


def _line(
    cell: StoredCell,
    *,
    lazy: Sequence[GivenVerdict],
    auto: Mapping[int, GivenVerdict],
    rubric: Rubric | None,
    link: str,
) -> CellLine:
    composites = (
        [rubric.composite(each.verdict.scores, each.verdict.flags) for each in lazy] if rubric else []
    )
    facts, metrics = cell.facts, cell.run.metrics
    return CellLine(
        run=cell.run.run_id,
        arm=facts.arm,
        model=facts.model,
        prompt=facts.prompt,
        scenario=facts.scenario,
        slots=len(facts.slots),
        answered=cell.answered_count,
        judged=len(lazy),
        judged_auto=len(auto),
        composite=sum(composites) / len(composites) if composites else None,
        latency_seconds=metrics.get("latency_seconds"),
        tokens_per_second=metrics.get("tokens_per_second"),
        collected_ms=cell.run.start_time,
        mlflow=f"{link}/runs/{cell.run.run_id}",
    )


def _verdict_line(given: GivenVerdict, rubric: Rubric, *, counts: bool, reason: str) -> VerdictLine:
    verdict, facts = given.verdict, given.sitting.facts
    return VerdictLine(
        judged_by=given.sitting.judged_by,
        tier=facts.tier,
        drawn=verdict.drawn,
        sitting=facts.token,
        counts=counts,
        scores=verdict.scores,
        flags=verdict.flags,
        composite=rubric.composite(verdict.scores, verdict.flags),
        reason=reason,
    )
