"""The rules on frozen lists: every rule can fail by itself, and nothing is invented."""

import io
from collections.abc import Callable
from random import Random

import pytest
from rich.console import Console

from tests.ranking.evidence import Levels, make_evidence
from tipbench.bench.plans import (
    Frozen,
    FrozenArm,
    FrozenScore,
    FrozenSitting,
    FrozenTerms,
    GateRule,
    LookResult,
    PlanFacts,
    make_terms,
)
from tipbench.pack import builtin_pack
from tipbench.promotion.rules import GateReport, NextLook, compute_look, freeze
from tipbench.settings import GateSettings, Require
from tipbench.show.terminal import print_gate

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


def timed(case: Frozen, *, loaded: int = 0) -> Frozen:
    """The challenger takes 5.56 seconds a tip, the champion 1.17."""
    arms = tuple(
        arm.model_copy(
            update={
                "tip_seconds": (seconds := 5.56 if arm.arm == "new+v" else 1.17),
                "tip_low": seconds * 0.9,
                "tip_high": seconds * 1.2,
                "loaded_cells": loaded if arm.arm == "new+v" else 0,
            }
        )
        for arm in case.arms
    )
    return case.model_copy(update={"arms": arms})


def rule_of(result: LookResult, name: str) -> GateRule:
    return next(rule for rule in result.best.rules if rule.name == name)


def test_latency_is_a_budget_that_somebody_sets_measured_by_the_tip_with_its_spread() -> None:
    off = look(timed(frozen(better, terms={"latency_ratio": None})))
    assert off.best.promoted == "new+v"
    assert "5.56 s (middle half 5.00–6.67) a tip, the champion 1.17 s" in rule_of(off, "latency").detail
    assert "no gate.latency_seconds" in rule_of(off, "latency").detail
    for ratio, seconds, refused in (
        (2.0, None, True),
        (5.0, None, False),
        (None, 5.0, True),
        (5.0, 5.6, False),
    ):
        terms: dict[str, object] = {"latency_ratio": ratio, "latency_seconds": seconds}
        assert failed(look(timed(frozen(better, terms=terms)))) == ["latency"] * refused
    slow = timed(frozen(better, terms={"latency_ratio": 2.0, "latency_seconds": 5.0}))
    unknown = {"tip_seconds": None, "latency_seconds": None}
    arms = tuple(arm.model_copy(update=unknown if arm.arm == "old+v" else {}) for arm in slow.arms)
    refused_alone = look(slow.model_copy(update={"arms": arms}))
    assert failed(refused_alone) == ["latency"], "a limit in seconds needs no champion to compare with"
    busy = rule_of(look(timed(frozen(better), loaded=3)), "latency")
    assert "the machine was loaded in 3 of 8 of its cells and 0 of 8 of the champion's" in busy.detail


def test_a_pack_that_names_no_flag_has_no_rule_on_format_and_is_told_so() -> None:
    case = frozen(better)
    case = case.model_copy(
        update={"arms": tuple(arm.model_copy(update={"well_formed": None}) for arm in case.arms)}
    )
    rule = rule_of(look(case), "format")
    assert (rule.passed, rule.detail.startswith("left out"), "well_formed" in rule.detail) == (True,) * 3


def test_a_judge_that_must_only_not_contradict_and_throws_dice_has_no_say() -> None:
    backwards = frozen(
        better, auto_of=lambda arm: 12.0 if arm == "old+v" else 9.0, terms={"require": "agree"}
    )
    assert failed(look(backwards)) == ["auto tier"]
    dice = look(with_sittings(backwards, informative=False))
    assert (dice.best.promoted, dice.best.tiers) == ("new+v", ("lazy",))
    assert "no say" in rule_of(dice, "auto judge").detail


def test_a_look_that_was_frozen_before_the_rules_changed_is_computed_as_then() -> None:
    case = with_arm(frozen(better), latency_seconds=2.5)
    text = case.model_dump_json(exclude_defaults=True)
    assert "tip_seconds" not in text
    result = look(Frozen.model_validate_json(text))
    assert failed(result) == ["latency"]
    assert rule_of(result, "latency").detail.startswith("2.50 s an answer (median), the champion 1.00 s")


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


@pytest.mark.parametrize("require", ["agree", "both"])
def test_the_automatic_judge_counts_empty_slots_at_the_gate_as_on_its_own_board(require: Require) -> None:
    """The champion's few answers are a little better, and every second one is missing."""
    given: Levels = {"old": [[4, 5, 0, 0], [5, 4, 0, 0]] * 4, "new": [[4, 4, 3, 4], [4, 3, 4, 4]] * 4}
    seen = {arm: [[level for level in slots if level] for slots in cells] for arm, cells in given.items()}
    frozen_list = freeze(
        make_evidence(given, auto=seen),
        champion="old+v1",
        pack=builtin_pack(),
        terms=make_terms(GateSettings(), require),
    )
    best = compute_look(frozen_list, plan=PLAN, look=LAST).best
    assert (best.answer, best.promoted, best.tiers) == ("promote", "new+v1", ("lazy", "auto"))
    assert best.auto_difference is not None
    assert best.auto_difference > 3.0
    # A look that was frozen before goes by what it froze.
    before = compute_look(frozen_list.model_copy(update={"auto_cells": None}), plan=PLAN, look=LAST).best
    assert [rule.name for rule in before.rules if not rule.passed] == ["auto tier"]


@pytest.mark.parametrize(
    ("rules", "says"),
    [
        ((), "to take it: tipbench gate --experiment tips"),
        (
            (GateRule(name="auto tier", passed=False, detail="none has judged"),),
            "Not decided yet. Missing: automatic verdicts.",
        ),
    ],
)
def test_a_look_that_has_its_verdicts_asks_for_none(rules: tuple[GateRule, ...], says: str) -> None:
    report = GateReport(
        experiment="tips", pack="p", champion="old+v", version=1, champion_run="r", against="champion",
        asked_for=None, answer="undecided", counted=30, budget=60, looks=(0.5, 1.0), alpha=0.05, rules=rules,
        next_look=NextLook(look=1, at=30, missing=0, waiting=30, blocks={"s1": 2}),
    )  # fmt: skip
    shown = io.StringIO()
    print_gate(report, Console(file=shown, width=200))
    assert shown.getvalue().splitlines()[-1].endswith(says)
