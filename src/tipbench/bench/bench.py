"""What the store holds for a judge, read once: evidence, pack, keys, candidates."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial

from tipbench.bench.agreement import read_noise
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import Evidence, read_evidence
from tipbench.bench.packs import read_pack_files
from tipbench.bench.sittings import KEY_FILE, BlindKey, StoredSitting
from tipbench.errors import JudgingClosed
from tipbench.pack import parse_pack
from tipbench.records import Drawn, Pack, Rubric
from tipbench.stats import Noise
from tipbench.tracking import Tracking
from tipbench.tracking.runs import Experiment, Run


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
