"""Apply: a filled sheet becomes verdicts. Checked whole, then stored, closed, shown."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from tipbench.errors import SheetError
from tipbench.judging.answers import check_section, read_sheet, refuse_sheet
from tipbench.judging.backlog import Backlog
from tipbench.judging.closing import Registrar, close_sitting
from tipbench.judging.sheet import Sheet
from tipbench.judging.submissions import read_answers, store_submission
from tipbench.judging.views import view_writes
from tipbench.records import content_hash
from tipbench.tracking.cells import StoredCell
from tipbench.tracking.evidence import read_evidence
from tipbench.tracking.runs import Run
from tipbench.tracking.sittings import Answer, BlindKey, StoredSitting, read_sittings, sitting_write


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
    for section in sheet.sections:
        sitting = known.get(section.sitting)
        if sitting is None:
            problems.append(f"sitting {section.sitting!r} is not of experiment {sheet.experiment!r}")
            continue
        key = backlog.key_of(sitting)
        # The rubric it was handed out with, whatever was collected since.
        rubric = backlog.pack_of(sitting.facts.pack_hash).rubric
        answers, wrong = check_section(section, key=key, rubric=rubric)
        problems += wrong
        filled.append(_Filled(sitting, key, answers, judged_by or section.judged_by))
    refuse_sheet(path, problems)
    return filled


def apply_sections(
    filled: Sequence[_Filled], *, runs: Sequence[Run], registrar: Registrar, close: bool
) -> Iterator[Applied]:
    """Stores the answers section by section; what was yielded is stored."""
    cells = {cell.run.run_id: cell for cell in read_evidence(runs).cells}
    for each in filled:
        if not each.answers and not (close and each.sitting.submissions):
            yield Applied(each.sitting.facts.token, each.judged_by, 0, len(each.key.items), "not begun")
            continue
        sitting = _sitting_of(each, runs=runs, registrar=registrar)
        yield _apply_section(replace(each, sitting=sitting), cells=cells, registrar=registrar, close=close)


def close_expired(backlog: Backlog, registrar: Registrar) -> list[str]:
    """Closes what ran out or was left half closed; returns the tokens."""
    closed: list[str] = []
    for sitting in backlog.evidence.sittings:
        if sitting.state != "open" or sitting.is_open(backlog.now_ms):
            continue
        close_sitting(
            sitting,
            key=backlog.key_of(sitting),
            answers=read_answers(sitting, registrar),
            submissions=sitting.submissions,
            registrar=registrar,
        )
        closed.append(sitting.facts.token)
    return closed


def refresh_views(backlog: Backlog, registrar: Registrar) -> int:
    """Brings the views of all cells up to date and returns how many changed."""
    evidence = backlog.evidence
    if not evidence.cells:
        return 0
    writes = view_writes(
        evidence.cells,
        evidence=evidence,
        rubric_of=lambda cell: backlog.pack_of(cell.facts.pack_hash).rubric,
        blank=iter(lambda: registrar.stamps.blank(registrar.experiment), None),
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
    each: _Filled, *, cells: Mapping[str, StoredCell], registrar: Registrar, close: bool
) -> Applied:
    sitting, key = each.sitting, each.key
    previous = read_answers(sitting, registrar)
    answers = {**previous, **each.answers}
    submissions = sitting.submissions
    changed = answers != previous
    if changed:
        n = store_submission(
            sitting, answers=answers, previous=previous, key=key, cells=cells, registrar=registrar
        )
        submissions = (*submissions, n)
    if sitting.claimed_close:
        outcome = "revision kept; it counts only when a person accepts it" if changed else "unchanged"
        answers, submissions = previous, sitting.submissions
    elif len(answers) == len(key.items) or close:
        outcome = "accepted"
    else:
        outcome = "open"
    if outcome == "accepted" or (sitting.claimed_close and sitting.state == "open"):
        closed = close_sitting(
            sitting, key=key, answers=answers, submissions=submissions, registrar=registrar
        )
        if not closed.blocks:
            outcome = "closed without a complete block"
    return Applied(sitting.facts.token, each.judged_by, len(answers), len(key.items), outcome)


def _sitting_of(each: _Filled, *, runs: Sequence[Run], registrar: Registrar) -> StoredSitting:
    """The sitting of these answers: whoever answers first has it, anybody else gets one of their own."""
    sitting = each.sitting
    owner = sitting.judged_by or registrar.tracking.claim(sitting.run.run_id, "judged_by", each.judged_by)
    if owner == each.judged_by:
        return replace(sitting, judged_by=owner)
    token = content_hash([sitting.facts.token, each.judged_by])[:12]
    known = {other.facts.token: other for other in read_sittings(runs)}
    if token not in known:
        facts = sitting.facts.model_copy(
            update={"token": token, "drawn": "second", "of": sitting.facts.token}
        )
        blank = registrar.stamps.blank(registrar.experiment)
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
