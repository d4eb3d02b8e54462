"""Practice: three anchors are shown with their references, and are no checks for that judge any more."""

from collections.abc import Iterator

import pytest

from tests.admin.making import collect_builtin
from tests.conftest import Cli
from tests.judging.live import answer, make_live
from tipbench.bench.practice import read_practised, text_key
from tipbench.errors import UsageError
from tipbench.judging.handout import gather_for
from tipbench.judging.practice import SPARE, TIPS, choose_practice
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import builtin_pack
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking


@pytest.fixture
def tracking(cli: Cli, mlflow_url: str) -> Iterator[Tracking]:
    with open_tracking(Settings(home=cli.home, mlflow_url=mlflow_url)) as opened:
        yield opened


@pytest.fixture
def live(tracking: Tracking, cli: Cli) -> Judging:
    return make_live(tracking, cli.home)


@pytest.fixture
def anchored(tracking: Tracking, experiment_name: str) -> str:
    """One arm on two scenarios of the built-in pack, which has anchors to spare."""
    collect_builtin(tracking, experiment_name)
    return experiment_name


def test_three_levels_on_three_situations_the_same_for_everybody() -> None:
    pack = builtin_pack()
    good, poor, middling = (pack.rubric.judged_part(each.scores) for each in choose_practice(pack))
    assert poor < middling < good
    assert len({each.scenario for each in choose_practice(pack)}) == TIPS


def test_a_pack_with_few_anchors_keeps_them_for_sittings() -> None:
    pack = builtin_pack()
    few = pack.model_copy(update={"anchors": pack.anchors[: SPARE + TIPS - 1]})
    assert choose_practice(few) == ()


def test_reading_what_one_may_practise_on_stores_nothing(live: Judging, anchored: str) -> None:
    before = len(live.open(anchored).runs)
    assert not live.practice("anna", experiment=anchored).begun
    assert len(live.open(anchored, fresh=True).runs) == before


def test_what_was_practised_is_no_check_for_that_judge_under_any_spelling_and_one_for_others(
    live: Judging, tracking: Tracking, anchored: str
) -> None:
    practised = live.practise("Anna ", experiment=anchored)
    assert practised.begun
    assert live.practice("anna", experiment=anchored).begun
    assert not live.practice("bert", experiment=anchored).begun
    keys = read_practised(tracking, "anna")
    assert len(keys) == TIPS
    bench = live.open(anchored, fresh=True)
    checks = {
        judge: {text_key(each) for each in gather_for(SittingRequest(judge), bench).anchors}
        for judge in ("ANNA", "bert")
    }
    assert not keys & checks["ANNA"]
    assert keys <= checks["bert"]


def test_practising_twice_is_stored_once_and_a_sitting_goes_its_way(live: Judging, anchored: str) -> None:
    for _ in range(2):
        live.practise("anna", experiment=anchored)
    kinds = [run.tags.get("tipbench.kind") for run in live.open(anchored, fresh=True).runs]
    assert kinds.count("practice") == 1
    sitting = live.open_sitting(SittingRequest("anna"), experiment=anchored)
    assert sitting is not None
    given = {item.id: answer(item) for item in sitting.section.items}
    assert live.submit(sitting.token, given, experiment=anchored).state == "accepted"
    assert live.open(anchored, fresh=True).evidence.damaged == ()


def test_a_pack_without_spare_anchors_says_so(
    live: Judging, anchored: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tipbench.judging.practice.SPARE", 10_000)
    with pytest.raises(UsageError, match="too few reference tips"):
        live.practise("anna", experiment=anchored)
