"""A filled sheet → answers. Everything is checked before anything is stored; every problem names its item."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import cast

from pydantic import ValidationError

from tipbench.errors import NewerSchema, SheetError
from tipbench.judging.sheet import FORMAT, Section, Sheet, SheetItem, text_hash
from tipbench.records import Rubric
from tipbench.tracking.sittings import Answer, BlindKey

MAX_PROBLEMS = 50


def read_sheet(path: Path) -> Sheet:
    """The sheet in this file.

    Raises:
        SheetError: it is no sheet; says where it breaks.
        NewerSchema: it was written by a newer tipbench.
    """
    try:
        data: object = json.loads(path.read_text(encoding="utf-8-sig"))
    except OSError as error:
        raise SheetError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise SheetError(f"{str(path)!r} is not UTF-8 text: {error.reason}") from error
    except json.JSONDecodeError as error:
        raise SheetError(f"{path}:{error.lineno}: not JSON: {error.msg}") from error
    except (ValueError, RecursionError) as error:
        raise SheetError(f"{str(path)!r} is no sheet: {error}") from error
    _check_format(path, data)
    try:
        return Sheet.model_validate(data)
    except ValidationError as error:
        problems = [f"{_place(data, problem['loc'])}: {problem['msg']}" for problem in error.errors()]
        raise _refuse(path, problems) from None


def check_section(section: Section, *, key: BlindKey, rubric: Rubric) -> tuple[dict[str, Answer], list[str]]:
    """The answers of a section by item id, and everything that is wrong with it."""
    known = {item.id: item for item in key.items}
    problems = _item_problems(section, known)
    answers: dict[str, Answer] = {}
    for place, item in enumerate(section.items, start=1):
        if item.id not in known:
            continue
        where = f"sitting {section.sitting}, item {item.id} (place {place})"
        if text_hash(item.text) != known[item.id].text_hash:
            problems.append(f"{where}: the text was altered; export it again")
        wrong = [*_score_problems(item, rubric), *_flag_problems(item, rubric)]
        problems += [f"{where}: {problem}" for problem in wrong]
        if not wrong and any(score is not None for score in item.scores.values()):
            answers[item.id] = _make_answer(item, rubric)
    return answers, problems


def check_answer(answer: Answer, rubric: Rubric) -> list[str]:
    """Everything that is wrong with one answer that did not come in a sheet."""
    item = SheetItem(id="", scenario="", text="", flags=answer.flags, scores=dict(answer.scores))
    missing = [] if answer.scores else ["there are no scores"]
    return [*missing, *_score_problems(item, rubric), *_flag_problems(item, rubric)]


def _make_answer(item: SheetItem, rubric: Rubric) -> Answer:
    """In the rubric's own order: the same answers are the same bytes, whoever wrote the file."""
    scores = {scale.name: item.scores[scale.name] for scale in rubric.scales}
    return Answer(
        scores={name: score for name, score in scores.items() if score is not None},
        flags={flag.name: item.flags[flag.name] for flag in rubric.flags},
        reason=item.reason,
    )


def refuse_sheet(path: Path, problems: Sequence[str]) -> None:
    """Refuses the sheet if there are problems.

    Raises:
        SheetError: with all of them; nothing was stored.
    """
    if problems:
        raise _refuse(path, problems)


def _refuse(path: Path, problems: Sequence[str]) -> SheetError:
    shown = [*problems[:MAX_PROBLEMS]]
    if len(problems) > MAX_PROBLEMS:
        shown.append(f"… and {len(problems) - MAX_PROBLEMS} more")
    return SheetError(
        f"{str(path)!r} cannot be taken; nothing was stored:\n  " + "\n  ".join(shown),
        hint="Correct these items and apply the file again.",
    )


def _check_format(path: Path, data: object) -> None:
    found = str(cast("dict[str, object]", data).get("format")) if isinstance(data, dict) else ""
    if found == FORMAT:
        return
    family, _, version = found.partition("/")
    if family == FORMAT.partition("/")[0] and version.isdigit():
        raise NewerSchema(
            f"{str(path)!r} is {found!r}; this tipbench reads {FORMAT!r}", hint="Upgrade tipbench."
        )
    raise SheetError(
        f'{str(path)!r} is no sheet of tipbench (no "format": "{FORMAT}")',
        hint="Make one with: tipbench judge --experiment NAME --export FILE",
    )


def _place(data: object, location: Sequence[int | str]) -> str:
    """Where in the file a problem is, with the item's own id where there is one."""
    words: list[str] = []
    for step in location:
        words.append(f"{words.pop()}[{step}]" if isinstance(step, int) and words else str(step))
        try:
            data = data[step]  # pyright: ignore[reportUnknownVariableType, reportIndexIssue]
        except (KeyError, IndexError, TypeError):
            break
        if isinstance(data, dict) and words[-1].startswith("items["):
            words.append(f"(id {data.get('id')!r})")  # pyright: ignore[reportUnknownMemberType]
    return " ".join(words)


def _item_problems(section: Section, known: Mapping[str, object]) -> list[str]:
    ids = Counter(item.id for item in section.items)
    where = f"sitting {section.sitting}"
    return (
        [f"{where}: item {item_id!r} is not of this sitting" for item_id in ids if item_id not in known]
        + [f"{where}: item {item_id!r} stands {n} times" for item_id, n in ids.items() if n > 1]
        + [f"{where}: item {item_id!r} is missing" for item_id in known if item_id not in ids]
    )


def _score_problems(item: SheetItem, rubric: Rubric) -> list[str]:
    scales = {scale.name: scale for scale in rubric.scales}
    problems = [f"there is no scale {name!r}" for name in item.scores if name not in scales]
    given = {name: score for name, score in item.scores.items() if score is not None and name in scales}
    for name, score in given.items():
        scale = scales[name]
        if not scale.minimum <= score <= scale.maximum:
            problems.append(f"{name} is {score}, allowed are {scale.minimum} to {scale.maximum}")
    if given:
        problems += [f"{name} is missing" for name in scales if name not in given]
    return problems


def _flag_problems(item: SheetItem, rubric: Rubric) -> list[str]:
    flags = {flag.name for flag in rubric.flags}
    return [f"there is no flag {name!r}" for name in item.flags if name not in flags] + [
        f"flag {name!r} is missing" for name in sorted(flags - set(item.flags))
    ]
