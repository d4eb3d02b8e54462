"""The spine end to end: collect → export → a judge who sees only the file → apply → compare."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.conftest import PERSON, Cli
from tests.improve.scripted_server import MODEL, N_TIPS, ScriptedServer, run_server
from tests.judging.scripted import collect_filled, fill_with
from tests.support.experiments import SMALL, Where, collect_with, shift_clock
from tests.support.official import search_official
from tests.support.scripted import ScriptedEngine
from tests.support.sheets import REFERENCES, fill, hand_out, judge_soundly, sections
from tests.support.small_pack import write_small_pack
from tipbench.bench.sittings import LEASE_MS
from tipbench.grid import prepare_grid
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import read_pack, read_parts
from tipbench.settings import Settings
from tipbench.tracking import open_tracking, search_runs


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedServer]:
    """A model behind a compatible URL that fills its slots at once: for cells whose text does not matter."""
    with run_server(ScriptedServer(lambda prompt: 10.0)) as server:
        monkeypatch.setenv("TIPBENCH_OPENAI_URL", server.url)
        monkeypatch.setenv("TIPBENCH_OPENAI_LOCAL", "false")
        yield server


SCRIPTED = tuple(MODEL if word == "smollm2" else word for word in SMALL)
"""The same options as those of `collected`; the last slot of three stays empty."""


@pytest.fixture
def filled(cli: Cli, settings: Settings, base: tuple[str, Path], experiment_name: str) -> str:
    """One arm, two cells, three slots in each and a tip in every one of them."""
    asked = {"models": "smollm2", "prompts": "v1", "n_tips": 3, "pack": str(base[1])}
    collect_filled(settings.model_copy(update=asked | {"home": cli.home, "experiment": experiment_name}))
    return experiment_name


def answer_some(path: Path, *, candidates: int, anchors: int) -> None:
    """Leaves so many of each answered, and takes the other answers out."""
    fill(path)
    sheet = json.loads(path.read_text())
    left = {False: candidates, True: anchors}
    for item in (item for section in sheet["sections"] for item in section["items"]):
        is_anchor = item["text"] in REFERENCES
        left[is_anchor] -= 1
        if left[is_anchor] < 0:
            item["scores"] = dict.fromkeys(item["scores"])
    path.write_text(json.dumps(sheet))


def test_a_second_collect_generates_nothing(cli: Cli, collected: str, base: tuple[str, Path]) -> None:
    outcome = cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", collected, "--json")
    assert json.loads(outcome.out.splitlines()[-1]) == {
        "event": "done",
        "collected": 0,
        "cells": 2,
        "left": 0,
    }


def test_a_dry_run_says_what_is_missing_and_makes_nothing(cli: Cli, base: tuple[str, Path]) -> None:
    outcome = cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", "never-made", "--dry-run", "--json")
    plan = json.loads(outcome.out)
    assert (plan["cells"], plan["generate"]) == (2, 2)
    assert plan["estimated_seconds"] > 0
    assert cli("compare", "--experiment", "never-made").code == 2


def test_before_any_verdict_the_board_shows_what_code_knows(cli: Cli, collected: str) -> None:
    outcome = cli("compare", "--experiment", collected, "--json")
    assert outcome.code == 4
    report = outcome.json()
    (line,) = report["standings"]
    assert (report["judged"], report["winner"], line["composite"]) == (0, None, None)
    assert line["latency_seconds"] > 0
    assert set(line["computed"]) == {"format_ok", "overlong"}
    assert f"judged 0 of {report['candidates']}" in cli("compare", "--experiment", collected).out


def test_a_judged_sheet_counts_and_applying_it_again_changes_nothing(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    judge_soundly(Path("sheet.json"))
    first = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert [section["outcome"] for section in first] == ["accepted"]
    report = cli("compare", "--experiment", collected, "--json").json()
    assert report["judged"] == report["candidates"]
    assert report["waiting"] == 0
    again = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert [section["outcome"] for section in again] == ["unchanged"]
    assert cli("compare", "--experiment", collected, "--json").json() == report
    cli.ok("judge", "--experiment", collected, "--export", "nothing.json")
    assert not Path("nothing.json").exists()


def test_what_is_with_a_judge_is_handed_to_nobody_else(cli: Cli, collected: str) -> None:
    hand_out(Path("one.json"), collected, blocks=2)
    cli.ok("judge", "--experiment", collected, "--export", "two.json")
    texts = [
        [item["id"] for s in sections(Path(name)) for item in s["items"]] for name in ("one.json", "two.json")
    ]
    assert texts[0]
    assert not set(texts[0]) & set(texts[1])
    status = cli.ok("judge", "status", "--experiment", collected, "--json").json()
    assert sum(sitting["items"] for sitting in status["sittings"]) == status["candidates"]


def test_what_is_with_a_judge_stays_there_while_others_of_its_cells_are_judged(cli: Cli, filled: str) -> None:
    def texts_in(name: str) -> list[str]:
        texts = [item["text"] for section in sections(Path(name)) for item in section["items"]]
        return [text for text in texts if text not in REFERENCES]

    hand_out(Path("judged.json"), filled, blocks=2)
    judge_soundly(Path("judged.json"))
    cli.ok("judge", "--apply", "judged.json")
    hand_out(Path("one.json"), filled, blocks=2)
    cli.ok("judge", "--experiment", filled, "--export", "two.json")
    handed_out = [texts_in(name) for name in ("judged.json", "one.json", "two.json")]
    assert [len(texts) for texts in handed_out] == [2, 2, 2], "one of every cell each time"
    assert len({text for texts in handed_out for text in texts}) == 6


def test_a_partly_filled_section_stays_open_until_it_is_complete(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"), items=2)
    applied = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert [(s["outcome"], s["answered"]) for s in applied] == [("open", 2)]
    assert cli("compare", "--experiment", collected, "--json").json()["judged"] == 0
    fill(Path("sheet.json"))
    applied = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert [s["outcome"] for s in applied] == ["accepted"]
    assert cli("compare", "--experiment", collected, "--json").json()["waiting"] == 0


def test_closing_a_partly_filled_section_counts_complete_blocks_and_gives_the_rest_back(
    cli: Cli, filled: str
) -> None:
    cli.ok("judge", "--experiment", filled, "--export", "sheet.json")
    answer_some(Path("sheet.json"), candidates=5, anchors=6)
    cli.ok("judge", "--apply", "sheet.json", "--close")
    report = cli("compare", "--experiment", filled, "--json").json()
    assert (report["judged"], report["waiting"], report["candidates"]) == (5, 1, 6)
    status = cli.ok("judge", "status", "--experiment", filled, "--json").json()
    assert [s["state"] for s in status["sittings"]] == ["accepted"]
    cli.ok("judge", "--experiment", filled, "--export", "rest.json")
    (rest,) = sections(Path("rest.json"))
    (open_one,) = [
        item["text"]
        for section in sections(Path("sheet.json"))
        for item in section["items"]
        if None in item["scores"].values()
    ]
    assert [item["text"] for item in rest["items"] if item["text"] not in REFERENCES] == [open_one]


def test_other_answers_after_the_close_are_kept_but_do_not_count(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"), score=2)
    cli.ok("judge", "--apply", "sheet.json")
    before = cli("compare", "--experiment", collected, "--json").json()
    fill(Path("sheet.json"), score=5)
    applied = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert "revision" in applied[0]["outcome"]
    assert cli("compare", "--experiment", collected, "--json").json() == before
    status = cli.ok("judge", "status", "--experiment", collected, "--json").json()
    assert status["sittings"][0]["submissions"] == 2


def test_a_second_judge_on_the_same_sheet_makes_doubles_not_verdicts_of_the_board(
    cli: Cli, collected: str
) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"), score=2)
    cli.ok("judge", "--apply", "sheet.json")
    before = cli("compare", "--experiment", collected, "--json").json()
    fill(Path("sheet.json"), score=5, judged_by="anna")
    cli.ok("judge", "--apply", "sheet.json")
    cli.ok("judge", "--apply", "sheet.json")
    after = cli("compare", "--experiment", collected, "--json").json()
    assert after["standings"] == before["standings"]
    assert any("doubles" in remark for remark in after["remarks"])
    status = cli.ok("judge", "status", "--experiment", collected, "--json").json()
    # In no order: two commands know the server's clock to two seconds only.
    assert {(s["judged_by"], s["drawn"]) for s in status["sittings"]} == {
        (PERSON, "block"),
        ("anna", "second"),
    }


def test_closing_judging_ends_the_waiting(cli: Cli, collected: str) -> None:
    cli.ok("judge", "close", "--experiment", collected, "--reason", "enough seen")
    report = cli("compare", "--experiment", collected, "--json").json()
    assert (report["waiting"], report["judging_closed"]) == (0, True)
    refused = cli("judge", "--experiment", collected, "--export", "sheet.json")
    assert refused.code == 2
    assert "enough seen" in refused.err
    cli.ok("judge", "reopen", "--experiment", collected, "--reason", "one more day")
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    assert sections(Path("sheet.json"))


def test_cells_collected_after_the_close_do_not_wait(
    cli: Cli, base: tuple[str, Path], collected: str, script: ScriptedServer, mlflow_url: str
) -> None:
    cli.ok("judge", "close", "--experiment", collected, "--reason", "enough seen")
    more = (*SCRIPTED, "--n-scenarios", "1", "--pack", str(base[1]), "--experiment", collected)
    assert "judging was closed: enough seen" in cli.ok(*more).out
    assert script.generated == 1
    assert len(search_official(mlflow_url, collected, "tags.`tipbench.kind` = 'cell'")) == 3
    assert search_official(mlflow_url, collected, "tags.judge_pending = 'true'") == []


def test_closing_judging_counts_what_was_complete_and_takes_nothing_more(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    cli.ok("judge", "close", "--experiment", collected, "--reason", "enough seen")
    fill(Path("sheet.json"))
    applied = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert "revision" in applied[0]["outcome"]
    assert cli("compare", "--experiment", collected, "--json").json()["judged"] == 0


def test_a_lost_file_is_given_back(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "lost.json")
    token = sections(Path("lost.json"))[0]["sitting"]
    assert cli("judge", "release", "nonsense", "--experiment", collected).code == 2
    cli.ok("judge", "release", token, "--experiment", collected)
    cli.ok("judge", "--experiment", collected, "--export", "again.json")
    assert len(sections(Path("again.json"))) == len(sections(Path("lost.json")))


def test_an_unfilled_sheet_is_given_back_with_close(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "empty.json")
    cli.ok("judge", "--apply", "empty.json", "--close")
    cli.ok("judge", "--experiment", collected, "--export", "again.json")
    assert sections(Path("again.json"))


def test_a_cell_deleted_in_mlflow_holds_up_no_other(cli: Cli, collected: str, settings: Settings) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    with open_tracking(settings) as tracking:
        runs = tracking.read_runs(tracking.find_experiment(collected))
        tracking.delete_run(next(run.run_id for run in runs if run.tags["tipbench.kind"] == "cell"))
    fill(Path("sheet.json"))
    applied = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert [section["outcome"] for section in applied] == ["accepted"]
    report = cli("compare", "--experiment", collected, "--json").json()
    assert report["standings"][0]["cells"] == 1
    assert report["judged"] == report["candidates"]


def test_a_changed_prompt_under_an_old_name_is_refused_until_one_is_retired(
    cli: Cli, collected: str, script: ScriptedServer, tmp_path: Path
) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    judge_soundly(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    judged = cli("compare", "--experiment", collected, "--json").json()["judged"]
    pack = write_small_pack(tmp_path / "changed")
    prompt = pack / "prompts" / "v1.md"
    prompt.write_text(prompt.read_text().replace("exactly", "just"))
    collect = (*SCRIPTED, "--pack", str(pack), "--experiment", collected)
    refused = cli(*collect)
    assert (refused.code, script.generated) == (2, 0), refused.err
    found = re.search(r"prompt 'v1': (\w+) → (\w+) \(2 cells there\)", refused.err)
    assert found is not None, refused.err
    older, newer = (f"v1@{each}" for each in found.groups())
    cli.ok("collect", "retire", "--experiment", collected, "--prompt", older)
    cli.ok(*collect)
    assert script.generated == 2
    cli.ok("collect", "retire", "--experiment", collected, "--prompt", older, "--undo")
    mixed = cli("compare", "--experiment", collected)
    assert mixed.code == 1
    today = r"\d{4}-\d\d-\d\d, 2 cells"
    sides = rf"{older[3:]} \(older, {today}, {judged} judged\), {newer[3:]} \(new, {today}, 0 judged\)"
    assert re.search(rf"prompt 'v1' has 2 contents: {sides}", mixed.err), mixed.err
    assert cli("judge", "--experiment", collected, "--export", "more.json").code == 1
    (line,) = [each.strip() for each in mixed.err.splitlines() if "collect retire" in each]
    assert line == f"tipbench collect retire --experiment {collected} --prompt {newer}", (
        "the judged one stays"
    )
    cli.ok(*line.split()[1:])
    report = cli("compare", "--experiment", collected, "--json")
    assert (report.json()["standings"][0]["cells"], report.json()["judged"]) == (2, judged)


def test_the_official_client_reads_what_we_wrote(cli: Cli, collected: str, mlflow_url: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    waiting = search_official(
        mlflow_url, collected, "tags.judge_pending = 'true' and tags.judge_kind = 'claude-code'"
    )
    assert {run["params.scenario"] for run in waiting} == {"nurse-morning", "student-evening"}
    judge_soundly(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    assert not search_official(mlflow_url, collected, "tags.judge_pending = 'true'")
    judged = search_official(mlflow_url, collected, "tags.rubric = 'tip-v1' and metrics.composite > 0")
    assert judged
    for run in judged:
        parts = [run[f"metrics.{name}"] for name in ("relevance", "actionability", "tone")]
        flags = 2 * run["metrics.format_ok"] - run["metrics.overlong"]
        assert run["metrics.composite"] == pytest.approx(sum(parts) + flags)
        assert run["tags.judged_by"] == PERSON
        assert run["status"] == "FINISHED"


def test_everything_can_be_rebuilt_from_mlflow_alone(cli: Cli, collected: str, tmp_path: Path) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    judge_soundly(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    report = cli("compare", "--experiment", collected, "--json").json()
    elsewhere = tmp_path / "another data folder"
    assert cli("compare", "--experiment", collected, "--json", "--home", str(elsewhere)).json() == report


def test_raw_numbers_can_be_had_in_bulk(cli: Cli, collected: str, mlflow_url: str) -> None:
    runs = search_runs(collected, url=mlflow_url)
    assert sum(run.tags.get("tipbench.kind") == "cell" for run in runs) == 2


def test_the_pack_is_read_from_the_store_not_from_disk(
    cli: Cli, base: tuple[str, Path], experiment_name: str, tmp_path: Path
) -> None:
    pack = write_small_pack(tmp_path / "gone")
    cli.ok(*SMALL, "--pack", str(pack), "--experiment", experiment_name, "--reuse-from", base[0])
    for path in sorted(pack.rglob("*"), reverse=True):
        path.unlink() if path.is_file() else path.rmdir()
    cli.ok("judge", "--experiment", experiment_name, "--export", "sheet.json")
    judge_soundly(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    assert cli("compare", "--experiment", experiment_name, "--json").json()["waiting"] == 0


@pytest.mark.parametrize(("candidates", "state", "judged"), [(2, "accepted", 2), (0, "expired", 0)])
def test_an_expired_section_counts_its_complete_blocks(
    cli: Cli, filled: str, settings: Settings, candidates: int, state: str, judged: int
) -> None:
    cli.ok("judge", "--experiment", filled, "--export", "sheet.json")
    answer_some(Path("sheet.json"), candidates=candidates, anchors=3)
    cli.ok("judge", "--apply", "sheet.json")
    with open_tracking(settings) as tracking:
        later = Judging(tracking, shift_clock(LEASE_MS + 60_000), cli.home / "locks")
        later.hand_out(Path("rest.json"), SittingRequest("later"), experiment=filled)
        status = later.status(experiment=filled)
    first, second = status.sittings
    assert (first.state, status.judged, second.items) == (state, judged, 6 - judged)


def test_no_byte_of_an_export_names_who_wrote_what(
    cli: Cli, base: tuple[str, Path], experiment_name: str, tmp_path: Path, mlflow_url: str
) -> None:
    pack = write_small_pack(tmp_path / "renamed")
    (pack / "prompts" / "v1.md").rename(pack / "prompts" / "zq-prompt-7.md")
    model = tmp_path / "zq-model-9.gguf"
    model.symlink_to(next((cli.home / "models").glob("SmolLM2*.gguf")).resolve())
    collect = ("collect", "--models", str(model), "--prompts", "zq-prompt-7", "--n-tips", "3")
    renamed = ("--pack", str(pack), "--experiment", experiment_name, "--reuse-from", base[0])
    assert "0 to generate" in cli.ok(*collect, *renamed).out
    cli.ok("judge", "--experiment", experiment_name, "--export", "sheet.json")
    exported = Path("sheet.json").read_bytes() + Path("sheet.schema.json").read_bytes()
    runs = search_runs(experiment_name, url=mlflow_url)
    secrets = {"zq-prompt-7", "zq-model-9", "zq-model", "zq-prompt"} | {run.run_id for run in runs}
    for run in runs:
        secrets |= {run.tags[name] for name in ("tipbench.key", "tipbench.attempt") if name in run.tags}
        if run.tags["tipbench.kind"] == "cell":
            facts = json.loads(run.tags["tipbench.facts"])
            secrets |= {facts[name] for name in ("model_digest", "prompt_hash", "options_hash", "pack_hash")}
    assert len(secrets) > 10
    assert [secret for secret in secrets if secret.encode() in exported] == []


def test_an_export_that_was_killed_is_finished_by_the_same_command(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    before = json.loads(Path("sheet.json").read_text())
    # Killed after the sittings were stored and before the file was in place.
    Path("sheet.json").rename("sheet.json.part")
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    assert json.loads(Path("sheet.json").read_text()) == before
    assert len(cli.ok("judge", "status", "--experiment", collected, "--json").json()["sittings"]) == 1


def test_an_unfinished_export_of_another_experiment_is_not_thrown_away(
    cli: Cli, collected: str, base: tuple[str, Path]
) -> None:
    other = f"{collected}-other"
    cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", other, "--reuse-from", base[0])
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    Path("sheet.json").rename("sheet.json.part")
    outcome = cli("judge", "--experiment", other, "--export", "sheet.json")
    assert outcome.code == 2
    assert collected in outcome.err
    assert Path("sheet.json.part").exists()


def test_a_sheet_is_judged_by_the_rubric_it_was_handed_out_with(
    cli: Cli, collected: str, script: ScriptedServer, tmp_path: Path
) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    pack = write_small_pack(tmp_path / "changed")
    manifest = pack / "pack.toml"
    manifest.write_text(manifest.read_text().replace("[scales.tone]", "[scales.warmth]"))
    (pack / "anchors.jsonl").write_text("")
    rubric = pack / "rubric.md"
    rubric.write_text(rubric.read_text().replace("tone", "warmth").replace("Tone", "Warmth"))
    prompt = pack / "prompts" / "v1.md"
    prompt.rename(prompt.with_name("v2.md"))
    changed = [word if word != "v1" else "v2" for word in SCRIPTED]
    where = ("--pack", str(pack), "--experiment", collected)
    refused = cli(*changed, *where)
    found = re.search(r"rubric 'tip-v1': (\w+) → \w+ \(2 cells there\)", refused.err)
    assert (refused.code, found is not None) == (2, True), refused.err
    rubric_of_sheet = ("--experiment", collected, "--rubric", found[1] if found else "")
    cli.ok("collect", "retire", *rubric_of_sheet)
    cli.ok(*changed, *where, "--reuse-from", collected)
    assert script.generated == 2
    cli.ok("collect", "retire", *rubric_of_sheet, "--undo")
    judge_soundly(Path("sheet.json"))
    applied = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert [section["outcome"] for section in applied] == ["accepted"]
    refused = cli("compare", "--experiment", collected)
    assert "rubric:" in refused.err


def test_an_experiment_keeps_the_rubric_it_was_collected_with_when_the_built_in_text_is_revised(
    cli: Cli, settings: Settings, experiment_name: str, tmp_path: Path
) -> None:
    pack = write_small_pack(tmp_path / "before")
    rubric, manifest = pack / "rubric.md", pack / "pack.toml"
    # As the text and the labels were in the first edition of tip-v1.
    older = re.sub(r"\| hard case \|.*?\n\n", "", rubric.read_text(), flags=re.DOTALL)
    labels = r"must_not_match = ['(?i)^tip\s*#?\d*\s*[:.)–—]']"
    rubric.write_text(older)
    manifest.write_text(
        re.sub(r"must_not_match = \[\n.*?\n\]", lambda _: labels, manifest.read_text(), flags=re.DOTALL)
    )
    asked = {"home": cli.home, "models": "smollm2", "prompts": "v1", "n_tips": 1, "pack": str(pack)}
    settings = settings.model_copy(update=asked)
    tip = "1. The tip: read a page of it before you eat."
    engine = ScriptedEngine(["smollm2"], write=lambda model, prompt, rng: tip)
    with open_tracking(settings) as tracking:
        cells = prepare_grid(settings, find_model=engine.find_model)
        collect_with(lambda _: engine, cells, where=Where(tracking, experiment_name))
    shutil.rmtree(pack)
    cli.ok("judge", "--experiment", experiment_name, "--export", "sheet.json")
    sheet = json.loads(Path("sheet.json").read_text())
    assert (sheet["rubric"]["name"], sheet["rubric"]["text"]) == ("tip-v1", older)
    labelled = [i for s in sheet["sections"] for i in s["items"] if i["text"].startswith("The tip:")]
    assert labelled
    assert all(item["flags"]["format_ok"] for item in labelled), "as its own rubric counts"
    judge_soundly(Path("sheet.json"))
    applied = cli.ok("judge", "--apply", "sheet.json", "--json").json()
    assert [section["outcome"] for section in applied] == ["accepted"]
    after = str(write_small_pack(tmp_path / "after"))
    refused = cli(*SMALL, "--pack", after, "--experiment", experiment_name)
    assert (refused.code, "rubric 'tip-v1': " in refused.err) == (2, True), refused.err


def test_the_pack_of_a_user_with_its_own_scales_goes_all_the_way(
    cli: Cli, script: ScriptedServer, experiment_name: str, tmp_path: Path
) -> None:
    cli.ok("pack", "new", "mine")
    cli.ok("pack", "check", "mine")
    pack = read_pack(tmp_path / "mine")
    # What the scripted server writes is a list.
    asked = [prompt.name for prompt in pack.prompts if read_parts(prompt.text).form == "list"]
    prompts = ",".join(asked)
    arguments = ("--models", MODEL, "--prompts", prompts, "--n-tips", str(N_TIPS), "--n-scenarios", "2")
    cli.ok("collect", *arguments, "--pack", "mine", "--scenarios", "all", "--experiment", experiment_name)
    assert script.generated == 2 * len(asked)
    cli.ok("judge", "--experiment", experiment_name, "--export", "sheet.json")
    sheet = json.loads(Path("sheet.json").read_text())
    assert sheet["rubric"]["scales"] == {"accuracy": [0, 3], "appeal": [0, 3]}
    fill_with(Path("sheet.json"), lambda _: {"accuracy": 2, "appeal": 1}, pack=pack)
    cli.ok("judge", "--apply", "sheet.json")
    report = cli("compare", "--experiment", experiment_name, "--json").json()
    assert (report["waiting"], report["judged"]) == (0, report["candidates"])
    # 2 × accuracy + appeal; code finds these texts neither `short` (one up) nor `shouting` (two down).
    assert [line["composite"] for line in report["standings"]] == [5.0] * len(asked)
