"""`tipbench compare` on a real MLflow: terminal, JSON, CSV, Markdown and HTML say the same."""

import csv
import io
import re
from pathlib import Path
from typing import Any

import pytest

import tipbench
from tests.conftest import Cli
from tests.ranking.campaign import (
    collect_campaign,
    judge_automatically,
    judge_lazily,
    open_judging,
)
from tests.ranking.conftest import Campaign
from tests.support.fault_proxy import FaultProxy
from tests.support.official import MlflowClient, official_client_at, search_official
from tipbench.bench.bench import read_bench
from tipbench.bench.champions import label_rule
from tipbench.clock import make_stamps
from tipbench.ranking.details import compare_judges
from tipbench.ranking.records import AUTOMATIC
from tipbench.tracking import Tracking

TRACKING = Path(__file__).parents[2] / "docs" / "tracking.md"
DOCUMENTED = Path(__file__).parents[2] / "docs" / "reading-the-board.md"


def test_every_outlet_says_the_same(cli: Cli, campaign: Campaign) -> None:
    compare = ("compare", "--experiment", campaign.experiment)
    board = cli(*compare, "--json")
    report = board.json()
    rows = list(csv.DictReader(io.StringIO(cli(*compare, "--csv").out)))
    markdown, shown = cli(*compare, "--markdown").out, cli(*compare).out
    assert report["tiers"]["used"] == "lazy+auto"
    assert {each["judged_by"] for each in report["sittings"]} == {"anna", "claude-code", "scripted:judge"}
    for line, row in zip(report["standings"], rows, strict=True):
        assert (row["arm"], int(row["place"]), row["tier"]) == (line["name"], line["place"], line["tier"])
        assert float(row["p_best"]) == pytest.approx(line["p_best"], abs=1e-4)
        assert (int(row["rank_best"]), int(row["rank_worst"])) == (line["rank_best"], line["rank_worst"])
        assert row["sittings"].split() == line["sittings"]
        interval = line["gap"]
        said = f"{interval['difference']:+.2f} [{interval['low']:+.2f}, {interval['high']:+.2f}]"
        assert said in markdown
        assert said in shown
    assert cli(*compare, "--html", "report.html", "--json").json() == report
    page = Path("report.html").read_text(encoding="utf-8")
    assert all(line["name"] in page for line in report["standings"])
    assert list(Path().glob("*.part")) == []


def test_the_auto_tier_has_a_board_of_its_own_in_every_outlet(cli: Cli, campaign: Campaign) -> None:
    compare = ("compare", "--experiment", campaign.experiment, "--tier", "auto")
    board = cli(*compare, "--json", "--html", "auto.html")
    report = board.json()
    assert (report["tier"], report["mark"], report["tiers"]["used"]) == ("auto", AUTOMATIC, "auto")
    assert {each["judged_by"] for each in report["sittings"]} == {"scripted:judge"}
    assert len([line for line in report["standings"] if line["against_best"]]) == 6
    assert report["judged"] == report["candidates"] > 0
    assert board.code in {0, 3}
    page = Path("auto.html").read_text(encoding="utf-8")
    for text in (cli(*compare).out, cli(*compare, "--csv").out, cli(*compare, "--markdown").out, page):
        assert AUTOMATIC in text
        assert report["standings"][0]["name"] in text
    lazy = cli("compare", "--experiment", campaign.experiment, "--json").json()
    assert (lazy["tier"], lazy["mark"]) == ("lazy", "")
    with tipbench.open_bench(campaign.experiment) as bench:
        lines = bench.leaderboard(tier="auto")
    assert [(line.model, line.prompt) for line in lines] == [
        (line["model"], line["prompt"]) for line in report["standings"]
    ]


def run_snippet(experiment: str, url: str, *, tier: str = "") -> dict[tuple[str, str], float]:
    """The example of docs/tracking.md as it stands; with the names of another tier's board."""
    (code,) = re.findall(r"```python\n(.*?)```", TRACKING.read_text(encoding="utf-8"), re.DOTALL)
    assert code.count('"NAME"') == 1
    if tier:
        code = code.replace("tags.on_board", f"tags.on_{tier}_board")
        code = code.replace("metrics.board_composite", f"metrics.{tier}.board_composite")
    code = code.replace('"NAME"', repr(experiment)).replace("print(", "found = (")
    here: dict[str, Any] = {}
    with official_client_at(url):
        exec(code, here)
    return here["found"].to_dict()


def board_of(cli: Cli, experiment: str, *more: str) -> dict[tuple[str, str], float]:
    report = cli("compare", "--experiment", experiment, "--json", *more).json()
    ranked = [line for line in report["standings"] if line["place"]]
    return {(line["model"], line["prompt"]): line["composite"] for line in ranked}


def test_the_numbers_in_mlflow_are_the_board_s(cli: Cli, campaign: Campaign, mlflow_url: str) -> None:
    told = cli("compare", "--experiment", campaign.experiment, "--json").json()
    assert told["tiers"]["slope"] != 0, "lucky draws are taken off"
    assert sum(line["failures_drawn"] for line in told["standings"]) > 0
    for tier, more in (("", ()), ("auto", ("--tier", "auto"))):
        board = board_of(cli, campaign.experiment, *more)
        assert len(board) == 6
        assert run_snippet(campaign.experiment, mlflow_url, tier=tier) == pytest.approx(board, abs=1e-9)


def test_a_retired_prompt_is_off_the_numbers_in_mlflow_and_comes_back(
    cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path, mlflow_url: str
) -> None:
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=2, skill={"one": 0.9, "two": 0.1})
    judging = open_judging(tracking, tmp_path)
    judge_lazily(judging, experiment_name, folder=tmp_path, blocks=3)
    before = board_of(cli, experiment_name)
    assert run_snippet(experiment_name, mlflow_url) == pytest.approx(before, abs=1e-9)
    retire = ("collect", "retire", "--experiment", experiment_name, "--prompt")
    known = cli(*retire, "v1@0").err.strip().rpartition(": ")[2].split(", ")
    cli.ok(*retire, known[0])
    assert len(board_of(cli, experiment_name)) == 2
    assert run_snippet(experiment_name, mlflow_url) == pytest.approx(board_of(cli, experiment_name), abs=1e-9)
    cli.ok(*retire, known[0], "--undo")
    assert run_snippet(experiment_name, mlflow_url) == pytest.approx(before, abs=1e-9)
    # An experiment of an earlier version has neither: repair writes them.
    (cell, *_) = search_official(mlflow_url, experiment_name, "tags.on_board = 'true'")
    client = MlflowClient(tracking_uri=mlflow_url)
    client.set_tag(cell["run_id"], "on_board", "false")
    client.log_metric(cell["run_id"], "board_composite", 99.0)
    cli.ok("mlflow", "repair", "--experiment", experiment_name)
    assert run_snippet(experiment_name, mlflow_url) == pytest.approx(before, abs=1e-9)


def test_every_key_of_the_json_is_documented(cli: Cli, campaign: Campaign) -> None:
    report = cli("compare", "--experiment", campaign.experiment, "--json").json()
    words = set(re.findall(r"`(\w+)`", DOCUMENTED.read_text(encoding="utf-8")))
    keys = {*report, *report["standings"][0], *report["tiers"], *report["sittings"][0], *report["pairs"][0]}
    assert keys <= words


def test_two_judges_agree_by_the_same_number_wherever_it_is_shown(cli: Cli, campaign: Campaign) -> None:
    where = ("--experiment", campaign.experiment)
    told = {
        tuple(pair["judges"]): pair for pair in cli.ok("judge", "judges", *where, "--json").json()["pairs"]
    }
    bench = read_bench(campaign.tracking, campaign.experiment, stamps=make_stamps())
    pairs = {pair.judges: pair.found for pair in compare_judges(bench.evidence, bench.pack.rubric)}
    cli("compare", *where, "--html", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    assert pairs.keys() == told.keys()
    for judges, found in pairs.items():
        alpha = found.alpha
        assert (alpha.value, alpha.low, alpha.high) == tuple(
            told[judges][key] for key in ("alpha", "low", "high")
        )
        assert found.over == told[judges]["over"] == ("scales" if "scripted:judge" in judges else "composite")
        assert f"{alpha.value:.2f} [{alpha.low:.2f}, {alpha.high:.2f}]" in page.replace("−", "-")
    assert {found.over for found in pairs.values()} == {"scales", "composite"}


def test_a_page_that_cannot_be_written_and_two_outlets_at_once_are_refused(
    cli: Cli, campaign: Campaign
) -> None:
    outcome = cli("compare", "--experiment", campaign.experiment, "--html", "nowhere/report.html")
    assert (outcome.code, "cannot be written" in outcome.err) == (1, True)
    assert cli("compare", "--json", "--markdown", "--experiment", campaign.experiment).code == 2


def test_for_a_page_the_experiment_is_opened_once(cli: Cli, campaign: Campaign, mlflow_url: str) -> None:
    def count_looked_up(*more: str) -> int:
        with FaultProxy(mlflow_url) as proxy:
            cli("compare", "--experiment", campaign.experiment, "--mlflow-url", proxy.url, *more)
        return sum("experiments/get-by-name" in line for line in proxy.requests)

    alone = count_looked_up()
    assert alone > 0
    assert count_looked_up("--html", "report.html") == alone + 1, "the gate asks for the champions, no more"


def test_by_model_and_by_prompt_have_a_page_too(cli: Cli, campaign: Campaign) -> None:
    for by in ("model", "prompt"):
        asked = ("compare", "--by", by, "--experiment", campaign.experiment)
        told = cli(*asked, "--json")
        outcome = cli(*asked, "--html", f"{by}.html")
        assert (outcome.code, outcome.err) == (told.code, ""), "every outlet ends alike"
        assert f"leaderboard of {by}s" in Path(f"{by}.html").read_text(encoding="utf-8")


def test_a_judge_that_throws_dice_is_named_on_the_board_and_its_means_are_not(
    cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=1, skill={"one": 0.9, "two": 0.1})
    judging = open_judging(tracking, tmp_path)
    assert (
        judge_automatically(judging, experiment_name, folder=tmp_path, informed=False, anyway=True).state
        == "refused"
    )
    nothing = cli("compare", "--experiment", experiment_name, "--json", "--html", "nothing.html")
    assert (nothing.code, nothing.json()["tiers"]["used"], nothing.json()["judged"]) == (4, "none", 0)
    assert "scripted:dice is uninformative" in nothing.json()["tiers"]["said"]
    judge_lazily(judging, experiment_name, folder=tmp_path, blocks=2)
    report = cli("compare", "--experiment", experiment_name, "--json").json()
    assert report["tiers"]["used"] == "lazy"
    assert all(line["auto_composite"] is None for line in report["standings"])


def test_the_gate_s_reasons_are_on_the_page(
    cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=1, skill={"one": 0.9, "two": 0.1})
    judge_lazily(open_judging(tracking, tmp_path), experiment_name, folder=tmp_path, blocks=2)
    cli.ok("promote", "--initial", "two+v1", "--reason", "the one in use", "--experiment", experiment_name)
    cli("compare", "--experiment", experiment_name, "--html", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    assert "The champion is two+v1. The best challenger is one+v1. No look was taken yet" in page
    assert "2 complete, 4 needed" in page
    assert "not asked: no automatic judge" in page


def test_the_page_shows_the_gate_s_rules_under_the_settings_in_force(
    cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "lazy")
    collect_campaign(tracking, experiment_name, scenarios=4, prompts=1, skill={"one": 0.9, "two": 0.1})
    where = ("--experiment", experiment_name)
    cli.ok("promote", "--initial", "two+v1", "--reason", "the one in use", *where)
    judge_lazily(open_judging(tracking, tmp_path), experiment_name, folder=tmp_path, blocks=4)
    today = read_rules(cli, *where)
    assert today["planned look"] == "does not hold"
    assert today["automatic verdicts"] == "holds", "it is not asked for"
    assert {"scenarios", "verdicts of people and agents", "anchored", "format", "latency"} <= today.keys()
    # A look is shown as the gate tells it.
    judge_lazily(open_judging(tracking, tmp_path), experiment_name, folder=tmp_path)
    told = cli("gate", *where, "--json").json()
    assert told["look"] is not None
    assert read_rules(cli, *where) == {
        label_rule(rule["name"]): "holds" if rule["passed"] else "does not hold" for rule in told["rules"]
    }


def read_rules(cli: Cli, *where: str) -> dict[str, str]:
    """What the page says of every rule of the gate."""
    cli("compare", *where, "--html", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    (table,) = re.findall(r"<table[^>]*>\s*<caption>Rules of the gate</caption>.*?</table>", page, re.DOTALL)
    rows = re.findall(
        r"<tr[^>]*>\s*<th[^>]*rowheader[^>]*>(.*?)</th>\s*<td[^>]*>(.*?)</td>", table, re.DOTALL
    )
    return dict(rows)
