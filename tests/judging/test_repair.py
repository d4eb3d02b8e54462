"""Repair: whatever somebody did to the views, they say again what the verdicts say."""

from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.support.experiments import SMALL
from tests.support.official import MlflowClient, Run, read_facts
from tests.support.sheets import fill, hand_out

SCORES = ("relevance", "actionability", "tone", "format_ok", "overlong", "composite")


@pytest.fixture
def client(mlflow_url: str) -> MlflowClient:
    return MlflowClient(tracking_uri=mlflow_url)


def cells_of(client: MlflowClient, experiment: str) -> list[Run]:
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    return list(client.search_runs([found.experiment_id], "tags.`tipbench.kind` = 'cell'"))


def judge(cli: Cli, experiment: str, *, blocks: int | None = None) -> None:
    if blocks is None:
        cli.ok("judge", "--experiment", experiment, "--export", "sheet.json")
    else:
        hand_out(Path("sheet.json"), experiment, blocks=blocks)
    fill(Path("sheet.json"), score=4)
    cli.ok("judge", "--apply", "sheet.json")


def repair(cli: Cli, experiment: str, *more: str) -> Any:
    (told,) = cli.ok("mlflow", "repair", "--experiment", experiment, "--json", *more).json()
    return told


def views_of(run: Run) -> tuple[list[str | None], list[float | None]]:
    tags = [run.data.tags.get(name) for name in ("judge_pending", "judged_at", "judged_by")]
    return tags, [run.data.metrics.get(name) for name in SCORES]


def test_vandalised_views_are_rebuilt_and_nothing_else_changes(
    cli: Cli, collected: str, client: MlflowClient, mlflow_url: str
) -> None:
    judge(cli, collected)
    before = read_facts(mlflow_url, collected)
    views = {run.info.run_id: views_of(run) for run in cells_of(client, collected)}
    assert repair(cli, collected)["changes"] == []
    first, second = views
    client.delete_tag(first, "judge_pending")
    client.delete_tag(first, "judged_at")
    client.set_tag(first, "judged_by", "nobody")
    client.log_metric(first, "composite", 99.0)
    client.set_tag(second, "judge_pending", "true")
    # MLflow shows the point with the largest step and the latest time: neither may keep the truth away.
    client.log_metric(second, "tone", 5.5, step=7)
    client.log_metric(second, "relevance", 0.5, timestamp=4_000_000_000_000)
    vandalised = read_facts(mlflow_url, collected)
    assert vandalised != before

    listed = repair(cli, collected, "--dry-run")
    assert read_facts(mlflow_url, collected) == vandalised, "a dry run changes nothing"
    names = sorted((change["run_id"], change["name"]) for change in listed["changes"])
    assert names == sorted(
        [(first, name) for name in ("judge_pending", "judged_at", "judged_by", "composite")]
        + [(second, name) for name in ("judge_pending", "tone", "relevance")]
    )
    assert repair(cli, collected)["changes"] == listed["changes"]
    assert {run.info.run_id: views_of(run) for run in cells_of(client, collected)} == views
    assert read_facts(mlflow_url, collected) == before
    again = repair(cli, collected)
    assert (again["changes"], again["left"], again["cells"]) == ([], [], 2)


def test_a_cell_nobody_judged_waits_again_and_a_stray_score_is_named(
    cli: Cli, collected: str, client: MlflowClient, mlflow_url: str
) -> None:
    before = read_facts(mlflow_url, collected)
    run_id = cells_of(client, collected)[0].info.run_id
    client.set_tag(run_id, "judge_pending", "false")
    client.set_tag(run_id, "judged_by", "a ghost")
    assert len(repair(cli, collected)["changes"]) == 2
    assert read_facts(mlflow_url, collected) == before
    client.log_metric(run_id, "composite", 3.0)
    told = repair(cli, collected)
    assert told["changes"] == []
    assert [(left["run_id"], left["name"], left["was"]) for left in told["left"]] == [
        (run_id, "composite", "3.0")
    ]
    assert "MLflow deletes no metric" in cli.ok("mlflow", "repair", "--experiment", collected).out


def test_a_closed_experiment_is_not_made_to_wait(
    cli: Cli, collected: str, client: MlflowClient, mlflow_url: str
) -> None:
    judge(cli, collected, blocks=1)
    cli.ok("judge", "close", "--experiment", collected, "--reason", "enough")
    before = read_facts(mlflow_url, collected)
    for run in cells_of(client, collected):
        client.set_tag(run.info.run_id, "judge_pending", "true")
    assert {change["now"] for change in repair(cli, collected)["changes"]} == {"false"}
    assert read_facts(mlflow_url, collected) == before


def test_a_retired_cell_waits_for_nobody_and_keeps_its_scores(
    cli: Cli, collected: str, client: MlflowClient, mlflow_url: str
) -> None:
    judge(cli, collected)
    hint = cli("collect", "retire", "--experiment", collected, "--prompt", "v1@nothing").err
    cli.ok("collect", "retire", "--experiment", collected, "--prompt", hint.strip().rpartition(" ")[2])
    before = read_facts(mlflow_url, collected)
    told = repair(cli, collected)
    assert (told["changes"], told["left"]) == ([], [])
    client.set_tag(cells_of(client, collected)[0].info.run_id, "judge_pending", "true")
    assert len(repair(cli, collected)["changes"]) == 1
    assert read_facts(mlflow_url, collected) == before


def test_without_an_experiment_all_are_repaired(cli: Cli, collected: str, client: MlflowClient) -> None:
    run_id = cells_of(client, collected)[0].info.run_id
    client.delete_tag(run_id, "judge_pending")
    # Other tests leave broken experiments on the same server: they are named and keep nobody up.
    told = cli("mlflow", "repair", "--dry-run").out
    assert f"{collected}: would change 1 values on 1 of 2 cells" in told
    assert run_id in told
    assert len(told.splitlines()) > 5
    assert cli("mlflow", "repair", "--experiment", "no-such-experiment").code == 2


def test_an_experiment_of_a_newer_tipbench_keeps_no_other_from_being_repaired(
    cli: Cli, collected: str, base: tuple[str, Path], client: MlflowClient
) -> None:
    # "a-newer" comes before "test-…".
    newer = f"a-newer-{collected}"
    cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", newer, "--reuse-from", base[0])
    for name in (newer, collected):
        client.delete_tag(cells_of(client, name)[0].info.run_id, "judge_pending")
    client.set_tag(cells_of(client, newer)[0].info.run_id, "tipbench.schema", "999")
    told = cli("mlflow", "repair", "--dry-run")
    assert f"{collected}: would change 1 values on 1 of 2 cells" in told.out
    assert f"{newer}: " in told.err
    alone = cli("mlflow", "repair", "--experiment", newer)
    assert alone.code != 0
    assert "999" in alone.err
