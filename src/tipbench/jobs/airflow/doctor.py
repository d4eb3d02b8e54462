"""Is Airflow set up for the bench? Version, parts, DAG, plugin and pool, as its API tells of them."""

from collections.abc import Iterator
from dataclasses import dataclass

from tipbench import __version__
from tipbench.errors import TipbenchError
from tipbench.jobs.airflow.api import DAG, Airflow, Dag
from tipbench.records import Finding
from tipbench.web import Reply

POOL = "ollama"
PLUGIN = "tipbench-airflow "
"""How a tag of the DAG begins that names the version of the plugin it was read with."""
OLDEST, TOO_NEW = (3, 0), (4, 0)
INSTALL = (
    "Install tipbench-airflow (the folder airflow-plugin) of this tipbench into the environment of all "
    "parts of Airflow, put dags/bench_dag.py into its dags folder, and restart it."
)


class Version(Reply):
    """Which Airflow it is."""

    version: str


class Part(Reply):
    """Whether a part of Airflow was heard of lately."""

    status: str | None = None


class Health(Reply):
    """The parts of Airflow."""

    metadatabase: Part | None = None
    scheduler: Part | None = None
    triggerer: Part | None = None
    dag_processor: Part | None = None


class ImportFailure(Reply):
    """A DAG file that cannot be read."""

    filename: str
    stack_trace: str


class ImportFailures(Reply):
    """All of them."""

    import_errors: tuple[ImportFailure, ...] = ()


class Pool(Reply):
    """So many tasks at once."""

    slots: int


@dataclass(frozen=True)
class Doctor:
    """Examines one Airflow, from outside."""

    airflow: Airflow

    def examine(self) -> Iterator[Finding]:
        """Everything, as far as it can be found out."""
        try:
            version = self._version()
            yield version
            if version.ok:
                yield from self._parts()
                yield from self._import_failures()
                yield from self._dag()
                yield self._pool()
        except TipbenchError as error:
            yield Finding(part="Airflow", ok=False, says=error.message, to_do=error.hint)

    def _version(self) -> Finding:
        found = self.airflow.find("/version", Version)
        version = found.version if found else "no Airflow 3"
        fits = OLDEST <= _numbers(version) < TOO_NEW
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
            if "tipbench" in failure.stack_trace or "bench_dag" in failure.filename:
                to_do = INSTALL if "tipbench_airflow" in last else "Fix the file."
                yield Finding(part=f"DAG file {failure.filename}", ok=False, says=last, to_do=to_do)

    def _dag(self) -> Iterator[Finding]:
        dag = self.airflow.find_dag()
        if dag is None:
            to_do = "Put dags/bench_dag.py into Airflow's dags folder; it looks every few minutes."
            yield Finding(part=f"DAG {DAG}", ok=False, says="Airflow does not know it", to_do=to_do)
            return
        to_do = f"airflow dags unpause {DAG}" if dag.is_paused else ""
        says = "paused: nothing that is started begins" if dag.is_paused else "there"
        yield Finding(part=f"DAG {DAG}", ok=not dag.is_paused, says=says, to_do=to_do)
        yield _plugin(dag)

    def _pool(self) -> Finding:
        pool = self.airflow.find(f"/pools/{POOL}", Pool)
        missing = "missing: every collect stays scheduled for ever, without a word"
        ok = pool is not None and pool.slots > 0
        to_do = "" if ok else f"airflow pools set {POOL} 1 'one slot per host with models'"
        says = missing if pool is None else f"{pool.slots} slots"
        return Finding(part=f"pool {POOL}", ok=ok, says=says, to_do=to_do)


def _plugin(dag: Dag) -> Finding:
    found = next((tag.name.removeprefix(PLUGIN) for tag in dag.tags if tag.name.startswith(PLUGIN)), "")
    fits = _numbers(found) == _numbers(__version__)
    says = f"{found or 'of an unknown version'}, for tipbench {__version__}"
    return Finding(part="plugin", ok=fits, says=says, to_do="" if fits else INSTALL)


def _numbers(version: str) -> tuple[int, ...]:
    """The first two numbers of a version."""
    return tuple(int(word) for word in version.split(".")[:2] if word.isdigit())
