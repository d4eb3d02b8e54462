"""What the README tells people to type works, and the demo does what it says."""

import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.conftest import Cli, Outcome
from tests.judging.scripted import collect_filled
from tests.promotion.campaign import Campaign
from tests.support.connections import HOSTS, Connections
from tests.support.sheets import judge_soundly
from tipbench.bench.cells import TEXTS_FILE, CellTexts
from tipbench.bench.damage import FACTS_TAG
from tipbench.cli import COMMANDS
from tipbench.cli.demo import Extent, run_demo
from tipbench.clock import make_stamps
from tipbench.judging.sheet import blind_text
from tipbench.portable.export import Exporting
from tipbench.portable.file import open_portable
from tipbench.portable.recorded import CAMPAIGN, NAME
from tipbench.promotion.gate import GateQuestion
from tipbench.records import CellFacts
from tipbench.settings import Settings
from tipbench.tracking import Tracking

README = Path(__file__).parent.parent / "README.md"
CONTRIBUTING = README.with_name("CONTRIBUTING.md")
MAKEFILE = README.with_name("Makefile")


def commands() -> list[list[str]]:
    """The `tipbench` commands of the README's console blocks, in order."""
    blocks = re.findall(r"```console\n(.*?)```", README.read_text(encoding="utf-8"), re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines() if line.startswith("$ tipbench ")]
    return [shlex.split(line.removeprefix("$ tipbench "), comments=True) for line in lines]


def walk(cli: Cli, experiment: str, *, scenarios: int | None = None) -> dict[str, list[Outcome]]:
    """Types what the README says, under a name of our own; a judge fills the sheet in between."""
    done: dict[str, list[Outcome]] = {}
    for words in commands():
        arguments = [experiment if word == "tip-bench-readme" else word for word in words]
        if scenarios and "--n-scenarios" in arguments:
            arguments[arguments.index("--n-scenarios") + 1] = str(scenarios)
        if "--apply" in arguments:
            judge_soundly(Path("sheet.json"))
        done.setdefault(arguments[0], []).append(cli(*arguments))
    assert list(done) == ["models", "collect", "compare", "judge"]
    return done


def codes(outcomes: list[Outcome]) -> list[int]:
    return [outcome.code for outcome in outcomes]


@pytest.mark.timeout(1800)
def test_the_commands_of_the_readme_work(cli: Cli, settings: Settings, experiment_name: str) -> None:
    # Two of its three cells are there: something is to judge, whatever the model writes into the third.
    seeded = Extent(experiment_name, prompts=("v2-mentor", "v3-few-shot"), scenarios=1)
    collect_filled(settings.model_copy(update=seeded.settings))
    done = walk(cli, experiment_name, scenarios=1)
    assert codes(done["models"]) == codes(done["collect"]) == [0]
    assert "1 to generate" in done["collect"][0].out
    assert codes(done["judge"]) == [0, 0]
    # Not judged, then judged on one scenario, which nobody can compute an interval from.
    assert codes(done["compare"]) == [4, 4]


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_commands_of_the_readme_work_as_they_stand_there(cli: Cli, experiment_name: str) -> None:
    done = walk(cli, experiment_name)
    assert "12 to generate" in done["collect"][0].out
    assert codes([*done["models"], *done["collect"], *done["judge"]]) == [0] * 4
    assert done["compare"][0].code == 4
    # Who leads is the model's affair, and so is the last exit code; but everything is judged.
    board = cli("compare", "--experiment", experiment_name, "--json").json()
    assert (board["waiting"], board["judged"]) == (0, board["candidates"])


@pytest.fixture
def recorded(tracking: Tracking, tmp_path: Path) -> Path:
    """The file of a small campaign that was judged and promoted somebody."""
    campaign = Campaign(tracking, tmp_path, {"old": 7.0, "good": 11.0}).collect(champion="old+v1")
    campaign.judge(blocks=4)
    assert campaign.promoting().promote(GateQuestion(campaign.experiment)).outcome == "promoted"
    path = tmp_path / "recorded.tipbench"
    exporting = Exporting(tracking, make_stamps(), lambda _done, _of: None)
    exporting.run(campaign.experiment, path, with_keys=False)
    return path


@pytest.mark.timeout(1800)
def test_the_demo_does_the_main_job_and_shows_a_campaign_that_was_judged(
    cli: Cli,
    settings: Settings,
    experiment_name: str,
    recorded: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """And talks to this machine alone: to MLflow, and to where Ollama would be. The weights are there."""
    # One cell is there: something is to judge, whatever the model writes into the other one.
    seeded = Extent(experiment_name, prompts=("v2-mentor",), scenarios=1)
    collect_filled(settings.model_copy(update=seeded.settings))
    small = Extent(experiment_name, prompts=("v1", "v2-mentor"), scenarios=1, campaign=recorded)
    watch = Connections(tmp_path / "watch")
    program = f"from pathlib import *; from tipbench.cli.demo import *; run_demo({{}}, {small!r})"
    command = watch.traced([sys.executable, "-c", program])
    told = subprocess.run(command, env=watch.environ(), capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    check_demo(told.stdout, small, cells=8)
    assert "Winner: good+v1" in told.stdout
    assert "good+v1 against the champion old+v1" in told.stdout
    assert "Answer: promote" in told.stdout
    page = (cli.home / f"{NAME}.html").read_text(encoding="utf-8")
    assert "said of good+v1 against old+v1: promote" in page
    assert watch.addresses() == {
        ("127.0.0.1", port) for port in (urlsplit(str(settings.mlflow_url)).port, 11434)
    }
    assert watch.names() | {host for _, host in watch.reached()} <= HOSTS
    run_demo({}, small)
    check_demo_again(capsys.readouterr().out)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_the_whole_demo_does_the_main_job_and_shows_a_campaign_that_was_judged(cli: Cli) -> None:
    check_demo(cli.ok("demo").out, Extent(), cells=open_portable(CAMPAIGN).kinds["cell"])
    check_demo_again(cli.ok("demo").out)


def check_demo(printed: str, extent: Extent, *, cells: int) -> None:
    made = len(extent.prompts) * extent.scenarios
    assert f"{made} cells are in experiment '{extent.experiment}'" in printed
    assert f"It comes with the package: {cells} cells and " in printed
    assert "judged blind by coding agent " in printed
    assert f"tipbench compare --experiment {NAME}" in printed
    assert f"{NAME}.html" in printed
    assert "tipbench serve --demo" in printed
    assert re.search(r"The [1-9]\d* tips that were written here wait for a judge", printed)
    assert f"tipbench judge --experiment {extent.experiment} --interactive" in printed
    assert "judged 0 of" not in printed


def check_demo_again(printed: str) -> None:
    assert "0 to generate" in printed
    assert "It was brought in before: " in printed


def test_the_campaign_that_comes_with_the_package_is_whole_small_and_judged() -> None:
    file = open_portable(CAMPAIGN)
    assert CAMPAIGN.stat().st_size <= 1_000_000
    assert file.kinds["cell"] >= 12
    assert file.kinds["sitting"] >= 2
    assert file.kinds["promotion"] >= 1, "without a first champion the demo has no gate to ask"
    words = [text for run in file.runs() for text in (*run.tags.values(), *run.files.values())]
    place = re.compile(r"/(?:home|root|tmp|Users)/|/[^\s\"']+\.gguf|127\.0\.0\.1|localhost")
    assert [text[:200] for text in words if place.search(text)] == []


def test_no_tip_of_that_campaign_tells_a_judge_who_wrote_it() -> None:
    cells = [run for run in open_portable(CAMPAIGN).runs() if run.kind == "cell"]
    facts = [CellFacts.model_validate_json(run.tags[FACTS_TAG]) for run in cells]
    names = {each.model for each in facts} | {each.prompt for each in facts if len(each.prompt) > 3}
    stored = (CellTexts.model_validate_json(run.files[TEXTS_FILE]) for run in cells)
    shown = [blind_text(each.text, names) for texts in stored for each in texts.candidates if each.text]
    assert len(shown) >= 200
    telling = re.compile("|".join(map(re.escape, names)), re.IGNORECASE)
    assert [text for text in shown if telling.search(text)] == []


def test_the_readme_names_every_command_and_is_short() -> None:
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 120
    for name in COMMANDS:
        assert f"`tipbench {name}" in text


def test_every_file_and_target_that_the_documents_name_exists() -> None:
    for document in (README, CONTRIBUTING):
        for link in re.findall(r"\]\(([^)#]+)\)", document.read_text(encoding="utf-8")):
            assert (README.parent / link).exists(), f"{document.name} links to {link}"
    targets = set(re.findall(r"^([a-z-]+):", MAKEFILE.read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)`", CONTRIBUTING.read_text() + README.read_text()))
    assert named <= targets
