"""Is Airflow ready for the bench? Its parts, our DAGs, the pool; and what a worker and the triggerer see."""

import re
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import TypeVar

from tipbench.errors import TipbenchError
from tipbench.findings import Finding
from tipbench.jobs.airflow.api import (
    DAG,
    Airflow,
    AirflowRefused,
    AirflowUnavailable,
    Answer,
    Dag,
    TaskInstance,
)

T = TypeVar("T")

DOCTOR_DAG = "bench_doctor"
POOL = "ollama"
OLDEST, TOO_NEW = (3, 0), (4, 0)
LOOK_SECONDS = 1.0
ENDED = ("success", "failed")
INSTALL = (
    "Install tipbench-airflow (the folder airflow-plugin) into the environment of {place}, and restart it."
)
REACH = "Start it, or mend MLFLOW_TRACKING_URI and the way there in the environment of {place}."
PLACES = {"from_worker": "a worker", "from_triggerer": "the triggerer"}
"""Task of the DAG `bench_doctor` → where it runs."""


EXCEPTION = re.compile(r"(?!TaskDeferralError)[\w.]*(Error|Refused|Failed|Exception): ")
"""The end of a traceback; that a trigger failed says less than why."""


class Version(Answer):
    """Which Airflow it is."""

    version: str


class Part(Answer):
    """Whether a part of Airflow was heard of lately."""

    status: str | None = None


class Health(Answer):
    """The parts of Airflow."""

    metadatabase: Part = Part()
    scheduler: Part = Part()
    triggerer: Part = Part()
    dag_processor: Part | None = None


class ImportFailure(Answer):
    """A DAG file that cannot be read."""

    filename: str
    stack_trace: str


class ImportFailures(Answer):
    """All of them."""

    import_errors: tuple[ImportFailure, ...] = ()


class Pool(Answer):
    """So many tasks at once."""

    slots: int


class Seen(Answer):
    """What one place sees: the findings of `tipbench doctor` there."""

    host: str
    findings: tuple[Finding, ...]


class SeenEntry(Answer):
    """The same, as a task gave it back."""

    value: Seen


@dataclass(frozen=True)
class Doctor:
    """Examines one Airflow. `new_id` names the run that looks from inside, `seconds` is its time."""

    airflow: Airflow
    mlflow_url: str | None
    new_id: Callable[[], str]
    seconds: float

    def examine(self) -> Iterator[Finding]:
        """Everything, as far as it can be found out."""
        try:
            version = self._version()
            yield version
            if version.ok:
                yield from self._examine()
        except TipbenchError as error:
            yield Finding(part="Airflow", ok=False, says=error.message, to_do=error.hint)

    def _examine(self) -> Iterator[Finding]:
        yield from self._parts()
        dags = [*self._import_failures(), *self._dags()]
        yield from dags
        yield self._pool()
        if all(finding.ok for finding in dags):
            yield from self._from_inside()

    def _version(self) -> Finding:
        found = self.airflow.find("/version", Version)
        version = found.version if found else "no Airflow 3"
        numbers = tuple(int(word) for word in version.split(".")[:2] if word.isdigit())
        fits = OLDEST <= numbers < TOO_NEW
        to_do = "" if fits else "Install Airflow 3: docs/airflow.md says which versions were tried."
        return Finding(part="Airflow", ok=fits, says=f"{version} at {self.airflow.url}", to_do=to_do)

    def _parts(self) -> Iterator[Finding]:
        health = self.airflow.get("/monitor/health", Health)
        for name in ("metadatabase", "scheduler", "triggerer", "dag_processor"):
            part: Part | None = getattr(health, name)
            status = (part or Part()).status
            command = f"airflow {name.replace('_', '-')}"
            to_do = "" if status == "healthy" else f"Start it, or look at its log: {command}"
            yield Finding(
                part=name.replace("_", " "), ok=status == "healthy", says=status or "not running", to_do=to_do
            )

    def _import_failures(self) -> Iterator[Finding]:
        for failure in self.airflow.get("/importErrors", ImportFailures).import_errors:
            last = failure.stack_trace.strip().rpartition("\n")[2]
            if "tipbench" not in failure.stack_trace and "bench_dag" not in failure.filename:
                continue
            missing = "tipbench_airflow" in last
            to_do = INSTALL.format(place="the DAG processor") if missing else "Mend the file."
            yield Finding(part=f"DAG file {failure.filename}", ok=False, says=last, to_do=to_do)

    def _dags(self) -> Iterator[Finding]:
        for name in (DAG, DOCTOR_DAG):
            dag = self.airflow.find(f"/dags/{name}", Dag)
            if dag is None:
                to_do = (
                    "Put the files of the folder dags into Airflow's dags folder; it looks every few minutes."
                )
                yield Finding(part=f"DAG {name}", ok=False, says="Airflow does not know it", to_do=to_do)
            else:
                to_do = f"airflow dags unpause {name}" if dag.is_paused else ""
                says = "paused: nothing that is started begins" if dag.is_paused else "there"
                yield Finding(part=f"DAG {name}", ok=not dag.is_paused, says=says, to_do=to_do)

    def _pool(self) -> Finding:
        pool = self.airflow.find(f"/pools/{POOL}", Pool)
        if pool is None:
            says = "missing: every collect stays scheduled for ever, without a word"
            to_do = f"airflow pools set {POOL} 1 'one slot per host with models'"
            return Finding(part=f"pool {POOL}", ok=False, says=says, to_do=to_do)
        to_do = "" if pool.slots > 0 else f"airflow pools set {POOL} 1 'one slot per host with models'"
        return Finding(part=f"pool {POOL}", ok=pool.slots > 0, says=f"{pool.slots} slots", to_do=to_do)

    def _from_inside(self) -> Iterator[Finding]:
        """What a worker and the triggerer say of themselves, in a run of a DAG made for that."""
        known = self.airflow
        inside = Airflow(known.url, known.username, known.password, known.token, DOCTOR_DAG)
        run_id, conf = f"doctor-{self.new_id()}", {"mlflow_url": self.mlflow_url}
        end = time.monotonic() + self.seconds
        with closing(inside):
            try:
                _patiently(lambda: inside.start_run(run_id, conf, note="tipbench doctor"), until=end)
            except AirflowRefused as error:
                yield Finding(part="a run from inside", ok=False, says=error.message, to_do=error.hint)
                return
            tasks = _wait(inside, run_id, until=end)
            for name, place in PLACES.items():
                task = next((task for task in tasks if task.task_id == name), TaskInstance(task_id=name))
                yield from self._look(inside, run_id, task, place)

    def _look(self, inside: Airflow, run_id: str, task: TaskInstance, place: str) -> Iterator[Finding]:
        if task.state != "success":
            yield self._explain(inside, run_id, task, place)
            return
        path = f"/dags/{DOCTOR_DAG}/dagRuns/{run_id}/taskInstances/{task.task_id}/xcomEntries/return_value"
        seen = inside.get(path, SeenEntry).value
        for finding in seen.findings:
            is_mlflow = finding.part.lower() == "mlflow"
            if is_mlflow or (not finding.ok and task.task_id == "from_worker"):
                # Models and engines matter on hosts that collect; the next worker may be another one.
                part = f"{'MLflow' if is_mlflow else finding.part} from {place}"
                says = f"{finding.says} ({seen.host})"
                to_do = REACH.format(place=place) if is_mlflow and not finding.ok else finding.to_do
                found = {"part": part, "says": says, "to_do": to_do, "needed": is_mlflow}
                yield finding.model_copy(update=found)

    def _explain(self, inside: Airflow, run_id: str, task: TaskInstance, place: str) -> Finding:
        """Why a task did not answer, from its state and its log."""
        tries = range(1, task.try_number + 1)
        lines = [line for number in tries for line in inside.read_log(run_id, task, try_number=number)]
        said = next((line for line in reversed(lines) if EXCEPTION.match(line)), "")
        if "No module named 'tipbench_airflow" in said:
            to_do = INSTALL.format(place=place)
        elif "TIPBENCH_BIN" in said:
            to_do = f"Set TIPBENCH_BIN in the environment of {place} to the command `tipbench`."
        elif said:
            to_do = f"Its log says more: {inside.link(run_id)}"
        else:
            to_do = f"Is {place} running, and does a worker serve the queue? See {inside.link(run_id)}"
        state = f"no answer: its task is {task.state or 'not begun'}"
        return Finding(part=f"MLflow from {place}", ok=False, says=said or state, to_do=to_do)


def _wait(inside: Airflow, run_id: str, *, until: float) -> tuple[TaskInstance, ...]:
    """The tasks of the run when it has ended, or at that moment."""
    while True:
        run = _patiently(lambda: inside.find_run(run_id), until=until)
        tasks = _patiently(lambda: inside.list_tasks(run_id), until=until)
        if (run is not None and run.state in ENDED) or time.monotonic() > until:
            return tasks
        time.sleep(LOOK_SECONDS)


def _patiently(ask: Callable[[], T], *, until: float) -> T:
    """The answer of an Airflow that may be busy, until that moment; what is asked here may be asked twice."""
    while True:
        try:
            return ask()
        except AirflowUnavailable:
            if time.monotonic() > until:
                raise
            time.sleep(LOOK_SECONDS)
