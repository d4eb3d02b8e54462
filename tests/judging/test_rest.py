"""Anchors rest for a judge wherever the last sittings were: in this experiment or in another one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.judging.live import answer, opened
from tests.judging.scripted import write_tips
from tests.support.experiments import Where, collect_with
from tests.support.official import MlflowClient
from tests.support.scripted import ScriptedEngine
from tests.support.sheets import fill, sections
from tipbench.bench.sittings import JUDGE_TAG, judge_tag
from tipbench.grid import Cell
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import builtin_pack
from tipbench.records import Options, Sampling
from tipbench.tracking import Tracking

SCENARIOS = 4
"""Of the pack: it has six anchors for each of them, so four sittings use them up."""


def collect(tracking: Tracking, experiment: str) -> str:
    """One arm, two tips on each scenario, no two alike."""
    pack, engine = builtin_pack(), ScriptedEngine(["scripted"], write=write_tips)
    options = Options(sampling=Sampling(), n_tips=2, diversity=False, seed=1)
    (model,) = engine.list_models()
    cells = [Cell(pack, model, pack.prompts[0], s, options) for s in pack.scenarios[:SCENARIOS]]
    assert collect_with(lambda _: engine, cells, where=Where(tracking, experiment)) == SCENARIOS
    return experiment


def hidden(live: Judging, experiment: str, token: str) -> set[str]:
    """The anchors of a sitting."""
    bench = live.open(experiment, fresh=True)
    return {item.anchor for item in bench.key_of(bench.find_sitting(token)).items if item.anchor}


def sit(live: Judging, experiment: str, judge: str) -> set[str]:
    """A sitting of this judge, answered and closed; gives what was hidden in it."""
    sitting = opened(live, experiment, SittingRequest(judge))
    given = {item.id: answer(item) for item in sitting.section.items}
    assert live.submit(sitting.token, given, experiment=experiment).state == "accepted"
    return hidden(live, experiment, sitting.token)


Make = Callable[[str], list[str]]


@pytest.fixture
def make(tracking: Tracking, experiment_name: str) -> Make:
    """Experiments of one pack, one for each letter."""
    return lambda letters: [collect(tracking, f"{experiment_name}-{letter}") for letter in letters]


def test_no_anchor_comes_twice_in_four_sittings_of_four_experiments_over_whatever_door(
    live: Judging, make: Make, tmp_path: Path
) -> None:
    a, b, c, d, e = make("abcde")
    met = [sit(live, a, "anna")]
    # A sheet that is not filled in yet counts, and so does another spelling of the name.
    sheet = tmp_path / "sheet.json"
    assert live.hand_out(sheet, SittingRequest("Anna "), experiment=b)
    met.append(hidden(live, b, sections(sheet)[0]["sitting"]))
    met.append(sit(live, c, "ANNA"))
    met.append(sit(live, d, "anna"))
    assert [len(each) for each in met] == [6, 6, 6, 6]
    assert len(set[str]().union(*met)) == 24
    # All were there: what comes now is what rested longest.
    assert sit(live, e, "anna") == met[0]


def test_anchors_rest_for_who_answers_a_sheet_and_not_for_whom_it_was_made_out_to(
    live: Judging, make: Make, tmp_path: Path
) -> None:
    a, b = make("ab")
    sheet = tmp_path / "sheet.json"
    assert live.hand_out(sheet, SittingRequest("olga"), experiment=a)
    (section,) = sections(sheet)
    fill(sheet, judged_by="anna")
    live.take_in(sheet, experiment=a, judged_by=None, close=False)
    assert not hidden(live, a, section["sitting"]) & sit(live, b, "anna")


def test_a_sitting_elsewhere_that_cannot_be_read_stops_nobody_and_is_named_there(
    cli: Cli, live: Judging, make: Make, mlflow_url: str
) -> None:
    a, b, c = make("abc")
    sit(live, a, "anna")
    second = sit(live, b, "anna")
    bench = live.open(a)
    (sitting,) = bench.evidence.sittings
    MlflowClient(mlflow_url).set_tag(sitting.run.run_id, "tipbench.facts", "nonsense")
    met = sit(live, c, "anna")
    assert len(met) == 6
    assert not met & second
    told = cli.ok("judge", "status", "--experiment", a).out
    assert sitting.run.run_id in told
    assert "damaged" in told


def test_a_portable_file_tells_whose_sittings_they_are_only_of_who_answered(
    cli: Cli, live: Judging, make: Make, tmp_path: Path
) -> None:
    (a,) = make("a")
    sheet, file = tmp_path / "sheet.json", tmp_path / "a.tipbench"
    assert live.hand_out(sheet, SittingRequest("olga"), experiment=a)
    live.release(sections(sheet)[0]["sitting"], experiment=a)
    sit(live, a, "anna")
    cli.ok("export", a, str(file))
    cli.ok("import", str(file), "--experiment", f"{a}-copy")
    marks = {
        sitting.judged_by: sitting.run.tags.get(JUDGE_TAG)
        for sitting in live.open(f"{a}-copy").evidence.sittings
    }
    assert marks == {"": None, "anna": judge_tag("anna")[JUDGE_TAG]}
