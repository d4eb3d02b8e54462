"""What the drift rule counts with: the usual, until there are enough repeats and sittings to fit it from."""

from dataclasses import replace
from random import Random
from statistics import fmean

import pytest

from tests.judging.cells import LAZY, RUBRIC, given, make_cell, rubric_of, sitting
from tests.support.benches import hold_bench
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.scores import list_noises, read_noise
from tipbench.bench.sittings import Answer, BlindKey, ClosedSitting, KeyItem, StoredDrift
from tipbench.judging.closing import SittingAnswers, examine_sitting
from tipbench.pack import builtin_pack
from tipbench.ranking.compare import read_cell_variance
from tipbench.ranking.standings import make_report
from tipbench.records import compute_flags
from tipbench.stats import CellVariance, Noise, fit_noise, usual_variance
from tipbench.stats.sittings import OFFSET_SD, REPEAT_SD, REPEAT_SD_RANGE


def changes(*, sd: float, each: int, pairs: int, seed: int = 0) -> list[list[float]]:
    """Second − first in so many pairs of sittings that differ by a constant each."""
    rng = Random(seed)
    return [
        [shift + rng.gauss(0, sd) - rng.gauss(0, sd) for _ in range(each)]
        for shift in (rng.gauss(0, 3.0) for _ in range(pairs))
    ]


def test_the_noise_is_found_although_sittings_differ() -> None:
    found = [fit_noise(changes(sd=0.8, each=10, pairs=40, seed=seed), []).repeat_sd for seed in range(20)]
    assert fmean(found) == pytest.approx(0.8, abs=0.02)


def test_thirty_repeats_are_needed_and_single_ones_say_nothing() -> None:
    assert fit_noise(changes(sd=0.8, each=29, pairs=1), []).repeat_sd == REPEAT_SD
    assert fit_noise(changes(sd=0.8, each=30, pairs=1), []).repeats_fitted
    assert fit_noise(changes(sd=0.8, each=1, pairs=100), []) == Noise()
    # Ten sittings with four each: every constant that is taken out costs one.
    assert fit_noise(changes(sd=0.8, each=4, pairs=10), []).repeats == 31


@pytest.mark.parametrize(("sd", "bound"), [(5.0, REPEAT_SD_RANGE[1]), (0.0, REPEAT_SD_RANGE[0])])
def test_a_careless_judge_does_not_loosen_the_rule_and_a_parrot_does_not_tighten_it(
    sd: float, bound: float
) -> None:
    assert fit_noise(changes(sd=sd, each=50, pairs=1), []).repeat_sd == bound


def test_how_much_sittings_differ_is_fitted_from_ten() -> None:
    rng = Random(1)
    offsets = [(rng.gauss(0, 1.0) + rng.gauss(0, 0.5), 0.5) for _ in range(4_000)]
    assert fit_noise([], offsets).offset_sd == pytest.approx(1.0, abs=0.05)
    assert fit_noise([], offsets[:9]).offset_sd == OFFSET_SD
    assert fit_noise([], [(0.1, 0.5)] * 10).offset_sd == 0.0


def make_evidence(*, again_by: str, kind: str = "human", change: int = 3) -> Evidence:
    """Forty candidates judged twice: by anna, then by this judge with a change of 0 or so many points."""
    cells = [make_cell(model="a", scenario=f"s{n}", slots="a") for n in range(40)]
    second = sitting("again", tier="lazy", drawn="second", judge=again_by)
    facts = second.facts.model_copy(update={"judge_kind": kind})
    run = second.run.model_copy(update={"tags": {"tipbench.closed_ms": "9"}})
    second = replace(second, run=run, facts=facts)
    lazy = [given(cell, LAZY, 0, 8) for cell in cells]
    doubles: list[CountedVerdict] = [
        given(cell, second, 0, 8 + change * (n % 2)) for n, cell in enumerate(cells)
    ]
    drift = StoredDrift(offset=2.0, se=0.5, correction=1.0, slope=1.0, alarms=(), anchors=6, exact=False)
    sittings = [replace(LAZY, closed=ClosedSitting(blocks=(0,)), drift=drift)] * 12
    return Evidence(tuple(cells), (), tuple(sittings), tuple(lazy), tuple(doubles), None)


@pytest.mark.parametrize("again_by", ["anna", "bert"])
def test_what_judges_of_one_kind_said_twice_tells_their_noise(again_by: str) -> None:
    own = read_noise(make_evidence(again_by=again_by), rubric_of, kind="human")
    assert (own.rule.repeats, own.rule.sittings) == (40, 12)
    # Changes of 0 and 3 by turns: sd 1.5, with n − 1 a little more, over √2.
    assert own.repeat_sd == own.rule.repeat_sd == pytest.approx(1.5 * (40 / 39) ** 0.5 / 2**0.5)
    assert own.rule.offset_sd == pytest.approx((4.0 - 0.25) ** 0.5)
    assert own.told == "σ 1.07 from 40 doubles of human"


def test_kinds_of_judges_are_not_mixed() -> None:
    evidence = make_evidence(again_by="bert", kind="claude-code")
    for kind, sittings in (("human", 12), ("claude-code", 0)):
        found = read_noise(evidence, rubric_of, kind=kind)
        assert (found.rule.repeats, found.repeat_sd, found.rule.sittings) == (0, REPEAT_SD, sittings)
        assert found.told == "σ 1.1, assumed"
    assert [each.kind for each in list_noises(evidence, rubric_of)] == ["human"]


def test_quiet_judges_are_told_as_quiet_as_they_are_but_drift_believes_only_half_of_it() -> None:
    quiet = read_noise(make_evidence(again_by="bert", change=1), rubric_of, kind="human")
    assert quiet.told == "σ 0.36 from 40 doubles of human"
    assert quiet.rule.repeat_sd == REPEAT_SD_RANGE[0]
    report = make_report(make_evidence(again_by="bert", change=1), experiment="e", rubric=RUBRIC)
    assert f"noise of a verdict by human: {quiet.told}" in report.remarks
    assumed = make_report(make_evidence(again_by="bert", kind="claude-code"), experiment="e", rubric=RUBRIC)
    assert "noise of a verdict by human: σ 1.1, assumed" in assumed.remarks


def test_deeper_cells_help_quiet_judges_less() -> None:
    usual, quiet = (CellVariance(3.0, 1.0), CellVariance(3.0, 1.0, repeat_sd=0.4))
    assert [usual.at(1.0), quiet.at(1.0)] == pytest.approx([3.0, 3.0])
    assert usual.at(5.0) == pytest.approx(3.0 * usual_variance(5.0) / usual_variance(1.0))
    assert quiet.at(5.0) > usual.at(5.0)


def test_a_plan_that_is_like_an_experiment_counts_with_the_noise_of_its_judges_and_says_so() -> None:
    """Two arms on twenty scenarios: everything judged twice, with changes of 0 and 1 by turns."""
    cells = [make_cell(model=m, scenario=f"s{n}", slots="a") for n in range(20) for m in "ab"]
    second = sitting("again", tier="lazy", drawn="second", judge="bert")
    lazy = [given(cell, LAZY, 0, 7 + n % 5) for n, cell in enumerate(cells)]
    doubles = [given(cell, second, 0, 7 + n % 5 + n % 2) for n, cell in enumerate(cells)]
    evidence = Evidence(tuple(cells), (), (LAZY, second), tuple(lazy), tuple(doubles), None)
    seen = read_cell_variance(hold_bench(evidence, packs={"p": builtin_pack()}))
    assert seen.repeat_sd == pytest.approx(0.5 * (40 / 39) ** 0.5 / 2**0.5)
    assert seen.noise == "σ 0.36 from 40 doubles of human"
    assumed = replace(evidence, doubles=tuple(doubles[:9]))
    seen = read_cell_variance(hold_bench(assumed, packs={"p": builtin_pack()}))
    assert (seen.repeat_sd, seen.noise) == (REPEAT_SD, "σ 1.1, assumed")


def test_the_close_counts_with_the_noise_there_is() -> None:
    """Every anchor 1.7 points off: alarming for a judge who repeats himself, usual for one who scatters."""
    pack = builtin_pack()
    anchors = [a for a in pack.anchors if max(a.scores.values()) < 5][:4]
    key = BlindKey(items=tuple(KeyItem(id=a.id, text_hash="", anchor=a.id) for a in anchors))
    answers: dict[str, Answer] = {}
    for place, anchor in enumerate(anchors):
        more = 2 if place else 1
        names = [scale.name for scale in RUBRIC.scales][:more]
        scores = anchor.scores | {name: anchor.scores[name] + 1 for name in names}
        answers[anchor.id] = Answer(scores=scores, flags=compute_flags(anchor.text, pack.rubric))
    said = SittingAnswers(key, pack, answers)
    alarms = {
        sd: examine_sitting(said, blocks=(0,), tier="lazy", noise=Noise(repeat_sd=sd)).drift.alarms
        for sd in (0.6, 1.65)
    }
    assert alarms == {0.6: {"offset"}, 1.65: set()}
