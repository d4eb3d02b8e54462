"""Where an improvement stands, read from the store: versions, rounds, what is judged, which one is ahead."""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.champions import ChampionArm
from tipbench.bench.damage import Damage, read_text
from tipbench.bench.evidence import Evidence
from tipbench.bench.scores import find_auto_judges, find_levels, make_auto_scores, make_scores
from tipbench.bench.sittings import read_grade
from tipbench.bench.versions import StoredVersion, add_prompts, name_version, read_versions
from tipbench.errors import UsageError
from tipbench.grid import Cell
from tipbench.pack import answer_tokens, select_scenarios
from tipbench.records import Model, Options, Pack, Prompt, Sampling, Scenario, content_hash
from tipbench.settings import Settings
from tipbench.stats import Score, leaderboard
from tipbench.tracking.runs import Experiment

ROUNDING = 1e-9
TrainOn = Literal["lazy", "auto"]


@dataclass(frozen=True)
class Order:
    """What shall be improved, and on which scenarios. The others are kept for confirming."""

    experiment: str
    pack: Pack
    model: Model
    base: Prompt
    options: Options
    training: tuple[Scenario, ...]
    confirming: tuple[Scenario, ...]
    train_on: TrainOn = "lazy"
    """Whose verdicts choose among versions; what confirms asks both tiers whatever this is."""

    def arm(self, prompt: Prompt) -> str:
        """As the leaderboard writes it."""
        return f"{self.model.name}+{prompt.name}"

    def cells(self, prompts: Sequence[Prompt], scenarios: Sequence[Scenario]) -> list[Cell]:
        """The grid of these prompts; its pack holds their texts."""
        pack = add_prompts(self.pack, prompts)
        return [Cell(pack, self.model, prompt, s, self.options) for prompt in prompts for s in scenarios]


@dataclass(frozen=True)
class Course:
    """Where it stands. `levels` are means on the training scenarios by prompt, of those that are judged."""

    order: Order
    experiment: Experiment
    versions: tuple[StoredVersion, ...]
    cells: tuple[StoredCell, ...]
    lacking: tuple[StoredCell, ...]
    levels: Mapping[str, float]
    damaged: tuple[str, ...] = ()
    """What cannot be read of the experiment: it counts for nothing."""

    @property
    def round(self) -> int:
        """The last round that has versions; 0 before the first."""
        return max((version.facts.round for version in self.versions), default=0)

    @property
    def is_over(self) -> bool:
        """Whether one of its versions is what shall be improved: it was promoted."""
        return any(version.facts.hash == self.order.base.hash for version in self.versions)

    @property
    def prompts(self) -> list[Prompt]:
        """What is benched: the base and all versions."""
        return [self.order.base, *(version.prompt for version in self.versions)]

    @property
    def best(self) -> Prompt:
        """The prompt that is ahead on the training scenarios; the base where none is ahead of it."""
        best = self.order.base
        for prompt in self.prompts:
            lowest = float("-inf")
            if self.levels.get(prompt.name, lowest) > self.levels.get(best.name, lowest) + ROUNDING:
                best = prompt
        return best

    @property
    def next_brief(self) -> str:
        """The id of the brief for the next round: it says from which prompt it starts."""
        return content_hash([self.experiment.uid, self.round + 1, self.best.hash])

    def cells_of(self, prompt: Prompt) -> list[StoredCell]:
        """The stored cells of one prompt."""
        return [cell for cell in self.cells if cell.facts.prompt == prompt.name]


def read_course(order: Order, bench: Bench) -> Course:
    """Where the improvement stands.

    Raises:
        UsageError: the experiment holds something else, or improves another prompt.
    """
    evidence = bench.evidence
    hashes = {scenario.hash for scenario in order.training}
    foreign = sorted({c.facts.scenario for c in evidence.cells if c.facts.scenario_hash not in hashes})
    if foreign:
        listed = ", ".join(foreign[:5])
        raise UsageError(
            f"experiment {order.experiment!r} holds scenarios that are not for training: {listed}",
            hint="What was seen in training cannot confirm: name another experiment (--experiment).",
        )
    damaged: list[Damage] = []
    versions = read_versions(
        bench.runs, read_text=partial(read_text, bench.tracking), pass_over=damaged.append
    )
    roots = {version.facts.parent_hash for version in versions if version.facts.round == 1}
    if roots - {order.base.hash} and order.base.hash not in {version.facts.hash for version in versions}:
        raise UsageError(
            f"experiment {order.experiment!r} improves another prompt than {order.base.name!r}",
            hint="The champion changed since. Take a new experiment to improve it further.",
        )
    names = {order.base.name, *(version.facts.name for version in versions)}
    cells = [c for c in evidence.cells if c.facts.prompt in names and c.facts.model == order.model.name]
    scores, judged = _read_training(order, evidence, cells)
    return Course(
        order=order,
        experiment=bench.experiment,
        versions=versions,
        cells=tuple(cells),
        lacking=tuple(c for c in cells if c.answered_count and c.run.run_id not in judged),
        levels={str(name): level for name, level in leaderboard(scores).estimate.items()},
        damaged=tuple(dict.fromkeys([*evidence.damaged, *(each.told for each in damaged)])),
    )


def _read_training(
    order: Order, evidence: Evidence, cells: Sequence[StoredCell]
) -> tuple[list[Score], Set[str]]:
    """What the tier that is trained on says of the prompts, and the runs of the cells it has judged."""
    rubric = order.pack.rubric
    if order.train_on == "auto":
        judge = next(iter(find_auto_judges(evidence)), None)
        scores = make_auto_scores(judge, cells, rubric=rubric, name_of=lambda facts: facts.prompt)
        return scores, {given.cell.run.run_id for given in judge.given} if judge else set()
    levels = find_levels(evidence, rubric)
    scores = make_scores(evidence, cells, rubric=rubric, levels=levels, name_of=lambda facts: facts.prompt)
    return scores, evidence.lazy_by_cell().keys()


def explain_lack(bench: Bench) -> str:
    """Why an automatic judge has not judged: what its anchors showed, where they did."""
    for sitting in reversed(bench.evidence.sittings):
        grade = read_grade(sitting) if sitting.facts.tier == "auto" and sitting.state == "refused" else None
        if grade is not None:
            what = "is uninformative" if grade.holds_format else "cannot hold the format"
            return f"the automatic judge {sitting.judged_by} {what} on the anchors: {grade.shown}"
    return "the automatic judge has not judged everything"


LEAST_TRAINING = 2
USUAL_SET = "wide"


@dataclass(frozen=True)
class ScenarioSplit:
    """What is trained on and what confirms; `remark` says where the pack did not say so itself."""

    training: tuple[Scenario, ...]
    confirming: tuple[Scenario, ...]
    remark: str = ""


def split_scenarios(pack: Pack, which: str | None, *, cap: int, least: int) -> ScenarioSplit:
    """What is trained on, at most `cap` of the set, and what confirms: its held-out ones and other sets.

    Without a set it is `wide` if the pack has one, else all of it. Where fewer than `least` are there to
    confirm with, every second one of the others is held out too: appending scenarios does not change which.

    Raises:
        UsageError: there is too little to train on, or to confirm with.
    """
    has_usual = any(scenario.set == USUAL_SET for scenario in pack.scenarios)
    which = which or (USUAL_SET if has_usual else "all")
    chosen = select_scenarios(pack, which, 0)
    training = tuple(scenario for scenario in chosen if not scenario.held_out)
    confirming = tuple(s for s in pack.scenarios if s.held_out or s not in chosen)
    remark = ""
    if len(confirming) < least:
        spared = training[1::2]
        remark = (
            f"{len(confirming) or 'no'} scenarios of {pack.name!r} are held out: these confirm too: "
            f"{', '.join(scenario.id for scenario in spared)}"
        )
        training, confirming = training[::2], (*confirming, *spared)
    if len(training) < LEAST_TRAINING or len(confirming) < least:
        raise UsageError(
            f"{len(chosen)} scenarios (set {which!r} of pack {pack.name!r}) are too few to improve on: "
            f"{LEAST_TRAINING} to train on and {least} others for the gate to confirm with are needed",
            hint="Write more into scenarios.jsonl; those with `held_out` true confirm.",
        )
    return ScenarioSplit(training[:cap] if cap else training, confirming, remark)


def check_challenge(cells: Sequence[Cell], champion: ChampionArm, needed: int) -> None:
    """Refuses to generate what the gate could say nothing about.

    Raises:
        UsageError: nobody challenges the champion, or on fewer scenarios than the gate asks for.
    """
    own = (champion.model_digest, champion.template)
    if all((cell.model.digest, cell.prompt.text) == own for cell in cells):
        raise UsageError(
            f"nobody challenges the champion {champion.name}: it is all there is to compare",
            hint="Name another prompt with --prompts, or another model with --models.",
        )
    scenarios = {cell.scenario.id for cell in cells}
    if len(scenarios) < needed:
        raise UsageError(
            f"{len(scenarios)} scenarios are too few: the gate needs {needed}, whatever is judged",
            hint="Take more (--scenarios, --n-scenarios), or set gate.scenarios.",
        )


def name_base(pack: Pack, arm: ChampionArm) -> Prompt:
    """The champion's prompt under a name that the pack does not use for another text."""
    known = {prompt.name: prompt.text for prompt in pack.prompts}
    prompt = Prompt(name=arm.prompt, text=arm.template)
    if known.get(prompt.name, prompt.text) == prompt.text:
        return prompt
    return Prompt(name=name_version(prompt.name, prompt.hash), text=prompt.text)


def make_options(settings: Settings, pack: Pack) -> Options:
    """How a prompt is asked that is no champion yet."""
    sampling = Sampling(
        temperature=settings.temperature, max_tokens=answer_tokens(pack, n_tips=settings.n_tips)
    )
    return Options(
        sampling=sampling, n_tips=settings.n_tips, diversity=settings.diversity, seed=settings.seed
    )
