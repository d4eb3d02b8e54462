"""The bench on Airflow: collect, hand out, wait for the judge, compare, and if asked for gate and promote.

Every task runs the command a person would type; tipbench lives in an environment of its own (`TIPBENCH_BIN`).
Start it on demand: `airflow dags trigger bench_collect --conf '{"models": "qwen2.5:0.5b", "n_tips": 3}'`.
See docs/airflow.md.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import Param, dag, task
from tipbench_airflow import __version__, phases
from tipbench_airflow.conf import KEYS, check_conf, plan_parts
from tipbench_airflow.waiting import WaitJudged

POOL = "ollama"
QUEUE = os.environ.get("TIPBENCH_QUEUE", "default")
"""Where the models are: the queue of the GPU hosts. It is read where the DAG is read."""
POLL_SECONDS = float(os.environ.get("TIPBENCH_POLL_SECONDS", "30"))
COLLECT_LIMIT = timedelta(hours=float(os.environ.get("TIPBENCH_COLLECT_HOURS", "12")))
JUDGE_LIMIT = timedelta(days=60)
NOT_ASKED = "The run was to end before this (until)."


@task(retries=0)
def plan(params: Any = None):
    """Refuses what cannot be done, before anything is started; gives the parts to collect."""
    check_conf(params, os.environ)
    phases.check_fits(params)
    return plan_parts(params)


@task(
    pool=POOL,
    queue=QUEUE,
    execution_timeout=COLLECT_LIMIT,
    map_index_template="{{ task.op_kwargs['part'].get('model', 'the champion') }}",
)
def collect(part: Any, params: Any = None):
    """One model's cells, or the champion's. Run again, it makes only what is missing."""
    return phases.collect_part(params, part)


# Checked here, not by a trigger rule: Airflow 3.0 has none for "all ended, at least one of them well".
@task(trigger_rule="all_done")
def export_for_judge(collected: Any, params: Any = None, run_id: Any = None):
    """The sheet's path."""
    if not list(collected or ()):
        raise RuntimeError("nothing was collected: see the logs of plan and collect")
    return phases.export_sheet(params, run_id=run_id)


@task.run_if(lambda context: bool(context["params"]["judge_model"]), skip_message="No judge_model is set.")
@task(pool=POOL, queue=QUEUE, execution_timeout=COLLECT_LIMIT)
def auto_judge(params: Any = None):
    """Beside the lazy judge, never instead of it."""
    return phases.judge_automatically(params)


@task.run_if(lambda context: context["params"]["judge_agent"], skip_message="judge_agent is not set.")
@task(retries=0)
def judge_agent(params: Any = None):
    """The lazy judge, where an agent may be it. Its own setting limits how long it takes."""
    return phases.judge_with_agent(params)


@task(trigger_rule="none_failed_min_one_success")
def compare(params: Any = None, run_id: Any = None):
    """The leaderboard."""
    return phases.compare(params, run_id=run_id)


@task.run_if(lambda context: context["params"]["until"] != "compare", skip_message=NOT_ASKED)
@task
def gate(params: Any = None):
    """May a challenger replace the champion?"""
    return phases.ask_gate(params)


@task.run_if(lambda context: context["params"]["until"] == "promote", skip_message=NOT_ASKED)
@task
def promote(params: Any = None):
    """The new champion, if the gate lets one pass."""
    return phases.promote(params)


@dag(
    dag_id="bench_collect",
    schedule=None,
    catchup=False,
    max_active_runs=4,
    params={key: Param(**how) for key, how in KEYS.items()},
    # The second one tells `tipbench doctor` which plugin this was read with.
    tags=["tipbench", f"tipbench-airflow {__version__}"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
)
def bench_collect() -> None:
    """The tasks and their order."""
    exported = export_for_judge(collect.expand(part=plan()))
    wait = WaitJudged(task_id="wait_judged", retries=0, poll_seconds=POLL_SECONDS, limit=JUDGE_LIMIT)
    exported >> [wait, auto_judge()] >> compare() >> gate() >> promote()
    # Nothing comes after it: should the agent fail, somebody else judges, and the wait ends all the same.
    exported >> judge_agent()


DAG = bench_collect()
