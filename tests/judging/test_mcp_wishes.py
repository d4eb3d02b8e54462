"""What to judge next, second opinions and spot checks over MCP, with a real client and a real process."""

import asyncio
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
from benchmarks.big_experiment import make_pack

from tests.conftest import Cli
from tests.judging.auto_asking import auto
from tests.judging.counting_judge import CountingJudge
from tests.judging.mcp_judge import McpJudge, connect, give_verdict
from tests.judging.scripted import collect_scripted, fill_with, same
from tests.support.sheets import hand_out
from tipbench.bench.cells import StoredTexts, read_cells
from tipbench.clock import make_stamps
from tipbench.judging.draw import UnknownArm
from tipbench.judging.mcp import JudgeTools
from tipbench.judging.service import Judging
from tipbench.judging.wire import Progress, explain
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

T = TypeVar("T")
Sit = Callable[..., Any]
PROMPT = make_pack(1, prompts=1).prompts[0].name


@pytest.fixture
def sit(cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path) -> Sit:
    """Two arms in four scenarios; a session of a judge in a new server process."""
    collect_scripted(cli.home, mlflow_url, experiment_name, models=2, scenarios=4)

    def run(work: Callable[[McpJudge], Awaitable[T]], judged_by: str) -> T:
        async def session() -> T:
            async with connect(
                tmp_path, experiment=experiment_name, url=mlflow_url, home=cli.home, judged_by=judged_by
            ) as judge:
                return await work(judge)

        return asyncio.run(session())

    return run


async def answer_sitting(judge: McpJudge, sitting: Any) -> Any:
    rubric = await judge.call("read_rubric", sitting=sitting["sitting"])
    while sitting["state"] == "open":
        found = await judge.call("next_items", sitting=sitting["sitting"], n=40)
        verdicts = [give_verdict(item, list(rubric["scales"])) for item in found["items"]]
        sitting = await judge.call("submit_verdicts", sitting=sitting["sitting"], verdicts=verdicts)
    return sitting


def test_next_second_opinion_and_spot_checks(
    sit: Sit, cli: Cli, experiment_name: str, judge: CountingJudge
) -> None:
    async def anna(judge: McpJudge) -> None:
        sitting = await judge.call("open_sitting", next=4)
        assert 4 <= sitting["items"] - 6 <= 5, "two blocks of two arms and six anchors"
        again = await judge.call("open_sitting", next=20, order="random")
        assert again["sitting"] == sitting["sitting"], "what is open is gone on with"
        assert (await answer_sitting(judge, sitting))["state"] == "accepted"
        random = await judge.call("open_sitting", next=1, order="random")
        assert random["items"] <= 2 + 6
        assert (await answer_sitting(judge, random))["state"] == "accepted"
        assert (await judge.call("open_sitting", second_opinion=50))["state"] == "nothing waits"
        for wrong, says in (
            ({"next": 4, "second_opinion": 10}, "next and second_opinion do not go together"),
            ({"order": "random"}, "order goes with next"),
            ({"disagreements": 3}, "no automatic verdict"),
        ):
            assert says in await judge.refused("open_sitting", **wrong)
        for arguments in ({"next": 0}, {"order": "best"}, {"second_opinion": 0}, {"second_opinion": 101}):
            await judge.refused("open_sitting", **arguments)

    async def bert(judge: McpJudge) -> None:
        second = await judge.call("open_sitting", second_opinion=100)
        assert (await answer_sitting(judge, second))["state"] == "accepted"
        spot = await judge.call("open_sitting", disagreements=3)
        assert 3 <= spot["items"] <= 3 + 6
        assert (await answer_sitting(judge, spot))["state"] == "accepted"

    sit(anna, "anna")
    before = cli("compare", "--experiment", experiment_name, "--json").json()
    cli.ok(*auto(experiment_name))
    sit(bert, "bert")
    status = cli.ok("judge", "status", "--experiment", experiment_name, "--json").json()
    assert [line["drawn"] for line in status["sittings"] if line["judge_kind"] != "haiku"] == [
        "block", "block", "second", "spot",
    ]  # fmt: skip
    after = cli("compare", "--experiment", experiment_name, "--json").json()
    assert after["judged"] == before["judged"]
    assert status["disagreement"]["pairs"] == before["judged"] + 3


def test_it_is_told_when_judging_more_would_change_nothing(
    cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path
) -> None:
    """One arm is far ahead everywhere: that is known after a few blocks."""
    collect_scripted(cli.home, mlflow_url, experiment_name, models=2, scenarios=8)
    hand_out(Path("sheet.json"), experiment_name, blocks=16)
    texts = texts_of(cli, mlflow_url, experiment_name, model="model-1")
    fill_with(Path("sheet.json"), lambda text: same(5 if text in texts else 1)(text))
    cli.ok("judge", "--apply", "sheet.json")

    async def session() -> Any:
        async with connect(
            tmp_path, experiment=experiment_name, url=mlflow_url, home=cli.home, judged_by="anna"
        ) as judge:
            found = await judge.call("open_sitting", next=10)
            assert (await judge.call("open_sitting", next=10, order="random"))["state"] == "open"
            assert not any("model-" in received for received in judge.received)
            return found

    found = asyncio.run(session())
    assert (found["state"], found["sitting"]) == ("judged enough", None)
    assert "judging more would hardly change the winner" in found["what_now"]
    told = ask_against(f"model-1+{PROMPT}", cli, mlflow_url, experiment_name)
    assert told.state == "judged enough"
    assert "judging more would not change the gate's answer" in told.what_now
    with pytest.raises(UnknownArm):
        ask_against("model-9+none", cli, mlflow_url, experiment_name)


def ask_against(champion: str, cli: Cli, url: str, experiment: str) -> Progress:
    """What decides against this champion, as the server with --champion asks."""

    @contextmanager
    def open_judging() -> Generator[Judging]:
        with open_tracking(Settings(home=cli.home, mlflow_url=url)) as tracking:
            yield Judging(tracking, make_stamps(), cli.home / "locks")

    tools = JudgeTools(open_judging, judged_by="bert", experiment=experiment, champion=champion)
    try:
        return tools.open_sitting(next=10)
    finally:
        tools.lose()


def texts_of(cli: Cli, url: str, experiment: str, *, model: str) -> set[str]:
    with open_tracking(Settings(home=cli.home, mlflow_url=url)) as tracking:
        cells = read_cells(tracking.read_runs(tracking.find_experiment(experiment)))
        return {
            candidate.text
            for cell in cells
            if cell.facts.model == model
            for candidate in StoredTexts(cell.run, tracking.read_artifact).candidates
        }


def test_a_champion_that_is_not_there_is_not_named_to_a_judge() -> None:
    told = explain(UnknownArm("no arm 'smollm2+v1' is in this experiment", hint="Write it as MODEL+PROMPT."))
    assert "smollm2" not in told
    assert "Tell the user" in told
