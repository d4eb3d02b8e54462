"""Campaigns of the simulator as records of ours: arms, scenarios and composites under names and verdicts."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from tests.judging.cells import make_cell
from tests.ranking.evidence import GOOD, RUBRIC, make_sitting
from tests.stats.simulator import CANDIDATES, Campaign, Key
from tests.support.benches import hold_bench
from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.sittings import StoredSitting
from tipbench.judging.draw import Block, Member
from tipbench.pack import builtin_pack
from tipbench.records import Drawn, Verdict
from tipbench.stats import Score

FLAGS = {2: (True, False), 0: (False, False), 1: (True, True), -1: (False, True)}
"""What the flags add to a composite → format_ok, overlong."""
PACK = builtin_pack()


def split_composite(composite: float) -> tuple[dict[str, int], dict[str, bool]]:
    """Scores and flags that add up to it."""
    for added, flags in FLAGS.items():
        rest = int(composite) - added
        if 3 <= rest <= 15:
            scores = {scale.name: rest // 3 + (rest % 3 > at) for at, scale in enumerate(RUBRIC.scales)}
            return scores, dict(zip((flag.name for flag in RUBRIC.flags), flags, strict=True))
    raise ValueError(f"no verdict has the composite {composite}")


def make_verdict(composite: float, *, slot: int, block: int, drawn: Drawn) -> Verdict:
    scores, flags = split_composite(composite)
    return Verdict(slot=slot, block=block, drawn=drawn, scores=scores, flags=flags)


def arm_name(arm: object) -> str:
    """What an arm of the simulator is called here."""
    return f"m{int(str(arm)):02}+v1"


@dataclass
class Recorded:
    """A campaign as the judge phase and the gate read it, in memory. `handed` counts what judges get."""

    campaign: Campaign
    handed: int = 0
    lazy: list[CountedVerdict] = field(default_factory=list[CountedVerdict])
    doubles: list[CountedVerdict] = field(default_factory=list[CountedVerdict])
    sittings: list[StoredSitting] = field(default_factory=list[StoredSitting])

    def __post_init__(self) -> None:
        arms, scenarios, _ = self.campaign.shown.shape
        self.cells: dict[tuple[int, int], StoredCell] = {
            (arm, scenario): make_cell(model=f"m{arm:02}", scenario=f"s{scenario}", slots="a" * CANDIDATES)
            for arm in range(arms)
            for scenario in range(scenarios)
        }
        self._key_of = {cell.run.run_id: place for place, cell in self.cells.items()}
        model = make_sitting("autoautoauto", tier="auto", judged_by="robot", grade=GOOD)
        self._auto = tuple(
            CountedVerdict(
                self.cells[arm, scenario],
                model,
                make_verdict(float(score.auto), slot=slot, block=0, drawn="all"),
            )
            for (arm, scenario, slot), score in self._all_scores()
            if score.auto is not None
        )
        self.sittings.append(model)

    def _all_scores(self) -> list[tuple[Key, Score]]:
        return [
            ((int(str(s.arm)), int(str(s.scenario)), int(str(s.candidate))), s)
            for s in self.campaign.records()
        ]

    @property
    def evidence(self) -> Evidence:
        return Evidence(
            cells=tuple(self.cells.values()),
            duplicates=(),
            sittings=tuple(self.sittings),
            lazy=tuple(self.lazy),
            doubles=tuple(self.doubles),
            close_reason=None,
            auto=self._auto,
        )

    @property
    def bench(self) -> Bench:
        return hold_bench(self.evidence, packs={"p": PACK}, now_ms=2)

    def judge(self, blocks: Sequence[Block]) -> None:
        """One sitting over these blocks. What is shown again counts for agreement and levels only."""
        token = f"lazy{len(self.sittings):08}"
        sitting = make_sitting(token, closed_ms=len(self.sittings))
        self.sittings.append(sitting)
        members = [(number, member) for number, block in enumerate(blocks) for member in block.members]
        before = dict(self.campaign.lazy)
        keys = [self._key(member) for _, member in members]
        self.campaign.judge(keys)
        for key, (number, member) in zip(keys, members, strict=True):
            said = self.campaign.lazy[key].lazy
            assert said is not None
            verdict = make_verdict(said, slot=member.slot, block=number, drawn="block")
            (self.doubles if member.again else self.lazy).append(
                CountedVerdict(member.cell, sitting, verdict)
            )
            if member.again:
                self.campaign.lazy[key] = before[key]
        self.handed += len(members)

    def _key(self, member: Member) -> Key:
        return (*self._key_of[member.cell.run.run_id], member.slot)
