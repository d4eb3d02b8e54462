"""What to judge next, second opinions, and arms that come later: from the command line to the board."""

import math
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.judging.arms import PROMPTS, collect_arms, write_arms_pack
from tests.judging.cells import make_cell
from tests.judging.live import answer, opened
from tests.judging.scripted import collect_filled
from tests.support.copying import ServerData, copy_experiment
from tests.support.sheets import fill, hand_out, judge_soundly, sections
from tipbench.bench.evidence import read_evidence
from tipbench.bench.scores import find_levels
from tipbench.clock import make_stamps
from tipbench.errors import JudgedEnough, UsageError
from tipbench.judging.draw import draw_next
from tipbench.judging.handout import export_sheet
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import builtin_pack
from tipbench.settings import Settings
from tipbench.stats import Score
from tipbench.tracking import Tracking, open_tracking

ARMS, SCENARIOS, SLOTS = 4, 6, 3
CELLS = [
    make_cell(model=f"m{arm}", scenario=f"s{scenario}", slots="a" * SLOTS)
    for arm in range(ARMS)
    for scenario in range(SCENARIOS)
]


@pytest.fixture(scope="session")
def arms_base(
    mlflow_url: str, models_folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path]:
    """Three prompts, every slot filled, collected once; tests copy from it."""
    work = tmp_path_factory.mktemp("arms")
    (work / "home").mkdir()
    (work / "home" / "models").symlink_to(models_folder)
    pack = write_arms_pack(work / "pack")
    settings = Settings(
        home=work / "home", mlflow_url=mlflow_url, experiment=f"arms-{id(work)}-{work.name}", pack=str(pack),
        models="smollm2", prompts=",".join(PROMPTS), n_tips=3, threads=1,
    )  # fmt: skip
    collect_filled(settings)
    return settings.experiment, pack


@pytest.fixture
def three_arms(cli: Cli, arms_base: tuple[str, Path], experiment_name: str, server_data: ServerData) -> str:
    copy_experiment(arms_base[0], experiment_name, source=server_data, target=server_data)
    return experiment_name


def board(cli: Cli, experiment: str) -> Any:
    return cli("compare", "--experiment", experiment, "--json").json()


def judge_all(cli: Cli, experiment: str, judged_by: str, file: str = "all.json", *more: str) -> None:
    cli.ok("judge", "--experiment", experiment, "--judged-by", judged_by, "--export", file, *more)
    judge_soundly(Path(file))
    cli.ok("judge", "--apply", file)


def lines(cli: Cli, experiment: str) -> list[Any]:
    return cli.ok("judge", "status", "--experiment", experiment, "--json").json()["sittings"]


def scores(level: dict[int, float], *, judged: int = 2, seed: int = 0) -> list[Score]:
    """Every slot of `CELLS`; in each cell so many are judged, around the level of the arm."""
    rng = random.Random(seed)
    found: list[Score] = []
    for arm in range(ARMS):
        for scenario in range(SCENARIOS):
            for slot in range(SLOTS):
                lazy = round(10 + level.get(arm, 0.0) + rng.gauss(0, 1)) if slot < judged else None
                name = f"m{arm}+v1"
                found.append(
                    Score(
                        name, f"s{scenario}", (name, slot), lazy=lazy, sitting=None if lazy is None else slot
                    )
                )
    return found


def choose(found: list[Score], *, items: int, champion: str | None = None) -> list[set[str]]:
    taken = {
        cell.run.run_id: {
            int(s.candidate[1])  # pyright: ignore[reportIndexIssue, reportUnknownArgumentType]
            for s in found
            if (s.arm, s.scenario) == (cell.facts.arm, cell.facts.scenario) and s.lazy is not None
        }
        for cell in CELLS
    }
    blocks = draw_next(CELLS, taken=taken, scores=found, items=items, champion=champion, rng=random.Random(1))
    for block in blocks:
        assert not any(member.slot in taken[member.cell.run.run_id] for member in block.members)
    return [{member.cell.facts.model for member in block.members} for block in blocks]


def test_next_is_rounded_up_to_whole_blocks() -> None:
    assert choose(scores({}, judged=0), items=1) == [{"m0", "m1", "m2", "m3"}]
    assert len(choose(scores({}, judged=0), items=4)) == 1
    assert len(choose(scores({}, judged=0), items=5)) == 2


def test_next_leaves_out_arms_that_cannot_win_unless_the_gate_is_to_answer() -> None:
    found = scores({0: 0.0, 1: 0.1, 2: -6.0, 3: -6.0})
    assert choose(found, items=2) == [{"m0", "m1"}]
    assert choose(found, items=2, champion="m3+v1") == [{"m0", "m1", "m2", "m3"}]


def test_next_says_when_more_verdicts_would_not_change_the_winner() -> None:
    with pytest.raises(JudgedEnough, match=r"one arm is the best with .* 95% or more, and no other"):
        choose(scores({0: 5.0}), items=4)


def test_a_certain_winner_is_judged_on_until_the_gate_has_seen_enough_of_it() -> None:
    (block,) = choose(scores({0: 5.0}), items=3, champion="m3+v1")
    assert {"m0", "m3"} <= block


def test_next_says_when_the_gate_cannot_change_its_answer() -> None:
    with pytest.raises(JudgedEnough, match="would not change the gate's answer"):
        choose(scores({0: 4.0}), items=4, champion="m0+v1")


def test_an_arm_that_nobody_judged_yet_can_change_everything() -> None:
    found = scores({0: 5.0}, judged=SLOTS)
    new = [replace(score, lazy=None) if score.arm == "m3+v1" else score for score in found]
    assert choose(new, items=4, champion="m0+v1") == [], "no block of two is left; it is judged beside others"


def test_a_champion_that_is_not_there_is_named() -> None:
    with pytest.raises(UsageError, match="no arm 'm9\\+v1'"):
        choose(scores({}), items=4, champion="m9+v1")


def test_next_from_the_command_line(cli: Cli, three_arms: str) -> None:
    asked = ("judge", "--experiment", three_arms, "--next", "4")
    handed = cli.ok(*asked, "--export", "next.json", "--json").json()
    # Three arms: two blocks, and six anchors.
    assert handed["items"] == 2 * len(PROMPTS) + 6
    judge_soundly(Path("next.json"))
    cli.ok("judge", "--apply", "next.json")
    assert board(cli, three_arms)["judged"] == handed["items"] - 6
    (line,) = lines(cli, three_arms)
    assert line["drawn"] == "block"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (("--next", "4", "--disagreements", "2"), "--next and --disagreements do not go together"),
        (("--champion", "a+b"), "--champion goes with --next"),
        (("--second-opinion", "10"), "write it as 10%"),
        (("--second-opinion", "0%"), "write it as 10%"),
    ],
)
def test_wishes_that_make_no_sense_are_refused(cli: Cli, wrong: tuple[str, ...], says: str) -> None:
    outcome = cli("judge", "--experiment", "none", "--export", "a.json", *wrong)
    assert outcome.code == 2
    assert says in outcome.err


def test_a_second_opinion_feeds_agreement_and_never_the_board(cli: Cli, three_arms: str) -> None:
    judge_all(cli, three_arms, "anna")
    before = board(cli, three_arms)
    asked = ("judge", "--experiment", three_arms, "--second-opinion", "50%")
    # Whoever judged it has no second opinion to give.
    assert cli.ok(*asked, "--judged-by", "anna", "--export", "no.json", "--json").json()["items"] == 0
    cli.ok(*asked, "--judged-by", "bert", "--export", "second.json")
    fill(Path("second.json"), score=5)
    cli.ok("judge", "--apply", "second.json")
    after = board(cli, three_arms)
    assert (after["standings"], after["pairs"]) == (before["standings"], before["pairs"])
    second = next(line for line in lines(cli, three_arms) if line["judged_by"] == "bert")
    assert (second["drawn"], second["state"]) == ("second", "accepted")
    assert second["items"] >= math.ceil(before["judged"] / 2)
    assert any("doubles" in remark for remark in after["remarks"])
    (pair,) = cli.ok("judge", "judges", "--experiment", three_arms, "--json").json()["pairs"]
    assert (pair["judges"], pair["candidates"]) == (["anna", "bert"], second["items"])
    # The other half, then nothing is left that bert has not seen.
    judge_all(cli, three_arms, "bert", "rest.json", "--second-opinion", "100%")
    again = cli.ok(*asked, "--judged-by", "bert", "--export", "none.json", "--json").json()
    assert again["items"] == 0
    assert board(cli, three_arms)["pairs"] == before["pairs"]


def test_a_second_opinion_item_by_item_does_not_touch_what_waits(
    cli: Cli, live: Judging, three_arms: str
) -> None:
    hand_out(Path("all.json"), three_arms, blocks=1, judged_by="anna")
    judge_soundly(Path("all.json"))
    cli.ok("judge", "--apply", "all.json")
    waiting = board(cli, three_arms)["waiting"]
    sitting = opened(live, three_arms, SittingRequest("bert", second_share=0.1))
    assert board(cli, three_arms)["waiting"] == waiting
    assert opened(live, three_arms, SittingRequest("bert", second_share=0.1)).token == sitting.token
    assert opened(live, three_arms, SittingRequest("bert")).token == sitting.token, "it goes on with it"
    for item in sitting.waiting:
        sitting = live.submit(sitting.token, {item.id: answer(item)}, experiment=three_arms)
    assert sitting.state == "accepted"
    assert board(cli, three_arms)["waiting"] == waiting


def test_one_export_filled_by_two_people_both_are_present(cli: Cli, three_arms: str) -> None:
    cli.ok("judge", "--experiment", three_arms, "--export", "one.json")
    shutil.copy("one.json", "two.json")
    fill(Path("one.json"), score=2, judged_by="anna")
    fill(Path("two.json"), score=4, judged_by="bert")
    cli.ok("judge", "--apply", "one.json")
    once = board(cli, three_arms)
    cli.ok("judge", "--apply", "two.json")
    twice = board(cli, three_arms)
    assert (twice["judged"], twice["standings"]) == (once["judged"], once["standings"])
    status = cli.ok("judge", "status", "--experiment", three_arms, "--json").json()
    assert status["by_judge"] == {"anna": once["judged"], "bert": once["judged"]}


def test_two_judges_on_two_data_folders_over_everything(
    cli: Cli, tracking: Tracking, mlflow_url: str, tmp_path: Path, three_arms: str
) -> None:
    """Between hosts the lease is advisory: both read before either wrote."""
    with open_tracking(Settings(home=tmp_path / "other", mlflow_url=mlflow_url)) as other:
        far = Judging(other, make_stamps(), tmp_path / "other" / "locks")
        seen = far.open(three_arms)
        assert seen.evidence.cells, "it is read now"
        judge_all(cli, three_arms, "anna")
        alone = board(cli, three_arms)
        sheet = tmp_path / "far.json"
        assert export_sheet(sheet, SittingRequest("bert"), bench=seen)
        fill(sheet, score=5, judged_by="bert")
        far.take_in(sheet, experiment=three_arms, judged_by=None, close=False)
    both = board(cli, three_arms)
    assert both["judged"] == both["candidates"] == alone["judged"]
    assert (both["standings"], both["pairs"]) == (alone["standings"], alone["pairs"])
    assert any("doubles" in remark for remark in both["remarks"])
    (pair,) = cli.ok("judge", "judges", "--experiment", three_arms, "--json").json()["pairs"]
    assert pair["candidates"] == both["candidates"]


def test_an_arm_that_comes_later_is_judged_beside_the_best_and_levels_are_evened_out(
    cli: Cli, tracking: Tracking, arms_base: tuple[str, Path], experiment_name: str
) -> None:
    name, pack = arms_base
    collect_arms(cli, pack, experiment_name, "v1,v2", "--reuse-from", name)
    cli.ok("judge", "--experiment", experiment_name, "--export", "first.json")
    fill(Path("first.json"), score=3)
    cli.ok("judge", "--apply", "first.json")
    collect_arms(cli, pack, experiment_name, "v3", "--reuse-from", name)
    said = cli.ok("judge", "--experiment", experiment_name, "--export", "late.json").out
    assert "judged before are shown again" in said
    texts = {item["text"] for section in sections(Path("first.json")) for item in section["items"]}
    late = [item for section in sections(Path("late.json")) for item in section["items"]]
    assert sum(item["text"] in texts for item in late) > 0
    # Harsher by one point on every scale, to all alike; the anchors do not notice.
    fill(Path("late.json"), score=2)
    cli.ok("judge", "--apply", "late.json")
    report = board(cli, experiment_name)
    assert report["judged"] == report["candidates"]
    assert any("levels are evened out" in remark for remark in report["remarks"])
    assert not any("judged apart" in remark for remark in report["remarks"])
    evidence = read_evidence(tracking.read_runs(tracking.find_experiment(experiment_name)))
    levels = find_levels(evidence, builtin_pack().rubric)
    first, late_ones = (
        {given.sitting.facts.token for given in evidence.lazy if (given.cell.facts.prompt == "v3") is is_late}
        for is_late in (False, True)
    )
    for scenario in {given.cell.facts.scenario for given in evidence.lazy}:
        (before,) = [shift for (s, sitting), shift in levels.items() if s == scenario and sitting in first]
        # A scenario's blocks may be in more than one late sitting.
        after = [shift for (s, sitting), shift in levels.items() if s == scenario and sitting in late_ones]
        # Three scales, one point each; the flags are the same on all texts.
        assert [shift - before for shift in after] == pytest.approx([3.0] * len(after))
        assert after
