"""What is written arrives, once, and both we and the official client read it back."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy, Plan, kind_of
from tests.tracking.writing import TEXTS, impatient, make_write
from tipbench.errors import TrackingRefused, TrackingUnavailable
from tipbench.tracking import Experiment, Tracking, Write


def test_a_delivered_write_is_read_back_as_it_was_given(tracking: Tracking, experiment: Experiment) -> None:
    run_id = tracking.deliver(make_write(experiment))
    (run,) = tracking.read_runs(experiment)
    assert run.run_id == run_id
    assert (run.name, run.status, run.start_time) == ("model · v1 · s1", "FINISHED", 1_700_000_000_000)
    assert run.tags["tipbench.state"] == "complete"
    assert run.tags["tipbench.schema"] == "1"
    assert run.params == {"model": "m", "empty": ""}
    assert run.metrics["latency_seconds"] == 0.25
    assert {path: tracking.read_artifact(run, path) for path in TEXTS} == TEXTS


def test_the_official_client_reads_what_we_wrote(
    tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    import mlflow  # the official client is an oracle here; the package itself never imports it

    run_id = tracking.deliver(make_write(experiment))
    client = mlflow.MlflowClient(tracking.url)
    run = client.get_run(run_id)
    assert run.info.status == "FINISHED"
    assert run.data.params == {"model": "m", "empty": ""}
    assert run.data.tags["judge_pending"] == "true"
    path = client.download_artifacts(run_id, "candidates.json", str(tmp_path))
    assert Path(path).read_text(encoding="utf-8") == TEXTS["candidates.json"]


def test_submitted_writes_arrive_in_the_background_and_leave_no_journal(
    tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    for _ in range(12):
        tracking.submit(make_write(experiment, artifacts={}))
    delivery = tracking.flush()
    assert (delivery.delivered, delivery.left_in_journal, delivery.refused) == (12, 0, ())
    assert len(tracking.read_runs(experiment)) == 12
    assert list((tmp_path / "home" / "journal").rglob("*.jsonl")) == []


def test_writes_of_one_run_keep_their_order(tracking: Tracking, experiment: Experiment) -> None:
    run_id = tracking.deliver(make_write(experiment))
    for n in range(20):
        tracking.submit(
            make_write(experiment, run_id=run_id, artifacts={"n.txt": str(n)}, params={}, tags={"n": str(n)})
        )
    assert tracking.flush().delivered == 20
    (run,) = tracking.read_runs(experiment)
    assert run.tags["n"] == "19"
    assert tracking.read_artifact(run, "n.txt") == "19"


def test_a_refused_write_is_set_aside_and_the_rest_goes_on(
    tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    run_id = tracking.deliver(make_write(experiment))
    changed = make_write(experiment, run_id=run_id, params={"model": "another"})
    tracking.submit(changed)
    tracking.submit(make_write(experiment))
    delivery = tracking.flush()
    assert (delivery.delivered, delivery.left_in_journal) == (1, 0)
    ((attempt, message),) = delivery.refused
    assert attempt == changed.attempt
    assert "Changing param values is not allowed" in message
    (kept,) = (tmp_path / "home" / "journal").rglob(f"refused/{attempt}.json")
    assert json.loads(kept.read_text(encoding="utf-8"))["write"]["params"] == {"model": "another"}
    with pytest.raises(TrackingRefused, match="Changing param values"):
        tracking.deliver(make_write(experiment, run_id=run_id, params={"model": "third"}))


@pytest.mark.parametrize(
    ("more", "named"),
    [
        ({"params": {"p": "x" * 6_001}}, r"param 'p' has 6,001 characters"),
        ({"tags": {"t": "x" * 8_001}}, r"tag 't' has 8,001 characters"),
        ({"tags_at_create": {"t": "x" * 8_001}}, r"tag 't' has 8,001 characters"),
        ({"metrics": {"m": float("nan")}}, r"metric 'm' is nan"),
        ({"metrics": {"m": float("inf")}}, r"metric 'm' is inf"),
        ({"metrics": {"touched": 1.0}}, r"'touched' is stamped at delivery"),
        ({"params": {f"p{n}": "" for n in range(101)}}, r"101 params, at most 100"),
        ({"tags": {f"t{n}": "" for n in range(101)}}, r"101 tags, at most 100"),
        ({"artifacts": {"früh.txt": ""}}, r"not a plain relative ASCII path"),
        ({"artifacts": {"a/../b": ""}}, r"not a plain relative ASCII path"),
        ({"run_name": "x" * 251}, r"run name has 251 characters"),
        ({"attempt": "it's"}, r"attempt id"),
        ({"tags": {"a'b`": ""}}, r"key \"a'b`\""),
    ],
)
def test_what_mlflow_would_cut_or_refuse_is_named_before_anything_is_sent(
    tracking: Tracking, experiment: Experiment, more: dict[str, object], named: str
) -> None:
    with pytest.raises(TrackingRefused, match=named):
        tracking.submit(make_write(experiment, **more))
    assert tracking.flush().delivered == 0
    assert tracking.search_runs([experiment.id]) == []


def test_values_at_the_limit_are_stored_whole(tracking: Tracking, experiment: Experiment) -> None:
    tracking.deliver(make_write(experiment, params={"p": "é" * 6_000}, tags={"t": "é" * 8_000}))
    (run,) = tracking.read_runs(experiment)
    assert run.params["p"] == "é" * 6_000
    assert run.tags["t"] == "é" * 8_000


def test_nul_and_lone_surrogates_do_not_break_a_write(tracking: Tracking, experiment: Experiment) -> None:
    odd = "a\0b\ud800c😀"
    write = make_write(experiment).model_copy(
        update={"artifacts": {"raw.txt": odd}, "params": {"p": odd}, "tags": {"t": odd}}
    )
    tracking.deliver(write)
    (run,) = tracking.read_runs(experiment)
    assert run.params["p"] == run.tags["t"] == tracking.read_artifact(run, "raw.txt") == "ab\ufffdc😀"


def test_a_missing_text_is_named(tracking: Tracking, experiment: Experiment) -> None:
    tracking.deliver(make_write(experiment))
    (run,) = tracking.read_runs(experiment)
    with pytest.raises(TrackingRefused, match=r"no text 'nope.txt'"):
        tracking.read_artifact(run, "nope.txt")


@pytest.fixture
def proxy(mlflow_url: str) -> Iterator[FaultProxy]:
    with FaultProxy(mlflow_url) as opened:
        yield opened


REQUESTS_OF_A_WRITE = ["create", "artifacts/candidates.json", "deep/raw.txt", "log-batch", "update"]


@pytest.mark.parametrize("request_at", REQUESTS_OF_A_WRITE)
@pytest.mark.parametrize("fault", ["drop", "reply_lost", "late"])
def test_a_write_arrives_once_whatever_happens_to_one_of_its_requests(
    proxy: FaultProxy, tracking: Tracking, experiment: Experiment, tmp_path: Path, fault: str, request_at: str
) -> None:
    proxy.plan = Plan(fault=fault, at=0, only=request_at, late_seconds=1.1)  # pyright: ignore[reportArgumentType]
    with impatient(proxy.url, tmp_path / "other", call_seconds=1) as through_proxy:
        run_id = through_proxy.deliver(make_write(experiment))
    proxy.wait_for_late_ones()
    assert len(proxy.struck) == 1
    complete = [
        run for run in tracking.search_runs([experiment.id]) if run.tags["tipbench.state"] == "complete"
    ]
    assert [run.run_id for run in complete] == [run_id]
    assert complete[0].status == "FINISHED"
    assert {path: tracking.read_artifact(complete[0], path) for path in TEXTS} == TEXTS
    assert [run.run_id for run in tracking.read_runs(experiment, fresh=True)] == [run_id]
    assert list((tmp_path / "other").rglob("*.jsonl")) == []


def test_a_run_whose_create_lost_its_reply_is_adopted_and_no_second_one_is_left_open(
    proxy: FaultProxy, tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    proxy.plan = Plan(fault="reply_lost", at=0, only="create")
    with impatient(proxy.url, tmp_path / "other") as through_proxy:
        run_id = through_proxy.deliver(make_write(experiment))
    assert len(proxy.struck) == 1
    assert [run.run_id for run in tracking.search_runs([experiment.id])] == [run_id]


def test_deliveries_of_the_same_facts_that_meet_in_the_database_all_end_well(
    tracking: Tracking, experiment: Experiment, mlflow_url: str, tmp_path: Path
) -> None:
    params = {f"p{n}": "same" for n in range(90)}
    with ExitStack() as stack, ThreadPoolExecutor(8) as pool:
        clients = [stack.enter_context(impatient(mlflow_url, tmp_path / str(n), tries=5)) for n in range(8)]
        for _ in range(6):
            run_id = tracking.deliver(make_write(experiment, params={}, artifacts={}))
            write = make_write(experiment, run_id=run_id, params=params, artifacts={})
            assert list(pool.map(Tracking.deliver, clients, [write] * 8)) == [run_id] * 8
    assert all(run.params == params for run in tracking.read_runs(experiment))


def test_a_write_needs_no_more_requests_than_it_must(
    proxy: FaultProxy, experiment: Experiment, tmp_path: Path
) -> None:
    with impatient(proxy.url, tmp_path / "other") as through_proxy:
        through_proxy.deliver(make_write(experiment))
    assert len(proxy.requests) == len(REQUESTS_OF_A_WRITE)
    for request, name in zip(proxy.requests, REQUESTS_OF_A_WRITE, strict=True):
        assert request.endswith(name)


def test_a_text_alone_is_one_request_and_is_there(
    proxy: FaultProxy, tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    run_id = tracking.deliver(make_write(experiment))
    run = tracking.read_run(run_id)
    alone = Write(
        attempt="a-text-alone",
        experiment=experiment.name,
        experiment_id=experiment.id,
        run_id=run_id,
        artifacts={"later.txt": "said later"},
    )
    with impatient(proxy.url, tmp_path / "other") as through_proxy:
        through_proxy.find_experiment(experiment.name)
        proxy.requests.clear()
        through_proxy.deliver(alone, artifact_uri=run.artifact_uri)
    assert [kind_of(line) for line in proxy.requests] == ["PUT artifact"]
    assert tracking.read_artifact(run, "later.txt") == "said later"


def test_a_server_that_stays_away_leaves_the_write_in_the_journal_for_the_next_process(
    proxy: FaultProxy, tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    with proxy.away():
        first = impatient(proxy.url, tmp_path / "other", tries=3)
        with pytest.raises(TrackingUnavailable, match="no MLflow server"):
            first.deliver(make_write(experiment))
        first.submit(make_write(experiment))
        delivery = first.flush()
        assert (delivery.delivered, delivery.left_in_journal) == (0, 2)
        assert "no MLflow server" in delivery.notes[0]
        assert first.deliver_left_over().delivered == 0, "its own journal is not taken for a left one"
        first.close()
        assert tracking.deliver_left_over().delivered == 0, "another server's journal is not touched"
    with impatient(proxy.url, tmp_path / "other") as second:
        assert second.deliver_left_over().delivered == 2
        assert second.deliver_left_over().delivered == 0
    assert len(tracking.read_runs(experiment)) == 2
    assert list((tmp_path / "other").rglob("*.jsonl")) == []


def test_what_was_left_while_the_server_was_away_goes_out_at_the_next_flush(
    proxy: FaultProxy, tracking: Tracking, experiment: Experiment, tmp_path: Path
) -> None:
    with impatient(proxy.url, tmp_path / "other", tries=2) as client:
        with proxy.away():
            for _ in range(5):
                client.submit(make_write(experiment, artifacts={}))
            assert client.flush().left_in_journal == 5
        assert client.flush().delivered == 5
    assert len(tracking.read_runs(experiment)) == 5
