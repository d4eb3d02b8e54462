"""What a reader of the panel meets: arms, the report and its files, scenarios, versions, champions, home."""

import csv
import json
import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, unquote

import pytest

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import pack_name_of
from tests.conftest import Cli
from tests.promotion.campaign import make_pack
from tests.ranking.campaign import judge_lazily, open_judging
from tests.support.waiting import eventually
from tipbench.admin.arm import grow_tree
from tipbench.admin.experiments import ExperimentLine
from tipbench.admin.home import HomeLine, PlannedLook, draw_rows
from tipbench.bench.versions import StoredVersion, VersionFacts, version_write
from tipbench.clock import make_stamps
from tipbench.jobs.records import Kind, Step
from tipbench.jobs.store import NewJob
from tipbench.policies.simulation.report import EXPERIMENT as SIMULATIONS
from tipbench.records import Prompt
from tipbench.tracking import Tracking
from tipbench.tracking.runs import Run, blank_write


@pytest.fixture(scope="module")
def page(site: Site, judged: str) -> "Pages":
    return Pages(site, quote(judged, safe=""))


class Pages:
    """The pages of one experiment, as somebody sees them."""

    def __init__(self, site: Site, name: str) -> None:
        self.site, self.name = site, name

    def enter(self, role: str) -> "Pages":
        self.site.client.cookies.clear()
        form = {"name": f"the-{role}", "password": PASSWORD}
        assert self.site.client.post("/sign-in", data=form, headers=HERE).status_code == 303
        return self

    def ask(self, place: str, **asked: str) -> tuple[int, str]:
        found = self.site.client.get(f"/{place}/{self.name}", params=asked)
        return found.status_code, found.text

    def get(self, place: str, **asked: str) -> str:
        status, text = self.ask(place, **asked)
        assert status == 200, text[:500]
        return text

    def home(self, contains: str = "") -> str:
        found = self.site.client.get("/", params={"contains": contains})
        assert found.status_code == 200
        return found.text


def test_every_arm_of_the_board_leads_to_its_page(page: Pages, site: Site, judged: str) -> None:
    board = page.enter("viewer").get("e")
    arms = re.findall(r'<tr data-line="(.*?)"', board)
    links = re.findall(r'<th scope="row"><a href="/arm/[^?]+\?arm=([^"]+)&amp;tier=lazy">', board)
    assert [unquote(link) for link in links] == arms
    assert len(arms) == 6
    report = site.parts.mlflow.open().board(judged, "arm")
    for line in report.standings[:2]:
        shown = page.get("arm", arm=line.name)
        assert f"<dd>{line.composite:.2f}</dd>" in shown
        for part, value in line.parts.items():
            row = shown.split(f'<th scope="row">{part.replace("_", " ")}</th>')[1]
            assert f">{value:.2f}</td>" in row.split("</tr>")[0], part
        assert len(re.findall(r'href="/cell/\w+/', shown.split('data-testid="cells"')[1])) == 2
        assert "{{tasks}}" in shown.split('data-testid="prompt"')[1], "the prompt as it was written"
        assert "Best tips" in shown
    assert page.ask("arm", arm="nobody+v1")[0] == 404


def test_the_best_tips_of_an_arm_are_no_worse_than_its_worst(page: Pages) -> None:
    shown = page.enter("viewer").get("arm")
    best, worst = (re.findall(r'class="flags"><b>([\d.]+)', each) for each in shown.split("<h2>Worst tips"))
    assert (len(best), len(worst)) == (2, 2)
    assert min(map(float, best)) >= max(map(float, worst))


def test_the_report_says_what_the_file_says_under_the_strict_policy(page: Pages) -> None:
    shown, file = page.enter("viewer").get("report"), page.get("download")
    sections = re.findall(r'<h2 id="(\w+)-title">(.*?)</h2>', file)
    of_board = {"standings", "heat", "remarks"}
    assert re.findall(r'<h2 id="(\w+)-title">(.*?)</h2>', shown) == [
        each for each in sections if each[0] not in of_board
    ]
    assert len(sections) == 9
    assert "style=" not in shown, "the policy of the panel would drop it"
    for name, _ in (each for each in sections if each[0] not in of_board):
        mine, theirs = (
            re.sub(
                r"\s+",
                " ",
                re.sub(r"<[^>]+>", " ", text.split(f'id="{name}-title"')[1].split("</section>")[0]),
            )
            for text in (shown, file)
        )
        assert mine == theirs, name


def test_the_files_are_those_of_compare(page: Pages, cli: Cli, judged: str) -> None:
    page.enter("viewer")
    for kind, option in (("csv", "--csv"), ("json", "--json")):
        for how in ((), ("--by", "prompt")):
            answer = page.site.client.get(
                f"/download/{page.name}", params={"as": kind} | ({"by": how[1]} if how else {})
            )
            assert answer.headers["content-disposition"] == f"attachment; filename*=UTF-8''{page.name}.{kind}"
            assert answer.text == cli("compare", "--experiment", judged, option, *how).out
    assert json.loads(answer.text)["by"] == "prompt"
    assert len(list(csv.reader(page.get("download", **{"as": "csv"}).splitlines()))) == 7
    for place in ("download", "report"):
        assert page.ask(place, tier="auto")[0] == 200
    assert page.ask("download", **{"as": "exe"})[0] == 422


def test_scenarios_stand_in_the_order_of_their_spread(page: Pages) -> None:
    shown = page.enter("viewer").get("scenarios")
    spreads = [float(each) for each in re.findall(r"</th><td>([\d.]+)</td>", shown)]
    assert len(spreads) == 2
    assert spreads == sorted(spreads, reverse=True)
    rows = re.findall(r'<tr><th scope="row">.*?</tr>', shown)
    assert [row.count('<td class="h') + row.count('class="blank"') for row in rows] == [6, 6]


# Versions.


def make_version(name: str, text: str, *, parent: Prompt, turn: int) -> StoredVersion:
    prompt = Prompt(name=name, text=text)
    facts = VersionFacts(
        name=name, hash=prompt.hash, parent=parent.name, parent_hash=parent.hash, round=turn,
        why=f"because of {parent.name}", proposer="<b>me</b>", brief="b",
    )  # fmt: skip
    run = Run(
        run_id=name,
        name="",
        status="FINISHED",
        start_time=turn,
        artifact_uri="",
        tags={},
        params={},
        metrics={},
    )
    return StoredVersion(run, facts, prompt)


def test_versions_grow_into_a_tree_each_with_what_it_changed() -> None:
    base = Prompt(name="v1", text="one\ntwo\n")
    first = make_version("v1-a", "one\nthree\n", parent=base, turn=1)
    second = make_version("v1-b", "zero\n", parent=base, turn=1)
    third = make_version("v1-c", "one\nthree\nfour\n", parent=first.prompt, turn=2)
    (root,) = grow_tree([first, second, third], {}, {"v1": base.text})
    assert (root.name, [each.name for each in root.children]) == ("v1", ["v1-a", "v1-b"])
    (leaf,) = root.children[0].children
    assert [(line.kind, line.text) for line in leaf.diff if line.kind] == [("ins", "four")]
    assert [line.text for line in root.children[0].diff if line.kind] == ["two", "three"]
    (lost,) = grow_tree([first], {}, {})
    assert (lost.text, list(lost.children[0].diff)) == (None, [])


@pytest.fixture
def improved(tracking: Tracking, judged: str) -> Iterator[StoredVersion]:
    """A version of a prompt of the experiment, stored as an improvement does."""
    base = next(each for each in make_pack("any", prompts=("v1", "v2")).prompts if each.name == "v1")
    version = make_version("v1-0abcde", base.text + "\nBe <i>brief</i>.\n", parent=base, turn=1)
    write = blank_write(tracking.find_experiment(judged), make_stamps())
    run = tracking.deliver(version_write(version.facts, version.prompt.text, write=write))
    yield version
    tracking.delete_run(run)


def test_the_page_of_versions_tells_reason_difference_and_that_nobody_judged(
    page: Pages, improved: StoredVersion
) -> None:
    shown = page.enter("viewer").get("versions")
    tree = shown.split('data-testid="versions"')[1]
    assert re.findall(r"<h2>(.*?)</h2>", tree) == ["v1", "v1-0abcde"]
    for words in ("because of v1", "<ins>+ Be &lt;i&gt;brief&lt;/i&gt;.</ins>", "not judged", "&lt;b&gt;me"):
        assert words in tree, words
    assert f'href="/versions/{page.name}"' in page.get("e")


# Champions, home, simulations; and who sees what.


def test_home_tells_the_newest_first_with_results_in_words_and_no_arm(
    page: Pages, site: Site, judged: str
) -> None:
    found = page.enter("admin").home()
    times = re.findall(r'<small class="block">.*?([\d-]{10} [\d:]{5}) UTC</small>', found)
    assert times
    (row,) = [
        each for each in page.home(judged).split("<tr>") if f">{judged}</a>" in each.replace("&#34;", '"')
    ]
    report = site.parts.mlflow.open().board(judged, "arm")
    tied = sum(line.tied_for_first for line in report.ranked)
    assert f"No winner yet: {tied} of 6 in the running" in row
    assert f"{report.judged} of {report.candidates}" in row
    assert not [line.name for line in report.standings if line.name in row]


def test_leads_on_home_share_a_scale_and_the_next_look_is_marked() -> None:
    looks = tuple(PlannedLook(number=n, at=at, taken=n == 1) for n, at in enumerate((50, 75, 100), start=1))
    lines = [
        HomeLine(
            line=ExperimentLine(name=name, mlflow="", candidates=200, judged=60),
            lead=lead,
            low=lead - 1,
            high=lead + 1,
            looks=looks,
        )
        for name, lead in (("near", 0.5), ("far", 3.5))
    ]
    (near, far, unknown), axis = draw_rows([*lines, HomeLine(line=lines[0].line.for_judges())], {})
    at = [float(re.findall(r'cx="([\d.]+)%"', row.strip)[0]) for row in (near, far)]
    assert at[0] < at[1]
    assert all(tick in axis for tick in (">0<", ">+4<"))
    assert (near.next_look, near.job) == (looks[1], None)
    assert re.findall(r'class="(goal[^"]*)"', near.track) == ["goal passed", "goal", "goal"]
    assert 'width="30%"' in near.track.replace(".00%", "%")
    assert (unknown.strip, unknown.track, unknown.next_look) == ("", "", None)


def test_the_champion_is_on_top_of_home_and_has_a_page_that_names_no_score_while_judging_goes_on(
    page: Pages, site: Site, judged: str
) -> None:
    arm = site.parts.mlflow.open().board(judged, "arm").standings[0].name
    wanted = {"how": "initial", "arm": arm, "reason": "the first one"}
    made = site.client.post(f"/api/bench/promote/{page.name}", json=wanted, headers=site.as_("admin"))
    assert made.json()["outcome"] == "promoted", made.text
    site.parts.boards.forget(pack_name_of(judged))
    page.enter("viewer")
    place = f"/champion?pack={pack_name_of(judged)}"
    shown = site.client.get(place).text
    assert arm in shown
    assert "No experiment with a champion in it is judged to the end yet." in shown
    assert "is no champion yet" not in shown
    assert "has no champion yet" in site.client.get("/champion?pack=none").text
    # Home is a moment old where its lines took long to make.
    eventually(lambda: place in page.home(), "home names the champion")
    # Whoever looked here has not looked at arms that wait: nothing of them was told.
    with site.parts.jobs.database.read() as view:
        looks = view.execute("SELECT what FROM looks WHERE what = '/champion'").fetchall()
    assert looks == []
    assert arm not in page.enter("judge").home()


def test_simulations_have_a_page_with_curves_and_leads(page: Pages, cli: Cli) -> None:
    cli.ok("policies", "simulate", "--users", "8", "--rounds", "12")
    page.enter("judge")
    moved = page.site.client.get(f"/e/{SIMULATIONS}")
    assert (moved.status_code, moved.headers["location"]) == (303, f"/simulations/{SIMULATIONS}")
    shown = page.site.client.get(moved.headers["location"]).text
    assert re.findall(r'class="trace (t\d)" points', shown) == ["t0", "t1", "t2", "t3"]
    rewards = [float(each) for each in re.findall(r'data-label="Reward per tip">([\d.]+)<', shown)]
    assert rewards == sorted(rewards, reverse=True)
    assert len(rewards) == 4
    low, high = (float(each) for each in re.findall(r"\[(.*?), (.*?)\]", shown.replace("−", "-"))[0])
    assert ("not certain" in shown) == (low <= 0 <= high)
    runs = re.findall(r"\?simulation=(\w+)", shown)
    assert (
        page.site.client.get(f"/simulations/{SIMULATIONS}", params={"simulation": runs[-1]}).status_code
        == 200
    )
    assert page.site.client.get(f"/simulations/{SIMULATIONS}?simulation=none").status_code == 404
    assert re.search(r"\d+ simulations? of policies", page.home(SIMULATIONS))


def test_a_job_shows_when_each_of_its_cells_was_made(page: Pages, site: Site, judged: str) -> None:
    jobs, shown = site.parts.jobs, list[str]()
    wanted: tuple[tuple[Kind, int], ...] = (("collect", 10**14), ("collect", 1), ("simulate", 10**14))
    for number, (kind, until) in enumerate(wanted):
        steps = (Step(name=kind, arguments=(kind,)),)
        job = jobs.add(NewJob(kind, judged, "the-admin", steps, f"timeline{number}"))
        with jobs.database.change() as change:
            change.execute(
                "UPDATE jobs SET state = 'done', started_ms = 0, ended_ms = ? WHERE id = ?", (until, job.id)
            )
        shown.append(page.enter("admin").site.client.get(f"/jobs/{job.id}").text)
    assert "12 of 12 cells" in shown[0].split('data-testid="timeline"')[1]
    assert shown[0].count('aria-label="4 cells"') == 3, "a row for each model"
    assert [text.count('data-testid="timeline"') for text in shown] == [1, 0, 0]


def test_when_all_is_judged_champions_have_levels_and_to_read_them_is_a_look(
    page: Pages, site: Site, judged: str, tracking: Tracking, tmp_path: Path
) -> None:
    judge_lazily(open_judging(tracking, tmp_path), judged, folder=tmp_path, judged_by="otto")
    page.enter("viewer")
    shown = site.client.get(f"/champion?pack={pack_name_of(judged)}").text
    dots = re.findall(r'class="spot t0".*?<title>(.*?)</title>|<title>(.*? over \d+ verdicts)</title>', shown)
    assert dots
    assert "judged to the end yet" not in shown
    with site.parts.jobs.database.read() as view:
        looks = view.execute("SELECT judge FROM looks WHERE name = ?", (judged,)).fetchall()
    assert "the-viewer" in [row["judge"] for row in looks]
    site.parts.boards.forget(judged)
    (row,) = [each for each in page.home(judged).split("<tr>") if f">{judged}</a>" in each]
    winner = site.parts.mlflow.open().board(judged, "arm").winner
    assert "No winner: " in row or (winner is not None and winner in row.replace("<wbr>", ""))
    unnamed = page.enter("judge").home(judged)
    assert winner is None or winner not in unnamed.replace("<wbr>", "")
