"""What the store holds for a judge, read once: evidence, pack, keys, candidates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tipbench.errors import JudgingClosed
from tipbench.judging.anchors import REST_SITTINGS
from tipbench.judging.blocks import Member
from tipbench.judging.noise import read_noise
from tipbench.judging.sheet import Desk
from tipbench.pack import parse_pack
from tipbench.records import Anchor, Candidate, Drawn, Pack, Rubric
from tipbench.stats import Noise
from tipbench.tracking import Tracking
from tipbench.tracking.cells import StoredCell, read_candidates
from tipbench.tracking.evidence import Evidence, read_evidence
from tipbench.tracking.packs import read_pack_files
from tipbench.tracking.runs import Experiment, Run
from tipbench.tracking.sittings import KEY_FILE, BlindKey, StoredSitting


@dataclass(frozen=True)
class Backlog:
    """What the store holds, read once: the evidence, the runs it came from, and how to read their texts."""

    evidence: Evidence
    runs: Sequence[Run]
    read_artifact: Callable[[Run, str], str]
    read_pack_files: Callable[[Sequence[Run], str], Mapping[str, str]]
    now_ms: int
    packs: dict[str, Pack]

    def check_open(self, experiment: str) -> None:
        """Nothing is handed out after judging was ended.

        Raises:
            JudgingClosed: it was; with the reason.
        """
        if self.evidence.close_reason is not None:
            raise JudgingClosed(experiment, reason=self.evidence.close_reason)

    def pack_of(self, pack_hash: str) -> Pack:
        """The stored pack with this hash, read once."""
        if pack_hash not in self.packs:
            self.packs[pack_hash] = parse_pack(self.read_pack_files(self.runs, pack_hash))
        return self.packs[pack_hash]

    def rubric_of(self, cell: StoredCell) -> Rubric:
        """The rubric that the cell was collected under."""
        return self.pack_of(cell.facts.pack_hash).rubric

    @cached_property
    def noise(self) -> Noise:
        """What the drift rule counts with in this experiment."""
        return read_noise(self.evidence, self.rubric_of)

    def keys_of_open(self, *drawn: Drawn) -> dict[str, BlindKey]:
        """Token → key of the sittings, drawn so, whose items are with a judge now."""
        return {
            sitting.facts.token: self.key_of(sitting)
            for sitting in self.evidence.sittings
            if sitting.facts.drawn in drawn and sitting.is_open(self.now_ms)
        }

    def key_of(self, sitting: StoredSitting) -> BlindKey:
        """The blind key of a sitting."""
        return BlindKey.model_validate_json(self.read_artifact(sitting.run, KEY_FILE))


def make_desk(backlog: Backlog) -> Desk:
    """What sittings over these cells are built from; the cells were checked to share one rubric."""
    packs = [
        backlog.pack_of(h) for h in dict.fromkeys(cell.facts.pack_hash for cell in backlog.evidence.cells)
    ]
    scenarios = {scenario.hash: scenario for pack in packs for scenario in pack.scenarios}
    anchors: dict[str, Anchor] = {}
    for pack in packs:
        hash_of = {scenario.id: scenario.hash for scenario in pack.scenarios}
        for anchor in pack.anchors:
            anchors[anchor.id] = anchor.model_copy(update={"scenario": hash_of[anchor.scenario]})
    return Desk(
        rubric=packs[-1].rubric,
        scenarios=scenarios,
        anchors=tuple(anchors.values()),
        candidate_of=_candidate_reader(backlog),
        models=tuple(sorted({cell.facts.model for cell in backlog.evidence.cells})),
    )


def _candidate_reader(backlog: Backlog) -> Callable[[Member], Candidate]:
    """Reads the candidate of a drawn slot, each cell's file once."""
    texts: dict[str, tuple[Candidate, ...]] = {}

    def read(member: Member) -> Candidate:
        run = member.cell.run
        if run.run_id not in texts:
            texts[run.run_id] = read_candidates(backlog.read_artifact(run, "candidates.json"))
        return texts[run.run_id][member.slot]

    return read


def recent_anchors(backlog: Backlog, judged_by: str) -> list[tuple[str, ...]]:
    """The anchors of this judge's last sittings, oldest first."""
    mine = [sitting for sitting in backlog.evidence.sittings if sitting.meant_for == judged_by]
    return [
        tuple(item.anchor for item in backlog.key_of(sitting).items if item.anchor)
        for sitting in mine[-REST_SITTINGS:]
    ]


def read_backlog(
    tracking: Tracking, experiment: Experiment, *, now_ms: int, packs: dict[str, Pack], fresh: bool = False
) -> Backlog:
    """What the store holds now. `packs` keeps what was read of packs: their hash is their content."""
    runs = tracking.read_runs(experiment, fresh=fresh)
    return Backlog(
        evidence=read_evidence(runs),
        runs=runs,
        read_artifact=tracking.read_artifact,
        read_pack_files=partial(read_pack_files, tracking=tracking),
        now_ms=now_ms,
        packs=packs,
    )
