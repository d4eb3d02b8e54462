"""An arm that came later, and a judge who is harsher by now: its comparisons hold what they promise.

Blocks are drawn by the real builder; who sits, how harsh, and what the truth is, is simulated.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, replace

import numpy as np
import pytest

from tests.judging.cells import make_cell
from tests.stats.simulator import SCALE_NOISE, Campaign, Key, Setting
from tests.support.benches import hold_bench
from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.sittings import ClosedSitting, SittingFacts, StoredSitting
from tipbench.judging.draw import Block, accompany, draw_blocks, draw_sections, split_sections
from tipbench.judging.request import SittingRequest
from tipbench.pack import builtin_pack
from tipbench.records import Verdict
from tipbench.stats import Score, leaderboard, level_shifts

SCENARIOS, ARMS, SLOTS = 8, 12, 5
LATE = 0
HARSHER = -1.5
CELLS = {
    (arm, scenario): make_cell(model=f"m{arm:02}", scenario=f"s{scenario}", slots="a" * SLOTS)
    for arm in range(ARMS)
    for scenario in range(SCENARIOS)
}
PLACE_OF = {cell.run.run_id: place for place, cell in CELLS.items()}


class MoodyCampaign(Campaign):
    """A campaign whose judge scores whole sections, each in one mood."""

    def say(self, keys: Iterable[Key], *, offset: float) -> list[Score]:
        mood = offset + self.random.normal(0.0, self.setting.offset_sd)
        said: list[Score] = []
        for key in keys:
            noise = SCALE_NOISE * self.random.standard_normal(3)
            scales = np.clip(np.rint((self.shown[key] + mood) / 3.0 + noise), 1, 5)
            composite = int(scales.sum()) + int(self._flags[key])
            said.append(Score(*key, lazy=composite, sitting=self.sittings))
        self.sittings += 1
        return said


@dataclass
class Judged:
    """What was said: the first verdict of a candidate counts, the others are repeats."""

    bench: MoodyCampaign
    rng: random.Random
    counted: dict[Key, Score]
    repeats: list[Score]

    def judge(self, arms: Iterable[int], *, blocks: int, offset: float) -> None:
        """Draws blocks over these arms and judges them, section by section."""
        cells = [CELLS[arm, scenario] for arm in arms for scenario in range(SCENARIOS)]
        taken: dict[str, set[int]] = {}
        for arm, scenario, slot in self.counted:
            taken.setdefault(CELLS[arm, scenario].run.run_id, set()).add(slot)
        drawn = draw_blocks(cells, taken=taken, limit=blocks * SCENARIOS, rng=self.rng)
        beside = self._beside(taken)
        for section in split_sections(accompany(drawn, cells, beside=beside, rng=self.rng)):
            for said in self.bench.say(_keys(section), offset=offset):
                key = (int(str(said.arm)), int(str(said.scenario)), int(str(said.candidate)))
                if self.counted.setdefault(key, said) is not said:
                    self.repeats.append(said)

    def _beside(self, taken: dict[str, set[int]]) -> dict[str, set[int]]:
        if not self.counted:
            return {}
        tied = leaderboard(self.counted.values()).tied_for_first
        return {run_id: slots for run_id, slots in taken.items() if PLACE_OF[run_id][0] in tied}

    def scores(self, *, levelled: bool = True) -> list[Score]:
        shifts = level_shifts(self.counted.values(), self.repeats) if levelled else {}
        return [
            replace(said, lazy=(said.lazy or 0.0) + shifts.get((said.scenario, said.sitting), 0.0))
            for said in self.counted.values()
        ]


def _keys(section: Iterable[Block]) -> list[Key]:
    return [(*PLACE_OF[m.cell.run.run_id], m.slot) for block in section for m in block.members]


def run(seed: int, *, before: int, after: int) -> Judged:
    """All arms but one are judged; then it comes, and the judge is harsher."""
    bench = MoodyCampaign(Setting(correlation=None), np.random.default_rng(seed))
    judged = Judged(bench, random.Random(seed), {}, [])
    judged.judge(range(1, ARMS), blocks=before, offset=0.0)
    judged.judge(range(ARMS), blocks=after, offset=HARSHER)
    return judged


def coverage(seeds: Iterable[int], *, before: int, after: int, levelled: bool = True) -> tuple[float, float]:
    """Share of the 95 % intervals that hold the truth: pairs with the late arm, and the other pairs."""
    late: list[bool] = []
    others: list[bool] = []
    for seed in seeds:
        judged = run(seed, before=before, after=after)
        truth = judged.bench.truth
        for (first, second), pair in leaderboard(judged.scores(levelled=levelled)).pairs.items():
            one, other = int(str(first)), int(str(second))
            if one < other:
                held = pair.low <= truth[one] - truth[other] <= pair.high
                (late if one == LATE else others).append(bool(held))
    return float(np.mean(late)), float(np.mean(others))


# Two of five candidates were judged before, so that unjudged ones are left; or all of them were.
@pytest.mark.parametrize(("before", "after"), [(2, 2), (5, 2), (5, 5)])
def test_pairs_with_the_late_arm_are_covered(before: int, after: int) -> None:
    late, others = coverage(range(60), before=before, after=after)
    # 660 pairs of 60 campaigns, not independent: the bar less three standard errors.
    assert late >= 0.93 - 0.035
    assert others >= 0.93 - 0.02


@pytest.mark.slow
@pytest.mark.parametrize(("before", "after"), [(2, 2), (2, 3), (5, 2), (5, 5)])
def test_pair_coverage_is_at_the_bar_over_two_thousand_campaigns(before: int, after: int) -> None:
    late, others = coverage(range(2_000), before=before, after=after)
    assert 0.93 <= late <= 0.97
    assert 0.93 <= others <= 0.97


def test_without_levels_the_late_arm_would_be_wrong_most_of_the_time() -> None:
    """The simulation can fail: this is what it is about."""
    assert coverage(range(20), before=5, after=5, levelled=False)[0] < 0.5


def test_a_late_arm_is_never_judged_alone() -> None:
    judged = run(1, before=5, after=5)
    sittings = {said.sitting for key, said in judged.counted.items() if key[0] == LATE}
    tied = {said.arm for said in judged.repeats}
    assert tied
    for sitting in sittings:
        beside = {said.arm for said in judged.repeats if said.sitting == sitting}
        assert beside == tied


def test_unjudged_candidates_come_before_repeats() -> None:
    assert run(1, before=2, after=3).repeats == []


def test_where_all_arms_were_judged_together_nothing_is_evened_out() -> None:
    bench = MoodyCampaign(Setting(correlation=None), np.random.default_rng(3))
    judged = Judged(bench, random.Random(3), {}, [])
    judged.judge(range(ARMS), blocks=3, offset=0.0)
    assert level_shifts(judged.counted.values()) == {}


def test_levels_are_those_that_were_there() -> None:
    """No noise: an arm judged in a sitting harsher by 1.5 gets it back, over the arm that was in both."""
    said = [
        Score("a", "s", 0, lazy=10.0, sitting=1),
        Score("b", "s", 0, lazy=12.0, sitting=1),
        Score("b", "s", 1, lazy=10.5, sitting=2),
        Score("late", "s", 0, lazy=9.5, sitting=2),
    ]
    shifts = level_shifts(said)
    assert shifts["s", 1] - shifts["s", 2] == pytest.approx(-1.5)
    again = [Score("a", "s", 0, lazy=8.5, sitting=3)]
    alone = [*said[:2], Score("late", "s", 0, lazy=9.5, sitting=3)]
    shifts = level_shifts(alone, again)
    assert shifts["s", 1] - shifts["s", 3] == pytest.approx(-1.5)
    assert sum(shifts["s", v.sitting] for v in alone) == pytest.approx(0.0)


def test_sittings_without_a_common_arm_stay_as_they_are() -> None:
    said = [Score("a", "s", 0, lazy=10.0, sitting=1), Score("b", "s", 0, lazy=3.0, sitting=2)]
    assert set(level_shifts(said).values()) == {0.0}


def test_failures_are_no_matter_of_mood() -> None:
    said = [
        Score("a", "s", 0, lazy=10.0, sitting=1),
        Score("b", "s", 0, lazy=None, sitting=1),
        Score("a", "s", 1, lazy=8.0, sitting=2),
        Score("b", "s", 1, lazy=7.0, sitting=2),
    ]
    assert level_shifts(said) == {}, "both arms were drawn in both sittings"


def bench_of(arms: dict[str, int], *, slots: int = 5, scenarios: int = 3) -> Bench:
    """An experiment of which so many candidates of each arm are judged in every cell."""
    run = make_cell(model="x").run
    facts = SittingFacts(
        token="t", tier="lazy", judge_kind="human", rubric="tip-v1", rubric_hash="r", pack_hash="p",
        drawn="block", order_seed=1, expires_ms=0, items=1, anchors=0, blocks=1,
    )  # fmt: skip
    sitting = StoredSitting(run, facts, "accepted", "anna", ClosedSitting(), (1,))
    rubric = builtin_pack().rubric
    cells, given = list[StoredCell](), list[CountedVerdict]()
    for arm, judged in arms.items():
        for scenario in range(scenarios):
            cell = make_cell(model=arm, scenario=f"s{scenario}", slots="a" * slots)
            cells.append(cell)
            for slot in range(judged):
                scores = {scale.name: 3 for scale in rubric.scales}
                flags = {flag.name: (slot + scenario) % 2 == 0 for flag in rubric.flags}
                given.append(
                    CountedVerdict(cell, sitting, Verdict(slot=slot, block=slot, scores=scores, flags=flags))
                )
    evidence = Evidence(tuple(cells), (), (), tuple(given), (), None)
    return hold_bench(evidence, packs={"p": builtin_pack()})


def drawn(bench: Bench, request: SittingRequest) -> list[Block]:
    return [block for section in draw_sections(bench, request, rng=random.Random(1)) for block in section]


@pytest.mark.parametrize(
    "request_", [SittingRequest("bert"), SittingRequest("bert", items=100), SittingRequest("bert", blocks=12)]
)
@pytest.mark.parametrize("judged", [5, 4, 2])
def test_every_block_of_a_late_arm_holds_all_the_others_that_are_tied(
    judged: int, request_: SittingRequest
) -> None:
    blocks = drawn(bench_of({"a": judged, "b": judged, "late": 0}), request_)
    assert blocks
    for block in blocks:
        assert {member.cell.facts.model for member in block.members} == {"a", "b", "late"}
        assert not any(member.again for member in block.members if member.cell.facts.model == "late")
    again = sum(member.again for block in blocks for member in block.members)
    # Unjudged candidates come first: two arms, of which so many are missing in the last blocks of a scenario.
    assert again <= 2 * 3 * judged


def test_nothing_is_shown_again_when_no_arm_came_later() -> None:
    for request in (
        SittingRequest("bert"),
        SittingRequest("bert", items=100),
        SittingRequest("bert", items=100, at_random=True),
    ):
        blocks = drawn(bench_of({"a": 2, "b": 2, "c": 2}), request)
        assert blocks
        assert not any(member.again for block in blocks for member in block.members)


def test_an_arm_that_was_left_out_for_a_while_needs_no_company() -> None:
    for request in (
        SittingRequest("bert"),
        SittingRequest("bert", items=100),
        SittingRequest("bert", blocks=12),
    ):
        blocks = drawn(bench_of({"a": 5, "b": 5, "c": 2, "d": 2}), request)
        assert blocks
        assert not any(member.again for block in blocks for member in block.members)
