"""Runs in Airflow's own environment: reads the DAG, or runs it by `dag.test`. The last line printed is JSON.

usage: drive.py parse | drive.py run CONF... | drive.py collect CONF...

`collect` takes all tasks for done that come after collecting.
"""

import json
import sys
import warnings

from airflow.models.taskinstance import TaskInstance
from airflow.models.xcom import XComModel
from airflow.utils.session import create_session

try:
    from airflow.dag_processing.dagbag import DagBag
except ImportError:
    # Where it was before 3.1.
    from airflow.models.dagbag import DagBag


def load():
    """The DAG, and what was wrong with its file."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bag = DagBag()
    said = [str(each.message) for each in caught if "bench_dag" in str(each.filename)]
    return bag.dags.get("bench_collect"), list(bag.import_errors.values()) + said


def describe(dag):
    """What a test wants to know of the DAG."""
    return {
        "tasks": {
            task.task_id: {
                "pool": task.pool,
                "queue": task.queue,
                "after": sorted(task.upstream_task_ids),
                "retries": task.retries,
            }
            for task in dag.tasks
        },
        "params": {name: dag.params[name] for name in dag.params},
        "schedule": str(getattr(dag, "schedule", None)),
    }


def run(dag, conf, without):
    """One run to its end: states, and what the tasks gave back."""
    try:
        ended = dag.test(run_conf=conf, mark_success_pattern=without)
    except Exception as error:  # noqa: BLE001 - whatever Airflow refuses with is what the test looks at
        return {"refused": str(error)}
    with create_session() as session:
        tasks = session.query(TaskInstance).filter_by(run_id=ended.run_id).all()
        given = session.query(XComModel).filter_by(run_id=ended.run_id, key="return_value").all()
        return {
            "run_id": ended.run_id,
            "state": str(getattr(ended.state, "value", ended.state)),
            "tasks": {f"{task.task_id} {task.map_index}": str(task.state) for task in tasks},
            "tries": {f"{task.task_id} {task.map_index}": task.try_number for task in tasks},
            "gave": {f"{each.task_id} {each.map_index}": read(each.value) for each in given},
        }


def read(value):
    """What a task gave back, however this version stores it."""
    try:
        return json.loads(value) if isinstance(value, str) else value
    except ValueError:
        return value


def main() -> None:
    """As the usage says."""
    dag, problems = load()
    if dag is None or problems:
        print(json.dumps({"problems": problems}))
    elif sys.argv[1] == "parse":
        print(json.dumps({"problems": []} | describe(dag)))
    else:
        without = "export_for_judge|wait_judged|compare" if sys.argv[1] == "collect" else None
        print(json.dumps([run(dag, json.loads(conf), without) for conf in sys.argv[2:]]))


main()
