"""Judging campaigns whose truth is known.

Twelve arms answer scenarios with five candidates a cell. A candidate has a quality (arm, scenario, their
interaction, its own luck), shown on three 1–5 scales and two flags. The lazy judge sees it with noise, in
sittings that may be harsher or stretch the scale; the auto judge is noisy, lenient and biased per arm.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from tipbench.stats import Next, Score

Floats = NDArray[np.float64]
Key = tuple[int, int, int]
"""Arm, scenario, candidate."""

CANDIDATES = 5
LEVEL = 9.4
SCENARIO_SD = 0.8
INTERACTION_SD = 0.68
CANDIDATE_SD = 0.95
SCALE_NOISE = 0.57
"""Per scale, before rounding to whole numbers; with rounding the composite's is 1.1."""
AUTO_STEEPNESS = 0.6
SPREAD = (1.2, 0.95, 0.7, 0.4, 0.2, 0.05, -0.05, -0.2, -0.45, -0.7, -0.95, -1.15)
WORLDS: dict[str, tuple[float, ...]] = {
    "null": (0.0,) * 12,
    "spread": SPREAD,
    "clear": (2.0, 0.8, 0.5, 0.25, 0.05, -0.05, -0.25, -0.4, -0.55, -0.8, -1.1, -1.35),
    "close3": (0.6, 0.4, 0.2) + (0.0,) * 9,
    "twins": (2.0, 2.0) + (0.0,) * 10,
    "thinning": (2.0, 0.8, 0.3, -0.1, -0.4, -0.6, -0.8, -1.0, -1.2, -1.4, -1.6, -1.8),
    "lone": (1.2,) + (0.0,) * 11,
    "near twins": (1.2, 1.2) + (0.0,) * 10,
}
"""True arm effects. The bars name five worlds in a few words each; this is how the words were read, decided
before the full table was made and not changed by its figures.

- `null`, "all equal", and `close3`, "0.6, 0.4, 0.2 on top", leave no choice.
- `spread`, "realistic": the authors of the bars saw 8.5 arms tied for first with 8 scenarios and 96 verdicts,
  and 4 with 50 and 600. Effects of this width come nearest to both: effects from 1.4 to −1.35 were tried in
  full, 0.95, 0.9, 0.85 and 0.75 times as wide, and 0.85 gave 8.7 and 3.7. No other figure was looked at.
- `clear`, "one winner by 1.2": one arm 1.2 ahead of the second, the others as far apart as arms usually are.
  `thinning`, with fewer close rivals, and `lone`, with eleven equal ones, are other readings, shown only.
- `twins`: two equal arms ahead. No word says how far. But the rule of ties is a formula and the variance of a
  cell is known (1.73 with two verdicts): 192 verdicts then leave 8.9 arms tied if the lead is 1.2, whoever
  computes it, 4.5 if it is 1.9, 4.0 if it is 2.0. So 2.0; `near twins` has the lead of 1.2.
"""


@dataclass(frozen=True)
class Setting:
    """Everything about a campaign but its luck."""

    world: str = "spread"
    effects: tuple[float, ...] | None = None
    """Instead of the world's."""
    scenarios: int = 8
    correlation: float | None = 0.65
    """Of auto score and true quality within an arm; None: no auto tier."""
    auto_bias_sd: float = 0.5
    auto_extra: float = 0.0
    """On top for the first arm."""
    noisy_arm: float = 1.0
    """How much noisier the first arm is."""
    offset_sd: float = 0.5
    stretch_sd: float = 0.0
    interaction_sd: float = INTERACTION_SD
    """What an arm makes of a scenario."""
    blocks_per_sitting: int = 3
    in_blocks: bool = True
    """False: judged arm by arm, the bad way."""


@dataclass
class Campaign:
    """One campaign: judge blocks, read the records. Arm 0 is special only through the setting."""

    setting: Setting
    random: np.random.Generator
    effects: Floats = field(init=False)
    shown: Floats = field(init=False)
    auto: Floats | None = field(init=False)
    quality: Floats = field(init=False)
    """Composite of each candidate as a judge without noise would give it."""
    lazy: dict[Key, Score] = field(init=False, default_factory=dict[Key, Score])
    """What was judged so far, in that order."""
    sittings: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        setting, random = self.setting, self.random
        self.effects = random.permutation(np.array(setting.effects or WORLDS[setting.world]))
        arms = len(self.effects)
        size = (arms, setting.scenarios, CANDIDATES)
        self._loud = np.ones(arms)
        self._loud[0] = setting.noisy_arm
        loud = self._loud[:, None, None]
        scenario = random.normal(0.0, SCENARIO_SD, setting.scenarios)[None, :, None]
        self.shown, self._flags = _quality(
            self.effects[:, None, None]
            + scenario
            + loud * random.normal(0.0, setting.interaction_sd, (*size[:2], 1)),
            loud * random.normal(0.0, CANDIDATE_SD, size),
            random,
        )
        self.quality = self.shown + self._flags
        self.auto = self._auto_scores() if setting.correlation is not None else None
        self._unjudged = self._unjudged_scores()
        self._order = random.permuted(np.tile(np.arange(CANDIDATES), (*size[:2], 1)), axis=2)

    @property
    def truth(self) -> Floats:
        """The arms' true means: over new scenarios, new candidates, an average sitting."""
        uneven = self.setting.interaction_sd
        return np.array(
            [true_mean(float(e), float(n), uneven) for e, n in zip(self.effects, self._loud, strict=True)]
        )

    def judge_blocks(self, count: int) -> None:
        """Judge whole blocks, every scenario once before any comes again."""
        arms, scenarios = len(self.effects), self.setting.scenarios
        rounds = -(-count // scenarios)
        order = np.concatenate([self.random.permutation(scenarios) for _ in range(rounds)])[:count]
        seen = [0] * scenarios
        blocks: list[list[Key]] = []
        for s in order.tolist():
            blocks.append([(g, s, int(self._order[g, s, seen[s]])) for g in range(arms)])
            seen[s] += 1
        items = [item for block in blocks for item in block]
        if not self.setting.in_blocks:
            items.sort()
        size = self.setting.blocks_per_sitting * arms
        for start in range(0, len(items), size):
            self.judge(items[start : start + size])

    def judge(self, items: Iterable[Key | Next]) -> None:
        """One sitting over these candidates."""
        offset = self.random.normal(0.0, self.setting.offset_sd)
        stretch = 1.0 + self.random.normal(0.0, self.setting.stretch_sd)
        for arm, scenario, candidate in items:
            key = (int(str(arm)), int(str(scenario)), int(str(candidate)))
            quality = LEVEL + stretch * (self.shown[key] - LEVEL) + offset
            noise = SCALE_NOISE * self._loud[key[0]] * self.random.standard_normal(3)
            scales = np.clip(np.rint(quality / 3.0 + noise), 1, 5)
            self.lazy[key] = replace(
                self._unjudged[key], lazy=int(scales.sum()) + int(self._flags[key]), sitting=self.sittings
            )
        self.sittings += 1

    def records(self, verdicts: int | None = None) -> list[Score]:
        """Every candidate, with what the judges said so far, or in their first verdicts."""
        lazy = self.lazy if verdicts is None else dict(islice(self.lazy.items(), verdicts))
        return list((self._unjudged | lazy).values())

    def _unjudged_scores(self) -> dict[Key, Score]:
        auto = self.auto
        return {
            key: Score(*key, auto=None if auto is None else float(auto[key]))
            for key in np.ndindex(self.shown.shape)
            if len(key) == 3
        }

    def judge_again(self) -> dict[Key, float]:
        """A second pass of the auto judge: the same taste, other noise."""
        again = self._with_noise(self._taste)
        return {key: float(again[key]) for key in self._unjudged}

    def _auto_scores(self) -> Floats:
        setting = self.setting
        bias = self.random.normal(0.0, setting.auto_bias_sd, (len(self.effects), 1, 1))
        bias[0] += setting.auto_extra
        middle = LEVEL + 1.65
        self._taste = middle + 1.0 + bias + AUTO_STEEPNESS * (self.quality - middle)
        return self._with_noise(self._taste)

    def _with_noise(self, seen: Floats) -> Floats:
        assert self.setting.correlation is not None
        within = float(np.sqrt(SCENARIO_SD**2 + INTERACTION_SD**2 + CANDIDATE_SD**2 + 0.5))
        noise = AUTO_STEEPNESS * within * np.sqrt(1.0 / self.setting.correlation**2 - 1.0)
        return np.clip(np.rint(seen + self.random.normal(0.0, noise, seen.shape)), 2, 17)


def run_campaign(setting: Setting, *, verdicts: int, seed: int) -> Campaign:
    """A campaign judged in whole blocks up to the number of verdicts."""
    campaign = Campaign(setting, np.random.default_rng(seed))
    campaign.judge_blocks(verdicts // len(campaign.effects))
    return campaign


@lru_cache(maxsize=256)
def true_mean(effect: float, loudness: float, interaction_sd: float = INTERACTION_SD) -> float:
    """What an arm scores on average over everything new, from a large sample with common random numbers."""
    random = np.random.default_rng(7)
    count = 400_000
    scenario = random.normal(0.0, SCENARIO_SD, count)
    own = random.normal(0.0, interaction_sd, count), random.normal(0.0, CANDIDATE_SD, count)
    shown, flags = _quality(effect + scenario + loudness * own[0], loudness * own[1], random)
    shown = shown + random.normal(0.0, 0.5, count)
    total = flags.astype(float)
    for _ in range(3):
        noise = SCALE_NOISE * loudness * random.standard_normal(count)
        total += np.clip(np.rint(shown / 3.0 + noise), 1, 5)
    return float(total.mean())


def _quality(base: Floats, luck: Floats, random: np.random.Generator) -> tuple[Floats, Floats]:
    """What the scales show, summed, and what the flags add: 2 · format_ok − overlong."""
    shown = LEVEL + base + luck
    chance = random.random((2, *shown.shape))
    format_ok = chance[0] < 1.0 / (1.0 + np.exp(-2.2 - 0.2 * luck))
    overlong = chance[1] < 1.0 / (1.0 + np.exp(1.7 + 0.2 * luck))
    return shown, 2.0 * format_ok - overlong


@dataclass(frozen=True)
class AnchorSitting:
    """The anchors of one sitting: what the judge gave, the references, and the true offset."""

    given: list[float]
    references: list[float]
    offset: float


def judge_anchors(count: int, *, offset: float, seed: int) -> AnchorSitting:
    """Anchors spread over the scale; a reference is the mean of six judges, so that its noise is 0.45."""
    random = np.random.default_rng(seed)
    level = np.linspace(4.6, 13.4, count) + random.uniform(-0.5, 0.5, count)
    flags = np.where(level < 6.0, 0.0, 2.0)
    panel = _judge(level[:, None].repeat(6, axis=1), random) + flags[:, None]
    given = _judge(level + offset, random) + flags
    return AnchorSitting(given.tolist(), panel.mean(axis=1).tolist(), offset)


def _judge(quality: Floats, random: np.random.Generator) -> Floats:
    noise = SCALE_NOISE * random.standard_normal((3, *quality.shape))
    return np.clip(np.rint(quality / 3.0 + noise), 1, 5).sum(axis=0)
