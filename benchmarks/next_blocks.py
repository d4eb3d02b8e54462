"""`judge --next` against blocks of all arms: how many verdicts until it is decided. With the block builder of
the judge phase and the gate's own functions, on records in memory.

    python -m benchmarks.next_blocks [--campaigns 200] [--seed 78000000] [--worlds clear,close3]
                                     [--races winner,gate]

Run from the top folder. Two races: to a winner (P(best) ≥ 95 %, no champion), and to the gate's answer
against the arm in the middle, with 20 planned looks. A budget that is used up counts in full.
"""

import argparse
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random

import numpy as np
from tests.ranking.evidence import RUBRIC
from tests.ranking.simulated import Recorded, arm_name
from tests.stats.bars import all_best
from tests.stats.simulator import Campaign, Setting

from tipbench.errors import JudgedEnough
from tipbench.judging.draw import Block, board_scores, draw_sections
from tipbench.judging.request import SittingRequest
from tipbench.stats import Score, examine_gate, p_best
from tipbench.stats.batches import CERTAIN
from tipbench.stats.board import read_scores
from tipbench.stats.gating import gate_is_open

GOALS = {"clear": 0.75, "close3": 1.05}
STEP = 12
"""Items of one hand-out: one block of all arms."""
LOOKS = tuple((look + 1) / 20 for look in range(20))


@dataclass(frozen=True)
class End:
    """Where a campaign stopped; `decided` is False when everything was judged without an answer."""

    verdicts: int
    decided: bool
    good: bool


@dataclass
class Running:
    """One campaign on its way to a decision."""

    recorded: Recorded
    adaptive: bool
    rng: Random
    champion: int | None = None
    looked: int = -1

    def to_winner(self) -> End:
        """Until one arm is the best with 95 %."""
        while True:
            blocks = self.draw()
            # Suggestions end by themselves when the best arm is certain: the chances are asked for only then.
            if blocks and (self.adaptive or len(self.recorded.lazy) < 2 * STEP):
                self.recorded.judge(blocks)
                continue
            chances = p_best(self.scores())
            top = max(chances, key=lambda arm: chances[arm])
            sure = chances[top] >= CERTAIN
            if sure or not blocks:
                best = {arm_name(arm) for arm in all_best(self.recorded.campaign.truth)}
                return End(self._spent(decided=sure), sure, top in best)
            self.recorded.judge(blocks)

    def to_answer(self) -> End:
        """Until the gate promotes somebody, or nobody can pass it any more."""
        champion, truth = arm_name(self.champion), self.recorded.campaign.truth
        while True:
            promoted, hopeless = self._look(champion)
            decided = promoted is not None or hopeless
            blocks = [] if decided else self.draw()
            # Suggestions end between looks, too: the judge is told that nobody can pass any more.
            decided = decided or (not blocks and len(self.recorded.lazy) < self.recorded.campaign.shown.size)
            if not blocks:
                better = {arm_name(arm) for arm in np.flatnonzero(truth > truth[self.champion])}
                good = promoted in better if promoted is not None else decided
                return End(self._spent(decided=decided), decided, good)
            self.recorded.judge(blocks)

    def draw(self) -> list[Block]:
        """What the judge phase would hand out next; nothing when it says that it is enough."""
        champion = None if self.champion is None else arm_name(self.champion)
        request = (
            SittingRequest("anna", items=STEP, champion=champion)
            if self.adaptive
            else SittingRequest("anna", blocks=1)
        )
        try:
            sections = draw_sections(self.recorded.bench, request, rng=self.rng)
        except JudgedEnough:
            return []
        return [block for section in sections for block in section]

    def scores(self) -> list[Score]:
        """As board and gate have them."""
        evidence = self.recorded.evidence
        return board_scores(evidence, evidence.cells, RUBRIC)

    def _look(self, champion: str) -> tuple[object | None, bool]:
        """Whom the look that is due promotes, if one is; and whether nobody can pass any more."""
        counted, size = len(self.recorded.lazy), self.recorded.campaign.shown.size
        due = max((at for at, share in enumerate(LOOKS) if counted >= math.ceil(share * size)), default=-1)
        if due <= self.looked:
            return None, False
        self.looked = due
        scores = self.scores()
        decision = examine_gate(scores, champion, look=due, fractions=LOOKS)
        return decision.promoted, not gate_is_open(read_scores(scores), champion)

    def _spent(self, *, decided: bool) -> int:
        return (
            self.recorded.handed if decided else max(self.recorded.handed, self.recorded.campaign.shown.size)
        )


@dataclass
class Race:
    """The ends of all campaigns, both ways."""

    adaptive: list[End] = field(default_factory=list[End])
    uniform: list[End] = field(default_factory=list[End])

    def ratio(self) -> tuple[float, float]:
        """Of mean verdicts, with the half width of its 95 % interval over campaigns."""
        next_, blocks = (np.array([end.verdicts for end in ends]) for ends in (self.adaptive, self.uniform))
        ratio = float(next_.mean() / blocks.mean())
        return ratio, 1.96 * float((next_ - ratio * blocks).std() / blocks.mean() / math.sqrt(len(blocks)))


def run_race(world: str, finish: Callable[[Running], End], seeds: Sequence[int], *, against: bool) -> Race:
    race = Race()
    for seed in seeds:
        for ends, adaptive in ((race.adaptive, True), (race.uniform, False)):
            campaign = Campaign(Setting(world=world), np.random.default_rng(seed))
            middle = int(np.argsort(campaign.effects, kind="stable")[len(campaign.effects) // 2])
            champion = middle if against else None
            ends.append(finish(Running(Recorded(campaign), adaptive, Random(seed), champion)))
    return race


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--campaigns", type=int, default=200)
    parser.add_argument("--seed", type=int, default=78_000_000)
    parser.add_argument("--worlds", default="clear,close3")
    parser.add_argument("--races", default="winner,gate")
    asked = parser.parse_args()
    print("| race | world | --next | uniform | ratio [95 %] | goal | held | decided | right | CPU s |")
    print("| --- " * 10 + "|")
    races = {
        "winner": ("to a winner", Running.to_winner, False),
        "gate": ("to the gate's answer", Running.to_answer, True),
    }
    for name, finish, against in (races[race] for race in asked.races.split(",")):
        for world in asked.worlds.split(","):
            start = time.process_time()
            seeds = range(asked.seed, asked.seed + asked.campaigns)
            race = run_race(world, finish, seeds, against=against)
            cells = [name, world, *describe(race, GOALS.get(world)), f"{time.process_time() - start:.0f}"]
            print("| " + " | ".join(cells) + " |", flush=True)


def describe(race: Race, goal: float | None) -> list[str]:
    """The figures of a race."""
    ratio, half = race.ratio()

    def both(show: Callable[[End], bool]) -> str:
        shares = [sum(map(show, ends)) / len(ends) for ends in (race.adaptive, race.uniform)]
        return " / ".join(f"{share:.0%}" for share in shares)

    return [
        f"{np.mean([end.verdicts for end in race.adaptive]):.0f}",
        f"{np.mean([end.verdicts for end in race.uniform]):.0f}",
        f"{ratio:.3f} [{ratio - half:.3f}, {ratio + half:.3f}]",
        "" if goal is None else f"≤ {goal}",
        "" if goal is None else "yes" if ratio <= goal else "NO",
        both(lambda end: end.decided),
        both(lambda end: end.good),
    ]


if __name__ == "__main__":
    main()
