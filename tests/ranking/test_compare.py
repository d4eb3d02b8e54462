"""`tipbench compare` on a real MLflow: terminal, JSON, CSV, Markdown and HTML say the same."""

import csv
import io
import re
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.ranking.campaign import (
    collect_campaign,
    judge_automatically,
    judge_lazily,
    open_judging,
)
from tests.ranking.conftest import Campaign
from tipbench.bench.bench import read_bench
from tipbench.clock import make_stamps
from tipbench.ranking.details import compare_judges
from tipbench.tracking import Tracking

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
        interval = line["against_best"]
        said = f"{interval['difference']:+.2f} [{interval['low']:+.2f}, {interval['high']:+.2f}]"
        assert said in markdown
        assert said in shown
    assert cli(*compare, "--html", "report.html", "--json").json() == report
    page = Path("report.html").read_text(encoding="utf-8")
    assert all(line["name"] in page for line in report["standings"])
    assert list(Path().glob("*.part")) == []


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
    assert "no auto scores to compare" in page


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
    assert today["auto tier"] == "holds", "it is not asked for"
    assert {"scenarios", "lazy tier", "anchored", "format", "latency"} <= today.keys()
    # A look is shown as the gate tells it.
    judge_lazily(open_judging(tracking, tmp_path), experiment_name, folder=tmp_path)
    told = cli("gate", *where, "--json").json()
    assert told["look"] is not None
    assert read_rules(cli, *where) == {
        rule["name"]: "holds" if rule["passed"] else "does not hold" for rule in told["rules"]
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
