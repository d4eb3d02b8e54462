"""Every kind of fault at every kind of request of collect, apply and promote; gate and rollback are slow.

`make test-faults` strikes every single request with every fault (whole_tables.py) and writes the tables.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

import pytest

from tests.faults.subjects import (
    ANCHORS,
    APPLY,
    CHAMPION,
    COLLECT,
    EVERY_WORD,
    GATE,
    PANEL,
    PROMOTE,
    REPAIR,
    ROLLBACK,
    WORDS,
    prepare_collect,
)
from tests.faults.table import (
    SURVIVED,
    Bench,
    Case,
    Row,
    Strike,
    Subject,
    begin,
    check_rows,
    count_kinds,
    draw_pair,
    run_row,
    run_row_of_kills,
    run_rows_under_one_kill,
    run_undisturbed,
    take_turns,
)
from tests.support.fault_proxy import Fault, Plan
from tests.support.official import read_facts
from tests.support.small_pack import MAX_TOKENS, write_small_pack

INNER = (COLLECT, APPLY, PROMOTE)
OUTER = (GATE, ROLLBACK)
SMALL = (*WORDS, ANCHORS, REPAIR, *PANEL)
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
def test_a_command_bears_two_faults_in_one_run(
    bench: Bench, undisturbed: dict[str, Row], subject: Subject
) -> None:
    rng, expected = Random(1), undisturbed[subject.command]
    pairs = [pair for _ in range(20) if (pair := draw_pair(expected, rng)).fault in {"drop", "kill_client"}]
    check_rows([run_row(bench, pair) for pair in pairs[:2]], expected)


def mix_faults(kinds: Mapping[str, int], subject: Subject) -> Strike:
    """One run that meets a fault at a request of every kind, each in turn."""
    places = [(kind, number - 1) for kind, number in kinds.items()]
    (first, number), *others = places
    more: dict[tuple[str, int], Fault] = {
        place: SURVIVED[n % len(SURVIVED)] for n, place in enumerate(others, start=1)
    }
    return Strike(subject, SURVIVED[0], {first: number}, more=more)


def test_words_bear_faults_at_every_kind_of_request_and_are_said_again_after_a_kill(bench: Bench) -> None:
    """Retire and undo, refuse and accept, close and reopen, in one process."""
    expected = run_undisturbed(bench, EVERY_WORD)
    kinds = count_kinds(expected.requests)
    rows = [run_row(bench, mix_faults(kinds, EVERY_WORD)), run_row_of_kills(bench, EVERY_WORD, WRITES[:2])]
    check_rows(rows, expected)


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
@pytest.mark.parametrize("subject", SMALL, ids=names(SMALL))
def test_words_anchors_repair_and_the_panel_survive_every_fault_at_every_kind_of_request(
    bench: Bench, subject: Subject
) -> None:
    expected = run_undisturbed(bench, subject)
    kinds = count_kinds(expected.requests)
    borne: list[Fault] = [fault for fault in SURVIVED if fault in subject.faults]
    rows = [run_row(bench, Strike(subject, fault, take_turns(kinds, fault))) for fault in borne]
    rows += [run_row(bench, strike) for strike in strike_each(subject, kinds, "kill_client")]
    rows += run_rows_under_one_kill(bench, strike_each(subject, kinds, "kill_server"))
    check_rows(rows, expected)


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
