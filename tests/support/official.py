"""What the official MLflow client reads: a dump of an experiment's facts without ids and times."""

import json
import os
import re
import tempfile
import warnings
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

os.environ["MLFLOW_ENABLE_ARTIFACTS_PROGRESS_BAR"] = "false"
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import mlflow
    from mlflow import MlflowClient
    from mlflow.entities import Run

MEASURED = {
    "touched",
    "latency_seconds",
    "load_seconds",
    "machine_load",
    "gpu_layers",
    "tokens_per_second",
    "peak_resident_models",
    "peak_memory_mib",
}
TAGS = (
    "judge_pending",
    "judge_kind",
    "rubric",
    "judged_by",
    "tipbench.kind",
    "tipbench.state",
    "tipbench.key",
)
COMPLETE = {"complete", "accepted", "expired"}


def read_facts(url: str, experiment: str) -> dict[str, Any]:
    """Cells with their texts and verdicts, sittings, packs: everything that counts, nothing that varies."""
    client = MlflowClient(tracking_uri=url)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = list(client.search_runs([found.experiment_id], max_results=5000))
    complete = [run for run in runs if run.data.tags.get("tipbench.state") in COMPLETE]
    facts = [_read_run(client, run) for run in complete]
    return {
        "runs": sorted(facts, key=lambda fact: json.dumps(fact, sort_keys=True)),
        "unfinished": sorted(
            run.data.tags.get("tipbench.kind", "?") for run in runs if run not in complete and _is_a_fact(run)
        ),
    }


def _is_a_fact(run: Run) -> bool:
    """An open sitting is one; a cell that never became complete is none."""
    return run.data.tags.get("tipbench.kind") == "sitting" and "tipbench.facts" in run.data.tags


def _read_run(client: MlflowClient, run: Run) -> dict[str, Any]:
    kind = run.data.tags["tipbench.kind"]
    fact: dict[str, Any] = {
        "status": run.info.status,
        "tags": {name: run.data.tags[name] for name in TAGS if name in run.data.tags},
        "metrics": {k: round(v, 9) for k, v in sorted(run.data.metrics.items()) if k not in MEASURED},
        "params": {
            # Of a word what is said: its id, its time and the token of a sitting are others every time.
            k: {**json.loads(v)["said"], "sitting": ""} if k.startswith("word:") else v
            for k, v in sorted(run.data.params.items())
            if k not in {"closed", "closed_ms"}
        },
        "verdicts": sorted(
            json.dumps({k: v for k, v in verdict.items() if k != "block"}, sort_keys=True)
            for name, value in run.data.tags.items()
            if name.startswith("verdict:")
            for verdict in json.loads(value)["verdicts"]
        ),
    }
    if kind != "sitting":
        names = sorted(file.path for file in client.list_artifacts(run.info.run_id))  # pyright: ignore[reportUnknownMemberType]
        fact["files"] = names
        if kind == "cell":
            fact["texts"] = {name: _read_text(client, run, name) for name in names}
    else:
        fact["submissions"] = sum(bool(re.match(r"submission:\d+$", name)) for name in run.data.tags)
    return fact


def _read_text(client: MlflowClient, run: Run, name: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        return Path(client.download_artifacts(run.info.run_id, name, folder)).read_text(encoding="utf-8")


@contextmanager
def official_client_at(url: str) -> Generator[None]:
    """The official client's own functions ask this server.

    It sets a variable for the whole process and never takes it back: it would reach every later test.
    """
    before = os.environ.get("MLFLOW_TRACKING_URI")
    mlflow.set_tracking_uri(url)
    try:
        yield
    finally:
        mlflow.set_tracking_uri(None)  # pyright: ignore[reportArgumentType]
        if before is not None:
            os.environ["MLFLOW_TRACKING_URI"] = before


def search_official(url: str, experiment: str, query: str) -> list[dict[str, Any]]:
    """What `mlflow.search_runs` answers, a dict per run."""
    with official_client_at(url):
        found = mlflow.search_runs(experiment_names=[experiment], filter_string=query, output_format="list")
    return [
        {f"params.{k}": v for k, v in run.data.params.items()}
        | {f"metrics.{k}": v for k, v in run.data.metrics.items()}
        | {f"tags.{k}": v for k, v in run.data.tags.items()}
        | {"status": run.info.status, "run_id": run.info.run_id}
        for run in found
    ]
