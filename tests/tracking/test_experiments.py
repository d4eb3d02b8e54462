"""Experiments are made once and found by name."""

import threading

import pytest

from tests.support.official import MlflowClient
from tests.tracking.writing import make_write
from tipbench.errors import ExperimentNotFound, TrackingRefused
from tipbench.settings import Settings
from tipbench.tracking import Experiment, Tracking, open_tracking, search_runs
from tipbench.tracking.client import Rest


def test_an_experiment_is_made_once_and_keeps_its_id(tracking: Tracking, experiment_name: str) -> None:
    first = tracking.ensure_experiment(experiment_name)
    assert first.uid
    assert tracking.ensure_experiment(experiment_name) == first
    assert tracking.find_experiment(experiment_name) == first
    assert first in tracking.list_experiments()


def test_eight_at_once_make_one_experiment(settings: Settings, experiment_name: str) -> None:
    found: list[Experiment] = []

    def ensure() -> None:
        with open_tracking(settings) as tracking:
            found.append(tracking.ensure_experiment(experiment_name))

    threads = [threading.Thread(target=ensure) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len({(each.id, each.uid) for each in found}) == 1


def test_a_name_may_hold_quotes_spaces_and_letters_of_any_script(
    tracking: Tracking, experiment_name: str
) -> None:
    name = f'{experiment_name} it\'s "größer" & 日本/+%20?'
    assert tracking.ensure_experiment(name).name == name
    assert tracking.find_experiment(name).name == name


def test_the_public_search_takes_a_filter_and_reads_experiments_of_others(
    tracking: Tracking, experiment_name: str, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TIPBENCH_HOME", str(settings.home))
    client = MlflowClient(tracking_uri=tracking.url)
    theirs = client.create_experiment(experiment_name)
    for number in range(3):
        run = client.create_run(theirs, tags={"kind": "odd" if number % 2 else "even"})
        client.log_metric(run.info.run_id, "score", float("nan") if number == 2 else number)
    found = search_runs(experiment_name, tracking.url)
    assert len(found) == 3
    assert sorted(run.metrics["score"] for run in found)[:2] == [0.0, 1.0]
    (odd,) = search_runs(experiment_name, tracking.url, filter="tags.kind = 'odd' and metrics.score > 0")
    assert (odd.tags["kind"], odd.metrics["score"]) == ("odd", 1.0)
    with pytest.raises(TrackingRefused):
        search_runs(experiment_name, tracking.url, filter="this is no filter")
    with pytest.raises(ExperimentNotFound, match="does not exist"):
        search_runs(f"{experiment_name}-none", tracking.url)
    assert client.get_experiment(theirs).tags.get("tipbench.experiment") is None, "it was only read"


def test_an_unknown_experiment_is_refused_with_similar_names(
    tracking: Tracking, experiment: Experiment
) -> None:
    with pytest.raises(ExperimentNotFound, match="does not exist") as caught:
        tracking.find_experiment(experiment.name[:-1])
    assert experiment.name in caught.value.hint


def test_an_experiment_of_others_holds_nothing_of_ours_until_something_is_stored(
    tracking: Tracking, experiment_name: str
) -> None:
    rest = Rest(tracking.url)
    rest.tell("experiments/create", {"name": experiment_name})
    rest.close()
    with pytest.raises(ExperimentNotFound, match="holds nothing of tipbench"):
        tracking.find_experiment(experiment_name)
    assert tracking.ensure_experiment(experiment_name).uid


def test_a_deleted_experiment_is_named_with_the_way_to_restore_it(
    tracking: Tracking, experiment: Experiment
) -> None:
    rest = Rest(tracking.url)
    rest.tell("experiments/delete", {"experiment_id": experiment.id})
    rest.close()
    for look_up in (tracking.ensure_experiment, tracking.find_experiment):
        with pytest.raises(TrackingRefused, match="was deleted in MLflow") as caught:
            look_up(experiment.name)
        assert f"restore -x {experiment.id}" in caught.value.hint


def test_of_twelve_claims_at_once_one_wins(tracking: Tracking, experiment: Experiment) -> None:
    for n in range(5):
        run_id = tracking.deliver(make_write(experiment, artifacts={}))
        winners: list[str] = []
        start = threading.Barrier(12)

        def claim(value: str, run_id: str = run_id, start: threading.Barrier = start) -> None:
            start.wait()
            winners.append(tracking.claim(run_id, "successor", value))  # noqa: B023

        threads = [threading.Thread(target=claim, args=(f"{n}-{k}",)) for k in range(12)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(winners) == 12
        assert len(set(winners)) == 1
        assert tracking.read_run(run_id).params["successor"] == winners[0]


def test_a_claim_repeated_by_its_winner_still_stands(tracking: Tracking, experiment: Experiment) -> None:
    run_id = tracking.deliver(make_write(experiment, artifacts={}))
    assert tracking.claim(run_id, "closed", "mine") == "mine"
    assert tracking.claim(run_id, "closed", "mine") == "mine"
    assert tracking.claim(run_id, "closed", "theirs") == "mine"
    (run,) = tracking.read_runs(experiment)
    assert run.params["closed"] == "mine"


def test_a_claim_on_a_run_that_is_not_there_is_refused(tracking: Tracking, experiment: Experiment) -> None:
    with pytest.raises(TrackingRefused, match="not found"):
        tracking.claim("0" * 32, "closed", "mine")
    run_id = tracking.deliver(make_write(experiment, artifacts={}))
    tracking.delete_run(run_id)
    with pytest.raises(TrackingRefused, match="deleted"):
        tracking.claim(run_id, "closed", "mine")
