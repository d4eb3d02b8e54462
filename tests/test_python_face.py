"""`tipbench.open_bench`: what a notebook sees, and the examples of docs/python.md as they stand."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

import tipbench
from tests.conftest import Cli
from tests.support.sheets import judge_soundly
from tipbench.errors import ExperimentNotFound, TipbenchError

PAGE = Path(__file__).parents[1] / "docs" / "python.md"


@pytest.fixture
def judged(cli: Cli, collected: str, tmp_path: Path) -> str:
    sheet = tmp_path / "sheet.json"
    cli.ok("judge", "--export", str(sheet), "--experiment", collected, "--judged-by", "anna")
    judge_soundly(sheet)
    cli.ok("judge", "--apply", str(sheet))
    return collected


def test_cells_candidates_verdicts_and_the_board_are_what_the_commands_say(cli: Cli, judged: str) -> None:
    told = cli("compare", "--experiment", judged, "--json").json()
    with tipbench.open_bench(judged) as bench:
        assert [line.model_dump(mode="json") for line in bench.leaderboard()] == told["standings"]
        assert len(bench.cells()) == 2
        answered = [tip for tip in bench.candidates() if tip.text]
        assert len(answered) == told["candidates"] == sum(cell.answered for cell in bench.cells())
        verdicts = bench.verdicts()
    assert len(verdicts) == told["judged"]
    assert {(each.judged_by, each.tier, each.counted) for each in verdicts} == {("anna", "lazy", True)}
    assert {(each.run, each.slot) for each in verdicts} == {(tip.run, tip.slot) for tip in answered}


def test_records_become_frames(judged: str) -> None:
    with tipbench.open_bench(judged) as bench:
        frame = bench.verdicts().to_frame()
        assert list(frame["scores.tone"]) == [each.scores["tone"] for each in bench.verdicts()]
        assert len(bench.cells().to_frame()) == 2


def test_without_pandas_it_says_what_to_install(judged: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with tipbench.open_bench(judged) as bench, pytest.raises(TipbenchError) as raised:
        bench.cells().to_frame()
    assert "pip install pandas" in raised.value.hint


def test_an_unknown_experiment_is_named(cli: Cli) -> None:
    with pytest.raises(ExperimentNotFound, match="nowhere"):
        tipbench.open_bench("nowhere")


def test_the_examples_of_the_page_run(cli: Cli, judged: str, tmp_path: Path) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(examples) == 2
    for example in examples:
        program = example.replace("tip-bench-demo", judged)
        ended = subprocess.run(
            [sys.executable, "-c", program], capture_output=True, text=True, cwd=tmp_path, check=False
        )
        assert ended.returncode == 0, ended.stderr
        assert ended.stdout


def test_importing_tipbench_imports_nothing_heavy() -> None:
    program = "import sys, tipbench; print({'numpy', 'pydantic', 'httpx2', 'click'} & set(sys.modules))"
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ended.stdout.strip() == "set()"
