"""Cells in MLflow: a cell's facts and texts to one run, and back."""

import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Annotated, Self

from pydantic import BeforeValidator, ConfigDict, Field, PlainSerializer, TypeAdapter, ValidationError

from tipbench.bench.damage import (
    FACTS_TAG,
    Damage,
    PassOver,
    check_unchanged,
    find_readable,
    ignore,
    read_as,
    read_each,
    read_tag,
)
from tipbench.bench.words import Saying, StoredWord, Words, read_words
from tipbench.records import (
    ANSWERED,
    SCHEMA,
    Candidate,
    CellFacts,
    Generation,
    Options,
    Record,
    Verdict,
    content_hash,
    count_words,
)
from tipbench.tracking.runs import Run, Write, clean_text

VERDICT_TAG = re.compile(r"^verdict:([0-9a-z]+):(\d+)(?:\.(\d+))?$")
CANDIDATES_FILE = "candidates.json"
CANDIDATES_TAG = "tipbench.candidates"
PROMPT_FILE = "prompt.txt"
RAW_FILE = "raw.txt"
TEXTS_FILE = "texts.json"
TEXTS_TAG = "tipbench.texts"
SCORES_TAG = "tipbench.cell_scores"
TIPS_TAG = "tipbench.tips"
"""What can be counted of the texts without reading them; cells made before 2026-11-19 have none."""
CELL_TAG = "tipbench.key"
RETIRED_TAG = "tipbench.retired"
TAG_ROOM = 7_000
"""Characters of verdicts in one tag; the packing around them stays under 7,500."""

_verdicts = TypeAdapter(tuple[Verdict, ...])
_candidates = TypeAdapter(tuple[Candidate, ...])
_marks = TypeAdapter(dict[int, str])


class CellScores(Record):
    """What a judge of another program said of the whole cell, as it was logged there; of no candidate."""

    sitting: str
    values: dict[str, float]


class TipFacts(Record):
    """By slot: the number of words of its text, and a mark that equal texts share; None for a failed one."""

    words: tuple[Annotated[int, Field(ge=0)] | None, ...]
    marks: tuple[str | None, ...]

    @classmethod
    def of(cls, candidates: Sequence[Candidate]) -> Self:
        return cls(
            words=tuple(count_words(each.text) if each.answered else None for each in candidates),
            marks=tuple(
                content_hash(each.text.strip())[:8] if each.answered else None for each in candidates
            ),
        )


class Retirement(Saying):
    """A person took a cell out of the comparison; `content` says by which content, none takes it back."""

    content: str = ""

    @property
    def shown(self) -> str:
        return f"cells retired by {self.content}" if self.content else "cells taken back"


_Word = StoredWord[Retirement]


def _join_lines(value: object) -> object:
    return "\n".join(map(str, value)) if isinstance(value, list) else value  # pyright: ignore[reportUnknownArgumentType]


def _split_lines(text: str) -> list[str]:
    return text.split("\n")


Lines = Annotated[str, BeforeValidator(_join_lines), PlainSerializer(_split_lines)]
"""A long text that is stored line by line, so that people can read it in MLflow."""


class CellTexts(Record):
    """The texts of a cell: what was made of the answer, what was sent, what came back, and the scenario.

    One file holds them under the names that were files before; a file of each would cost a request of each.
    """

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    candidates: tuple[Candidate, ...] = Field(
        validation_alias=CANDIDATES_FILE, serialization_alias=CANDIDATES_FILE
    )
    prompt: Lines = Field(validation_alias=PROMPT_FILE, serialization_alias=PROMPT_FILE)
    raw: Lines = Field(validation_alias=RAW_FILE, serialization_alias=RAW_FILE)
    context: dict[str, object] = Field(validation_alias="context.json", serialization_alias="context.json")

    def to_json(self) -> str:
        """The file."""
        return clean_text(json.dumps(self.model_dump(by_alias=True), ensure_ascii=False, indent=1))


@dataclass(frozen=True)
class StoredTexts:
    """The texts of a cell in MLflow, each read when it is asked for; `read` gives a text of a run.

    Before 2026-11-18 each was a file of its own.

    Raises:
        Damage: they were edited.
        NoSuchText: they are gone.
    """

    run: Run
    read: Callable[[Run, str], str]

    @cached_property
    def candidates(self) -> tuple[Candidate, ...]:
        if self._file is not None:
            return self._file.candidates
        return _read_candidates(self.run, self.read(self.run, CANDIDATES_FILE))

    @cached_property
    def prompt(self) -> str:
        return self.read(self.run, PROMPT_FILE) if self._file is None else self._file.prompt

    @cached_property
    def raw(self) -> str:
        return self.read(self.run, RAW_FILE) if self._file is None else self._file.raw

    @cached_property
    def _file(self) -> CellTexts | None:
        stored = self.run.tags.get(TEXTS_TAG)
        if stored is None:
            return None
        text = self.read(self.run, TEXTS_FILE)
        check_unchanged(self.run, TEXTS_FILE, text, stored=stored)
        return read_as(CellTexts, text, run=self.run, where=TEXTS_FILE)


@dataclass(frozen=True)
class StoredCell:
    """A complete cell as MLflow has it. `submissions` maps (sitting, n) to the verdicts given there.

    `damaged` are tags that do not add up.
    """

    run: Run
    facts: CellFacts
    retired: bool
    submissions: Mapping[tuple[str, int], tuple[Verdict, ...]] = field(
        default_factory=dict[tuple[str, int], tuple[Verdict, ...]]
    )
    damaged: tuple[str, ...] = ()
    scores: CellScores | None = None
    tips: TipFacts | None = None

    @property
    def words(self) -> Words[Retirement]:
        """What people said of it."""
        return read_words(self.run, _Word)

    @property
    def answered_slots(self) -> list[int]:
        """The candidates there are texts of."""
        return [slot for slot, letter in enumerate(self.facts.slots) if letter == ANSWERED]

    @property
    def answered_count(self) -> int:
        """How many of them."""
        return self.facts.slots.count(ANSWERED)


def cell_write(
    facts: CellFacts,
    texts: CellTexts,
    *,
    options: Options,
    metrics: Mapping[str, float],
    write: Write,
) -> Write:
    """`write` filled with everything a cell's run carries; what makes it count is the last to land."""
    file = texts.to_json()
    return write.model_copy(
        update={
            "tags_at_create": {
                "tipbench.kind": "cell",
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
                CELL_TAG: facts.key,
                FACTS_TAG: facts.model_dump_json(),
                TEXTS_TAG: content_hash(file),
                TIPS_TAG: TipFacts.of(texts.candidates).model_dump_json(),
                "rubric": facts.rubric,
                "judge_kind": facts.judge_kind,
            },
            "artifacts": {TEXTS_FILE: file},
            "params": {
                "model": facts.model,
                "prompt": facts.prompt,
                "scenario": facts.scenario,
                "n_tips": str(options.n_tips),
                "temperature": str(options.sampling.temperature),
                "diversity": str(options.diversity).lower(),
                "seed": str(options.seed),
                "options": options.model_dump_json(),
            },
            "metrics": dict(metrics),
            "tags": {
                "tipbench.state": "complete",
                # A cell without a single answer has nothing to judge.
                "judge_pending": str(ANSWERED in facts.slots).lower(),
            },
        }
    )


def generation_metrics(
    generation: Generation, *, candidates: Sequence[Candidate], diversity: float | None
) -> dict[str, float]:
    """What was measured of one cell."""
    metrics = {
        "latency_seconds": generation.seconds,
        "prompt_tokens": float(generation.prompt_tokens),
        "output_tokens": float(generation.output_tokens),
    }
    if generation.seconds > 0:
        metrics["tokens_per_second"] = generation.output_tokens / generation.seconds
    return metrics | candidate_metrics(candidates, diversity=diversity)


def candidate_metrics(candidates: Sequence[Candidate], *, diversity: float | None) -> dict[str, float]:
    """What code sees of the candidates. Shares of computed flags are over the answered ones."""
    answered = [candidate for candidate in candidates if candidate.answered]
    metrics = {"answered": float(len(answered)), "failed": float(len(candidates) - len(answered))}
    for name in answered[0].flags if answered else ():
        metrics[f"computed.{name}"] = sum(c.flags[name] for c in answered) / len(answered)
    if diversity is not None:
        metrics["diversity"] = diversity
    return metrics


def read_cells(runs: Iterable[Run], pass_over: PassOver = ignore) -> list[StoredCell]:
    """The complete cells among the runs; an open one is no cell yet."""
    complete = (run for run in find_readable(runs, "cell") if run.tags["tipbench.state"] == "complete")
    return read_each(complete, lambda run: _read_cell(run, pass_over), pass_over)


@dataclass(frozen=True)
class ReadCells:
    """The complete cells of an experiment, read once for all who need them, and what of them is damaged."""

    cells: Sequence[StoredCell]
    damaged: Sequence[Damage]

    @classmethod
    def of(cls, runs: Iterable[Run]) -> Self:
        damaged: list[Damage] = []
        return cls(read_cells(runs, damaged.append), damaged)


def _read_candidates(run: Run, text: str) -> tuple[Candidate, ...]:
    check_unchanged(run, CANDIDATES_FILE, text, stored=run.tags.get(CANDIDATES_TAG))
    try:
        return _candidates.validate_json(text)
    except ValidationError as error:
        raise Damage(run, CANDIDATES_FILE, "it holds no candidates") from error


def _read_cell(run: Run, pass_over: PassOver) -> StoredCell:
    submissions, damaged = unpack_verdicts(run.tags)
    facts = read_tag(run, FACTS_TAG, CellFacts)
    if facts.key != run.tags.get(CELL_TAG):
        raise Damage(run, FACTS_TAG, f"it is not the cell of the tag {CELL_TAG!r}")
    scores, broken = _read_scores(run.tags)
    tips, odd = _read_tips(run.tags, facts)
    return StoredCell(
        run=run,
        facts=facts,
        retired=_is_retired(run, pass_over),
        submissions=submissions,
        damaged=damaged + broken + odd,
        scores=scores,
        tips=tips,
    )


def _is_retired(run: Run, pass_over: PassOver) -> bool:
    """By the last word; before 2026-11-18 there was the tag alone, which now shows the word to people."""
    word = read_words(run, _Word, pass_over).last
    return bool(run.tags.get(RETIRED_TAG) if word is None else word.said.content)


def _read_scores(tags: Mapping[str, str]) -> tuple[CellScores | None, tuple[str, ...]]:
    try:
        return CellScores.model_validate_json(tags[SCORES_TAG]) if SCORES_TAG in tags else None, ()
    except ValidationError:
        return None, (SCORES_TAG,)


def _read_tips(tags: Mapping[str, str], facts: CellFacts) -> tuple[TipFacts | None, tuple[str, ...]]:
    """What the tag says if it is about these slots; the cell counts without it."""
    if TIPS_TAG not in tags:
        return None, ()
    answered = [letter == ANSWERED for letter in facts.slots]
    try:
        tips = TipFacts.model_validate_json(tags[TIPS_TAG])
    except ValidationError:
        return None, (TIPS_TAG,)
    known = all([each is not None for each in values] == answered for values in (tips.words, tips.marks))
    return (tips, ()) if known else (None, (TIPS_TAG,))


def pack_verdicts(sitting: str, n: int, verdicts: Sequence[Verdict]) -> dict[str, str]:
    """The verdict tags of one submission on one cell; never cut, split where a tag would be too long."""
    rows = [verdict.model_dump_json(exclude_defaults=True) for verdict in verdicts]
    parts: list[list[str]] = [[]]
    marks: list[dict[int, str]] = [{}]
    room = TAG_ROOM
    for verdict, row in zip(verdicts, rows, strict=True):
        mark = {verdict.slot: verdict.shared} if verdict.shared else {}
        size = len(row) + len(_pack_marks(mark)) + 1
        if parts[-1] and size > room:
            parts.append([])
            marks.append({})
            room = TAG_ROOM
        parts[-1].append(row)
        marks[-1] |= mark
        room -= size
    head = f'"schema":{SCHEMA},"count":{len(rows)},"hash":"{content_hash(rows)}"'
    return {
        f"verdict:{sitting}:{n}" + (f".{index}" if index else ""): (
            f'{{{head}{_pack_marks(mark)},"verdicts":[{",".join(part)}]}}'
        )
        for index, (part, mark) in enumerate(zip(parts, marks, strict=True))
    }


def _pack_marks(marks: Mapping[int, str]) -> str:
    """Slot → mark of what was said once for equal texts; readers of before 2026-11-18 pass it over."""
    return f',"shared":{json.dumps(marks, separators=(",", ":"))}' if marks else ""


def unpack_verdicts(
    tags: Mapping[str, str],
) -> tuple[dict[tuple[str, int], tuple[Verdict, ...]], tuple[str, ...]]:
    """The verdicts in a run's tags by (sitting, n), and the names of tags that do not add up."""
    parts: dict[tuple[str, int], dict[int, str]] = {}
    for name, value in tags.items():
        if name.startswith("verdict:") and (match := VERDICT_TAG.match(name)):
            parts.setdefault((match[1], int(match[2])), {})[int(match[3] or 0)] = value
    found: dict[tuple[str, int], tuple[Verdict, ...]] = {}
    damaged: list[str] = []
    for place, texts in parts.items():
        verdicts = _join_verdicts([texts[index] for index in sorted(texts)])
        if verdicts is None:
            damaged.append(f"verdict:{place[0]}:{place[1]}")
        else:
            found[place] = verdicts
    return found, tuple(damaged)


def _join_verdicts(texts: Sequence[str]) -> tuple[Verdict, ...] | None:
    try:
        packed = [json.loads(text) for text in texts]
        verdicts = _verdicts.validate_python([row for part in packed for row in part["verdicts"]])
        rows = [verdict.model_dump_json(exclude_defaults=True) for verdict in verdicts]
        honest = all(p["count"] == len(rows) and p["hash"] == content_hash(rows) for p in packed)
        marks = {
            slot: mark for p in packed for slot, mark in _marks.validate_python(p.get("shared", {})).items()
        }
    except (ValueError, KeyError, TypeError, AttributeError, ValidationError):
        return None
    if marks:
        verdicts = tuple(v.model_copy(update={"shared": marks.get(v.slot, "")}) for v in verdicts)
    return verdicts if honest else None
