"""Champions: a chain of promotions, each claiming the one before it. In force is the end of the chain.

The runs lie in an experiment of their own; the pack's entry in the prompt registry names the chain's first
link. MLflow makes an entry of a name only once, so there is one chain for each pack.
"""

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, ValidationError

from tipbench.bench.damage import FACTS_TAG, KIND_TAG, Damage, find_readable, ignore, read_each, read_tag
from tipbench.errors import TrackingError, TrackingRefused, TrackingUnavailable
from tipbench.records import SCHEMA, ChampionArm, Record, content_hash
from tipbench.tracking.registry import RegistryEntry
from tipbench.tracking.runs import Experiment, Run, Write
from tipbench.tracking.tracking import Tracking

EXPERIMENT = "tipbench-champions"
ALIAS = "champion"
ROOT_TAG = "tipbench.root"
ENTRY_TAG = "tipbench.entry"
LOOK_TAG = "tipbench.look"
DOUBTFUL_TAG = "tipbench.doubtful"
STATE_TAG = "tipbench.state"
SUCCESSOR = "successor"
REPLACED_TAG = "tipbench.replaced_by"
"""On the root of a chain that could not be followed any more: the root of the new one."""
ARM_FILE = "arm.json"
GATE_FILE = "gate.json"
PROMOTION_KINDS = ("promotion", "rollback")

How = Literal["gate", "initial", "forced", "rollback"]


RULE_LABELS = {
    "lazy tier": "verdicts of people and agents",
    "auto tier": "automatic verdicts",
    "auto judge": "automatic judge",
}
"""What people read for the names of rules that programs know."""


def label_rule(name: str) -> str:
    """The rule's name for people."""
    return RULE_LABELS.get(name, name)


class BrokenChain(TrackingError):
    """The promotions of a pack cannot be followed to the one in force."""


class PromotionFacts(Record):
    """Who became champion, why, and after whom. `origin` is the first promotion of the same arm, if not this.

    `look` is the run of the look that decided; `gate` is what the gate said, in words; the whole of it is in
    `gate.json` of the run. `overruled` are the rules that a forced promotion went against.
    """

    how: How
    arm: str
    arm_hash: str
    pack: str
    predecessor: str
    origin: str = ""
    experiment: str = ""
    look: str = ""
    gate: str = ""
    overruled: tuple[str, ...] = ()
    reason: str = Field(default="", max_length=2_000)
    by: str = ""


@dataclass(frozen=True)
class Promotion:
    """A promotion or a rollback as MLflow has it."""

    run: Run
    facts: PromotionFacts

    @property
    def origin(self) -> str:
        """The run of the first promotion of the same arm: plans of the gate are claimed there."""
        return self.facts.origin or self.run.run_id

    @property
    def doubtful(self) -> tuple[str, ...]:
        """Sittings that it rests on and that were refused later."""
        return tuple(self.run.tags.get(DOUBTFUL_TAG, "").split())


@dataclass(frozen=True)
class Chain:
    """All promotions of a pack, oldest first. `root` is empty before the first one."""

    pack: str
    root: str
    promotions: tuple[Promotion, ...]
    entry: RegistryEntry | None
    never_in_force: tuple[Promotion, ...] = ()
    damaged: tuple[Damage, ...] = ()
    """Promotions that cannot be read and are no link of the chain."""

    @property
    def in_force(self) -> Promotion | None:
        """The end of the chain."""
        return self.promotions[-1] if self.promotions else None

    @property
    def standing(self) -> list[Promotion]:
        """The promotions that were not rolled back; the last one has the arm that is in force."""
        found: list[Promotion] = []
        for each in self.promotions:
            if each.facts.how == "rollback":
                found.pop()
            else:
                found.append(each)
        return found

    def origin_of(self, arm_hash: str) -> str:
        """The run of the first promotion of this arm; empty if it never was champion."""
        return next((p.origin for p in self.promotions if p.facts.arm_hash == arm_hash), "")


def entry_name(pack: str) -> str:
    """The pack's entry in the prompt registry."""
    return f"tipbench-{pack}"


def read_chain(tracking: Tracking, pack: str) -> Chain:
    """The promotions of a pack, also those whose runs were deleted: that takes nothing back.

    Raises:
        TrackingRefused: a prompt of that name is in the registry and is not ours.
        BrokenChain: a link of the chain is gone for good, or was written by somebody else.
    """
    name = entry_name(pack)
    entry = tracking.registry.find_entry(name)
    if entry is not None and ROOT_TAG not in entry.tags:
        raise TrackingRefused(
            f"the prompt {name!r} in MLflow's registry was not made by tipbench",
            hint="Rename it there, or give the pack another name.",
        )
    experiment = tracking.seek_experiment(EXPERIMENT)
    if experiment is None:
        return Chain(pack, "", (), entry)
    runs = tracking.search_runs([experiment.id], f"tags.`{ENTRY_TAG}` = '{name}'", "ALL")
    root = entry.tags[ROOT_TAG] if entry else _find_root(runs)
    return _follow(pack, root, runs, entry)


def read_arm(tracking: Tracking, promotion: Promotion) -> ChampionArm:
    """The arm of a promotion, complete.

    Raises:
        TrackingError: its text was deleted or edited.
    """
    try:
        arm = ChampionArm.model_validate_json(tracking.read_artifact(promotion.run, ARM_FILE))
    except ValidationError:
        arm = None
    if arm is None or arm.hash != promotion.facts.arm_hash:
        raise TrackingError(
            f"{ARM_FILE!r} of promotion {promotion.run.run_id} was edited",
            hint="Put the file back as it was; its hash is in the run's facts.",
        )
    return arm


@dataclass(frozen=True)
class Champion:
    """The arm in force; none where there is none, or where `trouble` says why it cannot be read."""

    arm: ChampionArm | None = None
    trouble: str = ""

    @property
    def mark(self) -> str:
        """Another one for every other arm or trouble."""
        return content_hash([self.arm and self.arm.model_dump(mode="json"), self.trouble])


def find_champion(tracking: Tracking, pack: str) -> Champion:
    """Who is champion of a pack, as far as it can be read.

    Raises:
        TrackingUnavailable: MLflow is away.
    """
    try:
        promotion = read_chain(tracking, pack).in_force
        return Champion(None if promotion is None else read_arm(tracking, promotion))
    except TrackingUnavailable:
        raise
    except TrackingError as error:
        return Champion(trouble=error.message)


def read_past_promotions(runs: Iterable[Run]) -> list[Promotion]:
    """The promotions that came with an imported experiment, the oldest first; they put nobody in force."""
    found = [run for run in runs if run.tags.get(KIND_TAG) in PROMOTION_KINDS]
    return read_each(found, _read, ignore)


def root_write(pack: str, *, write: Write) -> Write:
    """The run that a pack's chain begins with."""
    return write.model_copy(
        update={
            "run_name": f"champions of {pack}"[:250],
            "tags_at_create": _tags_at_create("champions", pack),
            "tags": {STATE_TAG: "complete"},
            "end_time": write.start_time,
        }
    )


def promotion_write(facts: PromotionFacts, arm: ChampionArm, *, gate: str = "", write: Write) -> Write:
    """The run of a promotion that is prepared and not yet in force; `gate` is the gate's answer as JSON."""
    kind = "rollback" if facts.how == "rollback" else "promotion"
    texts = {ARM_FILE: arm.model_dump_json(indent=1), "prompt.md": arm.template}
    return write.model_copy(
        update={
            "run_name": f"{kind}: {arm.name}"[:250],
            "tags_at_create": _tags_at_create(kind, facts.pack),
            "artifacts": texts | ({GATE_FILE: gate} if gate else {}),
            "params": {"arm": arm.name[:5_000], "how": facts.how},
            "tags": {
                "tipbench.facts": facts.model_dump_json(),
                LOOK_TAG: facts.look,
                STATE_TAG: "prepared",
            },
        }
    )


def _tags_at_create(kind: str, pack: str) -> dict[str, str]:
    return {
        "tipbench.kind": kind,
        "tipbench.schema": str(SCHEMA),
        STATE_TAG: "open",
        ENTRY_TAG: entry_name(pack),
    }


def _find_root(runs: Sequence[Run]) -> str:
    """Where the chain begins when the entry was deleted; what was never succeeded is nobody's chain."""
    roots = [
        run for run in runs if run.tags.get("tipbench.kind") == "champions" and REPLACED_TAG not in run.tags
    ]
    return next((run.run_id for run in roots if SUCCESSOR in run.params), "")


def _follow(pack: str, root: str, runs: Sequence[Run], entry: RegistryEntry | None) -> Chain:
    known = {run.run_id: run for run in runs}
    if root and root not in known:
        raise _broken(pack, f"the run {root} that they begin with is gone for good")
    chain: list[Promotion] = []
    at = known.get(root)
    while at is not None and (successor := at.params.get(SUCCESSOR)):
        if successor not in known:
            raise _broken(pack, f"the promotion {successor} is gone for good, or was never one")
        try:
            found = _read(known[successor])
        except Damage as damage:
            raise _broken(pack, damage.message) from damage
        # Whoever may write to MLflow may set this param once, to anything: also to a run that came before.
        if found.facts.predecessor != at.run_id:
            raise _broken(pack, f"{successor} is the successor of {at.run_id} and does not follow it")
        at = found.run
        chain.append(found)
    in_chain = {promotion.run.run_id for promotion in chain}
    damaged: list[Damage] = []
    left = (run for run in runs if run.run_id not in in_chain and run.tags.get(KIND_TAG) != "champions")
    others = read_each(left, _read, damaged.append)
    return Chain(pack, root, tuple(chain), entry, tuple(others), tuple(damaged))


def _broken(pack: str, what: str) -> BrokenChain:
    return BrokenChain(
        f"the champions of {pack!r} cannot be followed: {what}",
        hint="Who is champion cannot be known: bring the MLflow database back, or begin a new chain: "
        f"tipbench mlflow repair --champion {shlex.quote(pack)} --reason …",
    )


def _read(run: Run) -> Promotion:
    if not any(find_readable([run], kind) for kind in PROMOTION_KINDS):
        raise Damage(run, KIND_TAG, "it is no promotion in any state")
    return Promotion(run, read_tag(run, FACTS_TAG, PromotionFacts))


def champions_experiment(tracking: Tracking) -> Experiment:
    """Where promotions are stored."""
    return tracking.ensure_experiment(EXPERIMENT)
