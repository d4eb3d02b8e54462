"""`tipbench serve --demo`: a data folder, an MLflow and a user of its own; nothing of yours is touched."""

import os
import secrets
import shutil
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path

from tipbench.admin.app import DEMO
from tipbench.admin.deps import Parts, make_parts
from tipbench.admin.jobs import order_simulate
from tipbench.cli.serve_demo_bench import Making
from tipbench.clock import make_stamps
from tipbench.errors import UsageError
from tipbench.files import try_lock
from tipbench.jobs.orders import SimulateOrder
from tipbench.settings import Settings
from tipbench.tracking.tracking import open_managed_folder
from tipbench.workbench import open_workbench

FOLDER, VERSION = "serve-demo", "1"
"""Another version of the demo is made anew."""
USER = "demo"
KEPT = {"TIPBENCH_THREADS"}


@contextmanager
def open_demo(settings: Settings, report: Callable[[str], None]) -> Generator[str]:
    """Gives the password of the user `demo`, this time's own. At the end the demo's MLflow ends too.

    Raises:
        UsageError: the demo runs already.
    """
    folder = settings.home / FOLDER
    folder.mkdir(parents=True, exist_ok=True)
    # Ended by a service manager it ends as with Ctrl-C: its MLflow must not be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with (settings.home / f"{FOLDER}.lock").open("ab") as lock:
        if not try_lock(lock.fileno()):
            raise UsageError("the demo runs already", hint="End it there with Ctrl-C.")
        if _version(folder) != VERSION:
            # Half made, or of an older tipbench: it holds nothing but what we invented.
            open_managed_folder(folder).stop()
            shutil.rmtree(folder)
            folder.mkdir()
        report("starting an MLflow of its own …")
        managed = open_managed_folder(folder)
        try:
            own = Settings(home=folder, mlflow_url=managed.start().url)
            if _version(folder) != VERSION:
                _make(own, report)
            _enter(own, models=settings.models_folder)
            yield _let_in(own)
        finally:
            managed.stop()


def _version(folder: Path) -> str:
    made = folder / "made"
    return made.read_text(encoding="ascii") if made.exists() else ""


def _make(own: Settings, report: Callable[[str], None]) -> None:
    with open_workbench(own.model_copy(update={"judge_kind": "human"})) as workbench:
        Making(workbench, own.home, report).make()
    (own.home / "made").write_text(VERSION, encoding="ascii")


def _let_in(own: Settings) -> str:
    """One user, whose password is new each time; and a job to look at."""
    password = secrets.token_urlsafe(12)
    parts = make_parts(own, make_stamps())
    try:
        if any(user.name == USER for user in parts.accounts.list_users()):
            parts.accounts.set_password(USER, password, by=USER)
        else:
            parts.accounts.create(USER, "admin", password, by=USER)
            _order_job(parts)
    finally:
        parts.close()
    return password


def _order_job(parts: Parts) -> None:
    order = SimulateOrder(users=20, rounds=100)
    order_simulate(order, user=parts.accounts.get(USER), parts=parts, repeat_key=None)


def _enter(own: Settings, *, models: Path) -> None:
    """From here on this process and its children know the demo alone: no setting of yours reaches it."""
    for name in [name for name in os.environ if name.startswith(("TIPBENCH_", "MLFLOW_"))]:
        if name not in KEPT:
            del os.environ[name]
    os.environ |= {
        "TIPBENCH_HOME": str(own.home),
        "TIPBENCH_MLFLOW_URL": str(own.mlflow_url),
        # What the form of a run begins with: the one model that anybody can fetch, and not much of it.
        "TIPBENCH_MODELS": "smollm2",
        "TIPBENCH_N_SCENARIOS": "2",
        "TIPBENCH_EXPERIMENT": "tip-bench-demo-run",
        "TIPBENCH_JUDGE_MODEL": "smollm2",
        DEMO: "1",
    }
    # Weights are only read: where you have fetched some, runs of the demo find them.
    link = own.home / "models"
    if models.is_dir() and not link.exists():
        link.symlink_to(models)
    os.chdir(own.home)
