"""Is Airflow ready for the bench? Its parts, our DAGs, the pool; and what a worker and the triggerer see."""

import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from tipbench.errors import TipbenchError
from tipbench.findings import Finding
from tipbench.jobs.airflow_api import DAG, Airflow, AirflowRefused, Answer, TaskInstance

DOCTOR_DAG = "bench_doctor"
POOL = "ollama"
OLDEST, TOO_NEW = (3, 0), (4, 0)
LOOK_SECONDS = 1.0
ENDED = ("success", "failed")
INSTALL = (
    "Install tipbench-airflow (the folder airflow-plugin) into the environment of {place}, and restart it."
)
PLACES = {"from_worker": "a worker", "from_triggerer": "the triggerer"}
"""Task of the DAG `bench_doctor` → where it runs."""


SIGN_OF_ERROR = re.compile(r"Error|cannot be started|exit code")


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
            dag = self._of(name).find_dag()
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
        inside = self._of(DOCTOR_DAG)
        run_id = f"doctor-{self.new_id()}"
        try:
            inside.start_run(run_id, {"mlflow_url": self.mlflow_url}, note="tipbench airflow doctor")
        except AirflowRefused as error:
            yield Finding(part="a run from inside", ok=False, says=error.message, to_do=error.hint)
            return
        tasks = self._wait(inside, run_id)
        for name, place in PLACES.items():
            task = next((task for task in tasks if task.task_id == name), TaskInstance(task_id=name))
            yield from self._look(inside, run_id, task, place)

    def _wait(self, inside: Airflow, run_id: str) -> tuple[TaskInstance, ...]:
        end = time.monotonic() + self.seconds
        while True:
            run = inside.find_run(run_id)
            tasks = inside.list_tasks(run_id)
            if (run is not None and run.state in ENDED) or time.monotonic() > end:
                return tasks
            time.sleep(LOOK_SECONDS)

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
                yield finding.model_copy(update={"part": part, "says": says, "needed": is_mlflow})

    def _explain(self, inside: Airflow, run_id: str, task: TaskInstance, place: str) -> Finding:
        """Why a task did not answer, from its state and its log."""
        lines = inside.read_log(run_id, task, try_number=task.try_number) if task.try_number else []
        said = next((line for line in reversed(lines) if SIGN_OF_ERROR.search(line)), "")
        if "tipbench_airflow" in said:
            to_do = INSTALL.format(place=place)
        elif "TIPBENCH_BIN" in said:
            to_do = f"Set TIPBENCH_BIN in the environment of {place} to the command `tipbench`."
        else:
            to_do = f"Is {place} running, and does a worker serve the queue? See {inside.link(run_id)}"
        waits = f"no answer within {self.seconds:g} s; its task is {task.state or 'not begun'}"
        return Finding(part=f"MLflow from {place}", ok=False, says=said or waits, to_do=to_do)

    def _of(self, dag: str) -> Airflow:
        """The same Airflow, for another DAG."""
        from_here = self.airflow
        return Airflow(from_here.url, from_here.username, from_here.password, from_here.token, dag)
