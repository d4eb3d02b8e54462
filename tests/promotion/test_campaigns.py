"""Whole campaigns by the command line, both tiers: one promotes, one refuses with its reasons, then back."""

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.conftest import Cli
from tests.judging.auto_asking import auto
from tests.judging.counting_judge import CountingJudge
from tests.promotion.campaign import Campaign, judge_sheet, levelled_engine, make_pack, read_scores
from tests.support.official import MlflowClient
from tests.support.scripted import make_model
from tipbench.bench.champions import entry_name
from tipbench.errors import ChampionMissing, ModelMissing
from tipbench.grid import add_champion
from tipbench.promotion.gate import make_arm
from tipbench.records import Model


@pytest.fixture(autouse=True)
def _plain(cli: Cli, campaign: Campaign) -> None:
    campaign.home = cli.home


def judge_by_file(cli: Cli, campaign: Campaign) -> None:
    """Export, fill, apply: as a person or an agent does."""
    sheet = Path("sheet.json")
    sheet.unlink(missing_ok=True)
    Path("sheet.schema.json").unlink(missing_ok=True)
    cli.ok("judge", "--experiment", campaign.experiment, "--export", str(sheet))
    judge_sheet(sheet)
    cli.ok("judge", "--apply", str(sheet))


def test_one_campaign_promotes_one_refuses_and_rollback_goes_back(
    cli: Cli,
    campaign: Campaign,
    auto_judge: CountingJudge,
    mlflow_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "both")
    where = ("--experiment", campaign.experiment)
    fixed = cli.ok("gate", *where, "--plan", "--json").json()
    assert (fixed["budget"], fixed["looks"]) == (24, [0.5, 0.75, 1.0])
    early = cli("gate", *where)
    assert early.code == 4
    assert "verdicts: 12 more" in early.out
    judge_by_file(cli, campaign)
    no_auto = cli("gate", *where)
    assert (no_auto.code, "no automatic judge has judged" in no_auto.out) == (4, True)
    cli.ok(*auto(campaign.experiment))
    passed = cli.ok("gate", *where)
    assert "Promote good+v1" in passed.out
    assert "FAIL" not in passed.out
    promoted = cli.ok("promote", *where, "--json").json()
    assert (promoted["outcome"], promoted["champion"]["arm"]) == ("promoted", "good+v1")
    assert promoted["champion"]["look_run"] == promoted["gate"]["look_run"] != ""
    again = cli.ok("promote", *where)
    assert "already" in again.out
    check_page(cli, campaign)
    client = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)
    seen = client.get_prompt_version_by_alias(entry_name(campaign.pack.name), "champion")
    assert (seen.version, seen.tags["tipbench.model"]) == (2, "good")
    champion = cli.ok("champion", "--pack", campaign.pack.name, "--json").json()
    assert (champion["template"], champion["model_digest"]) == (seen.template, "sha256:good")
    refuse_another(cli, campaign)
    back = cli.ok("champion", "rollback", "--pack", campaign.pack.name, "--reason", "complaints")
    assert "old+v1 is champion" in back.out
    assert client.get_prompt_version_by_alias(entry_name(campaign.pack.name), "champion").version == 1
    check_history(cli, campaign)


def check_page(cli: Cli, campaign: Campaign) -> None:
    """The report shows what the stored look said, with every rule."""
    cli("compare", "--experiment", campaign.experiment, "--html", "report.html")
    page = Path("report.html").read_text(encoding="utf-8")
    said = "The last look, 3 of 3 on 24 lazy verdicts, said of good+v1 against old+v1: promote."
    assert f"The champion is good+v1. {said}" in page
    rules = page.split("Rules of the gate")[1].split("</table>")[0]
    assert (rules.count(">holds<"), rules.count(">does not hold<")) == (8, 0)


def refuse_another(cli: Cli, campaign: Campaign) -> None:
    """The next experiment: nobody beats the new champion, whatever the automatic judge thinks of it."""
    other = replace(campaign, levels={"good": 11.0, "twin": 11.0, "poor": 6.0})
    other.experiment = campaign.experiment + "-next"
    other.collect()
    judge_by_file(cli, other)
    cli.ok(*auto(other.experiment))
    refused = cli("promote", "--experiment", other.experiment)
    assert refused.code == 3, refused.out + refused.err
    assert "FAIL verdicts of people and agents" in " ".join(refused.out.split())
    assert "good+v1 stays champion" in refused.out
    assert (
        cli("promote", "--experiment", other.experiment, "--challenger", "twin+v1", "--json").json()["gate"][
            "challenger"
        ]
        == "twin+v1"
    )
    for arguments in (
        ("--force",),
        ("--initial", "poor+v1"),
        ("--reason", "why"),
        ("--force", "--initial", "x"),
    ):
        assert cli("promote", "--experiment", other.experiment, *arguments).code == 2


def check_history(cli: Cli, campaign: Campaign) -> None:
    """Everything that happened, as a table, as JSON and as a drawing."""
    pack = ("--pack", campaign.pack.name)
    told = cli.ok("champion", "history", *pack, "--json", "--plot", "history.svg").json()
    assert [line["how"] for line in told["promotions"]] == ["initial", "gate", "rollback"]
    assert [line["in_force"] for line in told["promotions"]] == [False, False, True]
    assert [look["answer"] for look in told["looks"]] == ["promote", "no"]
    levels = {(line["experiment"], line["arm"]): line for line in told["levels"]}
    assert set(levels) == {
        (campaign.experiment, "old+v1"),
        (campaign.experiment, "good+v1"),
        (f"{campaign.experiment}-next", "good+v1"),
    }
    first = levels[campaign.experiment, "good+v1"]
    assert first["level"] > levels[campaign.experiment, "old+v1"]["level"] + 2
    assert (first["verdicts"], first["scenarios"]) == (8, 4)
    drawing = ElementTree.fromstring(Path("history.svg").read_text(encoding="utf-8"))
    assert len(drawing.findall(".//{*}circle")) == len(levels) + 2
    shown = cli.ok("champion", "history", *pack).out
    assert "in force" in shown
    assert "complaints" in shown


def test_who_promotes_by_force_is_told_what_the_gate_would_have_said(
    cli: Cli, campaign: Campaign, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "lazy")
    where, pack = ("--experiment", campaign.experiment), ("--pack", campaign.pack.name)
    judge_by_file(cli, campaign)
    forced = cli.ok("promote", *where, "--force", "--challenger", "poor+v1", "--reason", "cheaper")
    assert "Promoted by force" in forced.out
    assert "FAIL verdicts of people and agents" in " ".join(forced.out.split())
    assert "poor+v1 is champion" in forced.out
    told = cli.ok("champion", "history", *pack, "--json").json()
    assert told["looks"] == [], "a forced promotion takes no look"
    assert told["promotions"][-1]["overruled"] == ["planned look", "lazy tier"]
    assert "against the gate (planned look, verdicts of people and agents): cheaper" in " ".join(
        cli.ok("champion", "history", *pack).out.split()
    )
    assert "the gate's rules planned look, verdicts of" in cli.ok("champion", *pack).out
    cli.ok("champion", "rollback", *pack)
    # The look that nobody took is still there to be taken.
    assert cli.ok("gate", *where, "--json").json()["look"] == 3


def test_an_uninformative_judge_and_one_that_disagrees_refuse(
    cli: Cli, campaign: Campaign, auto_judge: CountingJudge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "both")
    where = ("--experiment", campaign.experiment)
    judge_by_file(cli, campaign)
    auto_judge.say = lambda text: json.dumps({"relevance": 3, "actionability": 3, "tone": 3})
    assert cli(*auto(campaign.experiment)).code == 3
    useless = cli("gate", *where)
    assert (useless.code, "uninformative" in useless.out) == (3, True)
    auto_judge.say = lambda text: json.dumps(upside_down(text))
    cli.ok(*auto(campaign.experiment))
    report = cli("gate", *where, "--json")
    failed = [rule["name"] for rule in report.json()["rules"] if not rule["passed"]]
    assert (report.code, failed) == (3, ["auto tier"])


def upside_down(text: str) -> Mapping[str, int]:
    """Right on the anchors, and wrong way round on everything else."""
    scores = read_scores(text)
    return scores if "worth" not in text else {name: 6 - value for name, value in scores.items()}


def test_collect_adds_the_champion(campaign: Campaign) -> None:
    bench = campaign.gate().read(campaign.experiment)
    arm = make_arm(bench, "old+v1")
    said: list[str] = []

    def find(name: str) -> Model:
        return make_model(name)

    others = replace(campaign, levels={"good": 11.0, "poor": 6.0}).cells()
    cells = add_champion(others, arm, find_model=find, report=said.append)
    assert [cell.model.name for cell in cells[-4:]] == ["old"] * 4
    assert "old+v1 is added: 4 cells" in said[0]
    assert add_champion(campaign.cells(), arm, find_model=find, report=said.append) == campaign.cells()
    two = make_pack(campaign.pack.name, prompts=("v1", "v2"))
    changed = two.model_copy(
        update={"prompts": tuple(p.model_copy(update={"text": p.text + "!"}) for p in two.prompts)}
    )
    both = add_champion(replace(campaign, pack=changed).cells(), arm, find_model=find, report=said.append)
    # Beside the other cells of its model, under a name that says which text it is.
    place = [place for place, cell in enumerate(both) if cell.prompt.text == arm.template]
    assert place == list(range(8, 12))
    assert both[8].prompt.name.startswith("v1@")

    def missing(name: str) -> Model:
        raise ModelMissing(f"no model {name!r}")

    changed_weights = arm.model_copy(update={"model_digest": "sha256:else"})
    elsewhere = arm.model_copy(update={"template": "For {{somebody}} else"})
    for champion, finder, why in (
        (arm, missing, "no model 'old'"),
        (changed_weights, find, "'old' are other weights here"),
        (elsewhere, find, "these scenarios do not have"),
    ):
        with pytest.raises(
            ChampionMissing, match=f"the champion old[+]v1 cannot be asked: .*{why}"
        ) as refused:
            add_champion(others, champion, find_model=finder, report=said.append)
        assert (refused.value.exit_code, "--without-champion" in refused.value.hint) == (2, True)
    assert levelled_engine(campaign.levels).find_model("old").digest == arm.model_digest


def test_commands_without_a_champion_say_how_to_name_one(cli: Cli) -> None:
    for command in (("champion",), ("champion", "history"), ("champion", "rollback")):
        outcome = cli(*command, "--pack", "pack-that-nobody-has")
        assert (outcome.code, "--initial" in outcome.err) == (2, True), outcome.err
    assert cli("champion", "--pack", "it's").code == 2
