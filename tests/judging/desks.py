"""A judge's desk made by hand, without a server: what `build_sitting` lays items on."""

from collections.abc import Callable

from tipbench.judging.draw import Member
from tipbench.judging.handout import SittingMaterial
from tipbench.records import Candidate, Pack, compute_flags

MODELS = ("smollm2", "qwen2.5:0.5b", "llama3.2:3b", "gemma3:1b")


def candidate_of(pack: Pack) -> Callable[[Member], Candidate]:
    def make(member: Member) -> Candidate:
        text = f"Start with the first task for {member.slot + 3} minutes, then take a short break."
        return Candidate(slot=member.slot, text=text, flags=compute_flags(text, pack.rubric))

    return make


def desk_of(pack: Pack) -> SittingMaterial:
    hash_of = {scenario.id: scenario.hash for scenario in pack.scenarios}
    return SittingMaterial(
        rubric=pack.rubric,
        scenarios={scenario.hash: scenario for scenario in pack.scenarios},
        anchors=tuple(a.model_copy(update={"scenario": hash_of[a.scenario]}) for a in pack.anchors),
        candidate_of=candidate_of(pack),
        hidden_names=MODELS,
    )
