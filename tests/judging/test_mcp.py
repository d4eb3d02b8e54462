"""A coding agent judges over MCP: a real client, a real MLflow; where the process matters, a real one."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, TypeVar

import pytest

from tests.conftest import Cli
from tests.judging.mcp_judge import McpJudge, connect, connect_here, give_verdict
from tests.support.experiments import SMALL
from tipbench.bench.cells import read_cells
from tipbench.bench.sittings import read_sittings
from tipbench.errors import MixedContents, PackError, TipbenchError, TrackingRefused
from tipbench.judging.mcp import RUBRIC_FIRST
from tipbench.judging.records import Status
from tipbench.judging.wire import explain
from tipbench.pack import builtin_pack
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

T = TypeVar("T")
TOOLS = {
    "list_experiments",
    "open_sitting",
    "read_rubric",
    "next_items",
    "submit_verdicts",
    "progress",
    "close_sitting",
}


class Desk:
    """Where judges sit down: an experiment, and how to connect."""

    def __init__(self, cli: Cli, experiment: str, url: str, folder: Path) -> None:
        self.cli, self.experiment, self.url, self.folder = cli, experiment, url, folder

    def sit(self, work: Callable[[McpJudge], Awaitable[T]], *, judged_by: str = "anna") -> T:
        """A session of a judge whose server is in this process: the tools and the protocol, no pipes."""

        async def session() -> T:
            async with connect_here(
                experiment=self.experiment, url=self.url, home=self.cli.home, judged_by=judged_by
            ) as judge:
                return await work(judge)

        return asyncio.run(session())

    def sit_apart(self, work: Callable[[McpJudge], Awaitable[T]], *, url: str = "") -> T:
        """A session of a judge, in a new server process."""

        async def session() -> T:
            async with connect(
                self.folder, experiment=self.experiment, url=url or self.url, home=self.cli.home
            ) as judge:
                return await work(judge)

        return asyncio.run(session())

    def status(self, experiment: str = "") -> Status:
        out = self.cli.ok("judge", "status", "--experiment", experiment or self.experiment, "--json").out
        return Status.model_validate_json(out)


@pytest.fixture
def desk(cli: Cli, collected: str, mlflow_url: str, tmp_path: Path) -> Desk:
    return Desk(cli, collected, mlflow_url, tmp_path)


async def begin(judge: McpJudge, n: int = 3) -> tuple[str, list[dict[str, Any]]]:
    """A sitting with verdicts for its first items, not submitted yet."""
    token = (await judge.call("open_sitting"))["sitting"]
    rubric = await judge.call("read_rubric", sitting=token)
    found = await judge.call("next_items", sitting=token, n=n)
    return token, [give_verdict(item, list(rubric["scales"])) for item in found["items"]]


def test_a_client_judges_a_whole_experiment_and_the_leaderboard_follows(desk: Desk) -> None:
    async def work(judge: McpJudge) -> int:
        assert {tool.name for tool in (await judge.client.list_tools()).tools} == TOOLS
        answered = await judge.judge_all()
        assert (await judge.call("open_sitting"))["state"] == "nothing waits"
        return answered

    answered = desk.sit_apart(work)
    report = desk.cli("compare", "--experiment", desk.experiment, "--json").json()
    assert report["judged"] == report["candidates"] == answered - 6
    assert [(s.judged_by, s.state) for s in desk.status().sittings] == [("anna", "accepted")]


def test_every_wrong_verdict_is_named_by_its_item_and_nothing_is_stored(desk: Desk) -> None:
    async def work(judge: McpJudge) -> str:
        token, verdicts = await begin(judge, n=8)
        ids = [verdict["item"] for verdict in verdicts]
        verdicts[1]["scores"]["tone"] = 6
        verdicts[2]["scores"].pop("relevance")
        verdicts[3]["flags"] = {"kind": True}
        verdicts[4]["scores"]["speed"] = 3
        text = await judge.refused(
            "submit_verdicts",
            sitting=token,
            verdicts=[*verdicts, {**verdicts[0], "item": "strange"}],
        )
        for part in (
            f"item {ids[1]}: tone is 6, allowed are 1 to 5",
            f"item {ids[2]}: relevance is missing",
            f"item {ids[3]}: there is no flag 'kind'",
            f"item {ids[4]}: there is no scale 'speed'",
            "item 'strange' is not of this sitting",
        ):
            assert part in text
        verdicts[5]["scores"]["tone"] = "five"
        verdicts[6]["scores"]["tone"] = 4.5
        verdicts[7]["reason"] = ""
        broken: list[object] = [*verdicts, verdicts[0], "give it a 5", {"scores": 5}]
        text = await judge.refused("submit_verdicts", sitting=token, verdicts=broken)
        for place in (5, 6):
            assert f"item {ids[place]!r}: scores.tone" in text
        assert f"item {ids[7]!r}: reason" in text
        assert f"item {ids[0]!r} appears 2 times" in text
        assert "verdict 10: it" in text
        assert "verdict 11: item" in text
        assert (await judge.call("progress", sitting=token))["answered"] == 0
        for arguments in ({"n": 0}, {"n": 41}, {"sitting": "none"}):
            await judge.refused("next_items", **{"sitting": token, **arguments})
        return token

    desk.sit(work)
    assert [sitting.submissions for sitting in desk.status().sittings] == [0]


def test_the_rubric_comes_before_the_items_and_what_now_says_so(desk: Desk) -> None:
    async def work(judge: McpJudge) -> None:
        opened = await judge.call("open_sitting")
        where = {"sitting": opened["sitting"]}
        assert opened["what_now"] == (await judge.call("progress", **where))["what_now"] == RUBRIC_FIRST
        told = await judge.refused("next_items", **where)
        assert "the rubric comes before the items" in told
        assert "Call read_rubric" in told
        scales = list((await judge.call("read_rubric", **where))["scales"])
        assert (await judge.call("progress", **where))["what_now"] == "next_items"
        found = await judge.call("next_items", **where, n=3)
        assert "scales" not in found
        assert {item["scenario"] for item in found["items"]} == set(found["scenarios"])
        verdicts = [give_verdict(item, scales) for item in found["items"]]
        assert (await judge.call("submit_verdicts", **where, verdicts=verdicts))["what_now"] == "next_items"
        await judge.call("close_sitting", **where)
        # Another sitting under the same rubric: it is known here.
        assert (await judge.call("open_sitting"))["what_now"] == "next_items"

    desk.sit(work)


def test_a_client_that_connects_anew_for_every_call_gets_its_items(desk: Desk) -> None:
    def ask(tool: str, **arguments: object) -> Any:
        return desk.sit(lambda judge: judge.call(tool, **arguments))

    token = ask("open_sitting")["sitting"]
    told = desk.sit(lambda judge: judge.refused("next_items", sitting=token))
    assert "was not read for this sitting" in told
    told = desk.sit(lambda judge: judge.refused("read_rubric", sitting=token), judged_by="bert")
    assert "another judge's" in told
    assert ask("progress", sitting=token)["what_now"] == RUBRIC_FIRST, "bert has read nothing of anna's"
    scales = list(ask("read_rubric", sitting=token)["scales"])
    verdicts = [give_verdict(item, scales) for item in ask("next_items", sitting=token, n=3)["items"]]
    assert ask("submit_verdicts", sitting=token, verdicts=verdicts)["what_now"] == "next_items"


def test_what_was_stored_comes_back_with_the_flags_that_were_overruled(desk: Desk) -> None:
    async def work(judge: McpJudge) -> None:
        token, verdicts = await begin(judge, n=2)
        (first, second), where = verdicts, {"sitting": token}
        items = (await judge.call("next_items", **where, n=2))["items"]
        turned = not items[0]["flags"]["format_ok"]
        first["flags"] = {"format_ok": turned, "overlong": items[0]["flags"]["overlong"]}
        stored = (await judge.call("submit_verdicts", **where, verdicts=verdicts))["stored"]
        assert stored["scores"] == {each["item"]: each["scores"] for each in verdicts}
        assert stored["overruled"] == {first["item"]: {"format_ok": turned}}
        again = (await judge.call("submit_verdicts", **where, verdicts=[second]))["stored"]
        assert again == {"scores": {second["item"]: second["scores"]}, "overruled": {}}

    desk.sit(work)


def test_a_default_experiment_that_is_not_in_the_list_is_not_named_as_one(desk: Desk) -> None:
    async def work(judge: McpJudge) -> None:
        found = await judge.call("list_experiments")
        assert found["default_experiment"] == desk.experiment
        assert found["what_now"] == "open_sitting"

    async def elsewhere(judge: McpJudge) -> None:
        found = await judge.call("list_experiments")
        assert found["default_experiment"] is None
        assert "name an experiment of this list" in found["what_now"]
        assert repr(other.experiment) in found["what_now"]

    desk.sit(work)
    other = Desk(desk.cli, f"{desk.experiment}-none", desk.url, desk.folder)
    other.sit(elsewhere)


def test_a_flag_is_overridden_only_where_the_judge_says_so(desk: Desk, mlflow_url: str) -> None:
    async def work(judge: McpJudge) -> dict[str, bool]:
        token, verdicts = await begin(judge, n=40)
        for verdict in verdicts:
            verdict["flags"] = {"overlong": True}
        found = await judge.call("next_items", sitting=token, n=40)
        await judge.call("submit_verdicts", sitting=token, verdicts=verdicts[:-1])
        return {item["item"]: item["flags"]["format_ok"] for item in found["items"]}

    computed = desk.sit(work)
    with open_tracking(Settings(home=desk.cli.home, mlflow_url=mlflow_url)) as tracking:
        runs = tracking.read_runs(tracking.find_experiment(desk.experiment))
        (sitting,) = read_sittings(runs)
        stored = json.loads(tracking.read_artifact(sitting.run, "submission-1.json"))["answers"]
    assert len(stored) == len(computed) - 1
    for item, answer in stored.items():
        assert answer["flags"] == {"format_ok": computed[item], "overlong": True}
        assert answer["reason"] == "by its length"


def test_a_new_process_goes_on_where_the_judge_was_and_a_lost_reply_does_no_harm(desk: Desk) -> None:
    async def first(judge: McpJudge) -> tuple[str, list[dict[str, Any]]]:
        token, verdicts = await begin(judge)
        await judge.call("submit_verdicts", sitting=token, verdicts=verdicts)
        return token, verdicts

    async def second(judge: McpJudge) -> None:
        again = await judge.call("open_sitting")
        assert (again["sitting"], again["answered"]) == (token, len(verdicts))
        repeated = await judge.call("submit_verdicts", sitting=token, verdicts=verdicts)
        assert repeated["answered"] == len(verdicts)
        _, rest = await begin(judge, n=40)
        assert not {v["item"] for v in rest} & {v["item"] for v in verdicts}
        done = await judge.call("submit_verdicts", sitting=token, verdicts=rest)
        assert done["state"] == "accepted"
        assert await judge.call("submit_verdicts", sitting=token, verdicts=rest) == done
        rest[0]["reason"] = "after the close"
        assert "is closed" in await judge.refused("submit_verdicts", sitting=token, verdicts=rest)
        assert "is accepted" in await judge.refused("next_items", sitting=token)

    token, verdicts = desk.sit_apart(first)
    desk.sit_apart(second)
    assert [sitting.submissions for sitting in desk.status().sittings] == [2]


def test_another_judge_gets_nothing_of_what_is_with_the_first(desk: Desk) -> None:
    token, verdicts = desk.sit(begin)

    async def work(judge: McpJudge) -> None:
        assert (await judge.call("open_sitting"))["sitting"] is None
        for tool, more in (("next_items", {}), ("submit_verdicts", {"verdicts": verdicts}), ("progress", {})):
            assert "is another judge's" in await judge.refused(tool, sitting=token, **more)

    desk.sit(work, judged_by="bert")


def test_a_sitting_that_is_closed_early_gives_its_items_back(desk: Desk) -> None:
    async def work(judge: McpJudge) -> None:
        token, verdicts = await begin(judge, n=1)
        await judge.call("submit_verdicts", sitting=token, verdicts=verdicts)
        closed = await judge.call("close_sitting", sitting=token)
        assert closed["state"] in {"accepted", "expired"}
        assert (await judge.call("open_sitting"))["sitting"] not in {token, None}

    desk.sit(work)


def test_two_experiments_are_judged_side_by_side(desk: Desk, base: tuple[str, Path]) -> None:
    other = f"{desk.experiment}-b"
    desk.cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", other, "--reuse-from", base[0])

    async def work(judge: McpJudge) -> None:
        found = await judge.call("list_experiments")
        assert (found["judged_by"], found["default_experiment"]) == ("anna", desk.experiment)
        waiting = {line["experiment"]: line["sittings_waiting"] for line in found["experiments"]}
        assert waiting[desk.experiment] == waiting[other] > 0
        here, verdicts = await begin(judge, n=1)
        there = (await judge.call("open_sitting", experiment=other))["sitting"]
        assert there != here
        text = await judge.refused("submit_verdicts", sitting=here, verdicts=verdicts, experiment=other)
        assert f"{other!r} has no sitting {here!r}" in text
        assert await judge.judge_all(experiment=other) > 6
        assert "does not exist" in await judge.refused("open_sitting", experiment=f"{other}-none")

    desk.sit(work)
    assert (desk.status().judged, desk.status(other).waiting) == (0, 0)


def test_nothing_is_handed_out_after_judging_was_closed_and_the_reason_stays_with_people(desk: Desk) -> None:
    desk.cli.ok("judge", "close", "--experiment", desk.experiment, "--reason", "smollm2 lost")

    async def work(judge: McpJudge) -> None:
        text = await judge.refused("open_sitting")
        assert "was closed by a person" in text
        lines = (await judge.call("list_experiments"))["experiments"]
        assert [line["judging_closed"] for line in lines if line["experiment"] == desk.experiment] == [True]
        assert "smollm2" not in "".join(judge.received)

    desk.sit(work)


def needles(desk: Desk) -> dict[str, str]:
    """Everything that tells who wrote a text, which items are anchors, or joins with the store."""
    with open_tracking(Settings(home=desk.cli.home, mlflow_url=desk.url)) as tracking:
        experiment = tracking.find_experiment(desk.experiment)
        runs = tracking.read_runs(experiment)
    found = {"experiment uid": experiment.uid} | {f"run {run.run_id}": run.run_id for run in runs}
    for cell in read_cells(runs):
        facts = cell.facts.model_dump(exclude={"pinned", "rubric", "judge_kind", "slots"})
        found |= {f"{cell.run.name} {name}": value for name, value in facts.items()}
    for sitting in read_sittings(runs):
        found["order seed"] = str(sitting.facts.order_seed)
    sealed = re.findall(r'"sealed": "([^"]+)"', builtin_pack().files["anchors.jsonl"])
    for anchor, secret in zip(builtin_pack().anchors, sealed, strict=True):
        found |= {f"anchor {anchor.id}": anchor.id, f"reference {anchor.id}": secret}
        found |= {f"origin {anchor.id}": anchor.origin, f"reason {anchor.id}": anchor.reason}
    return found


def test_nothing_that_the_client_or_the_log_got_tells_who_wrote_what(desk: Desk) -> None:
    async def work(judge: McpJudge) -> list[str]:
        token, verdicts = await begin(judge)
        await judge.refused("submit_verdicts", sitting=token, verdicts=[{**verdicts[0], "item": "strange"}])
        await judge.refused("submit_verdicts", sitting=token, verdicts=["strange"])
        await judge.refused("progress", sitting="none")
        await judge.refused("open_sitting", experiment="none")
        await judge.call("progress", sitting=token)
        await judge.judge_all()
        await judge.call("close_sitting", sitting=token)
        return judge.received

    received = "\n".join([*desk.sit_apart(work), (desk.folder / "log").read_text()])
    # The rubric is called tip-v1, the prompt v1; `written` is also a word.
    text = received.replace("tip-v1", "").replace(desk.experiment, "")
    wrong = [
        what
        for what, needle in needles(desk).items()
        if needle != "written" and re.search(rf"(?<!\w){re.escape(needle)}(?!\w)", text)
    ]
    assert wrong == []
    assert len(received) > 5_000


@pytest.mark.parametrize(
    "error",
    [
        MixedContents("smollm2 stands for 2 contents", hint="tipbench collect retire --model smollm2"),
        TrackingRefused("run 0123 has no text", hint="smollm2"),
        PackError("prompts/smollm2.md:1: it is empty"),
        TipbenchError("smollm2"),
    ],
)
def test_failures_that_may_name_a_model_are_told_without_it(error: TipbenchError) -> None:
    told = explain(error)
    assert "smollm2" not in told
    assert "0123" not in told
    assert "Tell the user" in told


def test_a_server_that_is_away_is_told_at_the_first_call_and_not_before(desk: Desk) -> None:
    away = "http://127.0.0.1:9"

    async def work(judge: McpJudge) -> None:
        assert "blind" in (judge.client.instructions or "")
        text = await judge.refused("open_sitting")
        assert f"no MLflow server at {away}" in text
        assert "→" in text

    desk.sit_apart(work, url=away)
    log = (desk.folder / "log").read_text()
    assert "opening MLflow" in log
    assert "Traceback" not in log


def run_mcp(program: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", program, "mcp"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env={**os.environ, "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
    )


def test_without_a_client_it_ends_and_says_nothing_on_stdout(cli: Cli) -> None:
    ended = run_mcp("from tipbench.cli import main; main()")
    assert (ended.returncode, ended.stdout) == (0, "")


def test_without_its_extra_the_command_says_how_to_install_it(cli: Cli) -> None:
    ended = run_mcp("import sys; sys.modules['mcp'] = None; from tipbench.cli import main; main()")
    assert ended.returncode == 1
    assert "pip install 'tipbench[mcp]'" in ended.stderr
    assert "Traceback" not in ended.stderr
