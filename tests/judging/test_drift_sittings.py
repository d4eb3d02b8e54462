"""Sittings of judges that are known: power and false alarms, and the same states through file and MCP."""

import asyncio
import json
import math
import threading
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from statistics import fmean
from typing import Any

import pytest
from benchmarks.drift_sittings import (
    JUDGES,
    WORLDS,
    Item,
    Judge,
    Kind,
    Seen,
    make_items,
    score_anchor,
    watch,
)

from tests.conftest import Cli
from tests.judging.mcp_judge import McpJudge, connect, unfence
from tests.judging.scripted import collect_scripted
from tests.support.official import MlflowClient
from tests.support.sheets import hand_out
from tipbench.bench.sittings import Answer, BlindKey, KeyItem
from tipbench.judging.anchors import Surroundings, choose_anchors
from tipbench.judging.closing import SittingAnswers, examine_sitting
from tipbench.pack import builtin_pack
from tipbench.records import Anchor, compute_flags
from tipbench.stats import Noise

PACK = builtin_pack()
ANCHORS = {anchor.text: anchor for anchor in PACK.anchors}
SCENARIOS = {scenario.id: scenario for scenario in PACK.scenarios}
POLL_SECONDS = 0.05


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("repeats", [0, 6])
def test_false_alarms_are_rare_and_an_offset_of_two_is_seen(world: str, repeats: int) -> None:
    """The bars, less three standard errors of 100 sittings; the benchmark takes 2,000."""

    def watch_some(judge: str, sittings: int = 100) -> Seen:
        return watch(JUDGES[judge], world=world, repeats=repeats, seeds=range(sittings))

    assert watch_some("sound").any_alarm <= 0.045 + 0.06
    assert watch_some("+2").offset_alarm >= 0.85 - 0.11
    assert watch_some("always the middle", 30).refused >= 0.9


@pytest.mark.parametrize("scatter", [1.1, 1.65])
def test_a_noise_that_was_fitted_from_forty_doubles_costs_no_false_alarms(scatter: float) -> None:
    """The bar, less three standard errors of 150 sittings."""
    found = watch(Judge(scatter=scatter), kind=Kind(scatter, doubles=40), seeds=range(150))
    assert found.any_alarm <= 0.045 + 0.05


def test_four_anchors_see_less() -> None:
    assert watch(JUDGES["+2"], anchors=4, seeds=range(100)).offset_alarm >= 0.60 - 0.15


def test_anchors_are_like_what_they_are_hidden_among() -> None:
    """Fluent tips among the output of a weak model were named as checks by every judge who was asked.

    Among good tips the anchors are better ones, as far as there are any: 8 of 144 have 13 points or more.
    """
    levels: dict[str, list[float]] = {}
    for world in WORLDS:
        longer: list[float] = []
        for seed in range(20):
            items = make_items(world, Random(seed))
            around = Surroundings(items, SCENARIOS, PACK.rubric)
            anchors = choose_anchors(PACK.anchors, around, rng=Random(seed))
            levels.setdefault(world, []).extend(PACK.rubric.judged_part(a.scores) for a in anchors)
            lengths = [fmean(math.log(len(each.text.split())) for each in some) for some in (anchors, items)]
            longer.append(lengths[0] - lengths[1])
        assert abs(fmean(longer)) < 0.3, longer
    assert fmean(levels["weak"]) + 0.5 < fmean(levels["good"])


def test_no_anchor_has_the_text_of_an_item_beside_it() -> None:
    shown = [
        Item(anchor.scenario, f" {anchor.text.upper()}", compute_flags(anchor.text, PACK.rubric), anchor)
        for anchor in PACK.anchors[:40]
    ]
    chosen = choose_anchors(PACK.anchors[:46], Surroundings(shown, SCENARIOS, PACK.rubric), rng=Random(1))
    assert chosen
    assert not {anchor.id for anchor in chosen} & {anchor.id for anchor in PACK.anchors[:40]}


def test_anchors_without_room_on_both_sides_are_hidden_only_where_no_others_are_left() -> None:
    def choose(pool: Sequence[Anchor]) -> list[float]:
        shown = [
            Item(a.scenario, f"{a.text} now", compute_flags(a.text, PACK.rubric), a) for a in PACK.anchors
        ]
        around = Surroundings(shown, SCENARIOS, PACK.rubric)
        chosen = choose_anchors(pool, around, rng=Random(1))
        return [PACK.rubric.judged_part(anchor.scores) for anchor in chosen]

    # Three scales from 1 to 5: 3 to 15, and two points of room are 5 to 13.
    assert sum(5 <= score <= 13 for score in choose(PACK.anchors)) >= 5
    at_the_ends = [a for a in PACK.anchors if not 5 <= PACK.rubric.judged_part(a.scores) <= 13]
    assert len(choose(at_the_ends)) == 6


@pytest.mark.parametrize("scenario", [scenario.id for scenario in PACK.scenarios if scenario.set == "core"])
@pytest.mark.parametrize("offset", [4.0, -4.0])
def test_an_offset_of_four_is_refused_though_the_scale_ends_before_it(scenario: str, offset: float) -> None:
    """A sitting on one scenario: all six of its anchors, those at the ends among them."""
    for seed in range(20):
        judge = Simulated(Judge(offset=offset, scatter=0.0), Random(seed))
        for anchor in PACK.anchors:
            if anchor.scenario == scenario:
                judge.score(anchor.text, [])
        assert judge.expected[0] == "refused", seed


@pytest.mark.slow
@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("repeats", [0, 6])
def test_the_bars_hold_over_two_thousand_sittings(world: str, repeats: int) -> None:
    found = {
        name: watch(JUDGES[name], world=world, repeats=repeats, seeds=range(2_000))
        for name in ("sound", "+2")
    }
    assert found["sound"].any_alarm <= 0.045
    assert found["+2"].offset_alarm >= 0.85


@pytest.mark.slow
@pytest.mark.parametrize("scatter", [0.4, 0.8, 1.1, 1.65])
def test_a_fitted_noise_holds_the_bar_over_two_thousand_sittings(scatter: float) -> None:
    found = watch(Judge(scatter=scatter), kind=Kind(scatter, doubles=40), seeds=range(2_000))
    assert found.any_alarm <= 0.045


@pytest.mark.slow
def test_four_anchors_hold_their_bar() -> None:
    assert watch(JUDGES["+2"], anchors=4, seeds=range(1_000)).offset_alarm >= 0.60


@dataclass
class Simulated:
    """A judge of the simulation who answers items, and what the rule must say of the answers."""

    judge: Judge
    rng: Random
    said: dict[str, dict[str, int]] = field(default_factory=dict[str, dict[str, int]])

    def score(self, text: str, scales: list[str]) -> dict[str, int]:
        anchor = ANCHORS.get(text)
        if anchor is None:
            return {scale: self.rng.randint(1, 5) for scale in scales}
        return self.said.setdefault(anchor.id, score_anchor(anchor, self.judge, self.rng))

    @property
    def expected(self) -> tuple[str, tuple[str, ...]]:
        """The state and the alarms that the pure function gives these answers."""
        texts = {anchor.id: anchor.text for anchor in PACK.anchors}
        answers = {
            anchor: Answer(scores=scores, flags=compute_flags(texts[anchor], PACK.rubric))
            for anchor, scores in self.said.items()
        }
        key = BlindKey(items=tuple(KeyItem(id=name, text_hash="", anchor=name) for name in answers))
        found = examine_sitting(SittingAnswers(key, PACK, answers), blocks=(0,), tier="lazy", noise=Noise())
        return found.state, tuple(sorted(found.drift.alarms))


def simulated(names: Sequence[str], *, seed: int) -> list[Simulated]:
    """These judges of the simulation, and one whom no choice of anchors gets refused."""
    known = {**JUDGES, "exact": Judge(offset=0.0, scatter=0.0)}
    return [Simulated(known[name], Random(seed + place)) for place, name in enumerate(names)]


def states(cli: Cli, experiment: str, *, judged_by: str) -> list[tuple[str, tuple[str, ...]]]:
    lines = cli.ok("judge", "status", "--experiment", experiment, "--json").json()["sittings"]
    return [
        (line["state"], tuple(line["drift"]["alarms"]))
        for line in sorted(lines, key=lambda line: line["judged_by"])
        if line["judged_by"].startswith(judged_by)
    ]


@pytest.fixture
def experiment(cli: Cli, mlflow_url: str, experiment_name: str) -> str:
    """Two arms in the eight scenarios of the set `core`: a block is a sitting of two items."""
    collect_scripted(cli.home, mlflow_url, experiment_name, models=2, scenarios=8)
    return experiment_name


@pytest.mark.parametrize(
    "names", [("exact", "+2", "always the middle"), pytest.param(tuple(JUDGES), marks=pytest.mark.slow)]
)
def test_sittings_through_file_and_mcp_become_what_the_rule_says(
    cli: Cli, mlflow_url: str, experiment: str, tmp_path: Path, names: tuple[str, ...]
) -> None:
    by_file, by_mcp = simulated(names, seed=100), simulated(names, seed=200)
    for place, judge in enumerate(by_file):
        sheet = Path(f"{place}.json")
        hand_out(sheet, experiment, blocks=1, judged_by=f"file-{place}")
        content: Any = json.loads(sheet.read_text())
        for item in content["sections"][0]["items"]:
            item["scores"] = judge.score(item["text"], list(item["scores"]))
        sheet.write_text(json.dumps(content))
        assert cli("judge", "--apply", str(sheet)).code in {0, 3}, "accepted, or refused"

    async def session() -> None:
        for place, judge in enumerate(by_mcp):
            async with connect(
                tmp_path, experiment=experiment, url=mlflow_url, home=cli.home, judged_by=f"mcp-{place}"
            ) as client:
                await judge_block(client, judge)

    asyncio.run(session())
    assert states(cli, experiment, judged_by="file") == [judge.expected for judge in by_file]
    assert states(cli, experiment, judged_by="mcp") == [judge.expected for judge in by_mcp]
    outcomes = {judge.expected[0] for judge in (*by_file, *by_mcp)}
    assert outcomes == {"accepted", "refused"}


async def judge_block(client: McpJudge, judge: Simulated) -> str:
    sitting = await client.call("open_sitting", next=1, order="random")
    rubric = await client.call("read_rubric", sitting=sitting["sitting"])
    found = await client.call("next_items", sitting=sitting["sitting"], n=40)
    verdicts = [
        {
            "item": item["item"],
            "scores": judge.score(unfence(item["text"]), list(rubric["scales"])),
            "reason": "simulated",
        }
        for item in found["items"]
    ]
    # In two parts: whoever polls sees the sitting half answered too.
    half = len(verdicts) // 2
    await client.call("submit_verdicts", sitting=sitting["sitting"], verdicts=verdicts[:half])
    done = await client.call("submit_verdicts", sitting=sitting["sitting"], verdicts=verdicts[half:])
    return str(done["sitting"])


@dataclass
class Poller:
    """Reads the cells again and again with a client of its own; `seen` are all views there ever were."""

    url: str
    experiment: str
    seen: list[str] = field(default_factory=list[str])
    polls: int = 0

    def look(self, client: MlflowClient, where: str) -> None:
        runs = client.search_runs([where], "tags.`tipbench.kind` = 'cell'", max_results=1000)
        views = [
            {
                "run": run.info.run_id,
                "metrics": {k: v for k, v in run.data.metrics.items() if k != "touched"},
                "tags": {k: v for k, v in run.data.tags.items() if k.startswith("judge")},
            }
            for run in runs
        ]
        text = json.dumps(sorted(views, key=lambda view: str(view["run"])), sort_keys=True)
        self.polls += 1
        if text not in self.seen:
            self.seen.append(text)

    @contextmanager
    def polling(self) -> Generator[None]:
        client = MlflowClient(tracking_uri=self.url)
        found = client.get_experiment_by_name(self.experiment)
        assert found is not None
        stop = threading.Event()

        def poll() -> None:
            while not stop.is_set():
                self.look(client, found.experiment_id)
                stop.wait(POLL_SECONDS)

        thread = threading.Thread(target=poll)
        thread.start()
        try:
            time.sleep(2 * POLL_SECONDS)
            yield
        finally:
            stop.set()
            thread.join()
            self.look(client, found.experiment_id)


def test_a_sitting_that_is_off_by_four_changes_nothing_at_any_moment_until_a_person_accepts(
    cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path
) -> None:
    collect_scripted(cli.home, mlflow_url, experiment_name, models=2, scenarios=1)
    milder = Simulated(Judge(offset=4.0, scatter=0.0), Random(1))
    poller = Poller(mlflow_url, experiment_name)

    async def session() -> str:
        async with connect(
            tmp_path, experiment=experiment_name, url=mlflow_url, home=cli.home, judged_by="anna"
        ) as client:
            return await judge_block(client, milder)

    with poller.polling():
        token = asyncio.run(session())
        assert states(cli, experiment_name, judged_by="anna")[0][0] == "refused"
        cli("compare", "--experiment", experiment_name)
    assert len(poller.seen) == 1, "nothing that it said acted"
    assert poller.polls > 5
    assert '"judge_pending": "true"' in poller.seen[0]
    assert "composite" not in poller.seen[0]
    accepting = Poller(mlflow_url, experiment_name)
    with accepting.polling():
        cli.ok("judge", "accept", token, "--reason", "a mild judge", "--experiment", experiment_name)
    assert accepting.seen[0] == poller.seen[0]
    assert "composite" in accepting.seen[-1]
