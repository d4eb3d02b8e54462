"""Plans of the gate and their looks. A look is claimed on its plan before it is computed, and stays spent."""

import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Literal, get_args

from tipbench.bench.champions import (
    DOUBTFUL_TAG,
    EXPERIMENT,
    LOOK_TAG,
    Promotion,
    label_rule,
    read_arm,
    read_chain,
)
from tipbench.bench.damage import (
    FACTS_TAG,
    KIND_TAG,
    UNREADABLE,
    Damage,
    PassOver,
    find_readable,
    ignore,
    read_each,
    read_file,
    read_tag,
)
from tipbench.bench.evidence import Evidence
from tipbench.clock import Stamps
from tipbench.errors import TrackingRefused
from tipbench.records import LAZY_KINDS, SCHEMA, Pack, Record, content_hash
from tipbench.settings import GateSettings, Require
from tipbench.tracking.runs import FIRST_ID_TAG, Experiment, Run, Write, blank_write
from tipbench.tracking.tracking import Tracking

# What the gate stores: a plan, the frozen list a look is computed from, and what the look said.


Answer = Literal["promote", "no", "undecided"]


class PlanFacts(Record):
    """What was fixed before anybody looked: how many lazy verdicts, when to look, how often to err."""

    champion: str
    arm_hash: str
    budget: int
    looks: tuple[float, ...]
    alpha: float
    counted: int
    """Verdicts that counted when the plan was made."""
    require: Require | None = None
    """What is asked of an automatic judge; plans from before 2026-11-18 did not fix it."""

    def require_now(self, setting: Require) -> Require:
        """What is asked at a look: as it was fixed. Older plans go by the setting, once `both` or `lazy`."""
        if self.require is not None:
            return self.require
        return "lazy" if setting == "lazy" else "both"


class FrozenScore(Record):
    """One slot with what the tiers had said of it."""

    arm: str
    scenario: str
    slot: int
    lazy: float | None = None
    auto: float | None = None
    sitting: str | None = None


class FrozenAutoCell(Record):
    """What the automatic judge's own board counts for a cell, failed slots included."""

    arm: str
    scenario: str
    value: float


class FrozenArm(Record):
    """What was known of an arm without any judge.

    `well_formed` is a share of all slots, None where the pack names no flag for it. `latency_seconds` is the
    median of an answer with all its tips. `tip_seconds` is that of one tip, `tip_low` and `tip_high` hold the
    middle half of the cells; `loaded_cells` were generated while others used the machine.
    """

    arm: str
    cells: int
    well_formed: float | None
    latency_seconds: float | None
    tip_seconds: float | None = None
    tip_low: float | None = None
    tip_high: float | None = None
    loaded_cells: int = 0


class FrozenSitting(Record):
    """A sitting whose verdicts counted. `grade` says how far an auto judge agrees with the anchors."""

    token: str
    tier: Literal["lazy", "auto"]
    judged_by: str
    verdicts: int
    unanchored: bool
    informative: bool
    grade: str = ""


class FrozenTerms(Record):
    """What the gate asked for at this look. `unanchored` says whether sittings without anchors may count."""

    margin: float
    require: Require
    scenarios: int
    unanchored: bool
    format_drop: float
    latency_seconds: float | None = None
    latency_ratio: float | None = None


def make_terms(gate: GateSettings, require: Require) -> FrozenTerms:
    """What the settings ask for, with what a plan fixed."""
    return FrozenTerms(
        margin=gate.margin,
        require=require,
        scenarios=gate.scenarios,
        unanchored=gate.unanchored,
        format_drop=gate.format_drop,
        latency_seconds=gate.latency_seconds,
        latency_ratio=gate.latency_ratio,
    )


class Frozen(Record):
    """Everything a look is computed from, fixed before it was claimed."""

    champion: str
    counted: int
    scores: tuple[FrozenScore, ...]
    arms: tuple[FrozenArm, ...]
    sittings: tuple[FrozenSitting, ...]
    terms: FrozenTerms
    auto_cells: tuple[FrozenAutoCell, ...] | None = None
    """None in looks from before 2026-11-18: there the mean of a cell's auto scores is compared."""


class GateRule(Record):
    """One rule with its numbers."""

    name: str
    passed: bool
    detail: str

    @property
    def label(self) -> str:
        """Its name for people."""
        return label_rule(self.name)


class GateAnswer(Record):
    """What a look says of one challenger, or of the best one."""

    answer: Answer
    promoted: str | None
    challenger: str | None
    difference: float | None
    bound: float | None
    auto_difference: float | None
    level: float
    rules: tuple[GateRule, ...]
    tiers: tuple[str, ...] = ()
    """Who had a say; looks from before 2026-11-18 do not tell."""


class LookResult(Record):
    """The answers of a look: for whoever is best, and for every arm that might be asked for."""

    look: int
    of: int
    counted: int
    champion: str
    best: GateAnswer
    by_arm: dict[str, GateAnswer]


class PlainAnswer(Record):
    """An answer that no look was spent on."""

    answer: Answer
    rules: tuple[GateRule, ...] = ()
    remarks: tuple[str, ...] = ()


FROZEN_FILE = "frozen.json"
FROZEN_TAG = "tipbench.frozen"
RESULT_FILE = "result.json"
RESULT_TAG = "tipbench.result"
"""The tags hold the hashes of the files; looks from before 2026-11-18 have none."""
PLAN_TAG = "tipbench.plan"
_LOOK = "look:"
_LOOK_PARAM = re.compile(r"look:([0-9]{1,3})")


@dataclass(frozen=True)
class StoredPlan:
    """A plan as MLflow has it."""

    run: Run
    facts: PlanFacts

    @property
    def taken(self) -> dict[int, str]:
        """Look → its run. Deleting that run gives nothing back."""
        params = sorted(self.run.params.items())
        return {int(found[1]): value for name, value in params if (found := _LOOK_PARAM.fullmatch(name))}

    def verdicts_at(self, look: int) -> int:
        """How many lazy verdicts that look needs."""
        share = self.facts.looks[look] * self.facts.budget
        return -int(-(share - 1e-9) // 1)


def plan_facts(evidence: Evidence, promotion: Promotion, *, champion: str, gate: GateSettings) -> PlanFacts:
    """The plan against this champion as the settings have it; without a budget every candidate is judged.

    Fewer verdicts than a block in each scenario that the gate needs could never decide: so many it are.
    """
    waiting = [cell for cell in evidence.cells if cell.facts.judge_kind in LAZY_KINDS] or evidence.cells
    answered = sum(cell.answered_count for cell in waiting)
    least = gate.scenarios * len({cell.facts.arm for cell in evidence.cells})
    return PlanFacts(
        champion=champion,
        arm_hash=promotion.facts.arm_hash,
        budget=min(max(gate.verdicts, least), answered) if gate.verdicts else answered,
        looks=gate.looks,
        alpha=gate.alpha,
        counted=count_verdicts(evidence),
        require=gate.require,
    )


def count_verdicts(evidence: Evidence) -> int:
    """Lazy verdicts that count, without the failures that no judge saw."""
    return sum(not given.verdict.failed for given in evidence.lazy)


def find_plan(tracking: Tracking, experiment: Experiment, promotion: Promotion) -> StoredPlan | None:
    """The plan of this experiment against this champion, also when its run was deleted.

    One that came with an imported experiment stands: the looks that were spent on these verdicts are spent.
    """
    claimed = tracking.read_run(promotion.origin).params.get(_plan_key(experiment))
    if not claimed:
        return _find_imported(tracking, experiment, promotion) if experiment.imported else None
    plan = _read_plan(tracking, claimed)
    if plan.facts.arm_hash != promotion.facts.arm_hash:
        raise Damage(plan.run, FACTS_TAG, f"it is no plan against {promotion.facts.arm}")
    return plan


def _find_imported(tracking: Tracking, experiment: Experiment, promotion: Promotion) -> StoredPlan | None:
    where = f"tags.`{KIND_TAG}` = 'plan' AND tags.`{FIRST_ID_TAG}` LIKE '%'"
    plans = map(read_plan, tracking.search_runs([experiment.id], where))
    same = [plan for plan in plans if plan.facts.arm_hash == promotion.facts.arm_hash]
    # Should there be several, all who ask take the same.
    return max(same, key=lambda plan: (len(plan.taken), plan.run.first_id), default=None)


def read_spent_looks(tracking: Tracking, runs: Sequence[Run]) -> list[Run]:
    """The looks that plans among the runs have spent and that are not among them: they were deleted."""
    known, found = {run.run_id for run in runs}, list[Run]()
    for plan in read_each(find_readable(runs, "plan"), read_plan, ignore):
        for run_id in plan.taken.values():
            if run_id not in known:
                with suppress(TrackingRefused):
                    found.append(tracking.read_run(run_id))
    return found


def ensure_plan(
    tracking: Tracking, experiment: Experiment, promotion: Promotion, *, facts: PlanFacts, stamps: Stamps
) -> StoredPlan:
    """The plan that stands: the one that was there first, else this one.

    Raises:
        TrackingRefused: the champion's promotion was deleted.
    """
    found = find_plan(tracking, experiment, promotion)
    if found is not None:
        return found
    mine = tracking.deliver(_plan_write(facts, write=blank_write(experiment, stamps)))
    winner = _claim(tracking, promotion.origin, _plan_key(experiment), mine)
    if winner != mine:
        tracking.delete_run(mine)
    return _read_plan(tracking, winner)


@dataclass(frozen=True)
class FixedPlan:
    """The plan that a hand-out goes by. `champion` is what the experiment calls it."""

    champion: str
    facts: PlanFacts
    terms: FrozenTerms


def fix_plan(
    tracking: Tracking,
    experiment: Experiment,
    *,
    evidence: Evidence,
    pack: Pack,
    gate: GateSettings,
    stamps: Stamps,
) -> FixedPlan | None:
    """Before candidates are handed out: the plan against the champion stands, if it is in the experiment."""
    promotion = read_chain(tracking, pack.name).in_force
    if promotion is None:
        return None
    arm = read_arm(tracking, promotion)
    name = arm.name_in(evidence.cells, diversity_request=pack.diversity_request)
    if not name:
        return None
    facts = plan_facts(evidence, promotion, champion=arm.name, gate=gate)
    if facts.budget:
        facts = ensure_plan(tracking, experiment, promotion, facts=facts, stamps=stamps).facts
    return FixedPlan(name, facts, make_terms(gate, facts.require_now(gate.require)))


def claim_look(tracking: Tracking, plan: StoredPlan, look: int, run_id: str) -> str:
    """The run whose frozen list this look is computed from: exactly one of all who try.

    Raises:
        TrackingRefused: the plan was deleted.
    """
    return _claim(tracking, plan.run.run_id, f"{_LOOK}{look}", run_id)


def look_write(frozen: Frozen, *, plan: StoredPlan, look: int, write: Write) -> Write:
    """The run of a look that is about to be claimed."""
    text = frozen.model_dump_json(exclude_defaults=True)
    return write.model_copy(
        update={
            "run_name": f"look {look + 1} of {len(plan.facts.looks)}",
            "tags_at_create": _tags("look") | {PLAN_TAG: plan.run.run_id, LOOK_TAG: str(look)},
            "artifacts": {FROZEN_FILE: text},
            "tags": {FROZEN_TAG: content_hash(text), "tipbench.state": "prepared"},
        }
    )


def result_write(result: LookResult, *, run_id: str, write: Write) -> Write:
    """What the look said; the numbers for charts in MLflow."""
    best, text = result.best, result.model_dump_json(indent=1)
    numbers = {"lead": best.difference, "bound": best.bound, "auto_lead": best.auto_difference}
    return write.model_copy(
        update={
            "run_id": run_id,
            "artifacts": {RESULT_FILE: text},
            "metrics": {name: value for name, value in numbers.items() if value is not None},
            "tags": {
                RESULT_TAG: content_hash(text),
                "tipbench.answer": best.answer,
                "tipbench.state": "complete",
            },
            "end_time": write.start_time,
        }
    )


def read_frozen(tracking: Tracking, run: Run) -> Frozen:
    """What the look is computed from.

    Raises:
        Damage: that cannot be read any more; the look stays spent.
    """
    return read_file(tracking, run, FROZEN_FILE, Frozen, stored=run.tags.get(FROZEN_TAG))


def read_result(tracking: Tracking, run: Run) -> LookResult | None:
    """What the look said; None while nobody finished it.

    Raises:
        Damage: that cannot be read any more; the look stays spent.
    """
    if not find_readable([run], "look"):
        raise Damage(run, "tipbench.state", "it is no look")
    if run.tags["tipbench.state"] != "complete":
        return None
    result = read_file(tracking, run, RESULT_FILE, LookResult, stored=run.tags.get(RESULT_TAG))
    if str(result.look) != run.tags.get(LOOK_TAG):
        raise Damage(run, RESULT_FILE, f"it is not the look of the tag {LOOK_TAG!r}")
    return result


def mark_doubtful(tracking: Tracking, experiment: Experiment, evidence: Evidence) -> int:
    """Marks looks and promotions that rest on sittings which were refused since, and takes marks back.

    Returns how many runs changed.
    """
    refused = {sitting.facts.token for sitting in evidence.sittings if sitting.state == "refused"}
    looks = tracking.search_runs([experiment.id], "tags.`tipbench.kind` = 'look'")
    changed: list[tuple[str, str]] = []
    for look in looks:
        try:
            used = {sitting.token for sitting in read_frozen(tracking, look).sittings}
        except UNREADABLE:
            continue  # The gate says so: it lets nobody pass on it.
        mark = " ".join(sorted(used & refused))
        rests_on_it = [look, *_promotions_by(tracking, look)]
        changed += [(run.run_id, mark) for run in rests_on_it if run.tags.get(DOUBTFUL_TAG, "") != mark]
    for run_id, mark in changed:
        # Not journaled: left behind, it would overrule what follows from a newer word.
        tracking.overrule(run_id, metrics={}, tags={DOUBTFUL_TAG: mark}, without_tags=())
    return len(changed)


def _promotions_by(tracking: Tracking, look: Run) -> Sequence[Run]:
    if look.tags.get("tipbench.answer") != "promote":
        return []
    experiment = tracking.ensure_experiment(EXPERIMENT)
    return tracking.search_runs([experiment.id], f"tags.`{LOOK_TAG}` = '{look.run_id}'")


def _claim(tracking: Tracking, run_id: str, key: str, value: str) -> str:
    try:
        return tracking.claim(run_id, key, value)
    except TrackingRefused as error:
        raise TrackingRefused(
            f"nothing can be claimed on run {run_id}: {error.message}",
            hint=f"If it was deleted, restore it: mlflow runs restore --run-id {run_id}",
        ) from error


def _plan_write(facts: PlanFacts, *, write: Write) -> Write:
    return write.model_copy(
        update={
            "run_name": f"gate plan against {facts.champion}"[:250],
            "tags_at_create": _tags("plan"),
            "tags": {"tipbench.facts": facts.model_dump_json(), "tipbench.state": "complete"},
            "end_time": write.start_time,
        }
    )


def _read_plan(tracking: Tracking, run_id: str) -> StoredPlan:
    return read_plan(tracking.read_run(run_id))


def read_plan(run: Run) -> StoredPlan:
    """The plan that the run holds.

    Raises:
        Damage: it holds none; or a look that it does not have was spent on it.
    """
    if not find_readable([run], "plan"):
        raise Damage(run, "tipbench.kind", "it is no plan")
    plan = StoredPlan(run, read_tag(run, FACTS_TAG, PlanFacts))
    for name in run.params:
        found = _LOOK_PARAM.fullmatch(name)
        if name.startswith(_LOOK) and (found is None or int(found[1]) >= len(plan.facts.looks)):
            raise Damage(run, name, "it plans no such look")
    return plan


def check_plans(runs: Sequence[Run], pass_over: PassOver) -> None:
    """Says which plans and looks cannot be read: what was spent and what was said is not known."""
    for kind, read in (("plan", read_plan), ("look", _read_answer)):
        complete = (run for run in find_readable(runs, kind) if run.tags["tipbench.state"] == "complete")
        read_each(complete, read, pass_over)


def _read_answer(run: Run) -> str:
    answer = run.tags.get("tipbench.answer", "")
    if answer not in get_args(Answer):
        raise Damage(run, "tipbench.answer", "it is no answer of a gate")
    return answer


def _plan_key(experiment: Experiment) -> str:
    return f"plan:{experiment.uid}"


def _tags(kind: str) -> dict[str, str]:
    return {"tipbench.kind": kind, "tipbench.schema": str(SCHEMA), "tipbench.state": "open"}


def is_deleted(tracking: Tracking, experiment: Experiment, run_id: str) -> bool:
    """Whether the run was deleted in MLflow: it can be read and not written."""
    where = f"attributes.run_id = '{run_id}'"
    return bool(tracking.search_runs([experiment.id], where, "DELETED_ONLY"))
