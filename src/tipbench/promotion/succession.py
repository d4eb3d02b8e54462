"""Who follows whom: a promotion is prepared, claims the one in force, and only then moves the alias."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tipbench.bench.champions import (
    ALIAS,
    ENTRY_TAG,
    REPLACED_TAG,
    ROOT_TAG,
    STATE_TAG,
    SUCCESSOR,
    BrokenChain,
    Chain,
    ChampionArm,
    Promotion,
    PromotionFacts,
    champions_experiment,
    entry_name,
    promotion_write,
    read_arm,
    read_chain,
    root_write,
)
from tipbench.clock import Stamps
from tipbench.errors import PromotionLost, TrackingError, TrackingRefused, UsageError
from tipbench.pack import answer_schema, read_parts
from tipbench.records import SCHEMA
from tipbench.tracking import Tracking
from tipbench.tracking.registry import PromptTemplate, PromptVersion
from tipbench.tracking.runs import blank_write

TRIES = 5
ARM_TAG = "tipbench.arm_hash"
ORIGIN_TAG = "tipbench.origin"


@dataclass(frozen=True)
class InForce:
    """The champion with its version in the registry, and what was found wrong there."""

    chain: Chain
    promotion: Promotion
    arm: ChampionArm
    version: int | None
    remarks: tuple[str, ...] = ()


def read_in_force(tracking: Tracking, pack: str) -> InForce | None:
    """The champion as the chain of promotions has it; None when the pack never had one.

    Nothing is written: what is wrong in the registry is said, and `settle` puts it right.
    """
    chain = read_chain(tracking, pack)
    promotion = chain.in_force
    if promotion is None:
        return None
    arm = read_arm(tracking, promotion)
    version = version_of(tracking, pack, arm.hash) if chain.entry else None
    remarks: tuple[str, ...] = ()
    if version is None or chain.entry is None or chain.entry.aliases.get(ALIAS) != version:
        name = entry_name(pack)
        remarks = (f"the alias {ALIAS!r} of {name!r} is not on it; to put it right: tipbench champion",)
    return InForce(chain, promotion, arm, version, remarks)


def settle(tracking: Tracking, pack: str, *, stamps: Stamps) -> InForce | None:
    """The champion in force, with the alias on its version; None when the pack never had one.

    Whoever comes finishes what a killed promotion left, makes a deleted version again, moves the alias back.

    Raises:
        TrackingError: the alias does not stay where it belongs.
    """
    repaired: list[str] = []
    name = entry_name(pack)
    for _ in range(TRIES):
        chain = read_chain(tracking, pack)
        promotion = chain.in_force
        if promotion is None:
            return None
        if chain.entry is None:
            tracking.registry.create_entry(name, tags={ROOT_TAG: chain.root})
            repaired.append(f"the prompt {name!r} was gone from MLflow's registry and was made again")
            continue
        arm = read_arm(tracking, promotion)
        version = _ensure_version(tracking, arm, origin=promotion.origin)
        at = chain.entry.aliases.get(ALIAS)
        if at == version:
            _finish(tracking, promotion, version, stamps)
            return InForce(chain, promotion, arm, version, tuple(repaired))
        if promotion.run.tags.get(STATE_TAG) == "done":
            place = "nowhere" if at is None else f"on version {at}"
            repaired.append(f"the alias {ALIAS!r} was {place}: it is on version {version} again")
        tracking.registry.point_alias(name, ALIAS, version)
    raise TrackingError(
        f"the alias {ALIAS!r} of {name!r} does not stay on the champion's version",
        hint="Something else moves it or deletes versions: look at the prompt in MLflow.",
    )


def succeed(
    tracking: Tracking,
    arm: ChampionArm,
    facts: PromotionFacts,
    *,
    chain: Chain,
    stamps: Stamps,
    gate: str = "",
) -> InForce:
    """Makes the arm champion after the one that is in force in this chain; `gate` is kept with it.

    Raises:
        PromotionLost: somebody else's promotion came first; it is named.
    """
    chain = _ensure_root(tracking, chain, stamps)
    predecessor = chain.in_force.run.run_id if chain.in_force else chain.root
    facts = facts.model_copy(
        update={"predecessor": predecessor, "origin": chain.origin_of(arm.hash), "arm_hash": arm.hash}
    )
    experiment = champions_experiment(tracking)
    mine = tracking.deliver(promotion_write(facts, arm, gate=gate, write=blank_write(experiment, stamps)))
    _ensure_version(tracking, arm, origin=facts.origin or mine)
    winner = _claim(tracking, predecessor, mine)
    if winner != mine:
        _set_state(tracking, mine, "lost", stamps)
        raise promotion_lost(read_chain(tracking, arm.pack))
    found = settle(tracking, arm.pack, stamps=stamps)
    if found is None:
        raise TrackingError(f"the promotion {mine} cannot be read back", hint="Run the same command again.")
    return found


def begin_again(tracking: Tracking, pack: str, *, reason: str, stamps: Stamps) -> str:
    """Begins a new chain for a pack whose promotions cannot be followed any more; gives what was wrong.

    Nothing is deleted: the old promotions stay in MLflow; the alias moves with the next champion.

    Raises:
        UsageError: they can be followed.
    """
    try:
        read_chain(tracking, pack)
    except BrokenChain as error:
        broken = error.message
    else:
        raise UsageError(f"the champions of {pack!r} can be followed: there is nothing to repair")
    experiment, name = champions_experiment(tracking), entry_name(pack)
    write = root_write(pack, write=blank_write(experiment, stamps))
    told = {"tipbench.reason": reason, "tipbench.instead_of": broken}
    new = tracking.deliver(write.model_copy(update={"tags": {**write.tags, **told}}))
    for run in tracking.search_runs([experiment.id], f"tags.`{ENTRY_TAG}` = '{name}'"):
        if run.tags.get("tipbench.kind") == "champions" and run.run_id != new:
            blank = blank_write(experiment, stamps)
            tracking.deliver(blank.model_copy(update={"run_id": run.run_id, "tags": {REPLACED_TAG: new}}))
    tracking.registry.create_entry(name, tags={ROOT_TAG: new})
    tracking.registry.tag_entry(name, ROOT_TAG, new)
    return broken


def find_registered(tracking: Tracking, chain: Chain, against: str) -> Promotion:
    """The promotion behind an alias or a version of the pack's prompt.

    Raises:
        UsageError: there is no such version, or nobody ever asked for its promotion.
    """
    name = entry_name(chain.pack)
    known: Mapping[str, int] = chain.entry.aliases if chain.entry else dict[str, int]()
    number = known.get(against) or (int(against) if against.isdecimal() else 0)
    versions = tracking.registry.list_versions(name) if number else []
    version = next((each for each in versions if each.number == number), None)
    origin = version.tags.get(ORIGIN_TAG, "") if version else ""
    for promotion in (*chain.promotions, *chain.never_in_force):
        if origin and promotion.run.run_id == origin:
            return promotion
    raise UsageError(
        f"the prompt {name!r} has no version or alias {against!r} of ours",
        hint=f"Available: {', '.join([*known, *(str(each.number) for each in versions)]) or 'none'}",
    )


def version_of(tracking: Tracking, pack: str, arm_hash: str) -> int | None:
    """The number of the arm's version, if it is there."""
    versions: Sequence[PromptVersion] = tracking.registry.list_versions(entry_name(pack))
    return next((each.number for each in versions if each.tags.get(ARM_TAG) == arm_hash), None)


def _ensure_root(tracking: Tracking, chain: Chain, stamps: Stamps) -> Chain:
    """The chain with its entry and first link; of two who make one the first is taken."""
    if chain.entry is not None:
        return chain
    root = chain.root
    if not root:
        blank = blank_write(champions_experiment(tracking), stamps)
        root = tracking.deliver(root_write(chain.pack, write=blank))
    tracking.registry.create_entry(entry_name(chain.pack), tags={ROOT_TAG: root})
    found = read_chain(tracking, chain.pack)
    if found.root != root and not chain.root:
        tracking.delete_run(root)
    if len(found.promotions) != len(chain.promotions):
        raise promotion_lost(found)
    return found


def _ensure_version(tracking: Tracking, arm: ChampionArm, *, origin: str) -> int:
    tags = {
        "tipbench.schema": str(SCHEMA),
        "tipbench.arm": arm.name,
        "tipbench.model": arm.model,
        "tipbench.model_digest": arm.model_digest,
        "tipbench.engine": arm.engine,
        "tipbench.pinned": str(arm.pinned).lower(),
        "tipbench.prompt": arm.prompt,
        "tipbench.options": arm.options.model_dump_json(),
        "tipbench.diversity_request": arm.diversity_request,
        "tipbench.pack": arm.pack,
        "tipbench.pack_hash": arm.pack_hash,
        ORIGIN_TAG: origin,
    }
    return tracking.registry.ensure_version(
        entry_name(arm.pack), _make_template(arm), mark=(ARM_TAG, arm.hash), tags=tags
    )


def _make_template(arm: ChampionArm) -> PromptTemplate:
    """The arm's prompt as MLflow writes prompts; a plain one as it stands."""
    parts = read_parts(arm.template)
    settings = _model_settings(arm)
    if parts.is_plain:
        return PromptTemplate(arm.template, model_settings=settings)
    messages = [{"role": turn.role, "content": turn.text.strip()} for turn in parts.turns]
    schema = answer_schema(arm.options) if parts.form == "json" else None
    template = messages if len(messages) > 1 else messages[0]["content"]
    return PromptTemplate(template, schema, settings)


def _model_settings(arm: ChampionArm) -> dict[str, object]:
    """Whom to ask and how, by MLflow's names; what it has none for keeps ours."""
    sampling = arm.options.sampling
    found: dict[str, object] = {
        "provider": arm.engine,
        "model_name": arm.model.removeprefix(f"{arm.engine}:"),
        "temperature": sampling.temperature,
        "max_tokens": sampling.max_tokens,
        "top_p": sampling.top_p,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
    }
    # MLflow takes no 0 for it, which means: all of them.
    return found | ({"top_k": sampling.top_k} if sampling.top_k > 0 else {})


def _claim(tracking: Tracking, predecessor: str, mine: str) -> str:
    try:
        return tracking.claim(predecessor, SUCCESSOR, mine)
    except TrackingRefused as error:
        raise TrackingRefused(
            f"the promotion {predecessor} that is in force cannot be followed: {error.message}",
            hint=f"If its run was deleted, restore it: mlflow runs restore --run-id {predecessor}",
        ) from error


def _finish(tracking: Tracking, promotion: Promotion, version: int, stamps: Stamps) -> None:
    if promotion.run.tags.get(STATE_TAG) != "prepared":
        return
    _set_state(tracking, promotion.run.run_id, "done", stamps, version=version)


def _set_state(
    tracking: Tracking, run_id: str, state: str, stamps: Stamps, *, version: int | None = None
) -> None:
    blank = blank_write(champions_experiment(tracking), stamps)
    tags = {STATE_TAG: state} | ({"tipbench.version": str(version)} if version else {})
    tracking.deliver(blank.model_copy(update={"run_id": run_id, "tags": tags, "end_time": blank.start_time}))


def promotion_lost(chain: Chain) -> PromotionLost:
    """Says who was faster."""
    found = chain.in_force
    who = f"{found.facts.arm} ({found.facts.how}, by {found.facts.by or 'somebody'})" if found else "nobody"
    return PromotionLost(
        f"somebody else was faster: {who} is champion of {chain.pack!r} since then; nothing was changed",
        hint="Ask the gate again, against the new one. Who it is: tipbench champion",
    )
