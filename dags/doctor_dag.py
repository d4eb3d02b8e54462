"""What a worker and the triggerer see of the bench's parts. Started by `tipbench doctor`."""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task
from tipbench_airflow import phases
from tipbench_airflow.conf import KEYS
from tipbench_airflow.examining import Examine

QUEUE = os.environ.get("TIPBENCH_QUEUE", "default")
LIMIT = timedelta(minutes=10)


# Without the pool: this has to say that it is missing.
@task(queue=QUEUE, execution_timeout=LIMIT)
def from_worker(params: Any = None):
    """What `tipbench doctor` finds on a worker of the queue with the models."""
    return phases.examine(params)


@dag(
    dag_id="bench_doctor",
    schedule=None,
    catchup=False,
    params={"mlflow_url": Param(**KEYS["mlflow_url"])},
    tags=["tipbench"],
    doc_md=__doc__,
    # Once again: a busy Airflow loses a task now and then, and that says nothing of the bench.
    default_args={"retries": 1, "retry_delay": timedelta(seconds=5)},
)
def bench_doctor() -> None:
    """Two tasks, side by side."""
    from_worker()
    Examine(task_id="from_triggerer", limit=LIMIT, retries=0)


DAG = bench_doctor()
