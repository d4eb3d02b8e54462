"""`tipbench serve --demo`: a recorded campaign to look at, in a data folder and an MLflow of its own.

The campaign is the one that comes with the package. Nothing of yours is touched.
"""

import os
import secrets
import shutil
import signal
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tipbench.admin.app import DEMO
from tipbench.admin.deps import Parts, make_parts
from tipbench.admin.jobs import order_simulate
from tipbench.bench.bench import Bench
from tipbench.clock import make_stamps
from tipbench.engines import Engine
from tipbench.errors import UsageError
from tipbench.files import make_folder, open_private, try_lock, write_private
from tipbench.grid import Cell
from tipbench.jobs.orders import SimulateOrder
from tipbench.portable.file import PortableFile, open_portable
from tipbench.portable.recorded import CAMPAIGN, find_first_champion, read_origin
from tipbench.promotion.gate import make_arm
from tipbench.records import Model
from tipbench.settings import Settings
from tipbench.tracking.tracking import open_managed_folder
from tipbench.workbench import Workbench, open_workbench

FOLDER, MADE = "serve-demo", "made"
USER = "demo"
KEPT = {"TIPBENCH_THREADS"}
EXPERIMENT = "tip-campaign"
TO_JUDGE, SCENARIOS = "tip-campaign-to-judge", 4
"""A part of the same tips without a verdict, for whoever wants to sit down and judge."""


@dataclass(frozen=True)
class Demo:
    """A demo that is ready: the password of its user, this time's own, and what it shows."""

    password: str
    shows: str


@contextmanager
def open_demo(settings: Settings, report: Callable[[str], None]) -> Generator[Demo]:
    """The demo, made the first time. At the end its MLflow ends too.

    Raises:
        UsageError: the demo runs already.
    """
    folder, file = settings.home / FOLDER, open_portable(CAMPAIGN)
    make_folder(folder)
    # Ended by a service manager it ends as with Ctrl-C: its MLflow must not be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with os.fdopen(open_private(settings.home / f"{FOLDER}.lock"), "ab") as lock:
        if not try_lock(lock.fileno()):
            raise UsageError("the demo runs already", hint="End it there with Ctrl-C.")
        if _read_made(folder)[0] != file.digest:
            # Half made, or of another tipbench: it holds nothing but what we brought.
            open_managed_folder(folder).stop()
            shutil.rmtree(folder)
            make_folder(folder)
        report("starting an MLflow of its own …")
        managed = open_managed_folder(folder)
        try:
            own = Settings(home=folder, mlflow_url=managed.start().url)
            if _read_made(folder)[0] != file.digest:
                report(f"bringing in {file.kinds['cell']} cells and {file.kinds['sitting']} sittings …")
                with open_workbench(own.model_copy(update={"judge_kind": "human"})) as workbench:
                    shows = bring_in(file, workbench)
                    leave_to_judge(workbench)
                write_private(folder / MADE, f"{file.digest}\n{shows}")
            _, shows = _read_made(folder)
            _enter(own, models=settings.models_folder, shows=shows)
            yield Demo(_let_in(own), shows)
        finally:
            managed.stop()


def _read_made(folder: Path) -> tuple[str, str]:
    """Which campaign the folder was made with, and what that is in words."""
    made = folder / MADE
    digest, _, shows = made.read_text(encoding="utf-8").partition("\n") if made.exists() else ("", "", "")
    return digest, shows


def bring_in(file: PortableFile, workbench: Workbench) -> str:
    """The campaign becomes an experiment; what it is, in words.

    Who was champion there before anybody was promoted is champion here: the gate can be asked again.
    """
    workbench.bringing_in(lambda _done, _of: None).run(file, into=EXPERIMENT)
    bench = workbench.open(EXPERIMENT)
    first = find_first_champion(bench)
    if first is not None:
        workbench.promoting(USER).name_first(first.arm, experiment=EXPERIMENT, reason=first.reason)
    origin = read_origin(bench)
    return f"a recorded campaign: {origin.made}; {origin.judged}"


def leave_to_judge(workbench: Workbench) -> None:
    """The best arm of each model, its answers taken over from the campaign and judged by nobody."""
    bench = workbench.open(EXPERIMENT)
    best: dict[str, str] = {}
    for line in workbench.compare(bench, "arm").ranked:
        best.setdefault(line.name.rpartition("+")[0], line.name)
    cells = [cell for name in best.values() for cell in _cells_of(bench, name)]
    collection = workbench.collecting.begin(cells, experiment=TO_JUDGE, reuse_from=EXPERIMENT)
    with collection.generate(_refuse_engine) as collected:
        for _ in collected:
            pass
    collection.deliver()


def _cells_of(bench: Bench, name: str) -> list[Cell]:
    arm = make_arm(bench, name)
    pack = bench.pack_of(arm.pack_hash)
    model = Model(
        name=arm.model,
        engine=arm.engine,
        digest=arm.model_digest,
        parameters=None,
        size_bytes=0,
        pinned=arm.pinned,
    )
    prompt = next(each for each in pack.prompts if each.name == arm.prompt)
    asked = {cell.facts.scenario for cell in bench.evidence.cells if cell.facts.arm == name}
    scenarios = [each for each in pack.scenarios if each.id in asked][:SCENARIOS]
    return [Cell(pack, model, prompt, scenario, arm.options) for scenario in scenarios]


def _refuse_engine(model: Model) -> Engine:
    raise UsageError(f"the recorded campaign has no answer of {model.name!r} for this")


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


def _enter(own: Settings, *, models: Path, shows: str) -> None:
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
        "TIPBENCH_EXPERIMENT": "tip-bench-demo",
        "TIPBENCH_JUDGE_MODEL": "smollm2",
        DEMO: shows,
    }
    # Weights are only read: where you have fetched some, runs of the demo find them.
    link = own.home / "models"
    if models.is_dir() and not link.exists():
        link.symlink_to(models)
    os.chdir(own.home)
