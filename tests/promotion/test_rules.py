"""The rules on frozen lists: every rule can fail by itself, and nothing is invented."""

from collections.abc import Callable
from random import Random

import pytest

from tipbench.bench.plans import (
    Frozen,
    FrozenArm,
    FrozenScore,
    FrozenSitting,
    FrozenTerms,
    LookResult,
    PlanFacts,
)
from tipbench.promotion.rules import compute_look

PLAN = PlanFacts(champion="old+v", arm_hash="h", budget=48, looks=(0.5, 1.0), alpha=0.05, counted=0)
LAST = 1


def frozen(
    lazy_of: Callable[[str, int, Random], float | None],
    *,
    auto_of: Callable[[str], float | None] = lambda arm: 12.0 if arm == "new+v" else 9.0,
    terms: dict[str, object] | None = None,
    scenarios: int = 8,
) -> Frozen:
    rng = Random(3)
    arms = ("old+v", "new+v", "third+v")
    scores = [
        FrozenScore(
            arm=arm,
            scenario=f"s{scenario}",
            slot=slot,
            lazy=lazy_of(arm, scenario, rng),
            auto=auto_of(arm),
            sitting="t",
        )
        for scenario in range(scenarios)
        for slot in range(2)
        for arm in arms
    ]
    usual = FrozenTerms(
        margin=0.0, require="both", scenarios=4, unanchored=False, format_drop=0.05, latency_ratio=2.0
    )
    return Frozen(
        champion="old+v",
        counted=sum(score.lazy is not None for score in scores),
        scores=tuple(scores),
        arms=tuple(FrozenArm(arm=arm, cells=8, well_formed=1.0, latency_seconds=1.0) for arm in arms),
        sittings=(
            FrozenSitting(
                token="t", tier="lazy", judged_by="anna", verdicts=48, unanchored=False, informative=False
            ),
            FrozenSitting(
                token="a",
                tier="auto",
                judged_by="m",
                verdicts=48,
                unanchored=False,
                informative=True,
                grade="α",
            ),
        ),
        terms=usual.model_copy(update=terms or {}),
    )


def better(arm: str, scenario: int, rng: Random) -> float:
    return (13.0 if arm == "new+v" else 9.0) + scenario % 3 + rng.choice((-1, 0, 1))


def failed(result: LookResult) -> list[str]:
    return [rule.name for rule in result.best.rules if not rule.passed]


def look(case: Frozen, at: int = LAST) -> LookResult:
    return compute_look(case, plan=PLAN, look=at)


def test_a_clear_challenger_passes_every_rule() -> None:
    result = look(frozen(better))
    assert (result.best.answer, result.best.promoted, failed(result)) == ("promote", "new+v", [])
    names = [rule.name for rule in result.best.rules]
    assert names == [
        "planned look", "scenarios", "lazy tier", "auto tier", "anchored", "auto judge", "format", "latency",
    ]  # fmt: skip
    assert result.by_arm["third+v"].answer == "no"


def with_arm(case: Frozen, **facts: object) -> Frozen:
    arms = tuple(a.model_copy(update=facts) if a.arm == "new+v" else a for a in case.arms)
    return case.model_copy(update={"arms": arms})


def with_sittings(case: Frozen, **facts: object) -> Frozen:
    sittings = tuple(sitting.model_copy(update=facts) for sitting in case.sittings)
    return case.model_copy(update={"sittings": sittings})


@pytest.mark.parametrize(
    ("case", "rule"),
    [
        (with_arm(frozen(better), well_formed=0.9), "format"),
        (with_arm(frozen(better), latency_seconds=2.5), "latency"),
        (with_sittings(frozen(better), unanchored=True), "anchored"),
        (with_sittings(frozen(better), informative=False), "auto judge"),
        (frozen(better, auto_of=lambda arm: 9.0 if arm == "new+v" else 12.0), "auto tier"),
        (frozen(better, terms={"margin": 9.0}), "lazy tier"),
        (frozen(better, scenarios=3), "scenarios"),
    ],
)
def test_each_rule_can_refuse_by_itself(case: Frozen, rule: str) -> None:
    result = look(case)
    assert (result.best.answer, result.best.promoted, failed(result)) == ("no", None, [rule])


def test_settings_may_allow_what_is_refused_otherwise() -> None:
    assert look(with_sittings(frozen(better, terms={"unanchored": True}), unanchored=True)).best.promoted
    alone = frozen(better, auto_of=lambda _: None, terms={"require": "lazy"})
    result = look(alone.model_copy(update={"sittings": alone.sittings[:1]}))
    assert result.best.promoted == "new+v"
    assert "not required by setting" in result.best.rules[3].detail


def test_a_slow_winner_leaves_the_place_to_the_next_one() -> None:
    def two(arm: str, scenario: int, rng: Random) -> float:
        return {"old+v": 8.0, "new+v": 14.0, "third+v": 12.0}[arm] + rng.choice((-1, 0, 1))

    case = frozen(two, auto_of=lambda arm: 8.0 if arm == "old+v" else 12.0)
    result = look(with_arm(case, latency_seconds=9.0))
    assert (result.best.promoted, result.by_arm["new+v"].answer) == ("third+v", "no")


def test_all_ties_all_failures_and_a_single_verdict_promote_nobody() -> None:
    ties = look(frozen(lambda _a, _s, _r: 10.0))
    assert (ties.best.answer, failed(ties)) == ("no", ["lazy tier"])
    failures = look(frozen(lambda _a, _s, _r: 2.0, auto_of=lambda _: None))
    assert failures.best.answer == "no"
    single = frozen(lambda arm, scenario, _: 10.0 if (arm, scenario) == ("new+v", 0) else None)
    alone = look(single)
    assert (alone.best.answer, alone.best.difference, failed(alone)[0]) == ("no", None, "champion")
    nothing = look(frozen(lambda _a, _s, _r: None))
    assert (nothing.best.answer, nothing.best.bound) == ("no", None)


def test_an_early_look_at_a_close_race_decides_nothing_and_the_last_one_says_no() -> None:
    def close(arm: str, scenario: int, rng: Random) -> float:
        return 10.0 + 0.6 * (arm == "new+v") + rng.choice((-2, -1, 0, 1, 2))

    assert look(frozen(close), 0).best.answer == "undecided"
    assert look(frozen(close), 1).best.answer == "no"
