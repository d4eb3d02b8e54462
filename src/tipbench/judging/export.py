"""Export: what waits for a lazy judge becomes one blind file."""

import json
import os
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from random import Random

from tipbench.errors import TipbenchError, UsageError
from tipbench.judging.backlog import Backlog, make_desk
from tipbench.judging.closing import Registrar
from tipbench.judging.handout import (
    Request,
    draw_sections,
    make_sittings,
    seed_source,
    store_sittings,
    tell_late_arms,
)
from tipbench.judging.sheet import Section, Sheet, Sitting, sheet_rubric, sheet_schema
from tipbench.tracking.contents import check_contents
from tipbench.tracking.evidence import Evidence
from tipbench.tracking.runs import Experiment
from tipbench.tracking.sittings import LEASE_MS


@dataclass(frozen=True)
class Handout:
    """What was handed out, and what people should know about it."""

    sheet: Sheet
    remarks: tuple[str, ...] = ()


def export_sheet(path: Path, request: Request, *, backlog: Backlog, registrar: Registrar) -> Handout | None:
    """Writes the sheet and its schema; None when nothing waits.

    Raises:
        MixedContents: one name stands for several contents: judging would mix them.
        TipbenchError: the file cannot be written; nothing was handed out.
    """
    experiment = registrar.experiment
    check_contents(backlog.evidence.cells, experiment=experiment.name)
    seeds = seed_source(registrar.stamps)
    sections = draw_sections(backlog, request, rng=Random(seeds()))
    if not sections:
        return None
    desk = make_desk(backlog)
    sittings = make_sittings(sections, desk=desk, backlog=backlog, judged_by=request.judged_by, seeds=seeds)
    sheet = Sheet(
        experiment=experiment.name,
        experiment_uid=experiment.uid,
        rubric=sheet_rubric(desk.rubric),
        sections=tuple(_section(sitting, request, now_ms=backlog.now_ms) for sitting in sittings),
    )
    part = part_file(path)
    write_text(part, sheet.model_dump_json(indent=1))
    write_text(schema_file(path), json.dumps(sheet_schema(desk.rubric), indent=1))
    store_sittings(sittings, request=request, cell=sections[0][0].members[0].cell, registrar=registrar)
    _put_in_place(part, path)
    if request.drawn != "block":
        return Handout(sheet)
    return Handout(sheet, tuple(tell_late_arms(sections, backlog.evidence.cells)))


def _section(sitting: Sitting, request: Request, *, now_ms: int) -> Section:
    expires = datetime.fromtimestamp((now_ms + LEASE_MS) / 1000, tz=UTC)
    return Section(
        sitting=sitting.token,
        judged_by=request.judged_by,
        expires=expires.isoformat(timespec="seconds"),
        scenarios=sitting.scenarios,
        items=sitting.items,
    )


def check_target(path: Path) -> None:
    """Refuses to overwrite a sheet: it may hold somebody's answers.

    Raises:
        UsageError: the file exists, or its folder does not.
    """
    try:
        there = [target for target in (path, schema_file(path)) if target.exists()]
        folder_there = path.absolute().parent.is_dir()
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be written: {error.strerror}") from error
    # The schema of an interrupted export lies there without its sheet: it is only written again.
    if path in there or (there and not part_file(path).exists()):
        raise UsageError(f"{str(there[0])!r} exists and may hold answers", hint="Choose another file name.")
    if not folder_there:
        raise UsageError(f"there is no folder {str(path.absolute().parent)!r}", hint="Make it first.")


def finish_interrupted(path: Path, evidence: Evidence, *, experiment: Experiment) -> Handout | None:
    """The sheet of an export that was killed after its sittings were stored; the file is put in place.

    Raises:
        UsageError: what lies there is an unfinished export of another experiment, or cannot be read.
    """
    part = part_file(path)
    if not part.exists():
        return None
    stored = {sitting.facts.token for sitting in evidence.sittings}
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
    if sheet.experiment_uid != experiment.uid:
        raise UsageError(
            f"{str(part)!r} is an unfinished export of experiment {sheet.experiment!r}",
            hint="Finish it by exporting that experiment to the same file, or choose another file.",
        )
    kept = tuple(section for section in sheet.sections if section.sitting in stored)
    if not kept:
        part.unlink()
        return None
    sheet = sheet.model_copy(update={"sections": kept})
    write_text(part, sheet.model_dump_json(indent=1))
    _put_in_place(part, path)
    return Handout(
        sheet, ("an export that was interrupted was finished; the options given now did not count",)
    )


def _put_in_place(part: Path, path: Path) -> None:
    try:
        part.replace(path)
    except OSError as error:
        raise TipbenchError(
            f"{str(path)!r} cannot be written: {error.strerror}",
            hint=f"The sheet is complete in {str(part)!r}: run the same command again when this is mended.",
        ) from error


def part_file(path: Path) -> Path:
    """Where a sheet lies until its sittings are stored."""
    return path.with_name(path.name + ".part")


def schema_file(path: Path) -> Path:
    """The JSON Schema beside a sheet."""
    return path.with_name(path.stem + ".schema.json")


def write_text(path: Path, text: str) -> None:
    """Writes and syncs the text.

    Raises:
        TipbenchError: the disk is full, or the place cannot be written.
    """
    try:
        with path.open("w", encoding="utf-8") as file:
            file.write(text + "\n")
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be written: {error.strerror}") from error
