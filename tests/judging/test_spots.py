"""Spot checks: where the automatic judge is doubtful, blind, for agreement and never for the board."""

import json
import random
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import auto, cells_of
from tests.judging.cells import LAZY, given, make_cell, rubric_of, sitting
from tests.judging.counting_judge import CountingJudge
from tests.judging.scripted import collect_scripted, fill_with, same
from tests.support.sheets import REFERENCES, hand_out, sections
from tipbench.bench.evidence import CountedVerdict, Evidence
from tipbench.bench.sittings import Answer
from tipbench.clock import make_stamps
from tipbench.errors import UsageError
from tipbench.judging.draw import draw_spots
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.status import measure_disagreement
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

ARMS, SCENARIOS, SLOTS = ("a", "b", "c"), range(4), range(3)


AUTO = sitting("auto", tier="auto", drawn="all", judge="haiku")
AGAIN = sitting("again", tier="auto", drawn="all", judge="other")
SPOT = sitting("spot", tier="lazy", drawn="spot", judge="bert")


def make_evidence(*, lenient: str = "b", doubles: tuple[CountedVerdict, ...] = ()) -> Evidence:
    """The automatic judge saw everything and likes one arm; anna judged one candidate of every cell."""
    cells = [
        make_cell(model=arm, scenario=f"s{s}", slots="a" * len(SLOTS)) for arm in ARMS for s in SCENARIOS
    ]
    auto = [given(c, AUTO, slot, 11 if c.facts.model == lenient else 8) for c in cells for slot in SLOTS]
    lazy = [given(cell, LAZY, 0, 8) for cell in cells]
    return Evidence(tuple(cells), (), (), tuple(lazy), doubles, None, tuple(auto))


def test_the_arm_that_the_automatic_judge_likes_too_much_is_checked_first() -> None:
    blocks = draw_spots(make_evidence(), rubric_of, count=8, leased={}, rng=random.Random(1))
    assert [len(block.members) for block in blocks] == [1] * 8
    assert {block.members[0].cell.facts.model for block in blocks} == {"b"}
    assert all(block.members[0].slot > 0 for block in blocks), "what a lazy judge saw needs no check"


def test_what_is_with_a_judge_or_was_checked_is_not_handed_out() -> None:
    evidence = make_evidence()
    (first, second) = [cell for cell in evidence.cells if cell.facts.model == "b"][:2]
    checked = make_evidence(doubles=(given(second, SPOT, 2, 8),))
    leased = {first.run.run_id: {1, 2}}
    blocks = draw_spots(checked, rubric_of, count=100, leased=leased, rng=random.Random(1))
    drawn = {(block.members[0].cell.run.run_id, block.members[0].slot) for block in blocks}
    assert len(drawn) == len(blocks) == 3 * 4 * 2 - 3
    assert not drawn & {(first.run.run_id, 1), (first.run.run_id, 2), (second.run.run_id, 2)}


def test_where_two_automatic_judges_contradict_each_other_a_check_comes_first() -> None:
    """The other one is two points milder throughout: that is no contradiction."""
    cells = make_evidence().cells
    odd = next(cell for cell in cells if cell.facts.model == "c")
    again = tuple(given(c, AGAIN, s, 6) for c in cells for s in SLOTS if (c, s) != (odd, 1))
    evidence = make_evidence(lenient="", doubles=(*again, given(odd, AGAIN, 1, 13)))
    (first, *_) = draw_spots(evidence, rubric_of, count=5, leased={}, rng=random.Random(1))
    assert (first.members[0].cell, first.members[0].slot) == (odd, 1)


def test_equally_doubtful_ones_come_in_random_order() -> None:
    evidence = make_evidence(lenient="")
    first = {
        draw_spots(evidence, rubric_of, count=1, leased={}, rng=random.Random(n))[0]
        .members[0]
        .cell.facts.model
        for n in range(20)
    }
    assert first == set(ARMS)


def test_without_an_automatic_judge_there_is_nothing_to_check() -> None:
    evidence = Evidence((), (), (), (), (), None)
    with pytest.raises(UsageError, match="no automatic verdict"):
        draw_spots(evidence, rubric_of, count=1, leased={}, rng=random.Random(1))


def test_delta_is_learnt_and_may_be_set() -> None:
    evidence = make_evidence()
    found, flagged = measure_disagreement(evidence, rubric_of, experiment="e", threshold=None)
    assert found is not None
    # Four of twelve pairs are 3 apart: too common to be flagged.
    assert (found.pairs, found.bias, found.threshold, found.flagged) == (12, 0.0, 3.0, 0)
    found, flagged = measure_disagreement(evidence, rubric_of, experiment="e", threshold=2.5)
    assert found is not None
    assert (found.threshold, found.set_by_hand, found.flagged) == (2.5, True, 4)
    assert {(pair.arm, pair.gap, pair.judges) for pair in flagged} == {("b+v1", 3.0, ("haiku", "anna"))}
    few = Evidence(evidence.cells, (), (), evidence.lazy[:3], (), None, evidence.auto)
    found, flagged = measure_disagreement(few, rubric_of, experiment="e", threshold=None)
    assert (found and found.threshold, flagged) == (None, [])
    assert measure_disagreement(
        Evidence((), (), (), (), (), None), rubric_of, experiment="e", threshold=None
    ) == (
        None,
        [],
    )


def test_a_delta_set_by_hand_is_asked_of_what_is_shown_and_a_learnt_one_of_what_is_beyond_the_bias() -> None:
    cells = [make_cell(model="a", scenario=f"s{n}", slots="a") for n in range(24)]
    auto = tuple(given(cell, AUTO, 0, 7 if n == 0 else 9) for n, cell in enumerate(cells))
    lazy = tuple(given(cell, LAZY, 0, 7) for cell in cells)
    evidence = Evidence(tuple(cells), (), (), lazy, (), None, auto)
    _, learnt = measure_disagreement(evidence, rubric_of, experiment="e", threshold=None)
    _, by_hand = measure_disagreement(evidence, rubric_of, experiment="e", threshold=1.0)
    # The judge is two points lenient; once both said 7.
    assert [(pair.auto, pair.lazy, pair.difference, pair.gap) for pair in learnt] == [(7.0, 7.0, 0.0, -2.0)]
    assert {(pair.auto, pair.lazy, pair.difference, pair.gap) for pair in by_hand} == {(9.0, 7.0, 2.0, 0.0)}
    assert len(by_hand) == 23


@pytest.fixture
def checked(cli: Cli, mlflow_url: str, experiment_name: str, judge: CountingJudge) -> str:
    """Two arms in two scenarios: all judged by a model, three blocks by anna."""
    collect_scripted(cli.home, mlflow_url, experiment_name)
    cli.ok(*auto(experiment_name))
    hand_out(Path("1.json"), experiment_name, blocks=3, judged_by="anna")
    fill_with(Path("1.json"), same(3))
    cli.ok("judge", "--apply", "1.json")
    return experiment_name


def board(cli: Cli, experiment: str) -> Any:
    found = cli("compare", "--experiment", experiment, "--json").json()
    return {name: found[name] for name in ("standings", "pairs", "judged", "waiting")}


def views(url: str, experiment: str) -> list[Any]:
    kept = ("tags.judge_pending", "tags.judged_by", "metrics.composite", "metrics.auto.composite")
    return sorted(([cell.get(name) for name in kept] for cell in cells_of(url, experiment)), key=repr)


def disagreement(cli: Cli, experiment: str, *more: str) -> Any:
    return cli.ok("judge", "status", "--experiment", experiment, "--json", *more).json()["disagreement"]


def test_spot_checks_feed_delta_and_never_the_board(cli: Cli, mlflow_url: str, checked: str) -> None:
    before, shown = board(cli, checked), views(mlflow_url, checked)
    pairs = disagreement(cli, checked)["pairs"]
    asked = ("judge", "--experiment", checked, "--judged-by", "bert", "--disagreements", "3")
    handed = cli.ok(*asked, "--export", "spot.json", "--json").json()
    assert 3 + 4 <= handed["items"] <= 3 + 6, "anchors are hidden among them"
    (spot,), (block,) = sections(Path("spot.json")), sections(Path("1.json"))
    assert spot.keys() == block.keys()
    assert spot["items"][0].keys() == block["items"][0].keys()
    assert "spot" not in Path("spot.json").read_text().replace("spot.json", "")
    texts = {item["text"] for item in spot["items"]} - set(REFERENCES)
    assert not texts & {item["text"] for item in block["items"]}
    # While bert has them nobody else checks them, and the board's blocks do not care.
    other = cli.ok(
        *asked[:3], "--judged-by", "carl", "--disagreements", "100", "--export", "o.json", "--json"
    )
    assert not texts & {item["text"] for section in sections(Path("o.json")) for item in section["items"]}
    assert other.json()["items"] > 6
    fill_with(Path("spot.json"), same(5))
    cli.ok("judge", "--apply", "spot.json")
    assert (board(cli, checked), views(mlflow_url, checked)) == (before, shown)
    after = disagreement(cli, checked, "--delta", "0.5")
    assert (after["pairs"], after["threshold"], after["set_by_hand"]) == (pairs + 3, 0.5, True)
    report = cli.ok("judge", "judges", "--experiment", checked, "--json", "--delta", "0.5").json()
    assert len(report["flagged"]) == after["flagged"] > 0
    (measured,) = report["disagreements"]
    assert measured["bias_spread"] is not None
    assert measured | {"bias_spread": None} == after
    assert "bert" in {pair["judges"][1] for pair in report["flagged"]}
    kinds = {line["judged_by"]: line["drawn"] for line in read_status(cli, checked)["sittings"]}
    assert (kinds["anna"], kinds["bert"]) == ("block", "spot")
    text = cli.ok("judge", "judges", "--experiment", checked, "--delta", "0.5").out
    assert "Δ 0.50 (set) for the difference," in text
    assert "less the bias" in text
    assert "σ 1.1, assumed; drift counts with σ 1.10" in text
    assert "flagged" in cli.ok("judge", "status", "--experiment", checked).out
    pair = next(pair for pair in report["pairs"] if "anna" in pair["judges"])
    assert pair["over"] == "scales", "with the flags, which code sets, a judge that throws dice would agree"


def read_status(cli: Cli, experiment: str) -> Any:
    return cli.ok("judge", "status", "--experiment", experiment, "--json").json()


def test_spot_checks_item_by_item_and_a_drifted_sitting_counts_for_nothing(
    cli: Cli, mlflow_url: str, checked: str
) -> None:
    before = (board(cli, checked), views(mlflow_url, checked), disagreement(cli, checked))
    with open_tracking(Settings(home=cli.home, mlflow_url=mlflow_url)) as tracking:
        live = Judging(tracking, make_stamps(), cli.home / "locks")
        found = live.open_sitting(SittingRequest("bert", spots=2), experiment=checked)
        assert found is not None
        answers = {
            item.id: Answer(scores=dict.fromkeys(item.scores, 3), flags=item.flags) for item in found.waiting
        }
        found = live.submit(found.token, answers, experiment=checked)
    assert found.state == "refused", "all the same score: the anchors tell"
    assert (board(cli, checked), views(mlflow_url, checked), disagreement(cli, checked)) == before


def test_spot_checks_need_an_automatic_judge_and_stand_alone(
    cli: Cli, mlflow_url: str, experiment_name: str
) -> None:
    collect_scripted(cli.home, mlflow_url, experiment_name, models=1, scenarios=1)
    asked = ("judge", "--experiment", experiment_name, "--export", "a.json", "--disagreements", "2")
    none = cli(*asked)
    assert (none.code, "judge --auto" in none.err) == (2, True)
    both = cli(*asked, "--next", "4")
    assert (both.code, "do not go together" in both.err) == (2, True)
    assert not json.loads(cli.ok("judge", "status", "--experiment", experiment_name, "--json").out)[
        "sittings"
    ]
