"""One real command in a process of its own, with short time-outs and a count of generations at the engine.

usage: driver.py collect|apply|gate|promote|rollback URL HOME EXPERIMENT COUNT_FILE [PACK | SHEET]
"""

import os
import sys
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from tipbench.cli.collect import Job
from tipbench.cli.session import Session, make_stamps
from tipbench.engines import open_engines
from tipbench.engines.protocol import Engine, LoadedModel
from tipbench.errors import TipbenchError
from tipbench.grid import prepare_grid
from tipbench.judging.phase import Judging
from tipbench.promotion.gate import Asked, Gate
from tipbench.promotion.promote import Promoting
from tipbench.records import Generation, Model, Sampling
from tipbench.settings import GateSettings, Settings, read_settings
from tipbench.tracking import Tracking
from tipbench.tracking.pace import Pace
from tipbench.tracking.rest import Rest, TimeLimits

LIMITS = TimeLimits(connect_seconds=4.0, call_seconds=4.0, search_seconds=4.0)
PACE = Pace(first_seconds=0.1, cap_seconds=1.0, tries=12)


class CountingEngine:
    """The real engine; every generation that begins leaves a line in a file."""

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

    def generate(self, prompt: str, *, sampling: Sampling, seed: int) -> Generation:
        with self._count_file.open("a") as file:
            file.write("generation\n")
            file.flush()
            os.fsync(file.fileno())
        return self._loaded.generate(prompt, sampling=sampling, seed=seed)


def run(command: str, settings: Settings, count_file: Path) -> None:
    rest = Rest(settings.mlflow_url or "", limits=LIMITS)
    with Tracking(
        rest,
        home=settings.home,
        description="",
        new_id=lambda: uuid.uuid4().hex,
        server="the server",
        pace=PACE,
    ) as tracking:
        session = Session(settings, tracking, make_stamps(), Console(quiet=True))
        if command == "collect":
            engines = open_engines(settings, report=print)
            cells = prepare_grid(settings, find_model=engines.admit)

            def engine_of(model: Model) -> Engine:
                return CountingEngine(engines.engine_of(model), count_file)

            Job(session, engine_of=engine_of, reuse_from=None, as_json=False).run(cells)
        elif command == "apply":
            judging = Judging(tracking, session.stamps, settings.home / "locks")
            judging.take_in(Path(sys.argv[6]), experiment=None, judged_by=None, close=False)
        else:
            decide(command, session)


def decide(command: str, session: Session) -> None:
    """The gate and what follows from it."""
    gate = Gate(session.tracking, session.stamps, GateSettings(require="lazy"))
    session.tracking.deliver_left_over()
    if command == "gate":
        sys.exit(gate.ask(Asked(session.settings.experiment)).exit_code)
    if command == "promote":
        sys.exit(Promoting(gate, "driver").promote(Asked(session.settings.experiment)).exit_code)
    Promoting(gate, "driver").roll_back(sys.argv[6], reason="")


def main() -> None:
    command, url, home, experiment, count_file = sys.argv[1:6]
    flags: dict[str, object] = {"mlflow_url": url, "home": home, "experiment": experiment, "threads": 1}
    if command == "collect":
        flags |= {"pack": sys.argv[6], "models": "smollm2", "prompts": "v1", "n_tips": 2}
    try:
        run(command, read_settings(flags, environ={}), Path(count_file))
    except TipbenchError as error:
        print(f"{type(error).__name__}: {error.message}", file=sys.stderr)
        sys.exit(error.exit_code)


if __name__ == "__main__":
    main()
