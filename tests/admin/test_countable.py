"""Nothing that a judge is told, over whatever door, says how many of the items are checks."""

import asyncio
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.conftest import Cli
from tests.judging.live import answer, make_live
from tests.judging.mcp_judge import McpJudge, connect_here, give_verdict
from tests.judging.scripted import write_tips
from tests.support.copying import own_server
from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine, make_model
from tests.support.sheets import fill
from tipbench.grid import Cell
from tipbench.judging.keyboard.loop import LeftSitting
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import LiveSitting
from tipbench.pack import builtin_pack
from tipbench.records import Options, Sampling
from tipbench.show.sittings import tell_left
from tipbench.tracking import Tracking

KINDS = ("one", "two")
TIPS = {"one": 4, "two": 3}
CHECKS = {"one": 6, "two": 8}
ITEMS = 14
"""Two scenarios with four tips and six checks, or with three tips and eight checks: alike for a judge."""


def collect(tracking: Tracking, experiment: str, *, n_tips: int) -> None:
    """One arm on two scenarios of the built-in pack, a tip in every slot."""
    pack, engine = builtin_pack(), ScriptedEngine(["scripted"], write=write_tips)
    options = Options(sampling=Sampling(), n_tips=n_tips, diversity=False, seed=1)
    cells = [
        Cell(pack, make_model("scripted"), pack.prompts[0], scenario, options)
        for scenario in pack.scenarios[:2]
    ]
    assert collect_with(lambda _: engine, cells, where=Where(tracking, experiment)) == len(cells)


@pytest.fixture
def names(tracking: Tracking, experiment_name: str) -> Iterator[dict[str, str]]:
    """Kind → an experiment of that kind."""
    made = {kind: f"{experiment_name}-{kind}" for kind in KINDS}
    for kind, name in made.items():
        collect(tracking, name, n_tips=TIPS[kind])
    yield made
    for name in made.values():
        own_server().delete_experiment(name)


@pytest.fixture
def live(tracking: Tracking, cli: Cli) -> Judging:
    return make_live(tracking, cli.home)


def request(kind: str, judge: str) -> SittingRequest:
    return SittingRequest(judge, checks=CHECKS[kind])


def begin(live: Judging, experiment: str, kind: str, judge: str) -> LiveSitting:
    """A sitting with as many checks as that kind has."""
    found = live.open_sitting(request(kind, judge), experiment=experiment)
    assert found is not None
    hidden = live.open(experiment).find_sitting(found.token).facts.anchors
    assert (hidden, len(found.section.items)) == (CHECKS[kind], ITEMS)
    return found


def plain(text: str, *, experiment: str, tokens: tuple[str, ...]) -> str:
    """The text without names, ids, times and items: what is left must not differ."""
    text = text.replace(experiment, "EXPERIMENT")
    for token in tokens:
        text = text.replace(token, "SITTING")
    text = re.sub(r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d)?(\+00:00)?", "TIME", text)
    text = re.sub(r"[╭╮│┃┏┳┓┡╇┩└┴┘━─┐┌┬┤├┼ ]+", " ", text)
    # What was stored is repeated, item by item; which items those are is the judge's own doing.
    text = re.sub(r"(?m)(^ ?[0-9a-z]{8}( \d){3}.*\n)+", "ITEMS\n", text)
    return re.sub(r"/experiments/\d+", "/experiments/N", text)


@pytest.mark.parametrize("door", ["mcp", "file", "keyboard"])
def test_six_checks_and_eight_read_alike(
    live: Judging, cli: Cli, names: dict[str, str], mlflow_url: str, door: str
) -> None:
    told: dict[str, list[str]] = {}
    for kind, name in names.items():
        if door == "mcp":
            begun = begin(live, name, kind, "anna")
            heard = asyncio.run(listen(name, url=mlflow_url, home=cli.home))
            tokens: tuple[str, ...] = (begun.token,)
        elif door == "file":
            heard, tokens = judge_by_file(cli, live, name, kind)
        else:
            heard, tokens = judge_at_keyboard(cli, live, name, kind)
        told[kind] = [plain(text, experiment=name, tokens=tokens) for text in heard]
    assert told["one"] == told["two"]
    assert str(ITEMS) in "".join(told["one"]), "items are told"


async def listen(experiment: str, *, url: str, home: Path) -> list[str]:
    """Everything the tools say, without the items."""
    async with connect_here(experiment=experiment, url=url, home=home) as judge:
        heard = [*judge.received]
        sitting = await hear(judge, heard, "open_sitting")
        where = {"sitting": sitting["sitting"]}
        await hear(judge, heard, "list_experiments", only=experiment)
        scales = list((await hear(judge, heard, "read_rubric", **where))["scales"])
        await hear(judge, heard, "progress", **where)
        found = await hear(judge, heard, "next_items", **where, n=40)
        verdicts = [give_verdict(item, scales) for item in found["items"]]
        await hear(judge, heard, "submit_verdicts", **where, verdicts=verdicts[:3])
        await hear(judge, heard, "submit_verdicts", **where, verdicts=verdicts[3:])
        await hear(judge, heard, "list_experiments", only=experiment)
        await hear(judge, heard, "open_sitting")
        return heard


async def hear(judge: McpJudge, heard: list[str], tool: str, only: str = "", **arguments: object) -> Any:
    """What the tool says; of experiments `only` this one, of items nothing."""
    said = await judge.call(tool, **arguments)
    shown = said | ({"items": len(said["items"]), "scenarios": ""} if tool == "next_items" else {})
    shown |= {"stored": len(said["stored"])} if tool == "submit_verdicts" else {}
    if only:
        shown = [line for line in said["experiments"] if line["experiment"] == only]
        assert not {"candidates", "judged", "waiting"} & set(shown[0])
    heard.append(json.dumps(shown))
    return said


def judge_by_file(cli: Cli, live: Judging, name: str, kind: str) -> tuple[list[str], tuple[str, ...]]:
    """The sheet without its items, and what the commands around it print."""
    path = Path(f"{kind}.json")
    handed = live.hand_out(path, request(kind, "olga"), experiment=name)
    assert handed is not None
    sheet: dict[str, Any] = json.loads(path.read_text())
    (section,) = sheet["sections"]
    heard = [str(handed.remarks)]
    heard.append(cli.ok("judge", "status", "--experiment", name).out)
    fill(path, items=3)
    heard.append(cli.ok("judge", "--apply", path.name).out)
    heard.append(cli.ok("judge", "status", "--experiment", name).out)
    fill(path, anchors_off_by=4)
    refused = cli("judge", "--apply", path.name)
    assert (refused.code, "refused" in refused.out) == (3, True)
    # What of a drift is told depends on what was answered; how well it is known must not be told.
    assert "±" not in refused.out
    told = re.sub(r"[-+]?\d+\.\d+", "x", refused.out).replace(f"{kind}-2.json", "next.json")
    heard.append(re.sub(r"\([^(]*; mean difference", "(mean difference", told))
    section |= {"items": len(section["items"]), "scenarios": len(section["scenarios"])}
    return [*heard, json.dumps(sheet).replace(sheet["experiment_uid"], "UID")], (section["sitting"],)


def judge_at_keyboard(cli: Cli, live: Judging, name: str, kind: str) -> tuple[list[str], tuple[str, ...]]:
    """What is said when a judge leaves and when everything was handed in."""
    sitting = begin(live, name, kind, "olga")
    heard = [cli.ok("judge", "status", "--experiment", name).out]
    for answers in (3, ITEMS):
        given = {item.id: answer(item) for item in sitting.section.items[:answers]}
        left = live.submit(sitting.token, given, experiment=name)
        (line,) = live.status(experiment=name).sittings
        heard += tell_left(LeftSitting(left, len(given)), line)
    assert "accepted" in "".join(heard)
    return heard, (sitting.token,)


def test_the_panel_says_as_little(
    site: Site, tracking: Tracking, live: Judging, names: dict[str, str]
) -> None:
    client = site.client
    client.post("/sign-in", data={"name": "the-judge", "password": PASSWORD}, headers=HERE)
    told: dict[str, list[str]] = {}
    for kind, name in names.items():
        token = begin(live, name, kind, "the-judge").token
        pages = [
            client.get(f"/?contains={name}").text,
            row_of(name, client.get("/judging").text),
            client.get(f"/api/bench/experiments?contains={name}", headers=site.as_("judge")).text,
            client.get(f"/api/bench/judging/status/{name}", headers=site.as_("judge")).text,
            re.sub(
                r'<dl.*?</dl>|data-say=".*?"|data-testid="tip".*?</p>|name="item" value="\w+"|name="flag.*?>',
                "",
                client.get(f"/judge/{name}").text,
                flags=re.DOTALL,
            ),
            client.post(f"/judge/{name}", data={"close": "1", "sitting": token}, headers=HERE).text,
            client.get(f"/judge/{name}").text,
        ]
        told[kind] = [plain(page, experiment=name, tokens=(token,)) for page in pages]
    assert told["one"] == told["two"]
    viewer = client.get(f"/api/bench/experiments?contains={names['one']}", headers=site.as_("viewer")).json()
    assert viewer["experiments"][0]["candidates"] == 2 * TIPS["one"], "who does not judge sees the numbers"


def row_of(name: str, page: str) -> str:
    (row,) = re.findall(rf'<tr><th scope="row">{re.escape(name)}.*?</tr>', page, flags=re.DOTALL)
    return row


def test_a_second_opinion_is_that_share_of_the_whole_whatever_is_asked_for_in_between(
    tracking: Tracking, live: Judging, experiment_name: str, tmp_path: Path
) -> None:
    pack, engine = builtin_pack(), ScriptedEngine(["a", "b", "c"], write=write_tips)
    options = Options(sampling=Sampling(), n_tips=5, diversity=False, seed=1)
    cells = [
        Cell(pack, model, pack.prompts[0], scenario, options)
        for model in engine.list_models()
        for scenario in pack.scenarios[:6]
    ]
    collect_with(lambda _: engine, cells, where=Where(tracking, experiment_name))
    sheet = tmp_path / "all.json"
    handed = live.hand_out(sheet, SittingRequest("anna"), experiment=experiment_name)
    assert handed is not None
    sections = handed.sheet.sections
    assert [section.sittings_left for section in sections] == [2, 1, 0]
    sizes = [len(section.items) for section in sections]
    assert max(sizes) - min(sizes) <= 3, "90 candidates are 30 and 30 and 30, in whole blocks of three"
    fill(sheet)
    live.take_in(sheet, experiment=experiment_name, judged_by=None, close=False)
    doubled: list[int] = []
    # Half of 90 is 45, in two sittings; the second one is the rest of it, also if the share is left out.
    for share, left in ((0.5, 1), (None, 0)):
        sitting = live.open_sitting(SittingRequest("bert", second_share=share), experiment=experiment_name)
        assert sitting is not None
        assert sitting.section.sittings_left == left
        facts = live.open(experiment_name).find_sitting(sitting.token).facts
        doubled.append(facts.items - facts.anchors)
        again = live.open_sitting(SittingRequest("bert"), experiment=experiment_name)
        assert again is not None
        assert again.token == sitting.token, "who asks for nothing goes on with what is open"
        given = {item.id: answer(item) for item in sitting.section.items}
        assert live.submit(sitting.token, given, experiment=experiment_name).state == "accepted"
    assert (sum(doubled), max(doubled) - min(doubled) <= 3) == (45, True)
    assert live.open_sitting(SittingRequest("bert", second_share=0.5), experiment=experiment_name) is None
    assert live.open_sitting(SittingRequest("bert"), experiment=experiment_name) is None
