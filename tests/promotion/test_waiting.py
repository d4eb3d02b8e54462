"""When a pipeline goes on, and which cells are collected for the champion alone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.improve.scripted_server import MODEL, ScriptedServer, run_server
from tests.promotion.campaign import Campaign, judge_sheet
from tests.support.scripted import make_model
from tipbench.bench.sittings import Decision
from tipbench.engines.weights import KNOWN_WEIGHTS
from tipbench.errors import ChampionMissing, ModelMissing
from tipbench.grid import champion_alone
from tipbench.judging.request import SittingRequest
from tipbench.promotion.gate import GateQuestion, make_arm
from tipbench.records import Model
from tipbench.settings import Settings


def end_of(campaign: Campaign) -> str | None:
    return campaign.judging().find_end(campaign.experiment)


def hand_out(campaign: Campaign, path: Path, *, blocks: int | None = None) -> None:
    request = SittingRequest("bert", blocks=blocks)
    assert campaign.judging().hand_out(path, request, experiment=campaign.experiment) is not None


def take_in(campaign: Campaign, path: Path, *, close: bool = False) -> None:
    campaign.judging().take_in(path, experiment=campaign.experiment, judged_by=None, close=close)


def check_refusal_reopens(campaign: Campaign) -> None:
    """Refused, its only sitting holds the wait again; accepted, it does not."""
    judging = campaign.judging()
    [sitting] = judging.status(experiment=campaign.experiment).sittings
    refusal = Decision(sitting=sitting.sitting, accept=False, reason="drunk", by="ada")
    judging.decide(refusal, experiment=campaign.experiment)
    assert end_of(campaign) is None
    judging.decide(refusal.model_copy(update={"accept": True}), experiment=campaign.experiment)
    assert end_of(campaign) is not None


def test_all_judged_ends_the_wait_and_a_refused_sitting_reopens_it(campaign: Campaign) -> None:
    assert end_of(campaign) is None
    campaign.judge()
    assert end_of(campaign) == "nothing waits for a judge"
    check_refusal_reopens(campaign)


def test_a_look_that_decided_ends_the_wait_until_its_ground_is_taken_away(campaign: Campaign) -> None:
    campaign.judge(blocks=4)
    assert campaign.gate().plan(GateQuestion(campaign.experiment)).answer == "undecided"
    assert end_of(campaign) is None, "the wait takes no look"
    report = campaign.gate().ask(GateQuestion(campaign.experiment))
    assert (report.answer, report.look) == ("promote", 1)
    assert end_of(campaign) == f"the gate has decided: promote (look {report.look_run})"
    check_refusal_reopens(campaign)
    replace(campaign, levels=campaign.levels | {"late": 9.0}).collect()
    assert end_of(campaign) is None, "the look knew nothing of this arm"


def test_who_has_begun_is_waited_for_and_what_nobody_began_is_not(campaign: Campaign, tmp_path: Path) -> None:
    campaign.judge(blocks=4)
    hand_out(campaign, tmp_path / "idle.json", blocks=1)
    hand_out(campaign, tmp_path / "begun.json", blocks=1)
    assert campaign.gate().ask(GateQuestion(campaign.experiment)).answer == "promote"
    assert end_of(campaign) is not None
    judge_sheet(tmp_path / "begun.json")
    sheet = json.loads((tmp_path / "begun.json").read_text())
    for item in sheet["sections"][0]["items"][1:]:
        item["scores"] = dict.fromkeys(item["scores"])
    (tmp_path / "begun.json").write_text(json.dumps(sheet))
    take_in(campaign, tmp_path / "begun.json")
    assert end_of(campaign) is None
    take_in(campaign, tmp_path / "begun.json", close=True)
    assert end_of(campaign) is not None


def test_closing_ends_the_wait_and_the_command_says_so(cli: Cli, campaign: Campaign) -> None:
    where = ("--experiment", campaign.experiment)
    before = cli.ok("judge", "status", *where, "--json").json()
    assert (before["ended"], before["judged"], before["candidates"]) == (None, 0, 24)
    campaign.judging().end("enough seen", experiment=campaign.experiment)
    assert cli.ok("judge", "status", *where, "--json").json()["ended"] == "judging was closed: enough seen"
    assert "judging was closed: enough seen" in cli.ok("judge", "status", *where).out


def test_files_are_kept_in_mlflow_for_people(cli: Cli, campaign: Campaign) -> None:
    Path("bo ard.json").write_text('{"a": "é"}')
    Path("page.html").write_text("<p>")
    kept = cli.ok(
        *("mlflow", "keep", "bo ard.json", "page.html", "--name", "the board"),
        *("--experiment", campaign.experiment),
    )
    run_id = kept.out.split("/runs/")[1].split("/")[0]
    run = campaign.tracking.read_run(run_id)
    assert (run.name, run.tags["tipbench.kind"], run.status) == ("the board", "kept", "FINISHED")
    assert campaign.tracking.read_artifact(run, "bo_ard.json") == '{"a": "é"}'
    assert campaign.tracking.read_artifact(run, "page.html") == "<p>"
    Path("weights.bin").write_bytes(b"\xff\xfe\x00")
    refused = cli("mlflow", "keep", "weights.bin", "--experiment", campaign.experiment)
    assert (refused.code, "cannot be read as text" in refused.err) == (2, True)


def test_the_champion_alone(campaign: Campaign, tmp_path: Path) -> None:
    arm = make_arm(campaign.gate().read(campaign.experiment), "old+v1")
    pack = campaign.write_pack(tmp_path / "pack")
    settings = Settings(home=tmp_path, pack=str(pack), models="good,poor", prompts="v1")
    said: list[str] = []
    cells = champion_alone(settings, arm, find_model=make_model, report=said.append)
    assert {(cell.model.name, cell.prompt.name) for cell in cells} == {("old", "v1")}
    assert len(cells) == len({cell.scenario.id for cell in cells}) == 4
    (pack / "prompts" / "v1.md").write_text("Another text for {{persona}}: {{n_tips}} tips {{diversity}}")
    changed = champion_alone(settings, arm, find_model=make_model, report=said.append)
    assert [cell.prompt.text for cell in changed] == [arm.template] * 4
    assert changed[0].prompt.name.startswith("v1@")
    campaign.write_pack(pack)
    named = settings.model_copy(update={"models": "good,old"})
    assert champion_alone(named, arm, find_model=make_model, report=said.append) == []
    assert "is collected with its model" in said[-1]

    def missing(name: str) -> Model:
        raise ModelMissing(f"no model {name!r}")

    with pytest.raises(ChampionMissing, match="no model 'old'"):
        champion_alone(settings, arm, find_model=missing, report=said.append)


def test_a_champion_named_by_its_path_is_found_again_and_one_that_is_not_found_stops_the_collect(
    cli: Cli,
    base: tuple[str, Path],
    models_folder: Path,
    experiment_name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (cli.home / "models").unlink()
    weights = models_folder / KNOWN_WEIGHTS["smollm2"].file_name
    shutil.copytree(base[1], "pack")
    manifest = Path("pack", "pack.toml")
    manifest.write_text(manifest.read_text().replace('name = "tip"', f'name = "{experiment_name}"', 1))
    asked = ("collect", "--prompts", "v1", "--n-tips", "3", "--pack", "pack", "--experiment")
    cli.ok(*asked, experiment_name, "--models", str(weights), "--reuse-from", base[0])
    champion = f"{weights.stem}+v1"
    cli.ok("promote", "--experiment", experiment_name, "--initial", champion, "--reason", "in use")
    with run_server(ScriptedServer(lambda prompt: 9.0)) as server:
        monkeypatch.setenv("TIPBENCH_OPENAI_URL", server.url)
        monkeypatch.setenv("TIPBENCH_OPENAI_LOCAL", "false")
        later = (*asked, f"{experiment_name}-later", "--models", MODEL)
        found = cli.ok(*later, "--dry-run", "--json")
        assert found.json()["models"] == sorted([weights.stem, MODEL])
        assert f"the champion {champion} is added: 2 cells" in found.err
        # As on another machine, where nobody has used that file.
        (cli.home / "digests.json").unlink()
        refused = cli(*later)
        assert (refused.code, server.generated) == (2, 0), refused.out
        assert f"the champion {champion} cannot be asked: unknown model {weights.stem!r}" in refused.err
        assert "a link in the models folder will do" in refused.err
        assert cli("collect", "--only-champion", *later[1:]).code == 2
        cli.ok(*later, "--without-champion")
        assert server.generated == 2


def test_a_pack_without_a_champion_has_nothing_to_collect_for_it(cli: Cli, campaign: Campaign) -> None:
    manifest = campaign.write_pack(Path("pack")) / "pack.toml"
    manifest.write_text(manifest.read_text().replace(campaign.pack.name, campaign.pack.name + "-else"))
    alone = cli.ok("collect", "--only-champion", "--pack", "pack", "--experiment", campaign.experiment)
    assert "no champion: nothing to collect" in alone.out
    both = cli("collect", "--only-champion", "--without-champion")
    assert both.code == 2
