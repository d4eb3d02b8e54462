"""The loop on real weights: a prompt that forgot the tasks gets them back by who reads the brief."""

import json
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.improve.conftest import write_pack
from tests.improve.scripted_server import read_brief
from tests.sheets import judge_soundly
from tests.small_pack import MAX_TOKENS, PROMPT

FORGETFUL = PROMPT.replace("Open tasks:\n{{tasks}}\n\n", "")


def use_what_is_there(text: str) -> dict[str, str]:
    """A writer: whatever the prompt may use and does not goes on top of it."""
    brief = read_brief(text)
    missing = sorted(name for name in brief.allowed if f"{{{{{name}}}}}" not in brief.prompt)
    assert "tasks" in missing
    return {"why": "it speaks of nothing of theirs", "text": f"Open tasks:\n{{{{tasks}}}}\n\n{brief.prompt}"}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_real_model_is_told_what_its_prompt_forgot(
    cli: Cli, tmp_path: Path, experiment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert FORGETFUL != PROMPT
    monkeypatch.setenv("TIPBENCH_GATE_REQUIRE", "lazy")
    pack = tmp_path / "pack"
    write_pack(pack, training=2)
    manifest = (pack / "pack.toml").read_text().replace("max_tokens = 320", f"max_tokens = {MAX_TOKENS}")
    (pack / "pack.toml").write_text(manifest)
    (pack / "prompts" / "v1.md").write_text(FORGETFUL)
    where = ("--pack", str(pack), "--experiment", experiment_name, "--model", "smollm2", "--prompt", "v1")
    asked = ("improve", *where, "--n-tips", "2")
    for more in ((), ("--export", "brief.md")):
        outcome = cli(*asked, *more)
        assert outcome.code == 4, outcome.out + outcome.err
        for sheet in Path().glob("sheet.json"):
            judge_soundly(sheet)
    text = Path("brief.md").read_text(encoding="utf-8")
    versions = {"brief": read_brief(text).id, "versions": [use_what_is_there(text)]}
    Path("versions.json").write_text(json.dumps(versions))
    assert cli(*asked, "--apply", "versions.json").code == 4
    judge_soundly(Path("sheet-2.json"))
    confirming = cli(*asked)
    assert "(best), from v1: it speaks of nothing of theirs" in confirming.out, confirming.out
    judge_soundly(Path("sheet-3.json"))
    confirmed = cli(*asked)
    assert confirmed.code in {0, 3}, confirmed.out + confirmed.err
    name = next(line for line in confirmed.out.split("'") if "-confirm-" in line)
    board = cli("compare", "--experiment", name, "--json").json()
    assert board["standings"][0]["name"] != "smollm2+v1"
    assert board["standings"][0]["verdicts"] >= 4
