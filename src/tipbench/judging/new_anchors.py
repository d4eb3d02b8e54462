"""New anchors: candidates of an experiment on which enough judges agree, for the pack."""

import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from statistics import median_low

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.errors import PackError, UsageError
from tipbench.files import write_whole
from tipbench.judging.anchors import plain_text
from tipbench.judging.sheet import blind_text
from tipbench.pack import parse_pack
from tipbench.pack.reading import ANCHORS, Reference, seal
from tipbench.records import Anchor, Pack, Verdict, compute_flags, content_hash

ENOUGH_JUDGES = 3
"""Different ones: a judge who repeats himself agrees with nobody else."""
AGREE_WITHIN = 1.0
"""From the lowest to the highest composite: one step of one scale."""


@dataclass(frozen=True)
class AgreedCandidate:
    """A candidate on which judges agree, with the verdict of each of them."""

    cell: StoredCell
    slot: int
    verdicts: dict[str, Verdict]


@dataclass(frozen=True)
class NewAnchor:
    """An anchor to be, and whose verdicts are its reference."""

    anchor: Anchor
    judges: tuple[str, ...]


@dataclass(frozen=True)
class Refused:
    """A candidate on which judges agree and that is no anchor all the same."""

    text: str
    why: str


@dataclass(frozen=True)
class AnchorProposal:
    """What would be added to the pack. `grown` is the pack with it."""

    pack: Pack
    grown: Pack
    new: tuple[NewAnchor, ...]
    refused: tuple[Refused, ...]


def propose_anchors(bench: Bench, pack: Pack) -> AnchorProposal:
    """The candidates of the experiment that can be anchors of this pack; only reads.

    Raises:
        UsageError: the experiment was judged by another rubric than the pack's.
    """
    agreed = _find_agreed(bench)
    if any(each.cell.facts.rubric_hash != pack.rubric.hash for each in agreed):
        raise UsageError(
            f"experiment {bench.name!r} was judged by another rubric than {pack.rubric.name!r} of this pack",
            hint="Scores mean nothing under another rubric: name the pack that it was collected with.",
        )
    new: list[NewAnchor] = []
    refused: list[Refused] = []
    known = {plain_text(anchor.text) for anchor in pack.anchors}
    for each in agreed:
        text = bench.candidates_of(each.cell)[each.slot].text
        why = _why_not(text, each, pack, known=known, names=bench.hidden_names)
        if why:
            refused.append(Refused(text, why))
        else:
            known.add(plain_text(text))
            new.append(_make_anchor(text, each, pack, experiment=bench.name))
    return AnchorProposal(pack, _grow(pack, new), tuple(new), tuple(refused))


def write_anchors(folder: Path, proposal: AnchorProposal) -> None:
    """Puts the grown anchors.jsonl in the folder, in one step.

    Raises:
        TipbenchError: it cannot be written; what is there stays.
    """
    file = folder / ANCHORS
    try:
        write_whole(file, proposal.grown.files[ANCHORS].removesuffix("\n") + "\n")
    except OSError as error:
        raise PackError(f"cannot write {str(file)!r}: {error.strerror}") from error


def _find_agreed(bench: Bench) -> list[AgreedCandidate]:
    """Candidates with verdicts of at least three judges, all of them within a point; the earliest of each."""
    evidence = bench.evidence
    said: dict[tuple[str, int], dict[str, Verdict]] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        if given.sitting.facts.tier == "lazy" and not given.verdict.failed:
            said.setdefault(given.place, {}).setdefault(given.sitting.judged_by, given.verdict)
    found: list[AgreedCandidate] = []
    for cell in evidence.cells:
        for slot in cell.answered_slots:
            verdicts = said.get((cell.run.run_id, slot), {})
            if len(verdicts) >= ENOUGH_JUDGES and _agree(verdicts.values(), cell, bench):
                found.append(AgreedCandidate(cell, slot, verdicts))
    return found


def _agree(verdicts: Iterable[Verdict], cell: StoredCell, bench: Bench) -> bool:
    rubric = bench.rubric_of(cell)
    composites = [rubric.composite(verdict.scores, verdict.flags) for verdict in verdicts]
    return max(composites) - min(composites) <= AGREE_WITHIN


def _why_not(text: str, each: AgreedCandidate, pack: Pack, *, known: set[str], names: Iterable[str]) -> str:
    """Why this candidate is no anchor; empty when it is one."""
    flags = compute_flags(text, pack.rubric)
    if _scenario_of(each, pack) is None:
        return f"the pack has no such scenario as {each.cell.facts.scenario!r}"
    if plain_text(text) in known:
        return "there is an anchor with this text"
    if plain_text(text) in plain_text(pack.rubric.text):
        return "it is an example of the rubric"
    if blind_text(text, names) != text:
        return "it names a model or a prompt, or is not shown as it is"
    if any(verdict.flags != flags for verdict in each.verdicts.values()):
        return "a judge overruled a computed flag"
    return ""


def _make_anchor(text: str, each: AgreedCandidate, pack: Pack, *, experiment: str) -> NewAnchor:
    scenario = _scenario_of(each, pack) or ""
    verdicts = each.verdicts.values()
    # Between two points the lower one, as rubrics say.
    scores = {
        s.name: median_low([verdict.scores[s.name] for verdict in verdicts]) for s in pack.rubric.scales
    }
    anchor = Anchor(
        id=f"{scenario[:50]}-{content_hash([scenario, text])[:8]}",
        scenario=scenario,
        text=text,
        origin=each.cell.facts.model,
        scores=scores,
        reason=f"median of {len(verdicts)} judges who agree, experiment {experiment!r}",
    )
    return NewAnchor(anchor, tuple(sorted(each.verdicts)))


def _scenario_of(each: AgreedCandidate, pack: Pack) -> str | None:
    """The pack's own name of the scenario with this content."""
    facts = each.cell.facts
    return next((scenario.id for scenario in pack.scenarios if scenario.hash == facts.scenario_hash), None)


def _grow(pack: Pack, new: Iterable[NewAnchor]) -> Pack:
    """The pack with these anchors, checked as every pack is."""
    lines = [
        json.dumps(
            {
                **each.anchor.model_dump(include={"id", "scenario", "text", "origin"}),
                "sealed": seal(Reference(scores=each.anchor.scores, reason=each.anchor.reason)),
            },
            ensure_ascii=False,
        )
        for each in new
    ]
    if not lines:
        return pack
    before = pack.files.get(ANCHORS, "").rstrip("\n")
    return parse_pack({**pack.files, ANCHORS: "\n".join([*([before] if before else []), *lines]) + "\n"})
