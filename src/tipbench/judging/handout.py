"""Hand-out: what was drawn is made into blind sittings among anchors, and leased before anybody sees it."""

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from tipbench.bench.bench import Bench
from tipbench.bench.blindness import judge_key
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import check_contents
from tipbench.bench.measured import tell_judge
from tipbench.bench.practice import read_practised, text_key
from tipbench.bench.sittings import (
    LEASE_MS,
    LIVE_LEASE_MS,
    BlindKey,
    FailedMember,
    KeyItem,
    SeenArms,
    SittingFacts,
    sitting_write,
)
from tipbench.clock import Stamps
from tipbench.errors import TooOftenRefused, TrackingUnavailable, UsageError
from tipbench.judging.anchors import (
    Repeat,
    Surroundings,
    choose_anchors,
    choose_repeats,
    find_repeats,
    find_shown,
    read_elsewhere,
    share_checks,
)
from tipbench.judging.draw import Block, Member, draw_sections
from tipbench.judging.known import Said, find_known, find_said
from tipbench.judging.request import SittingRequest
from tipbench.judging.sheet import (
    Appearance,
    LiveSitting,
    Section,
    Sheet,
    SheetItem,
    SheetScenario,
    appearance_of,
    blind_text,
    group_alike,
    make_id,
    make_ids,
    part_file,
    put_in_place,
    sheet_rubric,
    write_ready,
)
from tipbench.records import LAZY_KINDS, Anchor, Candidate, Rubric, Scenario, compute_flags, content_hash
from tipbench.stats.sittings import ENOUGH_ANCHORS

SECTION_FILE = "section.json"
SHEET_REACH = 4
"""So many sections before and after it are the surroundings of one: who sorts a sheet has them at hand."""
MOST_REFUSED = 3
"""Sittings of one judge in a row."""
"""What a live judge sees is kept with the sitting, so that it can be taken up after a crash."""


@dataclass(frozen=True)
class SittingMaterial:
    """What a sitting is built from. Scenarios are known by their content hash, also those of anchors."""

    rubric: Rubric
    scenarios: Mapping[str, Scenario]
    anchors: tuple[Anchor, ...]
    candidate_of: Callable[[Member], Candidate]
    hidden_names: tuple[str, ...]
    checks: int = SittingRequest.checks
    levels: tuple[float, ...] = ()
    """Composites of what was judged so far."""
    repeats: tuple[Repeat, ...] = ()
    """What may be shown again as a check."""


@dataclass(frozen=True)
class Sitting:
    """A section about to be handed out, with the key that stays with us."""

    token: str
    order_seed: int
    scenarios: tuple[SheetScenario, ...]
    items: tuple[SheetItem, ...]
    key: BlindKey
    blocks: int
    anchors: tuple[str, ...]
    repeats: tuple[tuple[str, int], ...] = ()
    left: int = 0
    """How many sittings come after it."""

    def section(self, judged_by: str, *, expires_ms: int | None = None) -> Section:
        """What the judge gets to see of it."""
        expires = ""
        if expires_ms is not None:
            expires = datetime.fromtimestamp(expires_ms / 1000, tz=UTC).isoformat(timespec="seconds")
        return Section(
            sitting=self.token,
            judged_by=judged_by,
            expires=expires,
            sittings_left=self.left,
            scenarios=self.scenarios,
            items=self.items,
        )


@dataclass(frozen=True)
class Handout:
    """What was handed out, and what people should know about it."""

    sheet: Sheet
    remarks: tuple[str, ...] = ()


def gather_material(bench: Bench) -> SittingMaterial:
    """What sittings over these cells are built from; the cells were checked to share one rubric."""
    packs = [bench.pack_of(h) for h in dict.fromkeys(cell.facts.pack_hash for cell in bench.evidence.cells)]
    anchors: dict[str, Anchor] = {}
    for pack in packs:
        hash_of = {scenario.id: scenario.hash for scenario in pack.scenarios}
        for anchor in pack.anchors:
            anchors[anchor.id] = anchor.model_copy(update={"scenario": hash_of[anchor.scenario]})
    return SittingMaterial(
        rubric=packs[-1].rubric,
        scenarios={scenario.hash: scenario for pack in packs for scenario in pack.scenarios},
        anchors=tuple(anchors.values()),
        candidate_of=lambda member: bench.candidates_of(member.cell)[member.slot],
        hidden_names=bench.hidden_names,
        levels=tuple(
            packs[-1].rubric.composite(given.verdict.scores, given.verdict.flags)
            for given in bench.evidence.lazy
            if not given.verdict.failed
        ),
    )


def seed_source(stamps: Stamps) -> Callable[[], int]:
    """Seeds that nobody can guess, one for each call."""
    return lambda: int(content_hash(stamps.new_id()), 16) >> 1


# One sitting, blind.


@dataclass(frozen=True)
class _Shown:
    """One text before it has an id and a place."""

    scenario: str
    text: str
    flags: Mapping[str, bool]
    stands_for: KeyItem

    @property
    def appearance(self) -> Appearance:
        return appearance_of(self.scenario, self.text, self.flags)


@dataclass(frozen=True)
class RestOfSheet:
    """What else lies on the sheet that a sitting stands in. A scenario is called the same in all sections."""

    labels: Mapping[str, str]
    items: Sequence[_Shown] = ()


def build_sitting(
    blocks: Sequence[Block],
    *,
    material: SittingMaterial,
    shown: Sequence[Set[str]] = (),
    sheet: RestOfSheet | None = None,
    said: Mapping[Hashable, Said] | None = None,
    order_seed: int,
) -> Sitting:
    """A blind sitting over these blocks; `shown` are the anchors of this judge's last sittings, latest last.

    Of what this judge `said` before nothing is shown, unless there is nothing else.
    """
    rng = Random(order_seed)
    drawn = [(index, member) for index, block in enumerate(blocks) for member in block.items]
    known = find_known(drawn, said or {})
    members = [
        _show_member(member, index, material)
        for index, member in drawn
        if (member.cell.run.run_id, member.slot) not in {(each.cell, each.slot) for each in known}
    ]
    # Equal texts are one item. Grouped before they are shuffled: what is there often must not come early.
    groups = group_alike(members)
    repeats, count = _choose_repeats(groups, material, rng)
    groups += [[_show_repeat(repeat, material)] for repeat in repeats]
    around = _look_around([alike[0] for alike in groups], sheet.items if sheet else (), material)
    anchors = choose_anchors(material.anchors, around, shown=shown, rng=rng, count=count)
    groups += group_alike(_show_anchor(anchor, material) for anchor in anchors)
    rng.shuffle(groups)
    there = {alike[0].scenario for alike in groups}
    labels = sheet.labels if sheet else _label_scenarios(there, rng)
    items = _make_items([alike[0] for alike in groups], labels, material.rubric, rng)
    return Sitting(
        token=make_id(rng, length=12),
        order_seed=order_seed,
        scenarios=tuple(
            SheetScenario(label=label, values=material.scenarios[scenario].values)
            for scenario, label in labels.items()
            if scenario in there
        ),
        items=items,
        key=BlindKey(items=_stand_for(items, groups), failed=_failed(blocks), known=known),
        blocks=len(blocks),
        anchors=tuple(anchor.id for anchor in anchors),
        repeats=tuple(repeat.place for repeat in repeats),
    )


def _show_all(
    section: Sequence[Block], material: SittingMaterial, said: Mapping[Hashable, Said]
) -> list[_Shown]:
    """What a judge will be shown of these blocks, checks aside."""
    members = (member for block in section for member in block.items)
    return [_show_member(each, 0, material) for each in members if each.again or each.text_mark not in said]


def _look_around(
    items: Sequence[_Shown], beside: Iterable[_Shown], material: SittingMaterial
) -> Surroundings:
    here = {(item.scenario, item.text) for item in items}
    # What is shown in two sections is judged, and seen, once.
    others = {(each.scenario, each.text): each for each in beside}
    left = [each for place, each in others.items() if place not in here]
    return Surroundings(items, material.scenarios, material.rubric, material.levels, left)


def _make_items(
    texts: Sequence[_Shown], labels: Mapping[str, str], rubric: Rubric, rng: Random
) -> tuple[SheetItem, ...]:
    return tuple(
        SheetItem(
            id=item_id,
            scenario=labels[text.scenario],
            text=text.text,
            flags=dict(text.flags),
            scores={scale.name: None for scale in rubric.scales},
        )
        for item_id, text in zip(make_ids(len(texts), rng), texts, strict=True)
    )


def _stand_for(items: Sequence[SheetItem], groups: Sequence[Sequence[_Shown]]) -> tuple[KeyItem, ...]:
    """What each item stands for: everything that looks like it."""
    return tuple(
        each.stands_for.model_copy(update={"id": item.id, "text_hash": content_hash(item.text)})
        for item, alike in zip(items, groups, strict=True)
        for each in alike
    )


def _choose_repeats(
    groups: Sequence[Sequence[_Shown]], material: SittingMaterial, rng: Random
) -> tuple[list[Repeat], int]:
    """The repeats that are hidden among these items, and how many anchors are to stand beside them."""
    found = choose_repeats(
        material.repeats,
        [alike[0] for alike in groups],
        text_of=lambda member: blind_text(material.candidate_of(member).text, material.hidden_names),
        rng=rng,
    )
    anchors, repeats = share_checks(material.checks, items=len(groups), repeats=len(found))
    return found[:repeats], anchors


def _show_repeat(repeat: Repeat, material: SittingMaterial) -> _Shown:
    shown = _show_member(repeat.member, -1, material)
    return replace(shown, stands_for=shown.stands_for.model_copy(update={"repeats": repeat.sitting}))


def _show_member(member: Member, block: int, material: SittingMaterial) -> _Shown:
    candidate = material.candidate_of(member)
    text = blind_text(candidate.text, material.hidden_names)
    key = KeyItem(id="", text_hash="", block=block, cell=member.cell.run.run_id, slot=member.slot)
    return _Shown(member.cell.facts.scenario_hash, text, candidate.flags, key)


def _show_anchor(anchor: Anchor, material: SittingMaterial) -> _Shown:
    text = blind_text(anchor.text, material.hidden_names)
    key = KeyItem(id="", text_hash="", anchor=anchor.id)
    return _Shown(anchor.scenario, text, compute_flags(anchor.text, material.rubric), key)


def _label_scenarios(scenarios: Iterable[str], rng: Random) -> dict[str, str]:
    """The hash of each scenario's content → its label, in the order of the labels."""
    hashes = sorted(set(scenarios))
    rng.shuffle(hashes)
    return {scenario: f"S{place}" for place, scenario in enumerate(hashes, start=1)}


def _failed(blocks: Sequence[Block]) -> tuple[FailedMember, ...]:
    return tuple(
        FailedMember(cell=member.cell.run.run_id, slot=member.slot, block=index)
        for index, block in enumerate(blocks)
        for member in block.members
        if not member.answered
    )


def make_sittings(
    sections: Sequence[Sequence[Block]],
    *,
    material: SittingMaterial,
    shown: Sequence[Set[str]],
    said: Mapping[Hashable, Said] | None = None,
    seeds: Callable[[], int],
) -> list[Sitting]:
    """Blind sittings over the sections; `shown` are the anchors of this judge's last ones, latest last.

    What was `said` before, or is asked for in an earlier section, is not asked for again.
    """
    recent, said = list(shown), dict(said or {})
    blocks = (block for section in sections for block in section if block.items)
    labels = _label_scenarios((block.scenario for block in blocks), Random(seeds()))
    hash_of = {label: scenario for scenario, label in labels.items()}
    texts = [_show_all(section, material, said) for section in sections]
    sittings: list[Sitting] = []
    for place, section in enumerate(sections):
        near = (*texts[max(0, place - SHEET_REACH) : place], *texts[place + 1 : place + 1 + SHEET_REACH])
        sheet = RestOfSheet(labels, [each for those in near for each in those])
        sitting = build_sitting(
            section, material=material, shown=recent, sheet=sheet, said=said, order_seed=seeds()
        )
        recent.append(set(sitting.anchors))
        texts[place] = [
            _Shown(hash_of[item.scenario], item.text, item.flags, KeyItem(id=item.id, text_hash=""))
            for item in sitting.items
        ]
        asked = {(item.cell, item.slot) for item in sitting.key.items}
        for member in (member for block in section for member in block.items):
            if (slot := (member.cell.run.run_id, member.slot)) in asked:
                said.setdefault(member.text_mark, Said(sitting.token, *slot))
        unused = (repeat for repeat in material.repeats if repeat.place not in sitting.repeats)
        material = replace(material, repeats=tuple(unused))
        sittings.append(sitting)
    return sittings


def _leave_out_practised(anchors: Sequence[Anchor], judged_by: str, bench: Bench) -> tuple[Anchor, ...]:
    """Those whose references this judge was not shown."""
    practised = read_practised(bench.tracking, judged_by)
    return tuple(anchor for anchor in anchors if text_key(anchor) not in practised)


# Handing out, to a file or to a judge who is here.


def export_sheet(path: Path, request: SittingRequest, *, bench: Bench) -> Handout | None:
    """Writes the sheet and its schema; None when nothing waits.

    Raises:
        MixedContents: one name stands for several contents: judging would mix them.
        TipbenchError: the file cannot be written; nothing was handed out.
    """
    sections, sittings = _draw(request, bench)
    if not sittings:
        return None
    cell = sections[0][0].members[0].cell
    rubric = bench.rubric_of(cell)
    expires_ms = bench.now_ms + LEASE_MS
    sheet = Sheet(
        experiment=bench.name,
        experiment_uid=bench.experiment.uid,
        rubric=sheet_rubric(rubric),
        sections=tuple(sitting.section(request.judged_by, expires_ms=expires_ms) for sitting in sittings),
    )
    write_ready(path, sheet, rubric)
    _lease(sittings, request=request, cell=cell, bench=bench)
    put_in_place(path)
    if request.drawn != "block":
        return Handout(sheet)
    told = [*_tell_late_arms(sections, bench.evidence.cells), *_tell_unanchored(sittings)]
    if plan := request.plan:
        told += tell_judge(bench.evidence, champion=plan.champion, pack=bench.pack, terms=plan.terms)
    return Handout(sheet, tuple(told))


def _tell_late_arms(sections: Sequence[Sequence[Block]], cells: Sequence[StoredCell]) -> list[str]:
    """What a judge should know of blocks without all arms of their scenario, and no arm: some came later."""
    arms: dict[str, set[str]] = {}
    for cell in cells:
        arms.setdefault(cell.facts.scenario_hash, set()).add(cell.facts.arm)
    alone: set[str] = set()
    again = False
    for block in (block for section in sections for block in section):
        there = {member.cell.facts.arm for member in block.members}
        again |= any(member.again for member in block.members)
        if there != arms[block.scenario] and not any(member.again for member in block.members):
            alone |= there
    remarks: list[str] = []
    if again:
        remarks.append("tips that were judged before are shown again: late arms are judged beside them")
    if alone:
        remarks.append(f"{len(alone)} arms are not judged together with all others of their scenarios")
    return remarks


def start_live(request: SittingRequest, *, bench: Bench) -> LiveSitting | None:
    """Makes and leases a sitting for a judge who is here; None when nothing is free.

    Raises:
        MixedContents: one name stands for several contents: judging would mix them.
    """
    sections, sittings = _draw(request, bench, most=1)
    if not sittings:
        return None
    cell = sections[0][0].members[0].cell
    (seen,) = _lease(sittings, request=request, cell=cell, bench=bench, live=True)
    return LiveSitting(
        experiment=bench.name,
        token=sittings[0].token,
        judged_by=request.judged_by,
        state="open",
        section=sittings[0].section(request.judged_by),
        rubric=sheet_rubric(bench.rubric_of(cell)),
        answers={},
        unblinded=seen.told if seen else "",
    )


def _draw(
    request: SittingRequest, bench: Bench, *, most: int | None = None
) -> tuple[list[list[Block]], list[Sitting]]:
    check_contents(bench.evidence.cells, experiment=bench.name)
    _check_refusals(request.judged_by, bench)
    seeds = seed_source(bench.stamps)
    said = find_said(bench, request.judged_by)
    drawn = draw_sections(bench, request, rng=Random(seeds()), known=said.keys())
    sections = drawn[:most]
    if not sections:
        return [], []
    material, judge = gather_for(request, bench), request.judged_by
    elsewhere = read_elsewhere(judge, bench.tracking) if material.anchors else ()
    shown = find_shown(bench, judge, material.anchors, elsewhere=elsewhere)
    sittings = make_sittings(sections, material=material, shown=shown, said=said, seeds=seeds)
    left = range(len(drawn) - 1, -1, -1)
    return sections, [replace(sitting, left=after) for sitting, after in zip(sittings, left, strict=False)]


def _check_refusals(judged_by: str, bench: Bench) -> None:
    """What a refused sitting held waits again: an agent would judge it without end."""
    judge = judge_key(judged_by)
    closed = [
        sitting
        for sitting in bench.evidence.sittings
        if sitting.facts.tier == "lazy"
        and sitting.state in {"accepted", "refused"}
        and judge_key(sitting.meant_for) == judge
    ]
    last = sorted(closed, key=lambda sitting: sitting.closed_ms)[-MOST_REFUSED:]
    if len(last) == MOST_REFUSED and all(sitting.state == "refused" for sitting in last):
        raise TooOftenRefused(MOST_REFUSED, last[-1].facts.token)


def gather_for(request: SittingRequest, bench: Bench) -> SittingMaterial:
    """What a sitting of this judge may be made of: no anchor whose reference this judge was shown."""
    # In a second opinion everything was judged before: there anchors alone are checks.
    repeats = find_repeats(bench, request.judged_by) if request.drawn != "second" else []
    material = gather_material(bench)
    anchors = _leave_out_practised(material.anchors, request.judged_by, bench)
    return replace(material, checks=request.checks, repeats=tuple(repeats), anchors=anchors)


def _lease(
    sittings: Sequence[Sitting],
    *,
    request: SittingRequest,
    cell: StoredCell,
    bench: Bench,
    live: bool = False,
) -> list[SeenArms | None]:
    """The items are with this judge. Nothing may be handed out before it is so. Gives what they saw before.

    Raises:
        TrackingUnavailable: not all sittings could be stored.
    """
    seen: list[SeenArms | None] = []
    for sitting in sittings:
        write = bench.blank()
        expires_ms = write.start_time + (LIVE_LEASE_MS if live else LEASE_MS)
        facts = _make_facts(sitting, request, cell=cell, expires_ms=expires_ms, live=live)
        seen.append(bench.find_seen(request.judged_by, sitting.key))
        ready = sitting_write(facts, sitting.key, judged_by=request.judged_by, seen=seen[-1], write=write)
        if live:
            # Who opens a live sitting has it; a sheet belongs to whoever answers first.
            section = {SECTION_FILE: sitting.section(request.judged_by).model_dump_json()}
            ready = ready.model_copy(
                update={"params": {"judged_by": request.judged_by}, "artifacts": ready.artifacts | section}
            )
        bench.tracking.submit(ready)
    report = bench.tracking.flush()
    if report.left_in_journal or report.refused:
        raise TrackingUnavailable(
            f"{report.left_in_journal + len(report.refused)} of {len(sittings)} sittings could not be stored"
            + "".join(f"\n  {message}" for _, message in report.refused[:3]),
            hint="Run the same export again: it goes on where this one stopped.",
        )
    return seen


def _make_facts(
    sitting: Sitting, request: SittingRequest, *, cell: StoredCell, expires_ms: int, live: bool
) -> SittingFacts:
    # A cell that waits for a model is only borrowed: a lazy judge sits there all the same.
    kind = cell.facts.judge_kind if cell.facts.judge_kind in LAZY_KINDS else LAZY_KINDS[0]
    return SittingFacts(
        token=sitting.token,
        tier="lazy",
        judge_kind=request.sits or request.judge_kind or kind,
        rubric=cell.facts.rubric,
        rubric_hash=cell.facts.rubric_hash,
        pack_hash=cell.facts.pack_hash,
        drawn=request.drawn,
        order_seed=sitting.order_seed,
        expires_ms=expires_ms,
        live=live,
        share=request.second_share,
        left=sitting.left if live else 0,
        items=len(sitting.items),
        anchors=len(sitting.anchors),
        repeats=len(sitting.repeats),
        blocks=sitting.blocks,
    )


def _tell_unanchored(sittings: Sequence[Sitting]) -> list[str]:
    """Sections that show nothing of their judge's drift: said now, not after an hour of judging."""
    return [
        f"section {number} hides too few checks to tell its judge's drift: the gate will let nobody pass "
        "with it (gate.unanchored); the pack has no more for its scenarios"
        for number, sitting in enumerate(sittings, start=1)
        if len(sitting.anchors) < ENOUGH_ANCHORS
    ]


def finish_interrupted(path: Path, bench: Bench) -> Handout | None:
    """The sheet of an export that was killed after its sittings were stored; the file is put in place.

    Raises:
        UsageError: what lies there is an unfinished export of another experiment, or cannot be read.
    """
    part = part_file(path)
    if not part.exists():
        return None
    try:
        sheet = Sheet.model_validate_json(part.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(
            f"the unfinished export {str(part)!r} cannot be read: {error.strerror}",
            hint="Make it readable, or choose another file.",
        ) from error
    except ValueError:
        part.unlink()  # Torn: it was never complete, so no sitting was stored for it.
        return None
    if sheet.experiment_uid != bench.experiment.uid:
        raise UsageError(
            f"{str(part)!r} is an unfinished export of experiment {sheet.experiment!r}",
            hint="Finish it by exporting that experiment to the same file, or choose another file.",
        )
    stored = {sitting.facts.token for sitting in bench.evidence.sittings}
    kept = tuple(section for section in sheet.sections if section.sitting in stored)
    if not kept:
        part.unlink()
        return None
    sheet = sheet.model_copy(update={"sections": kept})
    write_ready(path, sheet)
    put_in_place(path)
    return Handout(
        sheet, ("an export that was interrupted was finished; the options given now did not count",)
    )
