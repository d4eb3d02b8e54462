"""Every kind of fault at every kind of request of collect, apply and promote; gate and rollback are slow.

`make test-faults` strikes every single request with every fault (whole_tables.py) and writes the tables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from tests.faults.subjects import APPLY, CHAMPION, COLLECT, GATE, PROMOTE, ROLLBACK, prepare_collect
from tests.faults.table import (
    Bench,
    Case,
    Row,
    Strike,
    Subject,
    begin,
    check_rows,
    count_kinds,
    run_row,
    run_row_of_kills,
    run_rows_under_one_kill,
    run_undisturbed,
    take_turns,
)
from tests.support.fault_proxy import Fault, Plan
from tests.support.official import read_facts
from tests.support.small_pack import MAX_TOKENS, write_small_pack

SURVIVED: tuple[Fault, ...] = ("drop", "reply_lost", "late")
"""Faults that a command bears without ending: one run meets them at a request of every kind."""
INNER = (COLLECT, APPLY, PROMOTE)
OUTER = (GATE, ROLLBACK)
CLAIM = "POST runs/log-batch"
WRITES = ("POST runs/create", CLAIM, "POST runs/update")
"""Where every command is killed, whatever was struck before; the server under collect and apply."""


@pytest.fixture(scope="module")
def undisturbed(bench: Bench) -> dict[str, Row]:
    """What the rows of the commands must equal."""
    return {subject.command: run_undisturbed(bench, subject) for subject in INNER}


def kinds_to_kill_at(
    subject: Subject, undisturbed: Mapping[str, Row], *, always: Sequence[str] = WRITES
) -> dict[str, int]:
    """Kinds of requests that no command before it has, and the writes."""
    before: set[str] = set()
    for other in INNER:
        if other is subject:
            break
        before |= set(count_kinds(undisturbed[other.command].requests))
    kinds = count_kinds(undisturbed[subject.command].requests)
    return {kind: number for kind, number in kinds.items() if kind not in before or kind in always}


def strike_each(subject: Subject, kinds: Mapping[str, int], fault: Fault) -> list[Strike]:
    """A row for each kind: only one request can be the last."""
    places = take_turns(kinds, fault)
    return [Strike(subject, fault, {kind: number}) for kind, number in places.items()]


def names(subjects: Sequence[Subject]) -> list[str]:
    return [subject.command for subject in subjects]


@pytest.mark.parametrize("subject", INNER, ids=names(INNER))
def test_a_command_bears_every_fault_at_every_kind_of_request(
    bench: Bench, undisturbed: dict[str, Row], subject: Subject
) -> None:
    kinds = count_kinds(undisturbed[subject.command].requests)
    rows = [run_row(bench, Strike(subject, fault, take_turns(kinds, fault))) for fault in SURVIVED]
    check_rows(rows, undisturbed[subject.command])


@pytest.mark.parametrize("subject", [COLLECT, APPLY], ids=names([COLLECT, APPLY]))
def test_a_command_killed_at_every_kind_of_request_is_completed_by_the_next_one(
    bench: Bench, undisturbed: dict[str, Row], subject: Subject
) -> None:
    strikes = strike_each(subject, kinds_to_kill_at(subject, undisturbed), "kill_client")
    check_rows([run_row(bench, strike) for strike in strikes], undisturbed[subject.command])


def test_a_promotion_killed_at_one_kind_of_request_after_the_other_is_made_once(
    bench: Bench, undisturbed: dict[str, Row]
) -> None:
    kinds = kinds_to_kill_at(PROMOTE, undisturbed)
    row = run_row_of_kills(bench, PROMOTE, list(kinds))
    check_rows([row], undisturbed["promote"])
    assert undisturbed["promote"].seen == [CHAMPION["promote"]]


def test_commands_whose_server_is_killed_at_every_kind_of_request_say_so_and_are_completed_by_the_next_ones(
    bench: Bench, undisturbed: dict[str, Row]
) -> None:
    always = {"collect": WRITES, "apply": WRITES, "promote": (CLAIM,)}
    strikes = [
        strike
        for subject in INNER
        for strike in strike_each(
            subject, kinds_to_kill_at(subject, undisturbed, always=always[subject.command]), "kill_server"
        )
    ]
    # The last write of an apply is a view: all verdicts are stored, and it still says that it is not done.
    views = count_kinds(undisturbed["apply"].requests)[CLAIM] - 1
    rows = run_rows_under_one_kill(bench, [*strikes, Strike(APPLY, "kill_server", {CLAIM: views})])
    for subject in INNER:
        check_rows([row for row in rows if row.strike.subject is subject], undisturbed[subject.command])


def test_a_collect_killed_while_real_weights_generate_is_completed_by_the_next_one(
    bench: Bench, models_folder: Path, tmp_path: Path
) -> None:
    pack = write_small_pack(tmp_path / "pack")
    text = (pack / "pack.toml").read_text()
    (pack / "pack.toml").write_text(text.replace(f"max_tokens = {MAX_TOKENS}", "max_tokens = 8"))

    def prepare(bench: Bench) -> Case:
        return Case(prepare_collect(bench).experiment, str(pack))

    keys: list[str] = []

    def read(bench: Bench, case: Case) -> object:
        runs = read_facts(bench.url, case.experiment)["runs"]
        keys.extend(run["tags"]["tipbench.key"] for run in runs if run["tags"]["tipbench.kind"] == "cell")
        return keys

    subject = Subject("collect_with_weights", prepare=prepare, read=read)
    # The pack's run is the first; the first cell's goes out while the second cell is generated.
    strike = Strike(subject, "kill_client", {"POST runs/create": 1})
    with begin(bench, strike) as attempt:
        attempt.link(models_folder)
        attempt.run(Plan(fault="kill_client", places=strike.places, kill_client=attempt.kill))
        row = attempt.end()
    assert row.codes == [-9, 0], row.complaints
    assert len(row.struck) == 1
    assert len(keys) == len(set(keys)) == 2
    assert row.generations in {2, 3}, "nothing that was done is made again; what was under way may be"


@pytest.mark.slow
@pytest.mark.parametrize("subject", OUTER, ids=names(OUTER))
def test_a_decision_survives_every_fault_at_every_kind_of_request(bench: Bench, subject: Subject) -> None:
    expected = run_undisturbed(bench, subject)
    kinds = count_kinds(expected.requests)
    rows = [run_row(bench, Strike(subject, fault, take_turns(kinds, fault))) for fault in SURVIVED]
    rows += [run_row(bench, strike) for strike in strike_each(subject, kinds, "kill_client")]
    rows += run_rows_under_one_kill(bench, strike_each(subject, kinds, "kill_server"))
    check_rows(rows, expected)
    assert expected.seen == [CHAMPION[subject.command]]
