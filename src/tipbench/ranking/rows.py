"""Rows: every candidate with everything that was said of it, one row for each verdict, for other programs."""

import csv
import importlib
import io
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from typing import IO, Any, Literal

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell, StoredTexts
from tipbench.bench.evidence import CountedVerdict, current_verdicts
from tipbench.bench.sittings import StoredSitting
from tipbench.clock import format_time
from tipbench.errors import TipbenchError, TrackingUnavailable
from tipbench.inert import cell_for_csv
from tipbench.records import Candidate, Rubric, Verdict

AT_ONCE = 4
WINDOW = 64
"""Cells whose texts are in memory at the same time."""
Field = str | int | float | bool | None
Row = Mapping[str, Field]
Shape = Literal["csv", "jsonl", "parquet"]

OF_CELL = ("experiment", "run", "model", "prompt", "scenario")
OF_CANDIDATE = ("slot", "text", "failure")
OF_VERDICT = (
    "tier",
    "judge",
    "judge_kind",
    "sitting",
    "sitting_state",
    "closed_at",
    "drawn",
    "counted",
    "why",
)
AT_THE_END = ("composite", "reason", "cell_seconds", "cell_prompt_tokens", "cell_output_tokens")
_WHOLE, _TRUTH = ("slot", "score."), ("counted", "flag.", "computed.")
_NUMBER = ("composite", "cell_")
SECONDARY = {
    "second": "a second opinion counts for agreement",
    "spot": "a check of the automatic judge counts for agreement",
    "repeat": "a repeated item counts for drift and agreement",
}


@dataclass(frozen=True)
class _Said:
    """A verdict with its sitting; `late` came after the close."""

    sitting: StoredSitting
    verdict: Verdict
    late: bool = False


@dataclass(frozen=True)
class Rows:
    """The rows of an experiment. Texts are read a few cells at a time and not kept; `report` is told how far.

    Retired cells and those that are there twice are among them: their verdicts say why they do not count.
    """

    bench: Bench
    report: Callable[[int, int], None] = lambda done, total: None  # noqa: ARG005

    @cached_property
    def cells(self) -> Sequence[StoredCell]:
        """Those that count first, then those that do not."""
        evidence = self.bench.evidence
        known = {cell.run.run_id for cell in (*evidence.cells, *evidence.duplicates)}
        retired = [cell for run_id, cell in self.bench.stored_cells.items() if run_id not in known]
        return (*evidence.cells, *evidence.duplicates, *retired)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """Their names, in order: what every row has. Scales and flags are those of the packs' rubrics."""
        scales = dict.fromkeys(f"score.{scale.name}" for rubric in self._rubrics for scale in rubric.scales)
        flags = dict.fromkeys(flag.name for rubric in self._rubrics for flag in rubric.flags)
        computed, judged = (f"computed.{flag}" for flag in flags), (f"flag.{flag}" for flag in flags)
        return (*OF_CELL, *OF_CANDIDATE, *computed, *OF_VERDICT, *scales, *judged, *AT_THE_END)

    def __iter__(self) -> Iterator[Row]:
        """One after the other; each cell's texts are asked for a few cells ahead."""
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for start in range(0, len(self.cells), WINDOW):
                window = self.cells[start : start + WINDOW]
                for cell, candidates in zip(window, pool.map(self._read, window), strict=True):
                    yield from self._rows_of(cell, candidates)
                self.report(start + len(window), len(self.cells))

    @cached_property
    def _rubrics(self) -> Sequence[Rubric]:
        packs = dict.fromkeys(cell.facts.pack_hash for cell in self.cells)
        return [self.bench.pack_of(pack).rubric for pack in packs]

    @cached_property
    def _places(self) -> Mapping[str, set[tuple[str, int, str]]]:
        """The verdicts of the board, and those for agreement only."""
        evidence = self.bench.evidence

        def places(given: Iterable[CountedVerdict]) -> set[tuple[str, int, str]]:
            return {(*each.place, each.sitting.facts.token) for each in given}

        return {"counted": places((*evidence.lazy, *evidence.auto)), "doubles": places(evidence.doubles)}

    @cached_property
    def _sittings(self) -> Mapping[str, StoredSitting]:
        return {sitting.facts.token: sitting for sitting in self.bench.evidence.sittings}

    @cached_property
    def _duplicates(self) -> set[str]:
        return {cell.run.run_id for cell in self.bench.evidence.duplicates}

    def _read(self, cell: StoredCell) -> Sequence[Candidate]:
        try:
            return StoredTexts(cell.run, self.bench.read_artifact).candidates
        except TrackingUnavailable:
            raise
        except TipbenchError as error:
            why = f"its texts cannot be read: {error}"
            return [Candidate(slot=slot, failure=why) for slot in range(len(cell.facts.slots))]

    def _rows_of(self, cell: StoredCell, candidates: Sequence[Candidate]) -> Iterator[Row]:
        facts, metrics = cell.facts, cell.run.metrics
        given: dict[int, list[_Said]] = {}
        for said in self._verdicts_on(cell):
            given.setdefault(said.verdict.slot, []).append(said)
        empty: dict[str, Field] = dict.fromkeys(self.columns)
        of_cell: dict[str, Field] = empty | {
            "experiment": self.bench.name,
            "run": cell.run.run_id,
            "model": facts.model,
            "prompt": facts.prompt,
            "scenario": facts.scenario,
            "cell_seconds": metrics.get("latency_seconds"),
            "cell_prompt_tokens": metrics.get("prompt_tokens"),
            "cell_output_tokens": metrics.get("output_tokens"),
        }
        for candidate in candidates:
            row = of_cell | {
                "slot": candidate.slot,
                "text": candidate.text,
                "failure": candidate.failure,
                **{f"computed.{name}": value for name, value in candidate.flags.items()},
            }
            # What does not fit its rubric is damaged and named elsewhere; it adds no column.
            for said in given.get(candidate.slot, ()):
                yield row | self._tell(cell, said)
            if candidate.slot not in given:
                yield row

    def _verdicts_on(self, cell: StoredCell) -> Iterator[_Said]:
        for token in dict.fromkeys(token for token, _ in cell.submissions):
            sitting = self._sittings.get(token)
            if sitting is None:
                continue
            listed = sitting.submissions if sitting.closed is None else sitting.closed.submissions
            yield from (_Said(sitting, each) for each in current_verdicts(cell, token, listed))
            late = current_verdicts(cell, token, sitting.late)
            yield from (_Said(sitting, each, late=True) for each in late)

    def _tell(self, cell: StoredCell, said: _Said) -> dict[str, Field]:
        sitting, verdict, rubric = said.sitting, said.verdict, self.bench.rubric_of(cell)
        why = self._say_why_not(cell, said)
        told: dict[str, Field] = {
            "tier": sitting.facts.tier,
            "judge": sitting.judged_by or sitting.meant_for,
            "judge_kind": sitting.facts.judge_kind,
            "sitting": sitting.facts.token,
            "sitting_state": sitting.state,
            "closed_at": format_time(sitting.closed_ms) if sitting.closed_ms else None,
            "drawn": verdict.drawn,
            "counted": not why,
            "why": why,
        }
        if verdict.failed:
            return told | {
                "composite": rubric.lowest,
                "why": why or "no tip was written: the lowest composite",
            }
        if not rubric.admits(verdict.scores, verdict.flags):
            return told
        return (
            told
            | {f"score.{name}": score for name, score in verdict.scores.items()}
            | {f"flag.{name}": flag for name, flag in verdict.flags.items()}
            | {
                "composite": rubric.composite(verdict.scores, verdict.flags),
                "reason": "" if said.late else self._reason(cell, said),
            }
        )

    def _say_why_not(self, cell: StoredCell, said: _Said) -> str:
        """Why it is not on the board; nothing if it is."""
        sitting, drawn = said.sitting, said.verdict.drawn
        place = (cell.run.run_id, said.verdict.slot, sitting.facts.token)
        reasons = (
            (cell.retired, "the cell was retired"),
            (cell.run.run_id in self._duplicates, "the cell is there twice, and the other one counts"),
            (said.late, "said after the sitting was closed"),
            (place in self._places["counted"], ""),
            (not sitting.counts, f"the sitting is {sitting.state}"),
            (place not in self._places["doubles"], "its block was not complete when the sitting was closed"),
            (drawn in SECONDARY, SECONDARY.get(drawn, "")),
            (sitting.only_agreement, "the judge had seen the arms: counts for agreement"),
        )
        return next((why for holds, why in reasons if holds), "another verdict of its tier was there before")

    def _reason(self, cell: StoredCell, said: _Said) -> str:
        try:
            reasons = self.bench.reasons_of(said.sitting)
        except TrackingUnavailable:
            raise
        except TipbenchError:
            return ""
        return reasons.get((cell.run.run_id, said.verdict.slot), "")


def format_lines(rows: Rows, shape: Literal["csv", "jsonl"]) -> Iterator[str]:
    """The rows as they are sent or written, some at a time: CSV with a line of names, or JSON lines.

    In CSV no text is a formula. JSON has every text as it is, in ASCII: no reader meets a control byte.
    """
    if shape == "csv":
        yield _csv_line(rows.columns)
    for row in rows:
        if shape == "csv":
            yield _csv_line([row[column] for column in rows.columns])
        else:
            yield json.dumps({name: row[name] for name in rows.columns}, separators=(",", ":")) + "\n"


def join_lines(lines: Iterator[str], at_once: int = 200) -> Iterator[str]:
    """The same in fewer pieces: a server pays for each."""
    while piece := "".join(islice(lines, at_once)):
        yield piece


def write_rows(rows: Rows, file: IO[bytes], shape: Shape) -> int:
    """The rows go into the file, and how many there were.

    Raises:
        TipbenchError: for Parquet, pyarrow is not installed.
    """
    if shape == "parquet":
        return _write_parquet(rows, file)
    written = -1 if shape == "csv" else 0
    for line in format_lines(rows, shape):
        file.write(line.encode())
        written += 1
    return written


def _write_parquet(rows: Rows, file: IO[bytes]) -> int:
    """In groups of a few thousand rows."""
    arrow, parquet = load_parquet()
    schema = arrow.schema([(name, _type_of(name, arrow)) for name in rows.columns])
    written, group = 0, list[Row]()
    with parquet.ParquetWriter(file, schema) as writer:

        def write_group() -> None:
            writer.write_table(arrow.Table.from_pylist(group, schema=schema))
            group.clear()

        for row in rows:
            group.append(row)
            written += 1
            if len(group) == 5_000:
                write_group()
        if group or not written:
            write_group()
    return written


def load_parquet() -> tuple[Any, Any]:
    """pyarrow and its part for Parquet.

    Raises:
        TipbenchError: it is not installed.
    """
    try:
        return importlib.import_module("pyarrow"), importlib.import_module("pyarrow.parquet")
    except ModuleNotFoundError as error:
        raise TipbenchError(
            "a .parquet file needs pyarrow, which is not installed",
            hint="Install it: pip install pyarrow. Or take a file that ends in .jsonl or .csv.",
        ) from error


def _csv_line(fields: Sequence[Field]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerow(map(_csv_field, fields))
    return out.getvalue()


def _csv_field(field: Field) -> Field:
    match field:
        case str():
            return cell_for_csv(field)
        case bool():
            return str(field).lower()
        case _:
            return field


def _type_of(column: str, arrow: Any) -> Any:
    if column.startswith(_WHOLE):
        return arrow.int64()
    if column.startswith(_TRUTH):
        return arrow.bool_()
    return arrow.float64() if column.startswith(_NUMBER) else arrow.string()
