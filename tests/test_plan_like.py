"""The plan of an experiment that is like an earlier one, on the real store."""

from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.judging.scripted import collect_filled
from tests.support.sheets import judge_soundly
from tests.support.small_pack import PROMPT, write_small_pack
from tipbench.bench.bench import open_bench
from tipbench.clock import make_stamps
from tipbench.ranking.compare import read_cell_variance
from tipbench.settings import Settings
from tipbench.stats import Design, SilentJudge, smallest_difference
from tipbench.tracking import Tracking


@pytest.fixture
def judged(cli: Cli, settings: Settings, tmp_path: Path, experiment_name: str) -> str:
    """An experiment of two arms and three scenarios with every slot filled and every candidate judged."""
    pack = write_small_pack(tmp_path / "pack", scenarios=3)
    (pack / "prompts" / "v2.md").write_text(PROMPT + "Be brief.\n", encoding="utf-8")
    asked = {"models": "smollm2", "prompts": "v1,v2", "n_tips": 2, "pack": str(pack)}
    collect_filled(settings.model_copy(update=asked | {"home": cli.home, "experiment": experiment_name}))
    cli.ok("judge", "--experiment", experiment_name, "--export", "sheet.json")
    judge_soundly(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    return experiment_name


def test_the_variance_is_taken_from_the_earlier_experiment(cli: Cli, judged: str, tracking: Tracking) -> None:
    design = ("collect", "plan", "--models", "a,b", "--prompts", "p,q", "--scenarios", "20")
    seen = read_cell_variance(open_bench(tracking, judged, stamps=make_stamps()))
    assert seen.per_cell == 2.0
    output = cli.ok(*design, "--like", judged).out
    lead = smallest_difference(Design(4, 20, 2), variance=seen.variance, auto=SilentJudge())
    assert f" 160 {lead:.2f} " in " ".join(output.split())
    assert (
        f"that of the earlier experiment: {seen.variance:.2f} with 2 verdicts a cell; σ 1.1, assumed"
        in output
    )
    assert "the usual one (σ 1.1, assumed)" in " ".join(cli.ok(*design).out.split())


def test_an_experiment_without_verdicts_is_refused(cli: Cli, collected: str) -> None:
    outcome = cli("collect", "plan", "--like", collected)
    assert outcome.code == 2
    assert "does not say yet how much its cells vary" in outcome.err
    assert "usual variance" in outcome.err


def test_an_experiment_that_is_not_there_is_refused(cli: Cli) -> None:
    assert cli("collect", "plan", "--like", "never-made").code == 2
