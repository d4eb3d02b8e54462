"""What the gate is asked about: one experiment, everything it holds, and the arm to be beaten."""

import shlex
from dataclasses import dataclass

from tipbench.errors import NoChampion, UsageError
from tipbench.pack import parse_pack
from tipbench.promotion.succession import find_registered, settle, version_of
from tipbench.records import Options, Pack
from tipbench.tracking import Experiment, Run, Tracking
from tipbench.tracking.champions import ALIAS, Chain, ChampionArm, Promotion, read_arm, read_chain
from tipbench.tracking.evidence import Evidence, read_evidence
from tipbench.tracking.packs import read_pack_files
from tipbench.tracking.stamps import Stamps


@dataclass(frozen=True)
class Bench:
    """An experiment, read whole and without the cache."""

    tracking: Tracking
    experiment: Experiment
    runs: list[Run]
    evidence: Evidence
    pack: Pack

    @property
    def arms(self) -> list[str]:
        """The arms there are cells of."""
        return sorted({cell.facts.arm for cell in self.evidence.cells})

    def check_arm(self, arm: str) -> None:
        """Refuses an arm without cells.

        Raises:
            UsageError: lists those there are.
        """
        if arm not in self.arms:
            raise UsageError(
                f"experiment {self.experiment.name!r} has no arm {arm!r}",
                hint=f"It has: {', '.join(self.arms)}",
            )


@dataclass(frozen=True)
class Opponent:
    """The arm to be beaten. `name` is what the experiment calls it, empty if it has no cell there."""

    promotion: Promotion
    arm: ChampionArm
    version: int | None
    name: str
    remarks: tuple[str, ...] = ()


def read_bench(tracking: Tracking, name: str) -> Bench:
    """Everything the experiment holds now.

    Raises:
        UsageError: it has no cells.
    """
    experiment = tracking.find_experiment(name)
    runs = tracking.read_runs(experiment, fresh=True)
    evidence = read_evidence(runs)
    if not evidence.cells:
        raise UsageError(
            f"experiment {name!r} has no cells",
            hint=f"Collect some: tipbench collect --experiment {shlex.quote(name)}",
        )
    return Bench(
        tracking, experiment, runs, evidence, _read_pack(tracking, runs, evidence.cells[-1].facts.pack_hash)
    )


def find_opponent(bench: Bench, against: str, *, stamps: Stamps) -> Opponent:
    """Whom a challenger must beat: the champion, or another version of the registry.

    Raises:
        NoChampion: the pack has none yet.
        UsageError: there is no such version or alias.
    """
    tracking, pack = bench.tracking, bench.pack.name
    found = settle(tracking, pack, stamps=stamps)
    if found is None:
        raise NoChampion(pack)
    if against == ALIAS:
        promotion, arm, version, remarks = found.promotion, found.arm, found.version, found.repaired
    else:
        promotion, remarks = find_registered(tracking, found.chain, against), found.repaired
        arm = read_arm(tracking, promotion)
        version = version_of(tracking, pack, arm.hash)
    return Opponent(promotion, arm, version, name_in(bench, arm), remarks)


def name_in(bench: Bench, arm: ChampionArm) -> str:
    """What the experiment calls the arm: the weights and the prompt count, not the names."""
    return arm.name_in(bench.evidence.cells, diversity_request=bench.pack.diversity_request)


def make_arm(bench: Bench, name: str) -> ChampionArm:
    """The arm of that name, complete: weights, options, and the prompt's text from the stored pack.

    Raises:
        UsageError: there is no such arm, or its prompt is in no stored pack.
    """
    bench.check_arm(name)
    cell = next(cell for cell in bench.evidence.cells if cell.facts.arm == name)
    facts = cell.facts
    pack = _read_pack(bench.tracking, bench.runs, facts.pack_hash)
    prompt = next((each for each in pack.prompts if each.name == facts.prompt), None)
    if prompt is None:
        raise UsageError(
            f"the prompt {facts.prompt!r} is not in the pack that the experiment stores",
            hint="It was a champion of another time: add its text to the pack and collect again.",
        )
    return ChampionArm(
        pack=pack.name,
        pack_hash=pack.hash,
        model=facts.model,
        engine=facts.engine,
        model_digest=facts.model_digest,
        pinned=facts.pinned,
        prompt=facts.prompt,
        template=prompt.text,
        diversity_request=pack.diversity_request,
        options=Options.model_validate_json(cell.run.params["options"]),
    )


def read_champions(tracking: Tracking, pack: str) -> Chain:
    """All promotions of a pack.

    Raises:
        NoChampion: it never had one.
    """
    chain = read_chain(tracking, pack)
    if chain.in_force is None:
        raise NoChampion(pack)
    return chain


def _read_pack(tracking: Tracking, runs: list[Run], pack_hash: str) -> Pack:
    return parse_pack(read_pack_files(runs, pack_hash, tracking=tracking))
