"""`collect retire`: one content of any kind leaves the comparison, is still there, and comes back."""

import re

import pytest

from tests.conftest import Cli
from tipbench.bench.cells import read_cells
from tipbench.settings import Settings
from tipbench.tracking import open_tracking


def known(cli: Cli, experiment: str, kind: str) -> list[str]:
    """The contents of this kind that the experiment has, as the command itself lists them."""
    refused = cli("collect", "retire", "--experiment", experiment, f"--{kind}", "nothing@0")
    assert refused.code == 2, refused.err
    found = re.search(r"of these: (.*)", refused.err)
    assert found is not None
    return found[1].split(", ")


def retired(cli: Cli, url: str, experiment: str) -> dict[str, str]:
    """Scenario → what its cell was retired for."""
    with open_tracking(Settings(home=cli.home, mlflow_url=url)) as tracking:
        cells = read_cells(tracking.read_runs(tracking.find_experiment(experiment)))
    return {cell.facts.scenario: cell.run.tags.get("tipbench.retired", "") for cell in cells}


def test_cells_of_a_scenario_are_retired_and_taken_back(cli: Cli, collected: str, mlflow_url: str) -> None:
    gone, kept = known(cli, collected, "scenario")
    told = cli.ok("collect", "retire", "--experiment", collected, "--scenario", gone)
    assert f"retired 1 cells with scenario {gone}; nothing was deleted" in told.out
    marks = retired(cli, mlflow_url, collected)
    assert marks == {gone.partition("@")[0]: f"scenario {gone}", kept.partition("@")[0]: ""}
    status = cli.ok("judge", "status", "--experiment", collected, "--json").json()
    assert status["cells"] == 1
    cli.ok("collect", "retire", "--experiment", collected, "--scenario", gone, "--undo")
    assert set(retired(cli, mlflow_url, collected).values()) == {""}
    assert cli.ok("judge", "status", "--experiment", collected, "--json").json()["cells"] == 2


def test_cells_of_a_model_a_rubric_or_options_are_retired(cli: Cli, collected: str, mlflow_url: str) -> None:
    """All cells of the experiment share each of these: all go, and all come back."""
    (model,) = known(cli, collected, "model")
    cli.ok("collect", "retire", "--experiment", collected, "--model", model)
    assert set(retired(cli, mlflow_url, collected).values()) == {f"model {model}"}
    cli.ok("collect", "retire", "--experiment", collected, "--model", model, "--undo")
    (rubric,) = known(cli, collected, "rubric")
    cli.ok("collect", "retire", "--experiment", collected, "--rubric", rubric)
    assert set(retired(cli, mlflow_url, collected).values()) == {f"rubric {rubric}"}
    cli.ok("collect", "retire", "--experiment", collected, "--rubric", rubric, "--undo")
    (options,) = known(cli, collected, "options")
    cli.ok("collect", "retire", "--experiment", collected, "--options", options)
    assert set(retired(cli, mlflow_url, collected).values()) == {f"options {options}"}
    assert cli.ok("judge", "status", "--experiment", collected, "--json").json()["cells"] == 0
    cli.ok("collect", "retire", "--experiment", collected, "--options", options, "--undo")
    assert set(retired(cli, mlflow_url, collected).values()) == {""}


@pytest.mark.parametrize("given", [(), ("--model", "a@1", "--rubric", "b@2")])
def test_it_takes_exactly_one_kind(cli: Cli, collected: str, given: tuple[str, ...]) -> None:
    refused = cli("collect", "retire", "--experiment", collected, *given)
    assert (refused.code, "exactly one of --model" in refused.err) == (2, True), refused.err
