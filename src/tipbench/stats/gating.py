"""The gate: what a design can see, and whether a challenger may replace the champion, rule by rule."""

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from tipbench.errors import UsageError
from tipbench.stats.agreement import ASSUMED_NOISE
from tipbench.stats.board import (
    PRIOR_DF,
    ROUNDING,
    Bools,
    Cells,
    Differences,
    Floats,
    Ints,
    ScoreLike,
    Table,
    compare_arms,
    compute_cells,
    read_scores,
)
from tipbench.stats.quantiles import dunnett_quantile, look_levels, t_quantile
from tipbench.stats.sittings import REPEAT_SD

MOST_SCENARIOS = 100_000
FEWEST_SCENARIOS = 4
LARGEST_DIFFERENCE = 1e6


@dataclass(frozen=True)
class Design:
    """A campaign: how many arms meet how many scenarios, and how many candidates of each cell are judged."""

    arms: int
    scenarios: int
    per_cell: float
    """On average: a budget need not go round the scenarios in whole."""

    @property
    def verdicts(self) -> int:
        """All lazy verdicts."""
        return round(self.arms * self.scenarios * self.per_cell)


@dataclass(frozen=True)
class AutoJudge:
    """How an auto judge sees a lead of one arm over another; the usual figures are the simulated judge's."""

    steepness: float = 0.6
    """How much of a true lead it gives on average."""
    bias_sd: float = 0.5
    """How much it likes some arms more than others, for no reason."""
    cell_variance: float = 0.5
    """Of its mean of one cell around arm and scenario."""

    def agrees(self, difference: float, *, scenarios: float = math.inf) -> float:
        """The chance that it sees the better arm ahead."""
        spread = math.sqrt(2.0 * (self.bias_sd**2 + self.cell_variance / scenarios))
        return _below(self.steepness * difference / spread)


@dataclass(frozen=True)
class SilentJudge(AutoJudge):
    """The same judge where it is only asked not to contradict."""

    def agrees(self, difference: float, *, scenarios: float = math.inf) -> float:
        """The chance that it does not see the better arm behind for certain."""
        error = math.sqrt(2.0 * self.cell_variance / scenarios)
        spread = math.sqrt(2.0 * (self.bias_sd**2 + self.cell_variance / scenarios))
        return _below((self.steepness * difference + ONE_SIDED * error) / spread)


ONE_SIDED = 1.645
"""The normal quantile of 95 %: when a judge contradicts (`gating.CONTRADICTION`)."""
USUAL_AUTO = AutoJudge()


def spend_budget(verdicts: int, *, arms: int, scenarios: int) -> Design:
    """The campaign that a budget of lazy verdicts makes: whole blocks, in as many scenarios as it reaches."""
    blocks = verdicts // arms
    reached = min(blocks, scenarios)
    return Design(arms, reached, blocks / max(reached, 1))


@dataclass(frozen=True)
class CellVariance:
    """The variance of a cell's value around arm and scenario, seen with so many verdicts a cell."""

    variance: float
    per_cell: float
    repeat_sd: float = REPEAT_SD
    """σ of its judges: how much deeper cells help."""
    noise: str = ASSUMED_NOISE
    """The same in words, with where it comes from."""

    def at(self, per_cell: float) -> float:
        """The same with another number of verdicts a cell, which matters as much as such judges are noisy."""
        now = usual_variance(self.per_cell, repeat_sd=self.repeat_sd)
        return self.variance * usual_variance(per_cell, repeat_sd=self.repeat_sd) / now


def usual_variance(per_cell: float, *, repeat_sd: float = REPEAT_SD) -> float:
    """The variance of a cell's value around arm and scenario, where no earlier experiment tells."""
    return 0.46 + (2.54 - REPEAT_SD**2 + repeat_sd**2) / per_cell


def unsharpened_variance(per_cell: float, candidates: int) -> float:
    """The same where no auto judge tells lucky draws from unlucky ones among the candidates of a cell."""
    return usual_variance(per_cell) + 0.5 * max(0.0, 1.0 / per_cell - 1.0 / candidates)


def cell_variance(scores: Iterable[ScoreLike]) -> CellVariance | None:
    """What an earlier experiment says about the variance; None where it has no interval.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
    """
    cells = compute_cells(read_scores(scores))
    found = compare_arms(cells)
    if found.variance is None or found.variance <= 0.0:
        return None
    return CellVariance(
        variance=found.variance, per_cell=float(cells.judged[np.ix_(found.arms, found.scenarios)].mean())
    )


def seeing_chance(
    design: Design,
    difference: float,
    *,
    variance: float | None = None,
    alpha: float = 0.05,
    auto: AutoJudge | None = USUAL_AUTO,
) -> float:
    """The chance that the gate promotes the one arm that leads the champion by so much.

    Without an auto judge: that the lazy tier sees the lead.

    Raises:
        UsageError: fewer than two arms, or no candidate judged.
    """
    if design.arms < 2 or design.per_cell < 1:
        raise UsageError(f"{design.arms} arms, {design.per_cell} verdicts a cell: nothing to compare")
    if design.scenarios < FEWEST_SCENARIOS:
        return 0.0
    spread = usual_variance(design.per_cell) if variance is None else variance
    df = design.scenarios - 1.0 if design.arms == 2 else 2.0 * (design.scenarios - 1.0 + PRIOR_DF)
    error = math.sqrt(2.0 * spread / design.scenarios)
    seen = _exceeds(difference / error, float(dunnett_quantile(design.arms, df, alpha)), df)
    # What drives the two tiers apart, the auto judge's taste, has nothing to do with the lazy tier's noise.
    return seen if auto is None else seen * auto.agrees(difference, scenarios=design.scenarios)


def smallest_difference(
    design: Design,
    *,
    variance: float | None = None,
    alpha: float = 0.05,
    power: float = 0.80,
    auto: AutoJudge | None = USUAL_AUTO,
) -> float:
    """The lead over the champion that the gate sees with probability `power`; infinite below 4 scenarios.

    Without an auto judge: that the lazy tier sees.

    Raises:
        UsageError: fewer than two arms, or no candidate judged.
    """
    low, high = 0.0, 1.0
    while seeing_chance(design, high, variance=variance, alpha=alpha, auto=auto) < power:
        low, high = high, 2.0 * high
        if high > LARGEST_DIFFERENCE:
            return math.inf
    for _ in range(40):
        middle = (low + high) / 2.0
        seen = seeing_chance(design, middle, variance=variance, alpha=alpha, auto=auto) >= power
        low, high = (low, middle) if seen else (middle, high)
    return high


def scenarios_needed(
    difference: float,
    *,
    arms: int,
    per_cell: int,
    variance: float | None = None,
    power: float = 0.80,
    auto: AutoJudge | None = USUAL_AUTO,
) -> int:
    """How many scenarios the gate needs to see the difference with probability `power`.

    Without an auto judge: how many the lazy tier needs.

    Raises:
        UsageError: the difference is not positive, or too small for any campaign.
    """
    if not difference > 0:
        raise UsageError(f"a difference of {difference!r} cannot be seen", hint="Give a positive one.")

    def seen(scenarios: int) -> bool:
        design = Design(arms, scenarios, per_cell)
        return seeing_chance(design, difference, variance=variance, auto=auto) >= power

    low, high = FEWEST_SCENARIOS, FEWEST_SCENARIOS
    while not seen(high):
        low, high = high + 1, high * 2
        if high > MOST_SCENARIOS:
            raise UsageError(
                f"a difference of {difference!r} needs more than {MOST_SCENARIOS} scenarios",
                hint="Ask for a larger one, or plan without an automatic judge.",
            )
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if seen(middle) else (middle + 1, high)
    return high


def _exceeds(lead: float, bound: float, df: float) -> float:
    """The chance that a lead, in standard errors, exceeds the bound times the estimated standard error."""
    z = np.linspace(-5.0, 5.0, 101)
    weight = np.exp(-z * z / 2.0)
    # Wilson and Hilferty: the cube root of χ²/df is very nearly normal.
    root = np.maximum(1.0 - 2.0 / (9.0 * df) + z * math.sqrt(2.0 / (9.0 * df)), 0.0)
    chances = [_below(lead - bound * estimated) for estimated in (root**1.5).tolist()]
    return float(np.array(chances) @ weight / weight.sum())


def _below(z: float) -> float:
    return math.erfc(-z / math.sqrt(2.0)) / 2.0


CONTRADICTION = 0.05
"""How often a judge who sees two arms alike is taken to contradict, at most."""


@dataclass(frozen=True)
class Terms:
    """What the gate asks for."""

    margin: float = 0.0
    """How much better a challenger must be."""
    require: Literal["agree", "both", "lazy"] = "both"
    """What is asked of the auto judge: not to contradict, to see the challenger ahead too, or nothing."""
    informative: bool = True
    """Whether the auto judge agrees with the anchors: one who does not has nothing to contradict with."""
    scenarios: int = 4
    """Complete ones, at least."""
    challenger: Hashable | None = None
    """Only this arm, if one is named. The others stay chances to err: it must be as far ahead as before."""
    auto_cells: Mapping[tuple[Hashable, Hashable], float] | None = None
    """Arm and scenario → what the auto judge says of the cell, failed slots too; else its mean score."""


USUAL_TERMS = Terms()


@dataclass(frozen=True)
class RuleResult:
    """One rule of the gate, whether it holds, and the numbers."""

    name: str
    passed: bool
    detail: str


@dataclass(frozen=True)
class GateDecision:
    """What the gate says."""

    promoted: Hashable | None
    decided: bool
    """False at a look that was not planned: it spends nothing and decides nothing."""
    level: float
    """The chance to promote wrongly that this look may spend, counted over all challengers."""
    challenger: Hashable | None
    """The one to be promoted, else the best one."""
    difference: float | None
    """Its lead over the champion."""
    bound: float | None
    """What the lead is at least, at this level."""
    auto_difference: float | None
    """Its lead by the auto judge."""
    rules: tuple[RuleResult, ...]
    tiers: tuple[str, ...] = ("lazy",)
    """Who had a say."""


def gate(
    scores: Iterable[ScoreLike],
    champion: Hashable,
    alpha: float = 0.05,
    look: int | None = None,
    fractions: Sequence[float] | None = None,
) -> Hashable | None:
    """The arm that may replace the champion, or None.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
        UsageError: the look is not one of the plan, or the fractions do not rise to 1.
    """
    return examine_gate(scores, champion, alpha=alpha, look=look, fractions=fractions).promoted


def examine_gate(
    scores: Iterable[ScoreLike],
    champion: Hashable,
    *,
    alpha: float = 0.05,
    look: int | None = None,
    fractions: Sequence[float] | None = None,
    terms: Terms = USUAL_TERMS,
) -> GateDecision:
    """The gate's decision with every rule behind it.

    `look` is the index of the planned look in `fractions`, the shares of the verdict budget at which the
    plan looks. A plan without a look is an unplanned look: never decided.

    Raises:
        BadScores: a score is not a finite number, or one candidate has two scores of one tier.
        UsageError: the look is not one of the plan, or the fractions do not rise to 1.
    """
    table = read_scores(scores)
    cells = compute_cells(table)
    level = _level(cells, alpha=alpha, look=look, fractions=fractions)
    planned = look is not None or fractions is None
    at = table.arms.index(champion) if champion in table.arms else None
    if at is None or not cells.judged[at].any():
        rule = RuleResult("champion", passed=False, detail=f"no verdicts for the champion {champion!r}")
        return GateDecision(None, planned, level, None, None, None, None, (rule,))
    found = compare_arms(cells, keep=at)
    case = _Case(table, cells, found, int(np.flatnonzero(found.arms == at)[0]), level, terms)
    return _decide(case, planned=planned)


@dataclass(frozen=True)
class _Case:
    table: Table
    cells: Cells
    found: Differences
    champion: int
    level: float
    terms: Terms

    def bounds(self) -> Floats:
        """What each compared arm is ahead of the champion at least."""
        df, error = self.found.df[:, self.champion], self.found.error[:, self.champion]
        reach = np.where(error > 0, dunnett_quantile(_contenders(self.cells), df, self.level), 0.0)
        return self.found.lead[:, self.champion] - reach * error

    def auto_lead(self) -> Floats:
        """How far the auto judge sees each compared arm ahead of the champion; NaN where it cannot say."""
        return _mean_of_known(self._auto_ahead(self.found.scenarios))

    def auto_reach(self) -> tuple[Floats, Floats]:
        """The same over every scenario that it judged, and how far ahead each arm is at most.

        Infinite where it judged too few scenarios to contradict anybody.
        """
        ahead = self._auto_ahead(np.arange(len(self.table.scenarios)))
        lead, counts = _mean_of_known(ahead), np.isfinite(ahead).sum(axis=1)
        squares = np.where(np.isfinite(ahead), (ahead - lead[:, None]) ** 2, 0.0).sum(axis=1)
        df = np.maximum(counts - 1.0, 1.0)
        error = np.sqrt(squares / df / np.maximum(counts, 1))
        enough = counts >= self.terms.scenarios
        return lead, np.where(enough, lead + t_quantile(1.0 - CONTRADICTION, df) * error, np.inf)

    def _auto_ahead(self, scenarios: Ints) -> Floats:
        auto = self._auto_values()[np.ix_(self.found.arms, scenarios)]
        return auto - auto[self.champion]

    def _auto_values(self) -> Floats:
        known, table = self.terms.auto_cells, self.table
        if known is None:
            return self.cells.auto
        rows = [[known.get((arm, scenario), math.nan) for scenario in table.scenarios] for arm in table.arms]
        return np.array(rows, dtype=np.float64)


def _mean_of_known(values: Floats) -> Floats:
    known = np.isfinite(values)
    counts = known.sum(axis=1)
    sums = np.where(known, values, 0.0).sum(axis=1)
    return np.divide(sums, counts, out=np.full(len(values), np.nan), where=counts > 0)


@dataclass(frozen=True)
class _AutoSay:
    """What the auto judge says of every compared arm: its lead, and whether it lets the arm pass."""

    lead: Floats
    most: Floats
    passes: Bools
    require: str

    def speaks(self, arm: int) -> bool:
        """Whether it has a say about this arm at all."""
        if self.require == "agree":
            return bool(np.isfinite(self.most[arm]))
        return self.require == "both" and bool(np.isfinite(self.lead[arm]))

    def detail(self, arm: int) -> str:
        seen = float(self.lead[arm])
        if self.require == "agree":
            if not self.speaks(arm):
                return "not asked: no automatic judge that agrees with the anchors has judged enough"
            what = "does not contradict" if self.passes[arm] else "contradicts"
            return (
                f"the automatic judge {what}: it sees a lead of {seen:+.2f}, "
                f"upper bound {self.most[arm]:+.2f} (α {CONTRADICTION:g})"
            )
        asked = "" if self.require == "both" else " (not required by setting)"
        if math.isnan(seen):
            return f"no automatic verdicts to compare{asked}"
        return f"the automatic judge sees {'a' if seen > 0 else 'no'} lead: {seen:+.2f}{asked}"


def _ask_auto(case: _Case) -> _AutoSay:
    terms = case.terms
    everybody = np.ones(len(case.found.arms), dtype=np.bool_)
    if terms.require == "agree":
        lead, most = case.auto_reach()
        if not terms.informative:
            most = np.full_like(most, np.inf)
        return _AutoSay(lead, most, ~(most < -ROUNDING), terms.require)
    lead = case.auto_lead()
    passes = lead > ROUNDING if terms.require == "both" else everybody
    return _AutoSay(lead, np.full_like(lead, np.inf), passes, terms.require)


def _decide(case: _Case, *, planned: bool) -> GateDecision:
    terms = case.terms
    bounds, auto = case.bounds(), _ask_auto(case)
    challenger = np.arange(len(bounds)) != case.champion
    if terms.challenger is not None:
        challenger &= np.array(
            [case.table.arms[arm] == terms.challenger for arm in case.found.arms], np.bool_
        )
    ahead = challenger & (bounds > terms.margin + ROUNDING)
    enough = len(case.found.scenarios) >= terms.scenarios
    fit = ahead & auto.passes
    promotable = fit if planned and enough else np.zeros_like(fit)
    best = _first(case.found.means, promotable, ahead, challenger)
    if best is None:
        who = "nobody" if terms.challenger is None else f"no verdicts for {terms.challenger!r}"
        rule = RuleResult("challenger", passed=False, detail=f"{who} to compare the champion with")
        return GateDecision(None, planned, case.level, None, None, None, None, (rule,))
    lead, seen = float(case.found.lead[best, case.champion]), float(auto.lead[best])
    name = case.table.arms[case.found.arms[best]]
    scenarios = len(case.found.scenarios)
    rules = (
        RuleResult("planned look", planned, "planned" if planned else "an unplanned look decides nothing"),
        RuleResult("scenarios", enough, f"{scenarios} complete, {terms.scenarios} needed"),
        RuleResult(
            "lazy tier",
            bool(ahead[best]),
            f"lead {lead:+.2f}, lower bound {bounds[best]:+.2f} (α {case.level:.2g}); "
            f"must exceed {terms.margin:g}",
        ),
        RuleResult("auto tier", bool(auto.passes[best]), auto.detail(best)),
    )
    return GateDecision(
        promoted=name if promotable[best] else None,
        decided=planned,
        level=case.level,
        challenger=name,
        difference=lead,
        bound=float(bounds[best]),
        auto_difference=None if math.isnan(seen) else seen,
        rules=rules,
        tiers=("lazy", "auto") if auto.speaks(best) else ("lazy",),
    )


def _first(means: Floats, *choices: Bools) -> int | None:
    """The best arm of the first choice that has any."""
    for choice in choices:
        if choice.any():
            return int(np.argmax(np.where(choice, means, -np.inf)))
    return None


def _contenders(cells: Cells) -> int:
    """Arms that were ever judged: one dropped on the way was a chance to err too."""
    judged: Ints = cells.judged.sum(axis=1)
    return int((judged > 0).sum())


def _level(cells: Cells, *, alpha: float, look: int | None, fractions: Sequence[float] | None) -> float:
    if fractions is None:
        if look is not None:
            raise UsageError(
                f"look {look} of which plan?", hint="Hand in the fractions of all planned looks."
            )
        return alpha
    plan = tuple(float(share) for share in fractions)
    rising = all(0.0 < first < second for first, second in pairwise(plan))
    if not plan or not rising or not plan[0] > 0.0 or abs(plan[-1] - 1.0) > ROUNDING:
        raise UsageError(f"looks at {plan!r}", hint="Fractions of the verdict budget rise and end at 1.")
    if look is None:
        return 0.0
    if not 0 <= look < len(plan):
        raise UsageError(f"look {look} is not in the plan", hint=f"There are {len(plan)}, counted from 0.")
    return look_levels(_contenders(cells), plan, alpha)[look]


# Whether more verdicts could still change what the gate says.


HOPELESS = 0.005


def gate_is_open(table: Table, champion: Hashable, alpha: float = 0.05) -> bool:
    """Whether some challenger may still pass the gate once everything is judged, going by its lead so far.

    True as long as too little is known to say so.
    """
    cells = compute_cells(table)
    at = table.arms.index(champion) if champion in table.arms else None
    if at is None or not cells.judged[at].any():
        return True
    found = compare_arms(cells, keep=at)
    if found.variance is None or len(found.scenarios) < 3:
        return True
    champion_row = int(np.flatnonzero(found.arms == at)[0])
    now = cells.judged[np.ix_(found.arms, found.scenarios)].mean()
    scenarios = int((cells.generated[found.arms] > 0).all(axis=0).sum())
    depth = cells.generated[found.arms].sum() / max(len(found.arms) * scenarios, 1)
    # What is left to learn: deeper cells, and the scenarios that nobody judged yet.
    shrinks = usual_variance(float(depth)) / usual_variance(float(now)) * len(found.scenarios) / scenarios
    bound = float(dunnett_quantile(len(found.arms), 2.0 * (scenarios + 2.0), alpha))
    for row in range(len(found.arms)):
        lead, error = float(found.lead[row, champion_row]), float(found.error[row, champion_row])
        last = error * math.sqrt(shrinks)
        drift = math.sqrt(max(error**2 - last**2, 1e-12))
        if row != champion_row and _normal_tail((bound * last - lead) / drift) >= HOPELESS:
            return True
    return False


def _normal_tail(z: float) -> float:
    return math.erfc(z / math.sqrt(2.0)) / 2.0
