"""What the options of `tipbench collect` change, each seen by its effect."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.engines.fake_ollama import ANSWER, FakeOllama, run_fake_ollama
from tests.improve.scripted_server import MODEL, ScriptedServer, run_server
from tests.support.experiments import SMALL, Where, collect_with
from tests.support.scripted import ScriptedEngine
from tests.support.small_pack import write_small_pack
from tipbench.clock import make_stamps
from tipbench.collect.candidates import NO_TIP
from tipbench.collect.run import Collecting
from tipbench.engines.machine import MachineLock
from tipbench.errors import ContentsDiffer
from tipbench.grid import prepare_grid
from tipbench.settings import Settings
from tipbench.tracking import Tracking

FOREIGN = {"name": "theirs:latest", "digest": "d9", "context_length": 2048}


@pytest.fixture
def pack(tmp_path: Path) -> str:
    return str(write_small_pack(tmp_path / "pack"))


@pytest.fixture
def ollama(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeOllama]:
    """An Ollama server with the model `m`, and a lock of the test's own for it."""
    monkeypatch.setenv("TIPBENCH_ENGINE_LOCK", str(tmp_path / "engine.lock"))
    with run_fake_ollama() as fake:
        yield fake


def plan(cli: Cli, *arguments: str) -> Any:
    """What the collect of the fixture `collected` would do with these options."""
    return cli.ok(*SMALL, "--dry-run", "--json", *arguments).json()


def refused(cli: Cli, *arguments: str) -> str:
    """Why a collect and a dry run refuse these options, in the same words; nothing is generated."""
    dry = cli(*SMALL, "--dry-run", *arguments)
    wet = cli(*SMALL, *arguments)
    assert (dry.code, wet.code) == (2, 2), dry.out + wet.out
    assert dry.err == wet.err
    return wet.err


def test_diversity_is_another_content_and_can_be_switched_off_again(
    cli: Cli, collected: str, base: tuple[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--pack", str(base[1]), "--experiment", collected)
    assert plan(cli, *where)["stored"] == 2
    told = refused(cli, *where, "--diversity")
    assert "diversity false → true (2 cells there)" in told
    assert "prompt 'v1'" not in told, "that its text is another one is said by diversity"
    monkeypatch.setenv("TIPBENCH_DIVERSITY", "true")
    assert refused(cli, *where) == told
    assert plan(cli, *where, "--no-diversity")["stored"] == 2


@pytest.mark.parametrize(
    ("other", "told"),
    [
        (("--seed", "1"), "seed 0 → 1"),
        (("--n-tips", "4"), "n_tips 3 → 4"),
        (("--temperature", "0.1", "--seed", "7"), "seed 0 → 7, temperature 0.7 → 0.1"),
    ],
)
def test_other_options_never_go_into_an_experiment_that_has_some(
    cli: Cli, collected: str, base: tuple[str, Path], other: tuple[str, ...], told: str
) -> None:
    where = ("--pack", str(base[1]), "--experiment", collected)
    said = refused(cli, *where, *other)
    assert f"{told} (2 cells there)" in said
    assert f"--experiment {collected}-2" in said
    assert cli("compare", "--experiment", collected, "--json").json()["candidates"] > 0, "the board is there"


def test_what_is_retired_is_in_nobodys_way(cli: Cli, collected: str, base: tuple[str, Path]) -> None:
    other = ("--pack", str(base[1]), "--experiment", collected, "--seed", "1")
    refused(cli, *other)
    known = cli("collect", "retire", "--experiment", collected, "--options", "none").err
    options = known.strip().rpartition(" ")[2]
    cli.ok("collect", "retire", "--experiment", collected, "--options", options)
    assert plan(cli, *other)["generate"] == 2


def test_into_new_takes_the_proposed_name_and_finds_it_again(
    cli: Cli, pack: str, experiment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    where = ("--models", MODEL, "--prompts", "v1", "--n-tips", "2", "--pack", pack, "--into-new")
    with run_server(ScriptedServer(lambda prompt: 9.0)) as server:
        monkeypatch.setenv("TIPBENCH_OPENAI_URL", server.url)
        monkeypatch.setenv("TIPBENCH_OPENAI_LOCAL", "false")
        collect = ("collect", *where, "--experiment", experiment_name)
        cli.ok(*collect)
        cli.ok(*collect)
        assert server.generated == 2, "where all fits, it is the experiment that was named"
        told = cli.ok(*collect, "--seed", "1", "--n-scenarios", "1")
        assert f"into '{experiment_name}-2'" in told.out
        cli.ok(*collect, "--seed", "1")
        assert server.generated == 4, "the second half of it, in the same place"
        cli.ok(*collect, "--seed", "2")
    for name, cells in ((experiment_name, 2), (f"{experiment_name}-2", 2), (f"{experiment_name}-3", 2)):
        assert cli.ok("judge", "status", "--experiment", name, "--json").json()["cells"] == cells


def test_models_prompts_and_scenarios_are_added_to_an_experiment(
    cli: Cli, pack: str, experiment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    second = Path(pack, "prompts", "v2.md")
    second.write_text(Path(pack, "prompts", "v1.md").read_text() + "Be brief.\n")
    collect = ("collect", "--models", MODEL, "--n-tips", "2", "--pack", pack, "--experiment", experiment_name)
    with run_server(ScriptedServer(lambda prompt: 9.0)) as server:
        monkeypatch.setenv("TIPBENCH_OPENAI_URL", server.url)
        monkeypatch.setenv("TIPBENCH_OPENAI_LOCAL", "false")
        cli.ok(*collect, "--prompts", "v1", "--n-scenarios", "1")
        cli.ok(*collect, "--prompts", "v1")
        cli.ok(*collect, "--prompts", "v2", "--judge-kind", "human")
        assert server.generated == 4
        more = ("collect", "--models", "smollm2", *collect[3:], "--prompts", "v1", "--dry-run", "--json")
        assert cli.ok(*more).json()["generate"] == 2


def test_two_collects_at_once_do_not_mix_what_neither_saw_of_the_other(
    settings: Settings, tracking: Tracking, pack: str, experiment_name: str
) -> None:
    """The second one looks again when the engine is its own: the first one's cells are there by then."""
    asked = settings.model_copy(update={"pack": pack, "models": "m", "prompts": "v1", "n_tips": 2})
    engine = ScriptedEngine(["m"], lambda model, prompt, rng: "1. Walk home.\n2. Sleep early.")
    later = prepare_grid(asked.model_copy(update={"seed": 1}), find_model=engine.find_model)
    collection = Collecting(tracking, make_stamps(), "human").begin(later, experiment=experiment_name)
    first = prepare_grid(asked, find_model=engine.find_model)
    assert collect_with(lambda _: engine, first, where=Where(tracking, experiment_name)) == 2
    with (
        pytest.raises(ContentsDiffer, match="seed 0 → 1") as refused,
        collection.generate(lambda _: engine) as collected,
    ):
        list(collected)
    assert refused.value.free_name == f"{experiment_name}-2"


def test_a_cell_says_how_loaded_the_machine_was_while_it_was_timed(
    settings: Settings, tracking: Tracking, pack: str, experiment_name: str
) -> None:
    asked = settings.model_copy(update={"pack": pack, "models": "m", "prompts": "v1", "n_tips": 2})
    engine = ScriptedEngine(["m"], lambda model, prompt, rng: "1. Walk home.\n2. Sleep early.")
    cells = prepare_grid(asked, find_model=engine.find_model)
    assert (
        collect_with(lambda _: engine, cells, where=Where(tracking, experiment_name, machine_load=2.5)) == 2
    )
    runs = tracking.read_runs(tracking.find_experiment(experiment_name))
    loads = [run.metrics["machine_load"] for run in runs if run.tags["tipbench.kind"] == "cell"]
    assert loads == [2.5, 2.5]


def check(cli: Cli, *arguments: str) -> str:
    """What the check of a run like that of the fixture `collected` says, but for the first line."""
    told = cli("collect", "check", "--models", "smollm2", "--prompts", "v1", "--n-tips", "3", *arguments)
    assert (told.code == 0) == ("cells fit into experiment" in told.out), told.out + told.err
    return (told.out + told.err).partition("\n")[2]


def test_a_check_says_what_a_collect_would_refuse_without_any_model(
    cli: Cli, collected: str, base: tuple[str, Path]
) -> None:
    (cli.home / "models").unlink()
    where = ("--experiment", collected, "--pack", str(base[1]))
    assert check(cli, *where, "--no-diversity").startswith("2 cells fit")
    assert check(cli, *where, "--models", "smollm2,new,newer").startswith("6 cells fit")
    assert check(cli, *where, "--n-scenarios", "1").startswith("1 cells fit")
    assert "unknown scenario set 'night'" in check(cli, *where, "--scenarios", "night")
    assert "no prompt 'v7'" in check(cli, *where, "--prompts", "v7")
    assert "n_tips 3 → 4" in check(cli, *where, "--n-tips", "4")
    assert "seed 0 → 3" in check(cli, *where, "--seed", "3")
    assert "temperature 0.7 → 1.0" in check(cli, *where, "--temperature", "1")
    assert "diversity false → true" in check(cli, *where, "--diversity")


def test_diversity_asks_the_model_for_angles_that_differ(
    cli: Cli, pack: str, experiment_name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def note(prompt: str) -> float:
        asked.append(prompt)
        return 9.0

    where = ("--models", MODEL, "--prompts", "v1", "--n-tips", "2", "--n-scenarios", "1", "--pack", pack)
    with run_server(ScriptedServer(note)) as server:
        monkeypatch.setenv("TIPBENCH_OPENAI_URL", server.url)
        monkeypatch.setenv("TIPBENCH_OPENAI_LOCAL", "false")
        cli.ok("collect", *where, "--experiment", experiment_name)
        cli.ok("collect", *where, "--experiment", f"{experiment_name}-diverse", "--diversity")
    plain, diverse = asked[0], asked[-1]
    added = set(diverse.splitlines()) - set(plain.splitlines())
    assert len(added) == 1, "one more line, and nothing else is changed"
    assert set(plain.splitlines()) < set(diverse.splitlines())
    assert "angle" in added.pop()


@pytest.mark.parametrize(
    ("kind", "judge_model", "options"),
    [
        ("claude-code", None, "--export sheet.json"),
        ("human", None, "--interactive"),
        ("haiku", None, "--auto --judge-model NAME"),
        ("haiku", "smollm2", "--auto"),
    ],
)
def test_what_comes_next_is_the_command_of_the_judge_that_is_waited_for(
    cli: Cli,
    collected: str,
    base: tuple[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    judge_model: str | None,
    options: str,
) -> None:
    if judge_model:
        monkeypatch.setenv("TIPBENCH_JUDGE_MODEL", judge_model)
    told = cli.ok(*SMALL, "--pack", str(base[1]), "--experiment", collected, "--judge-kind", kind).out
    lines = [line.partition("  # ")[0].strip() for line in told.partition("Next:")[2].strip().splitlines()]
    assert f"tipbench judge --experiment {collected} {options}" in lines
    by_hand = f"tipbench judge --experiment {collected} --interactive"
    assert (lines[0] == by_hand) == (kind != "haiku"), "a person may always judge"


def test_a_model_above_the_limit_is_refused_and_one_below_is_not(cli: Cli, pack: str) -> None:
    where = ("--models", "smollm2", "--prompts", "v1", "--pack", pack, "--dry-run")
    refused = cli("collect", *where, "--max-model-b", "0.09")
    assert (refused.code, "limit is 0.09" in refused.err) == (2, True), refused.err
    cli.ok("collect", *where, "--max-model-b", "0.2")


def test_missing_models_are_left_out_only_where_that_is_asked_for(
    cli: Cli, ollama: FakeOllama, pack: str
) -> None:
    where = ("--models", "m,absent", "--prompts", "v1", "--pack", pack, "--ollama-url", ollama.url)
    refused = cli("collect", *where, "--dry-run")
    assert (refused.code, "'absent'" in refused.err) == (2, True), refused.err
    told = cli.ok("collect", *where, "--dry-run", "--json", "--skip-missing")
    assert told.json()["models"] == ["m:latest"]
    assert "absent" in told.err


def test_a_model_without_a_chat_template_is_collected_only_with_raw(
    cli: Cli, ollama: FakeOllama, pack: str
) -> None:
    ollama.shown, ollama.version = ollama.shown | {"template": "{{ .Prompt }}"}, "0.24.0"
    where = ("--models", "m", "--prompts", "v1", "--pack", pack, "--ollama-url", ollama.url)
    refused = cli("collect", *where, "--dry-run")
    assert (refused.code, "no chat template" in refused.err) == (2, True), refused.err
    told = cli.ok("collect", *where, "--dry-run", "--json", "--raw")
    assert told.json()["models"] == ["m:latest"]


def test_who_does_not_wait_ends_at_once_and_names_who_holds_the_engine(
    cli: Cli, pack: str, experiment_name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lock = tmp_path / "engine.lock"
    monkeypatch.setenv("TIPBENCH_ENGINE_LOCK", str(lock))
    with MachineLock(lock, holder="pid 77 (somebody)", wait=False, report=print).hold("model 'big'"):
        busy = cli(*SMALL, "--pack", pack, "--experiment", experiment_name, "--no-wait")
    assert busy.code == 1, busy.out + busy.err
    assert "pid 77 (somebody), model 'big'" in busy.err


def ask_ollama(cli: Cli, fake: FakeOllama, pack: str, *more: str) -> Any:
    where = ("--models", "m", "--prompts", "v1", "--n-tips", "2", "--n-scenarios", "1", "--pack", pack)
    return cli("collect", *where, "--ollama-url", fake.url, *more)


def test_the_ollama_server_of_the_flag_is_asked(cli: Cli, ollama: FakeOllama, pack: str) -> None:
    told = ask_ollama(cli, ollama, pack, "--dry-run", "--json")
    assert told.json()["models"] == ["m:latest"]
    nobody = cli("collect", "--models", "m", "--pack", pack, "--ollama-url", "http://127.0.0.1:9")
    assert (nobody.code, "unknown model 'm'" in nobody.err) == (2, True), nobody.err


def test_for_programs_every_cell_has_a_line_that_says_why_it_failed_if_it_did(
    cli: Cli, ollama: FakeOllama, pack: str, experiment_name: str
) -> None:
    tips = {"role": "assistant", "content": "1. Take a walk before lunch.\n2. Sleep an hour longer tonight."}
    ollama.answers = [(200, ANSWER | {"message": tips}), (200, ANSWER)]
    where = ("--experiment", experiment_name, "--n-scenarios", "2")
    done = ask_ollama(cli, ollama, pack, *where, "--json")
    assert done.code == 0, done.out + done.err
    events = [json.loads(line) for line in done.out.splitlines()]
    cells = [event for event in events if event["event"] == "cell"]
    assert [(cell["done"], cell["answered"], cell["failure"]) for cell in cells] == [
        (1, 2, ""),
        (2, 0, NO_TIP),
    ]


@pytest.mark.parametrize(("when", "kept"), [("per-model", False), ("every-call", True)])
def test_a_model_is_unloaded_after_every_call_only_where_that_is_asked_for(
    cli: Cli, ollama: FakeOllama, pack: str, experiment_name: str, when: str, kept: bool
) -> None:
    done = ask_ollama(cli, ollama, pack, "--experiment", experiment_name, "--unload", when)
    assert done.code == 0, done.out + done.err
    assert [asked["keep_alive"] == 0 for asked in ollama.asked] == [kept]
    assert ollama.loaded == [], "at the end it is out of memory either way"


def test_a_model_of_another_client_is_refused_or_evicted_as_told(
    cli: Cli, ollama: FakeOllama, pack: str, experiment_name: str
) -> None:
    ollama.loaded.append(dict(FOREIGN))
    refused = ask_ollama(cli, ollama, pack, "--experiment", experiment_name, "--foreign", "refuse")
    assert refused.code == 1, refused.out + refused.err
    assert "theirs:latest" in refused.err
    assert (ollama.asked, [each["name"] for each in ollama.loaded]) == ([], ["theirs:latest"])
    evicted = ask_ollama(cli, ollama, pack, "--experiment", experiment_name, "--foreign", "evict")
    assert evicted.code == 0, evicted.out + evicted.err
    assert (len(ollama.asked), ollama.loaded) == (1, [])
