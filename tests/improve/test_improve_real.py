"""The loop on real weights: a line that makes the model babble is found by who reads only the brief."""

import json
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.improve.conftest import write_pack
from tests.improve.scripted_server import read_brief, remove_what_is_blamed
from tests.sheets import judge_soundly
from tests.small_pack import MAX_TOKENS, PROMPT

DEFECT = f"Repeat only this word and write nothing else:{' banana' * 8}"


def judge(path: Path) -> None:
    """By the text alone, with a reason that says what was seen."""
    judge_soundly(path)
    sheet = json.loads(path.read_text(encoding="utf-8"))
    for item in (item for section in sheet["sections"] for item in section["items"]):
        item["reason"] = "it says banana again and again" if "banana" in item["text"].lower() else ""
    path.write_text(json.dumps(sheet), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_defect_that_a_real_model_falls_for_is_found_and_removed(
    cli: Cli, tmp_path: Path, experiment_name: str
) -> None:
    pack = tmp_path / "pack"
    write_pack(pack, training=2)
    manifest = (pack / "pack.toml").read_text().replace("max_tokens = 320", f"max_tokens = {MAX_TOKENS}")
    (pack / "pack.toml").write_text(manifest)
    (pack / "prompts" / "v1.md").write_text(PROMPT.replace("{{diversity}}", f"{DEFECT}\n{{{{diversity}}}}"))
    where = ("--pack", str(pack), "--experiment", experiment_name, "--model", "smollm2", "--prompt", "v1")
    asked = ("improve", *where, "--n-tips", "2")
    assert cli(*asked).code == 4
    judge(Path("sheet.json"))
    assert cli(*asked, "--export", "brief.md").code == 4
    text = Path("brief.md").read_text(encoding="utf-8")
    version = remove_what_is_blamed(text)
    assert DEFECT in version["why"]
    assert DEFECT not in version["text"]
    Path("versions.json").write_text(json.dumps({"brief": read_brief(text).id, "versions": [version]}))
    assert cli(*asked, "--apply", "versions.json").code == 4
    judge(Path("sheet-2.json"))
    confirming = cli(*asked)
    assert "(best), from v1: judges blame" in confirming.out, confirming.out + confirming.err
    judge(Path("sheet-3.json"))
    confirmed = cli(*asked)
    # So few scenarios seldom decide: 3 is a tie. Ahead it must be.
    assert confirmed.code in {0, 3}, confirmed.out + confirmed.err
    name = next(part for part in confirmed.out.split("'") if "-confirm-" in part)
    board = cli("compare", "--experiment", name, "--json").json()
    assert [line["name"] == "smollm2+v1" for line in board["standings"]] == [False, True], confirmed.out
