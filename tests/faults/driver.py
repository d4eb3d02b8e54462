"""One real command in a process of its own, with short time-outs and a count of generations at the engine.

The processes are forked from one that has everything imported: a command costs what it does, and can be
killed like any other.
"""

import multiprocessing
import os
import sys
import uuid
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any, Literal

from fastapi.testclient import TestClient
from rich.console import Console

from tests.promotion.campaign import Campaign, levelled_engine, read_scores
from tipbench.admin.app import make_app
from tipbench.admin.deps import make_parts
from tipbench.bench.sittings import Decision
from tipbench.bench.views import repair_experiment
from tipbench.cli.session import CollectRun, Session
from tipbench.clock import make_stamps
from tipbench.engines import open_engines
from tipbench.engines.protocol import Engine, LoadedModel
from tipbench.errors import TipbenchError, UsageError
from tipbench.grid import open_pack, prepare_grid
from tipbench.judging.new_anchors import propose_anchors, write_anchors
from tipbench.pack import read_pack
from tipbench.promotion.gate import Gate, GateQuestion
from tipbench.promotion.promote import Promoting
from tipbench.records import Chat, Generation, Model, Sampling
from tipbench.settings import GateSettings, Settings, read_settings
from tipbench.tracking import Tracking
from tipbench.tracking.client import Pace, Rest, TimeLimits
from tipbench.workbench import Workbench

Command = Literal[
    "collect",
    "collect_with_weights",
    "apply",
    "gate",
    "promote",
    "rollback",
    "retire",
    "decide",
    "close",
    "reopen",
    "anchors",
    "repair",
    "every_word",
    "panel_judge",
    "panel_decide",
    "panel_end",
    "panel_force",
    "panel_rollback",
]
PACE = Pace(first_seconds=0.1, cap_seconds=1.0, tries=12)
LEVELS = {"scripted": 9.0}
"""The model of a collect without weights."""
N_TIPS = 2


@dataclass(frozen=True)
class Order:
    """A command and what it is run with. `last` is the pack, the sheet, or the name of the pack.

    `call_seconds` is its patience with the server. Generations are counted and complaints kept in its home.
    """

    command: Command
    url: str
    home: Path
    experiment: str
    last: str
    call_seconds: float

    @property
    def count_file(self) -> Path:
        return self.home / "generations"

    @property
    def complaints_file(self) -> Path:
        return self.home / "complaints"


class CountingEngine:
    """An engine; every generation that begins leaves a line in a file."""

    def __init__(self, engine: Engine, count_file: Path) -> None:
        self.name = engine.name
        self.list_models = engine.list_models
        self.find_model = engine.find_model
        self._engine = engine
        self._count_file = count_file

    @contextmanager
    def load(self, model: Model) -> Generator[LoadedModel]:
        with self._engine.load(model) as loaded:
            yield CountingModel(loaded, self._count_file)


class CountingModel:
    def __init__(self, loaded: LoadedModel, count_file: Path) -> None:
        self.load_seconds = loaded.load_seconds
        self._loaded = loaded
        self._count_file = count_file

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:
        with self._count_file.open("a") as file:
            file.write("generation\n")
            file.flush()
            os.fsync(file.fileno())
        return self._loaded.generate(prompt, sampling=sampling, seed=seed)


def start_command(order: Order) -> ForkServerProcess:
    """The command in a process that is under way."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    process = context.Process(target=run_command, args=(order,))
    process.start()
    return process


def run_command(order: Order) -> None:
    """What the process does: its stderr goes into a file, its exit code is the command's."""
    descriptor = os.open(order.complaints_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(descriptor, sys.stderr.fileno())
    flags: dict[str, object] = {
        "mlflow_url": order.url,
        "home": str(order.home),
        "experiment": order.experiment,
        "threads": 1,
    }
    if order.command == "collect_with_weights":
        flags |= {"pack": order.last, "models": "smollm2", "prompts": "v1", "n_tips": N_TIPS}
    try:
        run(order, read_settings(flags, environ={}))
    except TipbenchError as error:
        print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)


def run(order: Order, settings: Settings) -> None:
    if order.command.startswith("panel_"):
        use_panel(order, settings)
        return
    limits = TimeLimits(
        connect_seconds=order.call_seconds,
        call_seconds=order.call_seconds,
        search_seconds=order.call_seconds,
    )
    with Tracking(
        Rest(order.url, limits=limits),
        home=settings.home,
        description="",
        new_id=lambda: uuid.uuid4().hex,
        server="the server",
        pace=PACE,
    ) as tracking:
        session = Session(Workbench(settings, tracking, make_stamps()), Console(quiet=True))
        match order.command:
            case "collect":
                collect(order, session)
            case "collect_with_weights":
                collect_with_weights(order, session)
            case "apply":
                session.workbench.judging.take_in(
                    Path(order.last), experiment=None, judged_by=None, close=False
                )
            case "gate" | "promote" | "rollback":
                decide(order, session)
            case "anchors":
                add_anchors(order, session)
            case "repair":
                repair(order, session)
            case _:
                say_words(order, session)


def collect(order: Order, session: Session) -> None:
    """Cells whose texts are scripted: the weights are not the subject."""
    pack = open_pack(order.last)
    campaign = Campaign(
        session.tracking, order.home, LEVELS, pack=pack, experiment=order.experiment, n_tips=N_TIPS
    )
    engine = CountingEngine(levelled_engine(LEVELS, N_TIPS), order.count_file)
    CollectRun(session).run(campaign.cells(), lambda _: engine)


def collect_with_weights(order: Order, session: Session) -> None:
    engines = open_engines(session.settings, report=print)
    cells = prepare_grid(session.settings, find_model=engines.admit)

    def engine_of(model: Model) -> Engine:
        return CountingEngine(engines.engine_of(model), order.count_file)

    CollectRun(session).run(cells, engine_of)


def decide(order: Order, session: Session) -> None:
    """The gate and what follows from it."""
    gate = Gate(session.tracking, session.stamps, GateSettings(require="lazy"))
    session.tracking.deliver_left_over()
    if order.command == "gate":
        sys.exit(gate.ask(GateQuestion(order.experiment)).exit_code)
    if order.command == "promote":
        sys.exit(Promoting(gate, "driver").promote(GateQuestion(order.experiment)).exit_code)
    Promoting(gate, "driver").roll_back(order.last, reason="")


def say_words(order: Order, session: Session) -> None:
    """One word, or one after the other; what a struck run has said already is said again."""
    judging, name = session.workbench.judging, order.experiment
    content, _, token = order.last.partition(" ")

    def retire(*, undo: bool) -> None:
        session.workbench.collecting.retire("scenario", content, experiment=name, by="driver", undo=undo)

    def judge(*, accept: bool) -> None:
        decision = Decision(sitting=token, accept=accept, reason="seen", by="driver")
        judging.decide(decision, experiment=name)

    words: dict[str, Callable[[], object]] = {
        "retire": lambda: retire(undo=False),
        "undo": lambda: retire(undo=True),
        "decide": lambda: judge(accept=False),
        "accept": lambda: judge(accept=True),
        "close": lambda: judging.end("enough", experiment=name),
        "reopen": lambda: judging.reopen("go on", experiment=name),
    }
    if order.command != "every_word":
        words[order.command]()
        return
    for say in words.values():
        with suppress(UsageError):
            say()


def add_anchors(order: Order, session: Session) -> None:
    folder = Path(order.last)
    proposal = propose_anchors(session.workbench.open(order.experiment, fresh=True), read_pack(folder))
    if proposal.new:
        write_anchors(folder, proposal)


def repair(order: Order, session: Session) -> None:
    tracking = session.tracking
    experiment = tracking.find_experiment(order.experiment)
    locks = session.settings.home / "locks"
    repair_experiment(tracking, experiment, locks=locks, stamps=session.stamps, dry_run=False)


def use_panel(order: Order, settings: Settings) -> None:
    """The panel in this process, asked over its API; an answer that is no success ends the command."""
    parts = make_parts(settings, make_stamps())
    with suppress(UsageError):
        parts.accounts.create("ann", "admin", "correct horse battery", by="driver")
    _, secret = parts.credentials.make_token("ann", label="driver", days=1, by="driver")
    client = TestClient(make_app(parts, dispatch=False), base_url="http://localhost/api/bench/")
    client.headers["Authorization"] = f"Bearer {secret}"

    def ask(method: str, path: str, body: object = None) -> Any:
        answer = client.request(method, path, json=body)
        if answer.status_code >= 300:
            raise TipbenchError(f"{method} {path}: {answer.status_code} {answer.text}")
        return answer.json()

    with client:
        use_route(order, ask)


def use_route(order: Order, ask: Callable[..., Any]) -> None:
    name = order.experiment
    match order.command:
        case "panel_judge":
            sitting = ask("POST", f"judging/open/{name}", {})["sitting"]
            if sitting is not None:
                items = ask("GET", f"judging/take/{sitting}/{name}?n=500")["items"]
                given = [{"item": each["item"], "scores": read_scores(each["text"])} for each in items]
                ask("POST", f"judging/submit/{sitting}/{name}", {"verdicts": given})
        case "panel_decide":
            token = order.last.split()[1]
            ask("POST", f"judging/decide/{token}/{name}", {"accept": False, "reason": "asleep"})
        case "panel_end":
            ask("POST", f"judging/end/{name}", {"closed": True, "reason": "enough"})
            ask("POST", f"judging/end/{name}", {"closed": False, "reason": "go on"})
        case "panel_force":
            ask("POST", f"promote/{name}", {"how": "force", "arm": "new+v1", "reason": "it must be"})
        case _:
            ask("POST", "rollback", {"pack": order.last, "reason": "no"})
