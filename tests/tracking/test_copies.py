"""A copy that the tests make inside the server's database is what the product writes."""

from pathlib import Path

from mlflow import MlflowClient

from tests.conftest import Cli
from tests.support.experiments import SMALL
from tests.support.official import MEASURED, read_facts

OF_ITS_OWN = {"tipbench.attempt", "tipbench.reused_from"}


def read_all(url: str, experiment: str) -> list[object]:
    """Every run with all that hangs on it but ids and times; what `collect` copies says so in a tag."""
    client = MlflowClient(tracking_uri=url)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = client.search_runs([found.experiment_id])
    assert {str(run.info.artifact_uri).split(run.info.run_id)[0] for run in runs} == {
        f"{found.artifact_location}/"
    }
    return sorted(
        (
            (
                run.info.run_name, run.info.status, sorted(run.data.params.items()),
                sorted((k, v) for k, v in run.data.metrics.items() if k not in MEASURED),
                sorted((k, v) for k, v in run.data.tags.items() if k not in OF_ITS_OWN),
            )
            for run in runs
        ),
        key=repr,
    )  # fmt: skip


def test_a_copy_in_the_database_is_what_reuse_writes(
    cli: Cli, collected: str, base: tuple[str, Path], mlflow_url: str
) -> None:
    reused = f"{collected}-reused"
    cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", reused, "--reuse-from", base[0])
    assert len(read_all(mlflow_url, collected)) == 3
    assert read_all(mlflow_url, collected) == read_all(mlflow_url, reused)
    assert read_facts(mlflow_url, collected) == read_facts(mlflow_url, reused)


def test_a_copy_is_a_new_experiment_for_every_cache(cli: Cli, collected: str, base: tuple[str, Path]) -> None:
    boards = [cli("compare", "--experiment", name, "--json").json() for name in (collected, base[0])]
    for board in boards:
        board.pop("experiment")
    assert boards[0] == boards[1]
