"""Whatever is garbled in the store: commands and pages answer, name it, and go on with the rest."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any
from urllib.parse import quote

import pytest

from tests.admin.conftest import Site, open_site
from tests.conftest import Cli
from tests.promotion.campaign import Campaign
from tests.support.copying import ServerData
from tests.support.garbling import GARBLINGS, GarbledStore, Value, fill_store, garble
from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.cells import pack_verdicts, unpack_verdicts
from tipbench.bench.champions import BrokenChain, read_chain
from tipbench.bench.damage import FACTS_TAG, Damage
from tipbench.errors import TipbenchError
from tipbench.judging.status import read_status
from tipbench.notebook import open_experiment
from tipbench.promotion.gate import GateQuestion
from tipbench.ranking.compare import compare_bench
from tipbench.ranking.records import Report
from tipbench.records import Verdict
from tipbench.settings import Settings
from tipbench.tracking import Run, open_tracking

LEVELS = {"old": 8.5, "good": 13.0, "poor": 4.0}
SEED = int(os.environ.get("TIPBENCH_TEST_GARBLING", "18"))
"""Which values the inner ring garbles; another number takes others."""

LEGAL = {
    "tipbench.state": "the state of another run may be one of this one's",
    "verdict:": "a verdict that was deleted is taken back; one of another cell may fit here",
    "judged_by": "who has an open sitting is whoever claimed it",
    "tipbench.for": "the same, before anybody claimed it",
    "tipbench.facts": "another decision or close says something else",
    "tipbench.expires_ms": "another lease",
    "tipbench.closed_ms": "another time",
    "tipbench.drift": "another drift",
    "tipbench.judge_grade": "another grade",
    "tipbench.progress": "another price",
    "submission:": "one that the close does not list",
    "word:": "without the last word the one before it counts; MLflow itself deletes no param",
    "closed_ms": "another time",
}
"""Values that may be swapped or deleted for other legal ones: what they say now counts."""


@dataclass(frozen=True)
class Shop:
    """A store with everything in it."""

    store: GarbledStore
    campaign: Campaign
    bench: Bench
    runs: tuple[Run, ...]
    less: dict[tuple[str, str], object] = field(default_factory=dict[tuple[str, str], object])
    """Boards that were made without something, for they take long."""


@pytest.fixture(scope="module")
def shop(
    mlflow_url: str, server_data: ServerData, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Shop]:
    home = tmp_path_factory.mktemp("garbled")
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        campaign = Campaign(tracking, home, dict(LEVELS))
        fill_store(campaign, home)
        bench = open_bench(tracking, campaign.experiment, stamps=campaign.stamps, fresh=True)
        yield Shop(GarbledStore(server_data, campaign).read(), campaign, bench, tuple(bench.runs))


def test_the_store_has_every_kind_of_run_and_nothing_in_it_is_damaged(shop: Shop) -> None:
    assert set(shop.store.chosen()) == {
        "cell", "pack", "decision", "close", "plan", "look", "version", "kept", "champions", "promotion",
        "rollback", "accepted sitting", "refused sitting", "open sitting", "accepted auto sitting",
    }  # fmt: skip
    assert shop.bench.evidence.damaged == ()


# What must not be passed over in silence: the gate decides on all that was stored, or not at all.


def find_value(shop: Shop, of: str, key: str) -> Value:
    return next(value for value in shop.store.values() if (value.of, value.key) == (of, key))


@pytest.mark.parametrize(
    ("of", "key"),
    [
        ("accepted sitting", "tipbench.drift"),
        ("cell", "tipbench.facts"),
        ("pack", "word:1"),
        ("plan", "tipbench.facts"),
        ("look", "tipbench.kind"),
    ],
)
def test_the_gate_says_no_while_something_is_damaged_and_spends_nothing(
    shop: Shop, of: str, key: str
) -> None:
    value = find_value(shop, of, key)
    with shop.store.garbled(value, "garbled"):
        report = shop.campaign.gate().foresee(
            GateQuestion(shop.campaign.experiment), bench=shop.bench.again(fresh=True)
        )
        assert report.answer == "no"
        assert [rule.name for rule in report.rules] == ["readable"]
        assert value.run_id in report.rules[0].detail
        outcome = shop.campaign.promoting().promote(GateQuestion(shop.campaign.experiment))
        assert outcome.outcome == "refused"
        assert len(shop.bench.again(fresh=True).runs) == len(shop.runs)


@pytest.mark.parametrize(
    ("of", "key"), [("look", "frozen.json"), ("look", "result.json"), ("look", "tipbench.plan")]
)
def test_a_look_that_cannot_be_read_any_more_is_an_error_and_stays_spent(
    shop: Shop, of: str, key: str
) -> None:
    value = find_value(shop, of, key)
    with shop.store.garbled(value, "{"), pytest.raises(Damage, match=f"look {value.run_id}"):
        shop.campaign.gate().ask(GateQuestion(shop.campaign.experiment))


@pytest.mark.parametrize(
    ("key", "change"),
    [("frozen.json", ('"counted":', '"counted":1')), ("result.json", ('"counted": ', '"counted": 1'))],
)
def test_a_look_that_was_edited_is_an_error_and_one_without_a_hash_stays_readable(
    shop: Shop, key: str, change: tuple[str, str]
) -> None:
    value, gate = find_value(shop, "look", key), shop.campaign.gate()
    edited = value.text.replace(*change)
    question = GateQuestion(shop.campaign.experiment)
    with shop.store.garbled(value, edited), pytest.raises(Damage, match=f"look {value.run_id}.*edited"):
        gate.ask(question)
    # As looks of earlier versions are stored.
    with shop.store.garbled(find_value(shop, "look", f"tipbench.{Path(key).stem}"), None):
        gate.ask(question)


def test_a_promotion_in_force_that_cannot_be_read_is_an_error_with_the_next_step(shop: Shop) -> None:
    value = find_value(shop, "rollback", "tipbench.facts")
    with shop.store.garbled(value, "{}"), pytest.raises(BrokenChain, match=value.run_id) as broken:
        read_chain(shop.campaign.tracking, shop.campaign.pack.name)
    assert "repair --champion" in broken.value.hint


# In memory: every tag and param of every kind, in every way. What changes the board or the status is named.


def hold(shop: Shop, runs: tuple[Run, ...]) -> Bench:
    """The experiment as if it held these runs."""
    bench = shop.bench.again()
    vars(bench).update(runs=runs, now_ms=shop.bench.now_ms)
    return bench


@dataclass(frozen=True)
class Reading:
    """What is made of an experiment: board and status without remarks, what is damaged, what is refused."""

    board: object
    status: object
    damaged: tuple[str, ...]
    refused: tuple[str, ...]


def read_all(bench: Bench) -> Reading:
    """Only our own errors come out of it: anything else is a traceback."""
    refused: list[str] = []

    def attempt(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except TipbenchError as error:
            refused.append(error.message)
            return None

    board = attempt(lambda: compare_bench(bench, "arm"))
    attempt(lambda: compare_bench(bench, "model", "auto"))
    status = attempt(lambda: read_status(bench))
    return Reading(
        board and (board.standings, board.winner),
        status and status.model_dump(exclude={"damaged", "sittings"}),
        bench.evidence.damaged,
        tuple(refused),
    )


def change(run: Run, value: Value, text: str | None) -> Run:
    values = {key: each for key, each in getattr(run, value.place).items() if key != value.key}
    if text is not None:
        values[value.key] = text
    return run.model_copy(update={value.place: values})


def is_legal(value: Value, how: str) -> bool:
    return how in ("swapped", "deleted", "cut", "very long") and value.key.startswith(tuple(LEGAL))


def in_memory(shop: Shop) -> list[tuple[Value, str, str | None]]:
    ids = {run.run_id for run in shop.runs}
    return [
        (value, how, text)
        for value in shop.store.values()
        if value.place in ("tags", "params") and value.run_id in ids
        for how in GARBLINGS
        for possible, text in [garble(value, how)]
        if possible
    ]


def without(shop: Shop, value: Value | None) -> object:
    """The board without the run; of a verdict, without that; without nothing, as it was."""
    key = value.key if value and value.key.startswith("verdict:") else ""
    run_id = value.run_id if value else ""
    if (run_id, key) not in shop.less:
        changed = [run for run in shop.runs if run.run_id != run_id]
        if value and key:
            changed += [change(run, value, None) for run in shop.runs if run.run_id == value.run_id]
        shop.less[run_id, key] = read_all(hold(shop, tuple(changed))).board
    return shop.less[run_id, key]


def check_in_memory(shop: Shop, value: Value, how: str, text: str | None, baseline: Reading) -> None:
    what = f"{value.of}: {value.place} {value.key} {how}"
    runs = tuple(change(run, value, text) if run.run_id == value.run_id else run for run in shop.runs)
    found = read_all(hold(shop, runs))
    named = any(value.run_id in each for each in (*found.damaged, *found.refused))
    same = (found.board, found.status) == (baseline.board, baseline.status)
    assert same or named or is_legal(value, how), f"{what}: something changed and nothing is named"
    if named and not is_legal(value, how):
        rest = without(shop, value)
        assert found.board in (baseline.board, rest), f"{what}: the rest is another"
    others = [each for each in found.damaged if value.run_id not in each]
    assert not others, f"{what}: {others}"


def find_counted_verdicts(shop: Shop) -> Value:
    """The tag of a cell with lazy verdicts that the board counts."""
    counted = {f"verdict:{given.sitting.facts.token}:" for given in shop.bench.evidence.lazy}
    return next(v for v in shop.store.values() if v.of == "cell" and v.key.startswith(tuple(counted)))


def say_otherwise(verdict: Verdict, how: str) -> Verdict:
    """The same verdict with something in it that no judge of this rubric can have said."""
    (name, score), *others = verdict.scores.items()
    is_set, *_ = verdict.flags.values()
    scores = {
        "another scale": {"charm": score, **dict(others)},
        "one scale more": {**verdict.scores, "charm": score},
        "out of range": {**verdict.scores, name: 490},
    }.get(how, verdict.scores)
    flags = {"charming": is_set} if how == "another flag" else verdict.flags
    slot = 99 if how == "another slot" else verdict.slot
    return verdict.model_copy(update={"scores": scores, "flags": flags, "slot": slot})


def pack_otherwise(value: Value, how: str) -> str:
    """The tag with the right hash."""
    (verdicts,) = unpack_verdicts({value.key: value.text})[0].values()
    _, token, n = value.key.split(":")
    (text,) = pack_verdicts(token, int(n), [say_otherwise(each, how) for each in verdicts]).values()
    return text


@pytest.mark.parametrize(
    "how", ["another scale", "one scale more", "out of range", "another flag", "another slot"]
)
def test_verdicts_that_do_not_fit_the_rubric_are_damaged_whatever_their_hash(shop: Shop, how: str) -> None:
    value = find_counted_verdicts(shop)
    text = pack_otherwise(value, how)
    runs = tuple(change(run, value, text) if run.run_id == value.run_id else run for run in shop.runs)
    found = read_all(hold(shop, runs))
    assert [each for each in found.damaged if value.run_id in each and value.key in each]
    assert (found.refused, found.board) == ((), without(shop, value))


def test_a_verdict_with_another_scale_leaves_every_command_and_page_standing(
    shop: Shop, cli: Cli, site: Site
) -> None:
    value = find_counted_verdicts(shop)
    with shop.store.garbled(value, pack_otherwise(value, "another scale")):
        said = look_everywhere(shop, cli, site)
    assert any(value.run_id in each for each in said)


def choose(shop: Shop) -> list[tuple[Value, str, str | None]]:
    """One value for each kind of run and each way."""
    places: dict[tuple[str, str], list[tuple[Value, str, str | None]]] = {}
    for each in in_memory(shop):
        places.setdefault((each[0].of, each[1]), []).append(each)
    rng = Random(SEED)
    return [rng.choice(found) for found in places.values()]


def test_every_kind_of_run_may_be_garbled_in_every_way(shop: Shop) -> None:
    baseline = read_all(hold(shop, shop.runs))
    for value, how, text in choose(shop):
        check_in_memory(shop, value, how, text, baseline)


@pytest.mark.slow
def test_every_tag_and_param_of_every_kind_of_run_may_be_garbled_in_every_way(shop: Shop) -> None:
    baseline = read_all(hold(shop, shop.runs))
    table, wrong = in_memory(shop), list[str]()
    for value, how, text in table:
        try:
            check_in_memory(shop, value, how, text, baseline)
        except Exception as error:  # noqa: BLE001 - all of the table is told, not its first line
            wrong.append(f"{value.of}: {value.place} {value.key} {how}: {error!r}"[:300])
    print(f"{len(table)} garbled values, {len(wrong)} of them break something")
    assert not wrong, "\n".join(wrong)


# Through the store: the real commands, and every page and route that reads.


def commands(shop: Shop, folder: Path) -> Mapping[str, tuple[str, ...]]:
    name, pack = shop.campaign.experiment, shop.campaign.pack.name
    return {
        "compare": ("compare", "--experiment", name, "--fresh", "--json"),
        "page": ("compare", "--experiment", name, "--html", str(folder / "page.html")),
        "status": ("judge", "status", "--experiment", name, "--json"),
        "judges": ("judge", "judges", "--experiment", name),
        "repair": ("mlflow", "repair", "--dry-run", "--experiment", name),
        "export": ("export", name, str(folder / "pairs.jsonl"), "--pairs"),
        "gate": ("gate", "--experiment", name, "--require", "lazy"),
        "champion": ("champion", "--pack", pack),
        "history": ("champion", "history", "--pack", pack),
    }


def addresses(shop: Shop) -> list[str]:
    name, pack = quote(shop.campaign.experiment, safe=""), shop.campaign.pack.name
    run = shop.store.chosen()["cell"].run_id
    pages = ("e", "side", "judges", "drift", "promotions", f"cell/{run}")
    api = ("runs", f"cell/{run}", "leaderboard", "judging/status")
    return [
        "/", "/judging", "/api/bench/experiments",
        *(f"/{page}/{name}" for page in pages),
        *(f"/api/bench/{route}/{name}" for route in api),
        f"/api/bench/champion?pack={pack}", f"/api/bench/champion/{pack}", f"/api/bench/history?pack={pack}",
    ]  # fmt: skip


def read_notebook(name: str) -> list[str]:
    """The Python face."""
    said: list[str] = []
    with open_experiment(name) as opened:
        said += opened.damaged()
        for read in (opened.cells, opened.candidates, opened.verdicts, opened.leaderboard):
            try:
                read()
            except TipbenchError as error:
                said.append(error.message)
    return said


def look_everywhere(shop: Shop, cli: Cli, site: Site, *, only: set[str] | None = None) -> list[str]:
    """Every command, page and route; gives what they said. A traceback or a 5xx fails here."""
    said: list[str] = []
    for name, words in commands(shop, cli.home).items():
        if only is None or name in only:
            (cli.home / "pairs.jsonl").unlink(missing_ok=True)
            outcome = cli(*words)
            assert outcome.code in (0, 1, 2, 3, 4), (name, outcome)
            said += [outcome.out, outcome.err]
    if only is None or "notebook" in only:
        said += read_notebook(shop.campaign.experiment)
    site.parts.boards.forget(shop.campaign.experiment)
    for address in addresses(shop):
        if only is None or address in only:
            answer = site.client.get(address, headers=site.as_("admin"))
            assert answer.status_code < 500, (address, answer.status_code, answer.text[:500])
            said.append(answer.text)
    return said


@pytest.fixture(scope="module")
def site(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with open_site(Settings(home=tmp_path_factory.mktemp("site"), mlflow_url=mlflow_url)) as opened:
        yield opened


def in_store(shop: Shop) -> list[tuple[Value, str, str | None]]:
    return [
        (value, how, text)
        for value in shop.store.values()
        for how in GARBLINGS
        for possible, text in [garble(value, how)]
        if possible
    ]


MUST_NAME = ("tipbench.facts", "tipbench.kind", "tipbench.closed", "tipbench.drift")


def find_board(said: Sequence[str]) -> object:
    """The standings that `compare` printed; None if it refused or was not asked."""
    for text in said:
        if text.startswith('{\n "experiment"') and '\n "standings"' in text:
            report = Report.model_validate_json(text)
            return report.standings, report.winner
    return None


def check_in_store(
    shop: Shop, value: Value, how: str, text: str | None, *, cli: Cli, site: Site, only: set[str] | None
) -> bool:
    """Whether `compare` had a board to look at."""
    baseline = without(shop, None)
    with shop.store.garbled(value, text):
        said = look_everywhere(shop, cli, site, only=only)
    if (board := find_board(said)) is not None:
        # Of a text that was replaced by a legal one nobody can say which board is right.
        boards = (baseline, without(shop, value))
        assert is_legal(value, how) or board in boards, f"{value.of}: {value.key} {how}: the rest is another"
    # Runs that only show a word to people decide nothing.
    decides = value.key in MUST_NAME and (value.of, value.key) not in (
        ("decision", FACTS_TAG),
        ("close", FACTS_TAG),
    )
    if decides and how in ("deleted", "empty", "other type", "unicode") and only is None:
        assert any(value.run_id in each for each in said), f"{value.of}: {value.key} {how} is not named"
    return board is not None


def test_commands_and_pages_answer_whatever_is_garbled_in_the_store(shop: Shop, cli: Cli, site: Site) -> None:
    rng, table = Random(SEED), in_store(shop)
    kinds = {value.of for value, _, _ in table}
    chosen = [rng.choice([each for each in table if each[0].of == kind]) for kind in sorted(kinds)]
    every = [*commands(shop, cli.home), "notebook", *addresses(shop)]
    for number, (value, how, text) in enumerate(chosen):
        only = {every[(SEED + number) % len(every)]}
        check_in_store(shop, value, how, text, cli=cli, site=site, only=only)


@pytest.mark.slow
def test_every_value_of_the_store_may_be_garbled_in_every_way(shop: Shop, cli: Cli, site: Site) -> None:
    """`TIPBENCH_TEST_GARBLED_EVERY=n` takes every n-th (1: all), `…_FROM=m` begins with the m-th."""
    first = int(os.environ.get("TIPBENCH_TEST_GARBLED_FROM", "0"))
    every = int(os.environ.get("TIPBENCH_TEST_GARBLED_EVERY", "10"))
    table, wrong, boards = in_store(shop)[first::every], list[str](), 0
    for number, (value, how, text) in enumerate(table):
        print(f"{number} of {len(table)}: {value.of}, {value.key}, {how}", flush=True)
        try:
            boards += check_in_store(shop, value, how, text, cli=cli, site=site, only=None)
        except Exception as error:  # noqa: BLE001 - all of the table is told, not its first line
            wrong.append(f"{value.of}: {value.place} {value.key} {how}: {error!r}"[:400])
    print(f"{len(table)} garbled values, {boards} boards, {len(wrong)} values break something")
    assert not wrong, "\n".join(wrong)
    assert boards > len(table) / 2
