"""`tipbench serve --demo`: a data folder, an MLflow, a user and an experiment of its own.

Only the texts and the scores of the experiment are invented; they take the way that real ones take.
Nothing of yours is touched.
"""

import hashlib
import json
import os
import re
import secrets
import shutil
import signal
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

from tipbench.admin.app import DEMO
from tipbench.admin.deps import Parts, make_parts
from tipbench.admin.jobs import order_simulate
from tipbench.clock import make_stamps
from tipbench.errors import UsageError
from tipbench.files import make_folder, open_private, try_lock, write_private
from tipbench.grid import Cell
from tipbench.jobs.orders import SimulateOrder
from tipbench.judging.auto.graders import FREE, Graded, Grader, JudgeModel
from tipbench.judging.auto.run import AutoOrder
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import SheetItem
from tipbench.pack import builtin_pack, select_scenarios
from tipbench.records import Chat, Generation, Model, Options, Sampling, Schema, as_chat
from tipbench.settings import Settings
from tipbench.tracking.tracking import open_managed_folder
from tipbench.workbench import Workbench, open_workbench

FOLDER, VERSION = "serve-demo", "1"
"""Another version of the demo is made again."""
USER = "demo"
KEPT = {"TIPBENCH_THREADS"}
EXPERIMENT, UNJUDGED = "tip-bench-demo", "tip-bench-demo-next"
CHAMPION = "demo-medium+v1"
SKILL = {"demo-small": 0.2, "demo-medium": 0.45, "demo-large": 0.75}
BETTER = {"v1": 0.0, "v2-mentor": 0.12, "v3-few-shot": 0.2}
"""How often a model writes a good tip, and what a prompt adds to that."""


@contextmanager
def open_demo(settings: Settings, report: Callable[[str], None]) -> Generator[str]:
    """Gives the password of the user `demo`, this time's own. At the end the demo's MLflow ends too.

    Raises:
        UsageError: the demo runs already.
    """
    folder = settings.home / FOLDER
    make_folder(folder)
    # Ended by a service manager it ends as with Ctrl-C: its MLflow must not be left behind.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with os.fdopen(open_private(settings.home / f"{FOLDER}.lock"), "ab") as lock:
        if not try_lock(lock.fileno()):
            raise UsageError("the demo runs already", hint="End it there with Ctrl-C.")
        if _version(folder) != VERSION:
            # Half made, or of an older tipbench: it holds nothing but what we invented.
            open_managed_folder(folder).stop()
            shutil.rmtree(folder)
            make_folder(folder)
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
        DemoMaker(workbench, own.home, report).make()
    write_private(own.home / "made", VERSION)


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


@dataclass(frozen=True)
class Form:
    """A way to write a tip, what it deserves (relevance, actionability, tone), and why."""

    text: str
    scores: tuple[int, int, int]
    reason: str


GOOD = (
    Form("Set a timer for ten minutes and {task}; the rest can wait.", (5, 5, 4), "One task, a clear start."),
    Form("Before anything else, {task}: then it is off your mind.", (5, 4, 5), "Names the task and why now."),
    Form("Take one small step: {task}, even if only the first half.", (5, 5, 5), "Small, concrete, kind."),
    Form("Make yourself a tea, sit down and {task}.", (4, 5, 5), "Warm, and easy to follow."),
    Form("While it is quiet, {task} and leave the rest for later.", (5, 4, 4), "Fits the moment."),
    Form(
        "Put your phone away and {task}; reward yourself with a break.", (4, 5, 4), "Concrete, a bit brisk."
    ),
)
FAIR = (
    Form("It would be good to {task} at some point.", (4, 2, 3), "The right task, no first step."),
    Form("Remember that you still have to {task}.", (4, 2, 2), "A reminder, not a tip."),
    Form("Maybe {task} first, and then see how you feel.", (4, 3, 4), "Friendly but vague."),
    Form("Try to {task} when you find the time for it.", (3, 2, 3), "No moment, no step."),
)
POOR = (
    Form("Believe in yourself and everything will fall into place.", (1, 1, 4), "Fits anybody."),
    Form("Make a list of all your tasks and prioritise them.", (2, 2, 3), "The list is there already."),
    Form("You should really stop putting things off!", (2, 1, 1), "Lectures, and names no task."),
    Form("**Stay hydrated** and breathe deeply", (1, 2, 3), "Not about these tasks; markup."),
)


@dataclass
class DemoEngine:
    """Writes tips by dice that are loaded by model and prompt; remembers what each of them deserves."""

    cells: Mapping[str, Cell]
    deserved: dict[str, Form] = field(default_factory=dict[str, Form])
    name = "demo"

    def list_models(self) -> Sequence[Model]:
        """The invented models."""
        return list_models()

    def find_model(self, name: str) -> Model:
        """The model of that name."""
        return next(model for model in self.list_models() if model.name == name)

    @contextmanager
    def load(self, model: Model) -> "Generator[DemoModel]":
        """There is nothing to load."""
        yield DemoModel(self, SKILL[model.name])


@dataclass
class DemoModel:
    """One of the invented models."""

    engine: DemoEngine
    skill: float
    load_seconds = 0.0

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:  # noqa: ARG002
        """Up to five tips for the tasks of the scenario; one answer in fourteen has one too few."""
        asked = as_chat(prompt).text
        cell, rng = self.engine.cells[asked], Random(seed)
        tasks = [re.sub(r" \(.*", "", task) for task in cell.scenario.values["tasks"]]
        forms: list[Form] = []
        count = 5 - (rng.random() < 1 / 14)
        while len(forms) < count:
            good = rng.random() < self.skill + BETTER[cell.prompt.name]
            form = rng.choice(GOOD if good else FAIR if rng.random() < 0.6 else POOR)
            if form not in forms:
                forms.append(form)
        tips = [form.text.format(task=rng.choice(tasks)) for form in forms]
        self.engine.deserved |= dict(zip(tips, forms, strict=True))
        text = "\n".join(f"{n}. {tip}" for n, tip in enumerate(tips, start=1))
        return Generation(
            text=text,
            finish="stop",
            prompt_tokens=len(asked) // 4,
            output_tokens=len(text) // 4,
            seconds=rng.uniform(0.9, 1.3) * (0.5 + 2 * self.skill),
        )


def list_models() -> list[Model]:
    """Models that nobody has."""
    return [
        Model(
            name=name,
            engine="demo",
            digest=f"sha256:{hashlib.sha256(name.encode()).hexdigest()}",
            parameters=int(skill * 4e9),
            size_bytes=int(skill * 2e9),
        )
        for name, skill in SKILL.items()
    ]


@dataclass(frozen=True)
class DemoMaker:
    """What the demo is made with. `report` hears what is done now."""

    workbench: Workbench
    folder: Path
    report: Callable[[str], None]

    def make(self) -> None:
        """Two experiments: one half judged with a champion in it, one that waits."""
        pack = builtin_pack()
        scenarios = select_scenarios(pack, "core", 0)
        options = Options(sampling=Sampling(), n_tips=5, diversity=False, seed=1)
        cells = [
            Cell(pack, model, prompt, scenario, options)
            for model in list_models()
            for prompt in pack.prompts
            if prompt.name in BETTER
            for scenario in scenarios
        ]
        engine = DemoEngine({cell.text: cell for cell in cells})
        self.report(f"collecting {len(cells)} cells of 3 invented models …")
        self._collect(cells, EXPERIMENT, engine)
        later = [replace(cell, options=options.model_copy(update={"seed": 2})) for cell in cells[-16:]]
        self._collect(later, UNJUDGED, engine)
        self.workbench.promoting("demo").name_first(
            CHAMPION, experiment=EXPERIMENT, reason="Something has to be in use."
        )
        self.report("judging some of them …")
        self._judge(engine.deserved)

    def _collect(self, cells: Sequence[Cell], experiment: str, engine: DemoEngine) -> None:
        collection = self.workbench.collecting.begin(cells, experiment=experiment)
        with collection.generate(lambda _: engine) as collected:
            for _ in collected:
                pass
        collection.deliver()

    def _judge(self, deserved: Mapping[str, Form]) -> None:
        judging = self.workbench.judging
        scorer = Scorer(deserved)
        self._fill(judging, scorer, SittingRequest("anna", sits="human", blocks=22))
        self._fill(judging, scorer, SittingRequest("ben", sits="human", second_share=0.25))
        self._fill(judging, replace(scorer, off_by=-2), SittingRequest("carl", sits="human", blocks=3))
        judge = JudgeModel("demo:judge", "demo", pinned=True, price=FREE, patient=False, open=scorer.open)
        auto = self.workbench.auto_judging(lambda _done, _of: None)
        auto.run(AutoOrder(judge), experiment=EXPERIMENT)

    def _fill(self, judging: Judging, scorer: "Scorer", request: SittingRequest) -> None:
        path = self.folder / f"{request.judged_by}.json"
        handed = judging.hand_out(path, request, experiment=EXPERIMENT)
        if handed is None:
            return
        rng = Random(request.judged_by)
        sections = tuple(
            section.model_copy(update={"items": tuple(scorer.fill(item, rng) for item in section.items)})
            for section in handed.sheet.sections
        )
        filled = handed.sheet.model_copy(update={"sections": sections})
        path.write_text(filled.model_dump_json(), encoding="utf-8")
        judging.take_in(path, experiment=EXPERIMENT, judged_by=None, close=False)


@dataclass(frozen=True)
class Scorer:
    """Scores a text by what it deserves, give or take one; `off_by` makes it a judge who drifted."""

    deserved: Mapping[str, Form]
    off_by: int = 0
    references: Mapping[str, Mapping[str, int]] = field(
        default_factory=lambda: {anchor.text: anchor.scores for anchor in builtin_pack().anchors}
    )

    def fill(self, item: SheetItem, rng: Random) -> SheetItem:
        """The item with its scores and a reason."""
        reason = self.deserved[item.text].reason if item.text in self.deserved else ""
        return item.model_copy(update={"scores": self.score(item.text, rng), "reason": reason})

    def score(self, text: str, rng: Random) -> dict[str, int]:
        """Scale → score."""
        right = self.references.get(text)
        if right is None:
            names = ("relevance", "actionability", "tone")
            right = dict(zip(names, self.deserved[text].scores, strict=True))
            right = {name: score + rng.choice((-1, 0, 0, 0, 1)) for name, score in right.items()}
        else:
            right = {**right, "tone": right["tone"] + rng.choice((-1, 0, 0, 0, 1))}
        return {name: max(1, min(5, score + self.off_by)) for name, score in right.items()}

    @contextmanager
    def open(self) -> Generator[Grader]:
        """The same as an automatic judge."""
        yield DemoGrader(self)


@dataclass(frozen=True)
class DemoGrader:
    """Answers as a model would that judges well."""

    scorer: Scorer

    def grade(self, question: str, *, schema: Schema) -> Graded:  # noqa: ARG002
        """Scores as JSON."""
        found = re.search(r"<<< ([0-9a-f]{16})\n(.*)\n\1 >>>", question, re.DOTALL)
        text = found[2] if found else ""
        scores = self.scorer.score(text, Random(text))
        return Graded(json.dumps(scores), prompt_tokens=len(question) // 4, output_tokens=20, seconds=0.0)
