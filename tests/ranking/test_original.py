"""Experiments of the original: shown read only as they are, imported, and then judged blind."""

import csv
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.support.original import LEVELS, Original, score
from tests.support.servers import MlflowServer
from tests.support.sheets import REFERENCES, sections
from tests.support.text_judge import judge_file

NOT_BLIND = "not blind, not anchored"


@pytest.fixture
def original(mlflow_url: str, experiment_name: str) -> Original:
    return Original(mlflow_url, experiment_name)


def means(board: dict[str, Any]) -> dict[str, float]:
    """Line → mean of the composites that were logged elsewhere."""
    return {line["name"]: line["cell_scores"].get("composite") for line in board["standings"]}


EXPECTED = {f"{model}+{prompt}": 3 * level + 2 - 0.25 for (model, prompt), level in LEVELS.items()}


def judge_soundly(sheet: Path, *, judged_by: str) -> None:
    """Candidates by their texts, anchors by their references."""
    judge_file(sheet)
    content = json.loads(sheet.read_text())
    for section in content["sections"]:
        section["judged_by"] = judged_by
        for item in section["items"]:
            item["scores"] = REFERENCES.get(item["text"], item["scores"])
    sheet.write_text(json.dumps(content))


def check_the_way(cli: Cli, original: Original, folder: Path) -> None:
    """Seen on the board, imported, judged further; the source stays as it is."""
    before, name = original.dump(), original.name
    seen = cli("compare", "--experiment", name)
    assert seen.code == 4, seen.err
    assert NOT_BLIND in seen.out
    assert "read only" in seen.out
    told = cli("compare", "--experiment", name, "--json").json()
    assert means(told) == EXPECTED
    assert (told["winner"], told["pairs"], told["made_by_tipbench"]) == (None, [], False)
    assert {line["against_best"] for line in told["standings"]} == {None}
    assert told["standings"][0]["name"] == "qwen2.5:1.5b+v3-few-shot"

    imported = cli.ok("import", "--experiment", name, "--json").json()
    into = imported["experiment"]
    assert (into, imported["new_cells"], imported["new_scores"]) == (f"{name}-imported", 16, 16)
    (sitting,) = imported["sittings"]
    assert (sitting["judged_by"], sitting["cells"]) == ("claude-code-session", 16)
    board = cli("compare", "--experiment", into, "--json")
    assert board.code == 4
    assert means(board.json()) == EXPECTED
    assert (board.json()["judged"], board.json()["candidates"]) == (0, 48), "nobody judged a candidate yet"
    status = cli.ok("judge", "status", "--experiment", into).out
    assert sitting["sitting"] in status
    again = cli.ok("import", "--experiment", name, "--json").json()
    assert (again["experiment"], again["new_cells"], again["new_scores"]) == (into, 0, 0)

    sheet = folder / "sheet.json"
    cli.ok("judge", "--experiment", into, "--export", str(sheet))
    assert not any("qwen" in json.dumps(section["items"]) for section in sections(sheet))
    judge_soundly(sheet, judged_by="anna")
    cli.ok("judge", "--apply", str(sheet))
    judged = cli("compare", "--experiment", into, "--json").json()
    assert judged["judged"] == 48
    assert {each["judged_by"] for each in judged["sittings"]} == {"anna"}, "what counts is what was blind"
    assert all(line["place"] for line in judged["standings"])
    assert means(judged) == EXPECTED
    assert any(NOT_BLIND in remark for remark in judged["remarks"])
    assert original.dump() == before


def test_an_experiment_of_the_original_is_seen_imported_and_judged_further(
    cli: Cli, original: Original, tmp_path: Path
) -> None:
    check_the_way(cli, original.fill(), tmp_path)


@pytest.fixture
def server_of_the_original(tmp_path: Path) -> Iterator[str]:
    """MLflow as the original ran it: under a base path, its artifacts on a disk of its own."""
    folder = tmp_path / "server"
    server = MlflowServer(
        folder,
        *("--backend-store-uri", "sqlite:///mlflow.db", "--static-prefix", "/mlflow"),
        *("--no-serve-artifacts", "--default-artifact-root", (folder / "artifacts").as_uri()),
        prefix="/mlflow",
    )
    yield server.start()
    server.stop()


@pytest.mark.slow
def test_the_same_on_the_originals_own_kind_of_server(
    cli: Cli, server_of_the_original: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server_of_the_original)
    original = Original(server_of_the_original, "tip-bench-2026-04-27").fill()
    found = original.dump()[1]["runs"][0]["info"]["artifact_uri"]
    assert found.startswith("file://")
    check_the_way(cli, original, tmp_path)


def test_every_outlet_marks_what_was_not_blind(cli: Cli, original: Original) -> None:
    name = original.fill().name
    text = cli("compare", "--experiment", name, "--by", "prompt", "--markdown").out
    assert "## Whole cells, scored elsewhere: not blind, not anchored" in text
    assert "| `v3-few-shot` | 8 | 3.50 |" in text
    first = next(csv.DictReader(io.StringIO(cli("compare", "--experiment", name, "--csv").out)))
    assert (first["scored_cells"], first["cell_composite"]) == ("4", "13.7500")
    assert first["arm"] == f"{first['model']}+{first['prompt']}"
    page = cli("compare", "--experiment", name, "--html", "page.html")
    assert (page.code, "tipbench import --experiment" in page.err) == (2, True)
    assert "tipbench import --experiment" in cli("compare", "--experiment", name).out


def test_what_cannot_be_read_is_named_and_counted(cli: Cli, original: Original) -> None:
    original.create()
    arm = ("qwen2.5:0.5b", "v1")
    older = original.add(*arm, "anna-morning", scores=score(2))
    original.add(*arm, "anna-morning", scores=score(3))
    broken = original.add(
        *arm, "ben-morning", tags={"artifact:candidates.json": '["cut off', "artifact:raw.txt": None}
    )
    original.add(*arm, "anna-evening", tags={"artifact:candidates.json": "[{"})
    nameless = original.log({"judge_pending": "true"}, {"who": "qwen"}, {})
    other = original.add(*arm, "ben-evening", tags={"rubric": "tip-v9"})
    original.log({}, {"model": "m"}, {"loss": 1.0})
    told = cli.ok("import", "--experiment", original.name).out
    assert f"left out, 1 runs: another run of the same cell is newer, or was judged: {older}" in told
    assert f"holds a candidate that can be read: {broken}" in told
    assert "no param names the model and the prompt and the scenario (its params: who)" in told
    assert nameless in told
    assert f"judged by rubric 'tip-v9', and pack 'tip' has 'tip-v1' (give another --pack): {other}" in told
    assert "2 of 2 cells of" in told, "what candidates.json does not hold is cut out of the raw answer"
    assert "scenarios are known by name alone" in told
    board = cli("compare", "--experiment", f"{original.name}-imported", "--json").json()
    assert board["standings"][0]["cell_scores"]["composite"] == 11.0


def test_params_with_other_names_are_found_by_option(cli: Cli, experiment_name: str, mlflow_url: str) -> None:
    original = Original(mlflow_url, experiment_name, "who", "how", "when").create()
    original.add("m", "v1", "anna", scores=score(4))
    refused = cli("import", "--experiment", original.name)
    assert refused.code == 2
    assert "nothing of experiment" in refused.err
    assert "--model-param" in refused.err
    names = ("--model-param", "who", "--prompt-param", "how", "--scenario-param", "when")
    told = cli.ok("import", "--experiment", original.name, *names, "--into", f"{original.name}-x", "--json")
    assert (told.json()["experiment"], told.json()["new_cells"]) == (f"{original.name}-x", 1)
    board = cli("compare", "--experiment", f"{original.name}-x", "--json").json()
    assert [line["name"] for line in board["standings"]] == ["m+v1"]


def test_what_is_judged_later_there_comes_with_the_next_import(cli: Cli, original: Original) -> None:
    original.create()
    run = original.add("m", "v1", "anna")
    original.add("m", "v1", "ben", scores=score(2), judge=("haiku", "claude-haiku"))
    first = cli.ok("import", "--experiment", original.name, "--json").json()
    assert (first["new_cells"], first["new_scores"]) == (2, 1)
    original.judge(run, score(4))
    second = cli.ok("import", "--experiment", original.name, "--json").json()
    assert (second["new_cells"], second["new_scores"]) == (0, 1)
    assert {each["judged_by"] for each in second["sittings"]} == {"claude-code-session", "claude-haiku"}
    board = cli("compare", "--experiment", first["experiment"], "--json").json()
    assert means(board) == {"m+v1": 11.0}
    assert cli.ok("import", "--experiment", original.name, "--json").json()["new_scores"] == 0


def test_scores_of_texts_that_were_generated_again_are_not_given_to_those_that_were_imported(
    cli: Cli, original: Original
) -> None:
    original.create()
    original.add("m", "v1", "anna")
    into = cli.ok("import", "--experiment", original.name, "--json").json()["experiment"]
    original.add("m", "v1", "anna", scores=score(4))
    again = cli.ok("import", "--experiment", original.name, "--json").json()
    assert (again["new_cells"], again["new_scores"]) == (0, 0)
    assert any("1 cells were generated again since" in remark for remark in again["remarks"])
    assert means(cli("compare", "--experiment", into, "--json").json()) == {"m+v1": None}
    anew = cli.ok("import", "--experiment", original.name, "--into", f"{into}-anew", "--json").json()
    assert (anew["new_cells"], anew["new_scores"]) == (1, 1)


def test_a_refused_sitting_takes_its_scores_off_the_board(cli: Cli, original: Original) -> None:
    original.create()
    original.add("m", "v1", "anna", scores=score(4))
    into = cli.ok("import", "--experiment", original.name, "--json").json()
    token = into["sittings"][0]["sitting"]
    cli.ok("judge", "refuse", token, "--experiment", into["experiment"], "--reason", "in a hurry")
    board = cli("compare", "--experiment", into["experiment"], "--json").json()
    assert set(means(board).values()) == {None}


def test_a_scenario_is_shown_as_the_run_kept_it_or_as_the_pack_has_it(cli: Cli, original: Original) -> None:
    original.create()
    context = json.dumps({"persona": "Anna, 30", "tasks": ["sign", "order"], "n_tips": 5, "odd name": "x"})
    original.add("m", "v1", "anna morning!", tags={"artifact:context.json": context})
    original.add("m", "v1", "nurse-morning")
    into = cli.ok("import", "--experiment", original.name, "--json").json()
    assert into["remarks"] == []
    cli.ok("judge", "--experiment", into["experiment"], "--export", "sheet.json")
    shown = [each["values"] for section in sections(Path("sheet.json")) for each in section["scenarios"]]
    assert {"scenario": "anna morning!", "persona": "Anna, 30", "tasks": ["sign", "order"]} in shown
    assert any("Maya" in str(values.get("persona")) for values in shown)


def test_an_import_goes_into_an_experiment_of_its_own(cli: Cli, collected: str, mlflow_url: str) -> None:
    original = Original(mlflow_url, f"{collected}-original").create()
    original.add("m", "v1", "anna", scores=score(4))
    refused = cli("import", "--experiment", original.name, "--into", collected)
    assert (refused.code, "holds something else" in refused.err) == (2, True)
    assert cli("import", "--experiment", original.name, "--into", original.name).code == 2
    own = cli("import", "--experiment", collected)
    assert (own.code, "is tipbench's own" in own.err) == (2, True)
    assert cli("import", "--experiment", "nowhere-at-all").code == 2
    assert "say what to import" in cli("import").err
    taken = Original(mlflow_url, f"{original.name}-imported").create()
    into = cli.ok("import", "--experiment", original.name, "--json").json()["experiment"]
    assert into == f"{taken.name}-2"


def test_no_arm_of_an_import_becomes_champion_with_a_prompt_that_nobody_knows(
    cli: Cli, original: Original
) -> None:
    original.create()
    original.add("m", "v1", "anna", scores=score(4))
    into = cli.ok("import", "--experiment", original.name, "--json").json()["experiment"]
    refused = cli("promote", "--experiment", into, "--initial", "m+v1", "--reason", "first")
    assert (refused.code, "'v1' is not in the pack" in refused.err) == (2, True)


def test_the_pack_decides_about_the_rubric(cli: Cli, original: Original) -> None:
    cli.ok("pack", "new", "mine")
    original.create()
    original.add("m", "v1", "anna", scores=score(4))
    refused = cli("import", "--experiment", original.name, "--pack", "mine")
    assert (refused.code, "give another --pack" in refused.err) == (2, True)
