"""Estimates from logged data: their intervals hold what they promise."""

from pathlib import Path

import numpy as np
import pytest

from tipbench.errors import UsageError
from tipbench.policies.features import Matrix, Vector
from tipbench.policies.off_policy import Logged, estimate_all, estimate_lead
from tipbench.policies.policy import list_policies
from tipbench.policies.serving.evaluation import evaluate_policy
from tipbench.policies.serving.signals import SignalLog, read_signals
from tipbench.policies.simulation.run import World, make_pool, make_users, play

REPETITIONS = 500
USERS, MOMENTS, TIPS = 60, 25, 5


def chances_of(match: Matrix, taste: Matrix) -> Matrix:
    return 1 / (1 + np.exp(-(2 * match - 1 + taste)))


def shares_of(match: Matrix) -> Matrix:
    """The policy to be valued: it likes tips that match."""
    powers = np.exp(3 * match)
    return powers / powers.sum(axis=-1, keepdims=True)


def known_value() -> float:
    generator = np.random.default_rng(0)
    match = generator.random((400_000, TIPS))
    taste = np.repeat(generator.normal(scale=0.7, size=(400_000, 1)), TIPS, axis=1)
    return float((shares_of(match) * chances_of(match, taste)).sum(axis=1).mean())


def log_at_random(seed: int) -> Logged:
    """Users with tastes of their own, served by the random policy."""
    generator = np.random.default_rng([1, seed])
    count = USERS * MOMENTS
    users = np.repeat(np.arange(USERS), MOMENTS)
    match = generator.random((count, TIPS))
    taste = np.repeat(generator.normal(scale=0.7, size=USERS), MOMENTS)[:, None] * np.ones((1, TIPS))
    chosen = generator.integers(TIPS, size=count)
    rows = np.arange(count)
    rewards = (generator.random(count) < chances_of(match, taste)[rows, chosen]).astype(np.float64)
    shares: Matrix = shares_of(match)
    guesses: Vector = 0.3 + 0.4 * match[rows, chosen]
    return Logged(
        users, rewards, shares[rows, chosen] * TIPS, guesses, (shares * (0.3 + 0.4 * match)).sum(axis=1)
    )


def test_intervals_from_a_random_log_cover_the_known_value_of_another_policy() -> None:
    value = known_value()
    covered = np.zeros(3)
    widths = np.zeros(3)
    sums = np.zeros(3)
    for seed in range(REPETITIONS):
        for place, estimate in enumerate(estimate_all(log_at_random(seed))):
            covered[place] += estimate.low <= value <= estimate.high
            widths[place] += estimate.high - estimate.low
            sums[place] += estimate.value
    shares, means = covered / REPETITIONS, sums / REPETITIONS
    print(
        "known",
        round(value, 4),
        "ips, snips, dr: coverage",
        shares,
        "mean",
        means,
        "width",
        widths / REPETITIONS,
    )
    # 95 % promised; 500 repetitions see it to ± 2 points.
    assert np.all((shares > 0.925) & (shares < 0.98))
    np.testing.assert_allclose(means, value, atol=0.004)
    # A model of the reward makes the interval narrower.
    assert widths[2] < widths[0]


def test_the_lead_of_the_policy_that_logged_over_itself_is_nothing() -> None:
    logged = log_at_random(3)
    same = Logged(logged.users, logged.rewards, np.ones_like(logged.rewards), logged.guesses, logged.guesses)
    lead = estimate_lead(same)
    assert abs(lead.value) < 1e-12
    assert abs(lead.high) < 1e-9


def test_one_user_promises_nothing() -> None:
    logged = Logged(np.zeros(5, dtype=np.int64), *(np.ones(5) for _ in range(4)))
    assert all(estimate.low == float("-inf") for estimate in estimate_all(logged))


def test_the_log_of_the_random_policy_tells_what_others_would_have_earned(tmp_path: Path) -> None:
    policies, world = list_policies(), World(profile_effect=0.0, seed=3)
    users = make_users(world, make_pool(3), users=12, rounds=60)
    log = SignalLog(tmp_path, begun_ms=1)
    (played,) = play([policies["random"]], users, world, signals=log)
    log.close()
    signals = list(read_signals(tmp_path))
    itself = evaluate_policy(signals, policies["random"])
    assert (itself.decisions, itself.users, itself.logged) == (720, 12, {"random": 720})
    assert itself.mean_reward == pytest.approx(played.rewards.mean())
    assert itself.estimates[0].value == pytest.approx(itself.mean_reward)
    assert itself.effective == pytest.approx(720)
    other = evaluate_policy(signals, policies["egreedy-v1"])
    assert other.lead.value > 0
    assert 0.8 < other.mean_weight < 1.2
    with pytest.raises(UsageError, match="no rewarded decision"):
        evaluate_policy([], policies["egreedy-v1"])
