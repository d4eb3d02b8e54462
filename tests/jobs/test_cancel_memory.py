"""Cancelling a job frees the memory of its model: measured, on real weights."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.engines.weight_watch import WeightWatch
from tests.support.small_pack import write_small_pack
from tests.support.waiting import eventually
from tipbench.clock import make_stamps
from tipbench.jobs.records import Step
from tipbench.jobs.store import NewJob, open_jobs
from tipbench.settings import Settings


def test_a_cancelled_collect_leaves_no_weights_in_memory(
    mlflow_url: str, models_folder: Path, tmp_path: Path, experiment_name: str
) -> None:
    home = tmp_path / "home"
    (home / "models").mkdir(parents=True)
    (weights,) = models_folder.glob("SmolLM2-135M*.gguf")
    # A copy, so that nobody else's model is counted.
    shutil.copyfile(weights, home / "models" / weights.name)
    pack = write_small_pack(tmp_path / "pack")
    arguments = ("--models=smollm2", "--prompts=v1", "--n-tips=50", f"--experiment={experiment_name}")
    step = Step(name="collect", arguments=("collect", *arguments, f"--pack={pack}"))
    store = open_jobs(Settings(home=home, mlflow_url=mlflow_url), make_stamps())
    job = store.add(NewJob("collect", experiment_name, "ada", (step,), make_stamps().new_id()))
    worker = subprocess.Popen(
        [sys.executable, "-m", "tipbench", "jobs", "work", f"--home={home}", job.id],
        env=os.environ | {"MLFLOW_TRACKING_URI": mlflow_url, "TIPBENCH_THREADS": "1"},
        cwd=tmp_path,
    )
    watch = WeightWatch(home / "models", set())
    eventually(lambda: bool(watch.look()) or worker.poll() is not None, seconds=600)
    eventually(lambda: bool(watch.look()) and watch.peak_kb > 90_000)
    store.cancel(job.id)
    worker.wait(60)
    assert store.get(job.id).state == "cancelled"
    assert watch.look() == []
    print(f"{watch.peak_kb // 1000} MB of weights and cache were resident, none are after the cancel")
