"""Apply: a filled sheet becomes verdicts. Checked whole, then stored, closed, shown."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tipbench.errors import SheetError, UsageError
from tipbench.judging.answers import check_section, read_sheet, refuse_sheet
from tipbench.judging.backlog import Backlog
from tipbench.judging.closing import Registrar, Said, close_sitting, complete_blocks, read_answers, supersede
from tipbench.judging.sheet import Sheet
from tipbench.judging.submissions import store_submission
from tipbench.judging.views import view_writes
from tipbench.records import Pack, content_hash
from tipbench.stats import Noise
from tipbench.tracking.cells import StoredCell, read_cells
from tipbench.tracking.runs import Run
from tipbench.tracking.sittings import (
    LEASE_MS,
    Answer,
    BlindKey,
    Closed,
    SittingState,
    StoredSitting,
    read_sittings,
    sitting_write,
)


@dataclass(frozen=True)
class Applied:
    """What became of one section."""

    sitting: str
    judged_by: str
    answered: int
    items: int
    outcome: str


@dataclass(frozen=True)
class _Filled:
    """A section that was found sound."""

    sitting: StoredSitting
    key: BlindKey
    pack: Pack
    answers: Mapping[str, Answer]
    judged_by: str


def check_sheet(path: Path, sheet: Sheet, *, backlog: Backlog, judged_by: str | None) -> list[_Filled]:
    """The sections with their sittings, nothing stored yet.

    Raises:
        SheetError: names every problem by item.
    """
    known = {sitting.facts.token: sitting for sitting in backlog.evidence.sittings}
    filled: list[_Filled] = []
    problems: list[str] = []
    seen: set[str] = set()
    for section in sheet.sections:
        sitting = known.get(section.sitting)
        if section.sitting in seen:
            problems.append(f"sitting {section.sitting!r} stands twice in the file")
        seen.add(section.sitting)
        if sitting is None:
            problems.append(f"sitting {section.sitting!r} is not of experiment {sheet.experiment!r}")
            continue
        key = backlog.key_of(sitting)
        # The rubric it was handed out with, whatever was collected since.
        pack = backlog.pack_of(sitting.facts.pack_hash)
        answers, wrong = check_section(section, key=key, rubric=pack.rubric)
        problems += wrong
        filled.append(_Filled(sitting, key, pack, answers, judged_by or section.judged_by))
    refuse_sheet(path, problems)
    return filled


def apply_sections(
    filled: Sequence[_Filled], *, backlog: Backlog, registrar: Registrar, close: bool
) -> Iterator[Applied]:
    """Stores the answers section by section; what was yielded is stored."""
    runs, noise = backlog.runs, backlog.noise
    cells = {cell.run.run_id: cell for cell in read_cells(runs)}
    for each in filled:
        sitting = _sitting_of(each, runs=runs, registrar=registrar) if each.answers else _begun(each, runs)
        if sitting is None or (not each.answers and not close):
            yield Applied(each.sitting.facts.token, each.judged_by, 0, len(each.key.items), "not begun")
            continue
        # A cell that was deleted in MLflow since takes no verdict and holds up no other.
        key = _without_deleted(each.key, cells)
        filled_now = replace(each, sitting=sitting, key=key)
        yield _apply_section(filled_now, cells=cells, noise=noise, registrar=registrar, close=close)


def close_expired(backlog: Backlog, registrar: Registrar) -> list[str]:
    """Closes what ran out or was left half closed; returns the tokens."""
    return close_all(
        (s for s in backlog.evidence.sittings if not s.is_open(backlog.now_ms)), backlog, registrar
    )


def close_all(sittings: Iterable[StoredSitting], backlog: Backlog, registrar: Registrar) -> list[str]:
    """Closes those that are not closed: complete blocks count, the rest goes back. Returns the tokens."""
    closed: list[str] = []
    still_open = [sitting for sitting in sittings if sitting.state == "open"]
    cells = {cell.run.run_id: cell for cell in read_cells(backlog.runs)} if still_open else {}
    for sitting in still_open:
        said = Said(
            key=_without_deleted(backlog.key_of(sitting), cells),
            pack=backlog.pack_of(sitting.facts.pack_hash),
            answers=read_answers(sitting, sitting.submissions, registrar),
        )
        close_sitting(
            sitting, said, submissions=sitting.submissions, noise=backlog.noise, registrar=registrar
        )
        closed.append(sitting.facts.token)
    return closed


def supersede_one(backlog: Backlog, registrar: Registrar) -> bool:
    """Takes one exported section back that nobody began; whether there was any."""
    untouched = [
        sitting
        for sitting in backlog.evidence.sittings
        if sitting.is_open(backlog.now_ms)
        and sitting.facts.drawn == "block"
        and not sitting.submissions
        and not sitting.facts.live
    ]
    return any(supersede(sitting, registrar) for sitting in untouched)


def close_with_late(sitting: StoredSitting, backlog: Backlog, registrar: Registrar) -> Closed:
    """What would count of a closed sitting if its late answers counted too.

    Raises:
        UsageError: no answer came after the close.
    """
    if not sitting.late:
        raise UsageError(f"no answer of sitting {sitting.facts.token} came after its close")
    cells = {cell.run.run_id: cell for cell in read_cells(backlog.runs)}
    key = _without_deleted(backlog.key_of(sitting), cells)
    answers = read_answers(sitting, sitting.submissions, registrar)
    return Closed(
        submissions=sitting.submissions,
        blocks=complete_blocks(key, answers, tier=sitting.facts.tier),
        judged_by=sitting.judged_by,
    )


def refresh_views(backlog: Backlog, registrar: Registrar) -> int:
    """Brings the views of all cells up to date and returns how many changed."""
    evidence = backlog.evidence
    if not evidence.cells:
        return 0
    writes = view_writes(
        evidence.cells,
        evidence=evidence,
        rubric_of=lambda cell: backlog.pack_of(cell.facts.pack_hash).rubric,
        make_blank=lambda: registrar.stamps.blank(registrar.experiment),
    )
    for write in writes:
        registrar.tracking.submit(write)
    registrar.tracking.flush()
    return len(writes)


def load_sheet(path: Path, *, experiment: str | None) -> Sheet:
    """The sheet of this file, of this experiment if one is named.

    Raises:
        SheetError: it is no sheet, or one of another experiment.
    """
    sheet = read_sheet(path)
    if experiment is not None and sheet.experiment != experiment:
        raise SheetError(
            f"{str(path)!r} is a sheet of experiment {sheet.experiment!r}, not of {experiment!r}",
            hint="Leave --experiment away: the sheet knows its own.",
        )
    return sheet


def _apply_section(
    each: _Filled, *, cells: Mapping[str, StoredCell], noise: Noise, registrar: Registrar, close: bool
) -> Applied:
    sitting, key = each.sitting, each.key
    previous = read_answers(sitting, sitting.submissions, registrar)
    answers = {**previous, **each.answers}
    submissions = sitting.submissions
    changed = answers != previous
    if changed:
        n = store_submission(
            sitting, answers=answers, previous=previous, key=key, cells=cells, registrar=registrar
        )
        submissions = (*submissions, n)
    complete = all(item.id in answers for item in key.items)
    if sitting.claimed_close:
        outcome = "revision kept; it counts only when a person accepts it" if changed else "unchanged"
        answers, submissions = previous, sitting.submissions
    else:
        outcome = "open"
    if (complete or close or sitting.claimed_close) and sitting.state == "open":
        said = Said(key, each.pack, answers)
        closed, state = close_sitting(
            sitting, said, submissions=submissions, noise=noise, registrar=registrar
        )
        if outcome == "open":
            outcome = _outcome_of_close(closed, state, submissions)
    return Applied(sitting.facts.token, each.judged_by, len(answers), len(key.items), outcome)


def _outcome_of_close(closed: Closed, state: SittingState, submissions: tuple[int, ...]) -> str:
    if not closed.blocks:
        return "closed without a complete block"
    if set(closed.submissions) != set(submissions):
        return "closed by somebody else before: kept as a revision"
    return state


def _begun(each: _Filled, runs: Sequence[Run]) -> StoredSitting | None:
    """The sitting that a section without answers speaks of, if this judge has one."""
    if each.sitting.judged_by in {"", each.judged_by} and each.sitting.state != "superseded":
        return each.sitting
    return next((s for s in read_sittings(runs) if s.facts.token == _second_token(each)), None)


def _second_token(each: _Filled) -> str:
    return content_hash([each.sitting.facts.token, each.judged_by])[:12]


def _without_deleted(key: BlindKey, cells: Mapping[str, StoredCell]) -> BlindKey:
    return BlindKey(
        items=tuple(item for item in key.items if not item.cell or item.cell in cells),
        failed=tuple(member for member in key.failed if member.cell in cells),
    )


def _sitting_of(each: _Filled, *, runs: Sequence[Run], registrar: Registrar) -> StoredSitting:
    """The sitting of these answers: whoever answers first has it, anybody else gets one of their own."""
    sitting = each.sitting
    # What gave way to a live judge was judged by others meanwhile: these answers are doubles.
    if sitting.state != "superseded":
        owner = sitting.judged_by or registrar.tracking.claim(sitting.run.run_id, "judged_by", each.judged_by)
        if owner == each.judged_by:
            return replace(sitting, judged_by=owner)
    token = _second_token(each)
    known = {other.facts.token: other for other in read_sittings(runs)}
    if token not in known:
        blank = registrar.stamps.blank(registrar.experiment)
        facts = sitting.facts.model_copy(
            update={
                "token": token,
                "drawn": "second",
                "of": sitting.facts.token,
                "expires_ms": blank.start_time + LEASE_MS,
            }
        )
        # The attempt id says which sitting it is: two at once adopt each other's run instead of making two.
        write = sitting_write(
            facts,
            each.key,
            judged_by=each.judged_by,
            write=blank.model_copy(update={"attempt": f"second-{token}"}),
        )
        registrar.tracking.deliver(write)
        fresh = registrar.tracking.read_runs(registrar.experiment, fresh=True)
        known = {other.facts.token: other for other in read_sittings(fresh)}
    second = known[token]
    owner = second.judged_by or registrar.tracking.claim(second.run.run_id, "judged_by", each.judged_by)
    return replace(second, judged_by=owner)
