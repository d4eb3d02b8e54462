"""The loop on real weights: a line that makes the model babble is found by who reads only the brief."""

import json
import shlex
from pathlib import Path

import pytest

from tests.conftest import Cli, Outcome
from tests.improve.conftest import write_pack
from tests.improve.scripted_server import read_brief, remove_what_is_blamed
from tests.support.sheets import judge_soundly
from tests.support.small_pack import MAX_TOKENS, PROMPT

DEFECT = f"Repeat only this word and write nothing else:{' banana' * 8}"


def judge(path: Path) -> None:
    """By the text alone, with a reason that says what was seen."""
    judge_soundly(path)
    sheet = json.loads(path.read_text(encoding="utf-8"))
    for item in (item for section in sheet["sections"] for item in section["items"]):
        item["reason"] = "it says banana again and again" if "banana" in item["text"].lower() else ""
    path.write_text(json.dumps(sheet), encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_defect_that_a_real_model_falls_for_is_found_removed_and_confirmed(
    cli: Cli, tmp_path: Path, experiment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "lazy")
    # How long the model babbles says nothing, and the machine is busy.
    monkeypatch.setenv("TIPBENCH_GATE_LATENCY_RATIO", "1000")
    pack = tmp_path / "pack"
    name = write_pack(pack, training=2, confirming=8)
    manifest = (pack / "pack.toml").read_text().replace("max_tokens = 320", f"max_tokens = {MAX_TOKENS}")
    (pack / "pack.toml").write_text(manifest)
    (pack / "prompts" / "v1.md").write_text(PROMPT.replace("{{diversity}}", f"{DEFECT}\n{{{{diversity}}}}"))
    start = ("--pack", str(pack), "--experiment", f"{experiment_name}-start")
    asked_first = ("--models", "smollm2", "--prompts", "v1", "--n-tips", "2", "--n-scenarios", "2")
    cli.ok("collect", *start, *asked_first)
    cli.ok("promote", *start[2:], "--initial", "smollm2+v1", "--reason", "in use")
    asked = ("improve", "--pack", str(pack), "--experiment", experiment_name)
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
    confirmed = go_on(cli, asked, confirming)
    assert confirmed.code == 0, confirmed.out + confirmed.err
    assert "better than the champion smollm2+v1" in confirmed.out
    command = next(line for line in confirmed.out.splitlines() if "tipbench promote" in line)
    cli.ok(*shlex.split(command)[1:])
    assert DEFECT not in cli.ok("champion", "--pack", name, "--json").json()["template"]


def go_on(cli: Cli, asked: tuple[str, ...], outcome: Outcome) -> Outcome:
    """The command again, judged in between, until it wants no more verdicts."""
    for number in range(3, 9):
        if "Verdicts are needed" not in outcome.out:
            break
        judge(Path(f"sheet-{number}.json"))
        outcome = cli(*asked)
    return outcome
