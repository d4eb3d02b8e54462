"""The bench on Airflow: collect, hand out, wait for the judge, compare; if asked gate, approval, promotion.

Every task runs the command a person would type; tipbench lives in an environment of its own (`TIPBENCH_BIN`).
Start it on demand: `airflow dags trigger bench_collect --conf '{"models": "qwen2.5:0.5b", "n_tips": 3}'`.
See docs/airflow.md.
"""

from __future__ import annotations

import os
from datetime import timedelta
from typing import Any

from airflow.sdk import Asset, AssetAlias, Param, dag, task
from tipbench_airflow import __version__, phases
from tipbench_airflow.conf import check_approval, check_conf, plan_parts, read_defaults
from tipbench_airflow.waiting import WaitJudged

NO_APPROVAL = ""
try:
    from tipbench_airflow.approval import ApprovePromotion
except Exception as error:  # noqa: BLE001 - whatever an Airflow without it refuses with, a run is told
    NO_APPROVAL = f"{type(error).__name__}: {error}"

POOL = "ollama"
QUEUE = os.environ.get("TIPBENCH_QUEUE", "default")
"""Where the models are: the queue of the GPU hosts. It is read where the DAG is read."""
POLL_SECONDS = float(os.environ.get("TIPBENCH_POLL_SECONDS", "30"))
COLLECT_LIMIT = timedelta(hours=float(os.environ.get("TIPBENCH_COLLECT_HOURS", "12")))
JUDGE_LIMIT = timedelta(days=60)
NOT_ASKED = "The run was to end before this (until), or nobody approved."
SCHEDULE = os.environ.get("TIPBENCH_SCHEDULE") or None
"""When runs start by themselves, as Airflow writes it; they have the defaults of `TIPBENCH_DEFAULTS`."""
CHAMPIONS = AssetAlias("tipbench-champions")
"""Which pack gets a new champion is only known when it has one: then that pack's own asset changes."""


@task(retries=0)
def plan(params: Any = None):
    """Refuses what cannot be done, before anything is started; gives the parts to collect."""
    check_approval(params, NO_APPROVAL)
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


def may_promote(context: Any) -> bool:
    """Whether the run says so, or a person."""
    until = context["params"]["until"]
    return until == "promote" or (
        until == "approve" and phases.is_approved(context["ti"].xcom_pull(task_ids="approve"))
    )


# A run that asks for no approval has skipped it; one that was rejected skips this by itself.
@task.run_if(may_promote, skip_message=NOT_ASKED)
@task(trigger_rule="none_failed", outlets=[CHAMPIONS])
def promote(params: Any = None, ti: Any = None, outlet_events: Any = None):
    """The new champion, if the gate lets one pass. DAGs that are scheduled on the pack's asset start then."""
    approved = params["until"] == "approve"
    arm = phases.approvable_arm(ti.xcom_pull(task_ids="gate")) if approved else None
    told = phases.promote(params, arm=arm)
    champion = phases.new_champion(told)
    if champion is not None:
        outlet_events[CHAMPIONS].add(Asset(phases.champion_uri(champion["pack"])), extra=champion)
    return told


@dag(
    dag_id="bench_collect",
    schedule=SCHEDULE,
    catchup=False,
    max_active_runs=4,
    params={key: Param(**how) for key, how in read_defaults(os.environ).items()},
    # The second one tells `tipbench doctor` which plugin this was read with.
    tags=["tipbench", f"tipbench-airflow {__version__}"],
    doc_md=__doc__,
    default_args={"retries": 2, "retry_delay": timedelta(seconds=10)},
)
def bench_collect() -> None:
    """The tasks and their order."""
    exported = export_for_judge(collect.expand(part=plan()))
    wait = WaitJudged(task_id="wait_judged", retries=0, poll_seconds=POLL_SECONDS, limit=JUDGE_LIMIT)
    asked, promoted = gate(), promote()
    exported >> [wait, auto_judge()] >> compare() >> asked >> promoted
    if not NO_APPROVAL:
        approve = ApprovePromotion(task_id="approve", gate="gate", retries=0, response_timeout=JUDGE_LIMIT)
        asked >> approve >> promoted
    # Nothing comes after it: should the agent fail, somebody else judges, and the wait ends all the same.
    exported >> judge_agent()


DAG = bench_collect()
