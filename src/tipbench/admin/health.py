"""Health: what a server needs, looked at from outside. Nothing is started or changed, nobody waits long."""

import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, wait
from contextlib import closing
from importlib.util import find_spec
from typing import Literal

from pydantic import Field

from tipbench.engines.ollama.api import OllamaApi
from tipbench.engines.openai.engine import OpenAiAccess, OpenAiServer, find_key
from tipbench.errors import TipbenchError
from tipbench.jobs.airflow.api import open_airflow
from tipbench.jobs.airflow.doctor import Health, Part
from tipbench.jobs.dispatcher import is_dispatching
from tipbench.jobs.store import JobStore
from tipbench.records import Finding, Moment, Record
from tipbench.settings import Settings
from tipbench.tracking.client import TimeLimits
from tipbench.tracking.tracking import peek_tracking

LIMIT_SECONDS = 2.0
"""How long a part may take; what takes longer is said to be silent."""
KEPT_SECONDS = 5.0
"""For so long the last look is good enough: whoever asks all the time asks nobody else."""
ROOM_BYTES = 100_000_000
Check = Callable[[], Finding]


class HealthReport(Record):
    """`degraded`: something is missing that a job would need. Then comes when that was looked at."""

    status: Literal["ok", "degraded"]
    checked_ms: Moment = Field(serialization_alias="checked_at")
    parts: tuple[Finding, ...]


class HealthWatch:
    """Looks at every part at the same time, each in a thread of its own.

    A part that hangs is asked once, not again by everybody who wants to know.
    """

    def __init__(
        self, checks: Mapping[str, Check], *, now_ms: Callable[[], int], limit_seconds: float
    ) -> None:
        self._checks, self._now_ms, self._limit_seconds = checks, now_ms, limit_seconds
        self._asked: dict[str, Future[Finding]] = {}
        self._report: HealthReport | None = None
        self._looked = float("-inf")
        self._looking = threading.Lock()

    def look(self) -> HealthReport:
        """How all is now, or was a moment ago."""
        last = self._report
        if not self._looking.acquire(blocking=last is None):
            assert last is not None  # noqa: S101
            return last
        try:
            if self._report is None or time.monotonic() - self._looked > KEPT_SECONDS:
                self._report = self._ask_all()
                self._looked = time.monotonic()
            return self._report
        finally:
            self._looking.release()

    def _ask_all(self) -> HealthReport:
        asked = {name: self._ask(name, check) for name, check in self._checks.items()}
        wait(asked.values(), timeout=self._limit_seconds)
        found = tuple(self._read(name, answer) for name, answer in asked.items())
        engines = [each.ok for each in found if each.part in ENGINES]
        sound = all(each.ok for each in found if each.needed) and (any(engines) or not engines)
        return HealthReport(status="ok" if sound else "degraded", checked_ms=self._now_ms(), parts=found)

    def _ask(self, name: str, check: Check) -> "Future[Finding]":
        before = self._asked.get(name)
        if before is not None and not before.done():
            return before
        answer: Future[Finding] = Future()

        def run() -> None:
            try:
                answer.set_result(check())
            except TipbenchError as error:
                answer.set_result(Finding(part=name, ok=False, says=error.message, to_do=error.hint))
            except Exception as error:  # noqa: BLE001 - whatever is wrong with a part, the answer says so
                answer.set_result(Finding(part=name, ok=False, says=f"{type(error).__name__}: {error}"))

        self._asked[name] = answer
        threading.Thread(target=run, name=f"health {name}", daemon=True).start()
        return answer

    def _read(self, name: str, answer: "Future[Finding]") -> Finding:
        needed = name not in ENGINES
        if answer.done():
            found = answer.result()
            return found if found.ok else found.model_copy(update={"needed": found.needed and needed})
        return Finding(part=name, ok=False, says=f"no answer within {self._limit_seconds:g} s", needed=needed)


# The parts.


MLFLOW, LLAMACPP, OLLAMA, OPENAI = "MLflow", "embedded llama.cpp", "Ollama", "OpenAI-compatible server"
AIRFLOW, WORKER, DISK = "Airflow", "worker", "disk"
ENGINES = frozenset({LLAMACPP, OLLAMA, OPENAI})
"""One of them is enough."""


def open_health(settings: Settings, jobs: JobStore) -> HealthWatch:
    """What a server with these settings needs."""
    checks = dict(_list_checks(settings, jobs))
    return HealthWatch(checks, now_ms=jobs.outbox.now_ms, limit_seconds=LIMIT_SECONDS)


def _list_checks(settings: Settings, jobs: JobStore) -> Iterator[tuple[str, Check]]:
    yield MLFLOW, lambda: _check_mlflow(settings)
    yield LLAMACPP, lambda: _check_embedded(settings)
    yield OLLAMA, lambda: _check_ollama(settings)
    if settings.openai_url is not None:
        url = settings.openai_url
        yield OPENAI, lambda: _check_openai(url)
    if settings.airflow_url is not None:
        yield AIRFLOW, lambda: _check_airflow(settings)
    yield WORKER, lambda: _check_worker(jobs)
    yield DISK, lambda: _check_disk(settings)


def _check_mlflow(settings: Settings) -> Finding:
    limits = TimeLimits(LIMIT_SECONDS, LIMIT_SECONDS, LIMIT_SECONDS)
    found = peek_tracking(settings, limits=limits)
    return Finding(part=MLFLOW, ok=True, says=found or "managed here: it starts when it is needed")


def _check_embedded(settings: Settings) -> Finding:
    if find_spec("xllamacpp") is None:
        return Finding(part=LLAMACPP, ok=False, says="not installed", to_do="pip install 'tipbench[local]'")
    weights = sum(1 for _ in settings.models_folder.glob("*.gguf"))
    to_do = "" if weights else "tipbench models fetch smollm2"
    return Finding(part=LLAMACPP, ok=bool(weights), says=f"weights of {weights} models", to_do=to_do)


def _check_ollama(settings: Settings) -> Finding:
    api = OllamaApi(settings.ollama_url, timeout_seconds=LIMIT_SECONDS)
    return Finding(part=OLLAMA, ok=True, says=f"version {api.version()}")


def _check_openai(url: str) -> Finding:
    with OpenAiServer(OpenAiAccess(url, find_key(url, os.environ), timeout_seconds=LIMIT_SECONDS)) as server:
        offers = server.list_models()
    return Finding(part=OPENAI, ok=True, says="it answers" if offers is None else f"{len(offers)} models")


def _check_airflow(settings: Settings) -> Finding:
    with closing(open_airflow(settings)) as airflow:
        health = airflow.get_openly("/monitor/health", Health)
    states = {
        name: (part or Part()).status or "not running"
        for name, part in (("metadatabase", health.metadatabase), ("scheduler", health.scheduler))
    }
    says = ", ".join(f"{name} {state}" for name, state in states.items())
    ok = set(states.values()) == {"healthy"}
    return Finding(part=AIRFLOW, ok=ok, says=says, to_do="" if ok else "tipbench doctor")


def _check_worker(jobs: JobStore) -> Finding:
    alive = jobs.list_jobs(states=("queued", "running", "waiting"), limit=1_000)
    counts = [
        f"{sum(job.state == state for job in alive)} {state}" for state in ("running", "queued", "waiting")
    ]
    if is_dispatching(jobs):
        return Finding(part=WORKER, ok=True, says=", ".join(counts))
    says = f"nobody starts jobs ({', '.join(counts)})"
    return Finding(part=WORKER, ok=False, says=says, to_do="Start the server again: tipbench serve")


def _check_disk(settings: Settings) -> Finding:
    free = shutil.disk_usage(settings.home).free
    to_do = "" if free >= ROOM_BYTES else "Make room, or set TIPBENCH_HOME to a folder on another disk."
    return Finding(part=DISK, ok=not to_do, says=f"{free / 1e9:.1f} GB free", to_do=to_do)
