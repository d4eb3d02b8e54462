"""Every request of every command × every fault: hours of repetition, run by `make test-faults` alone.

TIPBENCH_FAULT_TABLE names a folder for the tables; with TIPBENCH_FAULT_TURN each request meets one fault, in
turn. Servers are killed under a group of rows at once.
"""

import os
from collections.abc import Generator, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.faults.subjects import APPLY, COLLECT, EVERY
from tests.faults.table import (
    Bench,
    Row,
    Strike,
    Subject,
    check_row,
    check_rows,
    draw_pair,
    place_of,
    run_row,
    run_rows_under_one_kill,
    run_undisturbed,
)
from tests.support.fault_proxy import FAULTS, Fault

GROUP = 8
"""So many commands at once are held and lose their server."""


@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("subject", EVERY, ids=[subject.command for subject in EVERY])
def test_a_command_survives_every_fault_at_every_request(bench: Bench, subject: Subject) -> None:
    expected = run_undisturbed(bench, subject)
    table = Table(expected)
    rows: list[Row] = []
    for row in run_rows(bench, table.strikes()):
        rows.append(row)
        table.enter(row)
    check_rows(rows, expected)


@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("subject", [COLLECT, APPLY], ids=["collect", "apply"])
def test_a_command_survives_two_faults_in_one_run(bench: Bench, subject: Subject) -> None:
    """Random pairs; TIPBENCH_FAULT_SEED draws others."""
    seed, number = (
        os.environ.get("TIPBENCH_FAULT_SEED", "1"),
        int(os.environ.get("TIPBENCH_FAULT_PAIRS", "20")),
    )
    print(f"{number} pairs of faults, drawn from TIPBENCH_FAULT_SEED={seed}")
    expected = run_undisturbed(bench, subject)
    rng = Random(f"{seed} {subject.command}")
    strikes = [draw_pair(expected, rng) for _ in range(number)]
    check_rows(list(run_rows(bench, strikes)), expected)


def run_rows(bench: Bench, strikes: Sequence[Strike]) -> Generator[Row]:
    """One after the other; those that kill the server in groups."""
    yield from (run_row(bench, strike) for strike in strikes if strike.fault != "kill_server")
    killing = [strike for strike in strikes if strike.fault == "kill_server"]
    for first in range(0, len(killing), GROUP):
        yield from run_rows_under_one_kill(bench, killing[first : first + GROUP])


class Table:
    """Requests × faults, written anew with every row."""

    def __init__(self, expected: Row) -> None:
        self._expected = expected
        self._places = [place_of(expected.requests, at) for at in range(len(expected.requests))]
        self._faults = expected.strike.subject.faults
        self._cells: dict[tuple[int, Fault], str] = {}

    def strikes(self) -> list[Strike]:
        """A row for each request and fault; with turns for each request."""
        turns = bool(os.environ.get("TIPBENCH_FAULT_TURN"))
        return [
            Strike(self._expected.strike.subject, fault, place)
            for at, place in enumerate(self._places)
            for fault in (self._faults[at % len(self._faults) :][:1] if turns else self._faults)
        ]

    def enter(self, row: Row) -> None:
        at = self._places.index(dict(row.strike.places))
        outcome = f"same ({row.codes[0]})" if row.struck else "not reached"
        self._cells[at, row.strike.fault] = "WRONG" if check_row(row, self._expected) else outcome
        if folder := os.environ.get("TIPBENCH_FAULT_TABLE"):
            path = Path(folder, f"{row.strike.subject.command}.md")
            path.write_text(self._write(), encoding="utf-8")

    def _write(self) -> str:
        lines = [
            f"## {self._expected.strike.subject.command}",
            "",
            "| i | request | " + " | ".join(FAULTS) + " |",
            "| --- " * (len(FAULTS) + 2) + "|",
        ]
        for at, line in enumerate(self._expected.requests):
            cells = [self._cells.get((at, fault), "") for fault in FAULTS]
            lines.append(f"| {at} | `{line}` | " + " | ".join(cells) + " |")
        return "\n".join(lines) + "\n"
