"""Arrays and records in, numbers out: no clock, no file, no MLflow."""

from tipbench.stats.agreement import (
    Agreement,
    Alpha,
    Delta,
    Spot,
    ac1,
    agreement,
    delta,
    krippendorff_alpha,
    spot_checks,
)
from tipbench.stats.batches import Next, next_batch
from tipbench.stats.board import Leaderboard, Pair, Ranks, leaderboard
from tipbench.stats.gating import GateDecision, RuleResult, Terms, examine_gate, gate
from tipbench.stats.posterior import p_best
from tipbench.stats.power import (
    AutoJudge,
    CellVariance,
    Design,
    SilentJudge,
    cell_variance,
    scenarios_needed,
    seeing_chance,
    smallest_difference,
    spend_budget,
    unsharpened_variance,
    usual_variance,
)
from tipbench.stats.scores import BadScores, Score, ScoreLike
from tipbench.stats.sittings import Drift, Noise, drift, fit_noise, level_shifts

__all__ = [
    "Agreement",
    "Alpha",
    "AutoJudge",
    "BadScores",
    "CellVariance",
    "Delta",
    "Design",
    "Drift",
    "GateDecision",
    "Leaderboard",
    "Next",
    "Noise",
    "Pair",
    "Ranks",
    "RuleResult",
    "Score",
    "ScoreLike",
    "SilentJudge",
    "Spot",
    "Terms",
    "ac1",
    "agreement",
    "cell_variance",
    "delta",
    "drift",
    "examine_gate",
    "fit_noise",
    "gate",
    "krippendorff_alpha",
    "leaderboard",
    "level_shifts",
    "next_batch",
    "p_best",
    "scenarios_needed",
    "seeing_chance",
    "smallest_difference",
    "spend_budget",
    "spot_checks",
    "unsharpened_variance",
    "usual_variance",
]
