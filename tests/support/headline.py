"""The headline: 4 models × 3 prompts × 4 scenarios = 48 cells, judged by a script that sees only the file."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.engines.variants import prepare_models
from tests.support.experiments import Where, collect_into, collect_with, compare_experiment
from tests.support.small_pack import MAX_TOKENS, PROMPT
from tests.support.text_judge import judge_file
from tipbench.bench.sittings import Decision
from tipbench.clock import Stamps, make_stamps
from tipbench.engines import open_engines
from tipbench.engines.protocol import Engine
from tipbench.grid import prepare_grid
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.pack import builtin_pack
from tipbench.ranking.standings import Interval, Report
from tipbench.records import Model
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

CELLS, SCENARIOS = 48, 4


@dataclass(frozen=True)
class Ladder:
    """The names of the model, of its finer copy that nobody can tell apart, of a worse one, of word salad."""

    original: str
    same: str
    worse: str
    salad: str

    @property
    def names(self) -> tuple[str, ...]:
        """From the original down."""
        return (self.original, self.same, self.worse, self.salad)


EMBEDDED = Ladder("smollm2", "smollm2-q8_0", "smollm2-prune6", "smollm2-sim2")
ON_OLLAMA = Ladder("smollm2:135m", "smollm2:q8", "smollm2:prune6", "smollm2:sim2")


@dataclass(frozen=True)
class Headline:
    """What came out of one seed."""

    ladder: Ladder
    by_model: Report
    by_arm: Report
    shuffled: Report

    @property
    def means(self) -> dict[str, float]:
        """Model → mean composite."""
        return {s.name: s.composite for s in self.by_model.standings if s.composite is not None}

    @property
    def same_minus_original(self) -> Interval:
        """The pair that must not be told apart."""
        same, original = self.ladder.same, self.ladder.original
        pair = next(p for p in self.by_model.pairs if {p.name, p.to} == {same, original})
        if pair.name == same:
            return pair
        return Interval(name=same, to=original, difference=-pair.difference, low=-pair.high, high=-pair.low)


def run_headline(settings: Settings, *, seed: int, ladder: Ladder = EMBEDDED) -> Headline:
    """Collects, exports, judges, applies and compares; then once more with shuffled scores."""
    settings = _prepare(settings, ladder.names, seed=seed, recipes=("q8_0", "prune:6", "sim2"))
    collect_into(settings)
    judge(settings, seed=seed, shuffle=False)
    copy = settings.model_copy(update={"experiment": f"{settings.experiment}-shuffled"})
    copy_cells(settings.experiment, copy)
    judge(copy, seed=seed, shuffle=True)
    with open_tracking(settings) as tracking:
        return Headline(
            ladder=ladder,
            by_model=compare_experiment(tracking, settings.experiment, by="model"),
            by_arm=compare_experiment(tracking, settings.experiment, by="arm"),
            shuffled=compare_experiment(tracking, copy.experiment, by="arm"),
        )


def run_ends(settings: Settings, *, seed: int, pack: Path) -> Report:
    """Only the two ends of the ladder, with one short prompt and two short tips a cell: 8 cells.

    At a low temperature the original fills its slots. On four seeds it was 5 to 8 points of the composite
    ahead of word salad, which cannot write: far more than another CPU or another engine moves a text.
    """
    asked = {"pack": str(write_short_pack(pack)), "prompts": "v1", "n_tips": 2, "temperature": 0.2}
    ends = (EMBEDDED.original, EMBEDDED.salad)
    settings = _prepare(settings.model_copy(update=asked), ends, seed=seed, recipes=("sim2",))
    collect_into(settings)
    judge(settings, seed=seed, shuffle=False)
    with open_tracking(settings) as tracking:
        return compare_experiment(tracking, settings.experiment, by="model")


def write_short_pack(folder: Path) -> Path:
    """The built-in pack with one prompt that is short, as its answers are."""
    files = {name: text for name, text in builtin_pack().files.items() if not name.startswith("prompts/")}
    files["pack.toml"] = files["pack.toml"].replace("max_tokens = 320", f"max_tokens = {MAX_TOKENS}")
    for name, text in (files | {"prompts/v1.md": PROMPT}).items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def _prepare(settings: Settings, models: Sequence[str], *, seed: int, recipes: Sequence[str]) -> Settings:
    """The settings for these models and this seed, with their weights in place."""
    link = settings.models_folder
    if not link.exists():
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(prepare_models(*recipes))
    return settings.model_copy(
        update={
            "models": ",".join(models),
            "n_scenarios": SCENARIOS,
            "seed": seed,
            "experiment": f"{settings.experiment}-seed-{seed}",
        }
    )


def judge(settings: Settings, *, seed: int, shuffle: bool) -> None:
    """Exports everything, has it judged, applies it. Ids are seeded: the same seed draws the same blocks."""
    sheet = settings.home / f"{settings.experiment}.json"
    with open_tracking(settings) as tracking:
        judging = Judging(tracking, seeded_stamps(seed), settings.home / "locks")
        judging.hand_out(sheet, SittingRequest("text-judge"), experiment=settings.experiment)
        judge_file(sheet, shuffle_seed=seed if shuffle else None)
        taken = judging.take_in(sheet, experiment=None, judged_by=None, close=False)
        for section in taken.sections:
            if section.outcome == "refused":
                # A script is no calibrated judge: the anchors find that out, and a person overrules them.
                decision = Decision(sitting=section.sitting, accept=True, reason="a scripted judge")
                judging.decide(decision, experiment=settings.experiment)


def copy_cells(source: str, settings: Settings) -> None:
    """The same cells in another experiment, nothing generated."""

    def nobody(model: Model) -> Engine:
        raise AssertionError(f"{model.name} is asked, and its cells are in {source!r}")

    engines = open_engines(settings, report=print)
    with open_tracking(settings) as tracking:
        cells = prepare_grid(settings, find_model=engines.admit)
        where = Where(tracking, settings.experiment, judge_kind=settings.judge_kind, reuse_from=source)
        assert collect_with(nobody, cells, where=where) == len(cells)


def seeded_stamps(seed: int) -> Stamps:
    """The real clock, and ids that repeat."""
    count = iter(range(10**6))
    return Stamps(now_ms=make_stamps().now_ms, new_id=lambda: f"headline-{seed}-{next(count):06}")
