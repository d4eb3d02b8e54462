"""However a collect ends: no process is left, never two models are in memory, no cell is made twice."""

import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.airflow.conftest import SCENARIOS, Bench, Stage, drive, migrate
from tests.engines.weight_watch import WeightWatch
from tests.support.airflow_processes import AirflowProcesses
from tests.support.waiting import eventually
from tipbench.bench.cells import StoredCell, read_cells
from tipbench.jobs.airflow.api import DAG
from tipbench.tracking import Tracking

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

LONG = 1500.0
GONE_SECONDS = 30.0
CONF = {"models": "smollm2", "prompts": "v1", "n_tips": 5}


def clear(stage: Stage, run_id: str, _: int) -> None:
    stage.clear(run_id)


def mark_failed_and_clear(stage: Stage, run_id: str, command: int) -> None:
    stage.change("PATCH", f"/dags/{DAG}/dagRuns/{run_id}/taskInstances/collect/0", {"new_state": "failed"})
    eventually(lambda: is_gone(command))
    stage.clear(run_id)


def kill_worker(stage: Stage, run_id: str, command: int) -> None:
    """The task is the command's parent, the worker the parent of that."""
    os.kill(parent_of(parent_of(command)), signal.SIGKILL)


@pytest.mark.parametrize("end", [clear, mark_failed_and_clear, kill_worker])
def test_a_collect_that_is_ended_from_outside_leaves_nothing_and_is_done_in_the_end(
    stage: Stage,
    end: Callable[[Stage, str, int], None],
    slow_bench: Bench,
    tracking: Tracking,
    experiment_name: str,
) -> None:
    run_id = f"{end.__name__}-{experiment_name}"
    with WeightWatch(slow_bench.home / "models", set()) as watch:
        stage.client.start_run(run_id, CONF | {"experiment": experiment_name}, note="")
        eventually(lambda: len(cells_of(tracking, experiment_name)) > 0, seconds=LONG, every=0.5)
        [command] = commands_of(experiment_name)
        end(stage, run_id, command)
        eventually(lambda: is_gone(command))
        eventually(lambda: stage.state(run_id) == "success", seconds=LONG, every=0.5)
    assert watch.most == 1, watch.seen
    keys = [cell.facts.key for cell in cells_of(tracking, experiment_name)]
    assert len(keys) == len(set(keys)) == SCENARIOS
    stage.client.end_run(run_id)
    eventually(lambda: commands_of(experiment_name) == [])


def test_a_collect_that_takes_too_long_is_ended_and_goes_on_in_the_next_try(
    slow_bench: Bench, tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    airflow = migrate(AirflowProcesses(tmp_path, environ=slow_bench.environ(TIPBENCH_COLLECT_HOURS="0.005")))
    conf = CONF | {"n_tips": 40, "experiment": experiment_name}
    with WeightWatch(slow_bench.home / "models", set()) as watch:
        [ended] = drive(airflow, "collect", json.dumps(conf))
    assert watch.most <= 1, watch.seen
    # How many tries the rest takes hangs on the machine; the third is the last.
    assert (ended["tasks"]["collect 0"], ended["tries"]["collect 0"]) in {
        ("success", 2),
        ("success", 3),
        ("failed", 3),
    }
    assert commands_of(experiment_name) == []
    keys = [cell.facts.key for cell in cells_of(tracking, experiment_name)]
    assert len(keys) == len(set(keys))


def cells_of(tracking: Tracking, experiment: str) -> list[StoredCell]:
    """All of them, also those that were made twice."""
    found = [each for each in tracking.list_experiments() if each.name == experiment]
    return [cell for each in found for cell in read_cells(tracking.read_runs(each, fresh=True))]


def commands_of(experiment: str) -> list[int]:
    """Processes that collect for the experiment."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().decode(errors="replace").split("\0")
        except OSError:
            continue
        if "collect" in words and f"--experiment={experiment}" in words:
            found.append(int(path.parent.name))
    return found


def is_gone(number: int) -> bool:
    try:
        return Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def parent_of(number: int) -> int:
    return int(Path(f"/proc/{number}/stat").read_text().rpartition(")")[2].split()[1])
