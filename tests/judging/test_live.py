"""Live judging: leased, renewed, resumed, closed."""

import json
import multiprocessing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PERSON, Cli
from tests.judging.live import ANNA, BERT, answer, make_live, opened
from tests.judging.scripted import collect_filled
from tests.support.fault_proxy import Fault, FaultProxy
from tests.support.sheets import REFERENCES, fill, sections
from tipbench.bench.sittings import LIVE_LEASE_MS, Answer
from tipbench.errors import SheetError, UsageError
from tipbench.judging.service import Judging
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking


@pytest.fixture
def filled(cli: Cli, settings: Settings, base: tuple[str, Path], experiment_name: str) -> str:
    """One arm, two cells, three slots in each and a tip in every one of them."""
    asked = {"models": "smollm2", "prompts": "v1", "n_tips": 3, "pack": str(base[1])}
    collect_filled(settings.model_copy(update=asked | {"home": cli.home, "experiment": experiment_name}))
    return experiment_name


def test_item_by_item_until_the_board_follows(cli: Cli, live: Judging, collected: str) -> None:
    sitting = opened(live, collected)
    while sitting.waiting:
        item = sitting.waiting[0]
        sitting = live.submit(sitting.token, {item.id: answer(item)}, experiment=collected)
    assert sitting.state == "accepted"
    report = cli("compare", "--experiment", collected, "--json").json()
    assert report["judged"] == report["candidates"]
    assert live.open_sitting(ANNA, experiment=collected) is None


def test_a_judge_who_comes_back_goes_on_where_they_were(live: Judging, collected: str) -> None:
    first = opened(live, collected)
    item = first.waiting[0]
    live.submit(first.token, {item.id: answer(item)}, experiment=collected)
    again = opened(live, collected)
    assert again.token == first.token
    assert [each.id for each in again.waiting] == [each.id for each in first.waiting[1:]]
    assert again.section == first.section


def test_items_go_to_nobody_else_until_the_lease_runs_out_and_answers_renew_it(
    tracking: Tracking, live: Judging, cli: Cli, collected: str
) -> None:
    mine = opened(live, collected)
    assert live.open_sitting(BERT, experiment=collected) is None
    half = make_live(tracking, cli.home, ahead_ms=LIVE_LEASE_MS // 2)
    half.submit(mine.token, {mine.waiting[0].id: answer(mine.waiting[0])}, experiment=collected)
    soon = make_live(tracking, cli.home, ahead_ms=LIVE_LEASE_MS + 60_000)
    assert soon.open_sitting(BERT, experiment=collected) is None
    late = make_live(tracking, cli.home, ahead_ms=2 * LIVE_LEASE_MS)
    assert opened(late, collected, BERT).token != mine.token
    with pytest.raises(UsageError, match="is closed"):
        late.submit(mine.token, {mine.waiting[1].id: answer(mine.waiting[1])}, experiment=collected)


def test_an_export_that_nobody_began_gives_way_and_its_answers_become_doubles(
    cli: Cli, live: Judging, collected: str
) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    sitting = opened(live, collected)
    for item in sitting.waiting:
        sitting = live.submit(sitting.token, {item.id: answer(item)}, experiment=collected)
    before = cli("compare", "--experiment", collected, "--json").json()
    fill(Path("sheet.json"), score=5)
    cli.ok("judge", "--apply", "sheet.json")
    after = cli("compare", "--experiment", collected, "--json").json()
    assert after["standings"] == before["standings"]
    states = {
        line["judged_by"]: (line["state"], line["drawn"])
        for line in cli.ok("judge", "status", "--experiment", collected, "--json").json()["sittings"]
        if line["submissions"]
    }
    assert states == {"anna": ("accepted", "block"), PERSON: ("accepted", "second")}


def test_an_export_that_somebody_began_is_left_alone(cli: Cli, live: Judging, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"), items=1)
    cli.ok("judge", "--apply", "sheet.json")
    assert live.open_sitting(ANNA, experiment=collected) is None


def test_a_wrong_answer_is_named_and_nothing_is_stored(live: Judging, collected: str) -> None:
    sitting = opened(live, collected)
    good, bad = sitting.waiting[:2]
    answers = {
        good.id: answer(good),
        bad.id: Answer(scores={"relevance": 6, "tone": 1}, flags=bad.flags),
        "strange": answer(good),
    }
    with pytest.raises(SheetError) as caught:
        live.submit(sitting.token, answers, experiment=collected)
    for part in (bad.id, "relevance is 6", "actionability is missing", "'strange' is not of this sitting"):
        assert part in caught.value.message
    assert live.look(sitting.token, experiment=collected).answers == {}


def test_an_answer_reads_the_experiment_once_and_its_own_run_when_it_is_stored(
    cli: Cli, mlflow_url: str, collected: str
) -> None:
    with (
        FaultProxy(mlflow_url) as proxy,
        open_tracking(Settings(home=cli.home, mlflow_url=proxy.url)) as door,
    ):
        live = make_live(door, cli.home)
        sitting = opened(live, collected)
        item = next(each for each in sitting.waiting if each.text not in REFERENCES)
        other = next(each for each in sitting.waiting if each.id != item.id)
        # With the first answer go the drawn failures of all cells, if there are any.
        live.submit(sitting.token, {other.id: answer(other)}, experiment=collected)
        before = len(proxy.requests)
        again = live.submit(sitting.token, {item.id: answer(item)}, experiment=collected)
        asked = [line.rpartition("/")[2] for line in proxy.requests[before:]]
        assert again == live.look(sitting.token, experiment=collected)
    # On a slow machine the clock is asked for, too.
    assert [name for name in asked if name != "version"] == [
        "get-by-name",
        "search",
        "section.json",
        "submission-1.json",
        "key.json",
        "log-batch",
        "submission-2.json",
        "log-batch",
        "get",
    ]


@dataclass
class Interfering(FaultProxy):
    """Before the first submission reaches the server, somebody else does something."""

    meanwhile: Callable[[], object] = list

    def next_fault(self, line: str) -> Fault:
        if line.startswith("PUT") and line.endswith("submission-1.json"):
            self.meanwhile()
        return super().next_fault(line)


def test_an_answer_to_a_sitting_that_another_host_closes_meanwhile_says_so(
    cli: Cli, tracking: Tracking, mlflow_url: str, collected: str, tmp_path: Path
) -> None:
    elsewhere = make_live(tracking, tmp_path / "another host")
    with (
        Interfering(mlflow_url) as proxy,
        open_tracking(Settings(home=cli.home, mlflow_url=proxy.url)) as door,
    ):
        live = make_live(door, cli.home)
        sitting = opened(live, collected)
        proxy.meanwhile = lambda: elsewhere.close(sitting.token, experiment=collected)
        item = sitting.waiting[0]
        after = live.submit(sitting.token, {item.id: answer(item)}, experiment=collected)
        assert after.state == "expired"
        assert after == live.look(sitting.token, experiment=collected)


def test_answers_that_are_stored_are_taken_again_after_the_close_and_new_ones_are_not(
    live: Judging, collected: str
) -> None:
    sitting = opened(live, collected)
    first, second = sitting.waiting[:2]
    live.submit(sitting.token, {first.id: answer(first)}, experiment=collected)
    closed = live.close(sitting.token, experiment=collected)
    assert live.submit(sitting.token, {first.id: answer(first)}, experiment=collected) == closed
    for more in ({second.id: answer(second)}, {first.id: Answer(scores={}, flags={})}):
        with pytest.raises(UsageError, match="is closed"):
            live.submit(sitting.token, more, experiment=collected)
    assert live.look(sitting.token, experiment=collected) == closed


@pytest.mark.parametrize(("anchor", "state", "left"), [(False, "accepted", 5), (True, "expired", 6)])
def test_closing_early_counts_whole_blocks_and_gives_the_rest_back(
    live: Judging, filled: str, anchor: bool, state: str, left: int
) -> None:
    """One arm: a judged candidate is a whole block. An anchor alone says nothing of any of the six."""
    sitting = opened(live, filled)
    item = next(item for item in sitting.waiting if (item.text in REFERENCES) == anchor)
    live.submit(sitting.token, {item.id: answer(item)}, experiment=filled)
    assert live.close(sitting.token, experiment=filled).state == state
    again = opened(live, filled)
    assert again.token != sitting.token
    assert sum(item.text not in REFERENCES for item in again.waiting) == left


def test_a_sheet_is_no_live_sitting(cli: Cli, live: Judging, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    token = json.loads(Path("sheet.json").read_text())["sections"][0]["sitting"]
    with pytest.raises(UsageError, match="exported to a file"):
        live.look(token, experiment=collected)
    assert sections(Path("sheet.json"))


def _submit(home: Path, url: str, experiment: str, token: str, items: list[str]) -> None:
    with open_tracking(Settings(home=home, mlflow_url=url)) as tracking:
        live = make_live(tracking, home)
        waiting = {item.id: item for item in live.look(token, experiment=experiment).waiting}
        for item_id in items:
            live.submit(token, {item_id: answer(waiting[item_id])}, experiment=experiment)


def test_two_processes_submit_at_once_and_nothing_is_lost(
    cli: Cli, live: Judging, mlflow_url: str, collected: str
) -> None:
    sitting = opened(live, collected)
    ids = [item.id for item in sitting.waiting][:-1]
    spawn = multiprocessing.get_context("spawn")
    workers = [
        spawn.Process(target=_submit, args=(cli.home, mlflow_url, collected, sitting.token, part))
        for part in (ids[::2], ids[1::2])
    ]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    assert set(live.look(sitting.token, experiment=collected).answers) == set(ids)
