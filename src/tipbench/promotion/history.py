"""History: who was champion and why, which looks were spent, and how good champions were over time."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import partial
from math import sqrt
from statistics import fmean, stdev

from tipbench.bench.champions import DOUBTFUL_TAG, EXPERIMENT, Chain, ChampionArm, Promotion, read_arm
from tipbench.bench.damage import FACTS_TAG, PassOver, find_readable, read_each
from tipbench.bench.evidence import CountedVerdict, Evidence, read_evidence
from tipbench.bench.packs import read_pack_files
from tipbench.bench.plans import StoredPlan, read_plan, read_result
from tipbench.clock import format_time
from tipbench.errors import NewerSchema, TipbenchError, TrackingError, TrackingUnavailable
from tipbench.pack import parse_pack
from tipbench.promotion.gate import read_champions
from tipbench.records import Record, Rubric, TimeText
from tipbench.tracking import Experiment, Run, Tracking


class PromotionView(Record):
    """A promotion or a rollback that came into force."""

    at: TimeText
    how: str
    arm: str
    version: int | None
    experiment: str
    by: str
    reason: str
    overruled: tuple[str, ...]
    """The rules of the gate that a forced promotion went against."""
    in_force: bool
    doubtful: tuple[str, ...]
    run: str


class PromotionLine(PromotionView):
    """The same with its time in milliseconds, for pictures."""

    at_ms: int

    def view(self) -> PromotionView:
        """As the API tells it."""
        return PromotionView.model_validate(self.model_dump(exclude={"at_ms"}))


class LookLine(Record):
    """A look that was spent; without an answer while nobody finished it."""

    at: str
    experiment: str
    look: int
    of: int
    verdicts: int | None
    champion: str
    challenger: str | None
    answer: str
    lead: float | None
    bound: float | None
    doubtful: tuple[str, ...]
    run: str


class LevelLine(Record):
    """How good an arm that was champion is in one experiment: the mean over scenarios, lazy tier.

    Every sitting's drift from the anchors is taken out, as far as it is known: `correction` is its mean.
    """

    at: str
    at_ms: int
    experiment: str
    arm: str
    arm_hash: str
    level: float
    se: float | None
    correction: float
    verdicts: int
    scenarios: int


class History(Record):
    """What `tipbench champion history` says."""

    pack: str
    promotions: tuple[PromotionLine, ...]
    looks: tuple[LookLine, ...]
    levels: tuple[LevelLine, ...]
    never_in_force: int


def read_history(
    tracking: Tracking, pack: str, *, pass_over: Callable[[str, TipbenchError], None]
) -> History:
    """Everything of one pack, oldest first. `pass_over` is told of experiments that cannot be read.

    Raises:
        NoChampion: the pack never had one.
    """
    chain = read_champions(tracking, pack)
    arms = _read_arms(tracking, chain, pass_over)
    looks: list[LookLine] = []
    levels: list[LevelLine] = []
    for experiment in tracking.list_experiments():
        try:
            runs = tracking.read_runs(experiment)
            tell = partial(pass_over, experiment.name)
            looks += _read_looks(tracking, experiment, runs, hashes=arms.keys(), pass_over=tell)
            levels += _read_levels(tracking, experiment, runs, arms.values())
        except TrackingUnavailable:
            raise
        except (TrackingError, NewerSchema) as error:
            pass_over(experiment.name, error)
    return History(
        pack=pack,
        promotions=list_promotions(chain),
        looks=tuple(sorted(looks, key=lambda line: (line.at, line.look))),
        levels=tuple(sorted(levels, key=lambda line: (line.at_ms, line.experiment, line.arm))),
        never_in_force=len(chain.never_in_force),
    )


def _read_arms(
    tracking: Tracking, chain: Chain, pass_over: Callable[[str, TipbenchError], None]
) -> dict[str, ChampionArm]:
    """Hash → arm of everybody who was champion, as far as they can be read."""
    arms: dict[str, ChampionArm] = {}
    for damage in chain.damaged:
        pass_over(EXPERIMENT, damage)
    for promotion in reversed(chain.promotions):
        try:
            arms[promotion.facts.arm_hash] = read_arm(tracking, promotion)
        except TrackingUnavailable:
            raise
        except TrackingError as error:
            pass_over(EXPERIMENT, error)
    return arms


def list_promotions(chain: Chain) -> tuple[PromotionLine, ...]:
    """What came into force, the oldest first."""
    return tuple(_promotion_line(chain, promotion) for promotion in chain.promotions)


def measure_level(given: Sequence[CountedVerdict], rubric: Rubric) -> tuple[float, float | None, float]:
    """Level, standard error over scenarios, and the drift that was taken out on average."""
    by_scenario: dict[str, list[float]] = {}
    corrections: list[float] = []
    for each in given:
        drift = each.sitting.drift
        correction = 0.0 if drift is None or each.verdict.failed else drift.correction
        composite = (
            rubric.lowest
            if each.verdict.failed
            else rubric.composite(each.verdict.scores, each.verdict.flags)
        )
        by_scenario.setdefault(each.cell.facts.scenario, []).append(composite - correction)
        corrections.append(correction)
    means = [fmean(values) for values in by_scenario.values()]
    se = stdev(means) / sqrt(len(means)) if len(means) > 1 else None
    return fmean(means), se, fmean(corrections)


def _promotion_line(chain: Chain, promotion: Promotion) -> PromotionLine:
    facts, run = promotion.facts, promotion.run
    version = run.tags.get("tipbench.version", "")
    return PromotionLine(
        at=format_time(run.start_time),
        at_ms=run.start_time,
        how=facts.how,
        arm=facts.arm,
        version=int(version) if version.isdecimal() and len(version) < 10 else None,
        experiment=facts.experiment,
        by=facts.by,
        reason=facts.reason or facts.gate,
        overruled=facts.overruled,
        in_force=promotion is chain.in_force,
        doubtful=promotion.doubtful,
        run=run.run_id,
    )


def _read_looks(
    tracking: Tracking,
    experiment: Experiment,
    runs: Sequence[Run],
    *,
    hashes: Iterable[str],
    pass_over: PassOver,
) -> Iterable[LookLine]:
    known, ours = {run.run_id: run for run in runs}, set(hashes)
    complete = (run for run in find_readable(runs, "plan") if FACTS_TAG in run.tags)
    for plan in read_each(complete, read_plan, pass_over):
        for look, run_id in plan.taken.items() if plan.facts.arm_hash in ours else ():
            # A deleted one is read all the same: it is spent.
            run = known.get(run_id) or tracking.read_run(run_id)
            yield from read_each([run], partial(_look_line, tracking, experiment, plan, look), pass_over)


def _look_line(tracking: Tracking, experiment: Experiment, plan: StoredPlan, look: int, run: Run) -> LookLine:
    result = read_result(tracking, run)
    best = result.best if result else None
    return LookLine(
        at=format_time(run.start_time),
        experiment=experiment.name,
        look=look + 1,
        of=len(plan.facts.looks),
        verdicts=result.counted if result else None,
        champion=plan.facts.champion,
        challenger=best.challenger if best else None,
        answer=best.answer if best else "unfinished",
        lead=best.difference if best else None,
        bound=best.bound if best else None,
        doubtful=tuple(run.tags.get(DOUBTFUL_TAG, "").split()),
        run=run.run_id,
    )


def _read_levels(
    tracking: Tracking, experiment: Experiment, runs: Sequence[Run], arms: Collection[ChampionArm]
) -> Iterable[LevelLine]:
    evidence = read_evidence(runs)
    weights = {arm.model_digest for arm in arms}
    if not any(given.cell.facts.model_digest in weights for given in evidence.lazy):
        return
    pack_hash = evidence.cells[-1].facts.pack_hash
    pack = parse_pack(read_pack_files(runs, pack_hash, tracking=tracking))
    evidence = read_evidence(runs, rubric_of=lambda _: pack.rubric)
    for arm in (arm for arm in arms if arm.pack == pack.name):
        name = arm.name_in(evidence.cells, diversity_request=pack.diversity_request)
        line = _level_line(experiment, evidence, pack.rubric, arm, name)
        if line is not None:
            yield line


def _level_line(
    experiment: Experiment, evidence: Evidence, rubric: Rubric, arm: ChampionArm, name: str
) -> LevelLine | None:
    given = [each for each in evidence.lazy if each.cell.facts.arm == name]
    if not given:
        return None
    level, se, correction = measure_level(given, rubric)
    at_ms = max(each.sitting.closed_ms for each in given)
    return LevelLine(
        at=format_time(at_ms),
        at_ms=at_ms,
        experiment=experiment.name,
        arm=arm.name,
        arm_hash=arm.hash,
        level=level,
        se=se,
        correction=correction,
        verdicts=sum(not each.verdict.failed for each in given),
        scenarios=len({each.cell.facts.scenario for each in given}),
    )
