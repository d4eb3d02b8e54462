"""Repeats: candidates that were judged before, hidden in a sitting as checks that cannot stand out."""

from pathlib import Path

import pytest

from tests.judging.live import answer, opened
from tests.judging.scripted import write_tips
from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine
from tests.support.sheets import fill
from tipbench.bench.sittings import Decision
from tipbench.grid import Cell
from tipbench.judging.anchors import share_checks
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import LiveSitting
from tipbench.pack import builtin_pack
from tipbench.records import Options, Sampling
from tipbench.tracking import Tracking

CANDIDATES = 24


@pytest.fixture
def half_judged(tracking: Tracking, live: Judging, experiment_name: str, tmp_path: Path) -> str:
    """Two arms on four scenarios, three tips each; anna judged half of them."""
    pack, engine = builtin_pack(), ScriptedEngine(["a", "b"], write=write_tips)
    options = Options(sampling=Sampling(), n_tips=3, diversity=False, seed=1)
    cells = [
        Cell(pack, model, pack.prompts[0], scenario, options)
        for model in engine.list_models()
        for scenario in pack.scenarios[:4]
    ]
    collect_with(lambda _: engine, cells, where=Where(tracking, experiment_name))
    judge_by_file(live, experiment_name, tmp_path / "anna.json", "anna", blocks=6)
    return experiment_name


def judge_by_file(live: Judging, experiment: str, path: Path, judge: str, *, blocks: int) -> None:
    assert live.hand_out(path, SittingRequest(judge, blocks=blocks), experiment=experiment)
    fill(path)
    live.take_in(path, experiment=experiment, judged_by=None, close=False)


def judge_all(live: Judging, sitting: LiveSitting, score: int = 3) -> LiveSitting:
    given = {item.id: answer(item, score) for item in sitting.section.items}
    return live.submit(sitting.token, given, experiment=sitting.experiment)


def test_a_repeat_is_a_check_and_never_counts_for_the_board(live: Judging, half_judged: str) -> None:
    sitting = opened(live, half_judged, SittingRequest("bert"))
    facts = live.open(half_judged).find_sitting(sitting.token).facts
    assert (facts.items, facts.anchors, facts.repeats) == (22, 4, 6)
    assert judge_all(live, sitting).state == "accepted"
    bench = live.open(half_judged)
    evidence = bench.evidence
    assert len(evidence.lazy) == CANDIDATES
    assert {given.verdict.drawn for given in evidence.lazy} == {"block"}
    doubles = {given.place: given for given in evidence.doubles}
    assert [given.verdict.drawn for given in doubles.values()] == ["repeat"] * 6
    drift = bench.find_sitting(sitting.token).drift
    assert drift is not None
    assert (drift.anchors, drift.repeats, drift.offset) == (4, 6, 0.0)
    (line,) = (line for line in live.status(experiment=half_judged).sittings if line.judged_by == "bert")
    assert (line.items, line.handed) == (12, 22)
    # Even when the first verdict counts no more, the repeat does not take its place.
    (anna,) = (each.facts.token for each in evidence.sittings if each.judged_by == "anna")
    live.decide(Decision(sitting=anna, accept=False, reason="a test"), experiment=half_judged)
    after = live.open(half_judged).evidence
    assert len(after.lazy) == CANDIDATES // 2
    assert not {given.place for given in after.lazy} & doubles.keys()


def test_repeats_show_an_offset(live: Judging, half_judged: str) -> None:
    sitting = judge_all(live, opened(live, half_judged, SittingRequest("bert")), score=5)
    drift = live.open(half_judged).find_sitting(sitting.token).drift
    assert drift is not None
    assert drift.offset > 0.5, "the anchors were hit, the repeats got six points more"


def test_a_judge_sees_nothing_of_their_own_lately(live: Judging, half_judged: str) -> None:
    sitting = opened(live, half_judged, SittingRequest("anna"))
    facts = live.open(half_judged).find_sitting(sitting.token).facts
    assert (facts.anchors, facts.repeats) == (6, 0)


def test_an_early_end_keeps_the_blocks_that_are_complete(live: Judging, half_judged: str) -> None:
    sitting = opened(live, half_judged, SittingRequest("bert"))
    bench = live.open(half_judged)
    key = bench.key_of(bench.find_sitting(sitting.token))
    repeats = {item.id for item in key.items if item.repeats}
    given = {item.id: answer(item) for item in sitting.section.items if item.id not in repeats}
    live.submit(sitting.token, given, experiment=half_judged)
    assert live.close(sitting.token, experiment=half_judged).state == "accepted"
    assert len(live.open(half_judged).evidence.lazy) == CANDIDATES


@pytest.mark.parametrize(
    ("items", "repeats", "shared"),
    [
        (36, 0, (6, 0)),
        (36, 2, (6, 2)),
        (36, 3, (5, 3)),
        (36, 9, (4, 9)),
        (36, 12, (4, 9)),
        (7, 9, (6, 1)),
        (3, 9, (6, 0)),
    ],
)
def test_checks_are_shared_between_anchors_and_repeats(
    items: int, repeats: int, shared: tuple[int, int]
) -> None:
    assert share_checks(6, items=items, repeats=repeats) == shared
