"""OpenAI-compatible servers: a real one, and a scripted one for what the real one does not do on demand."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import Cli
from tests.engines.fake_openai import SAMPLING, Bench, Scripted, answer, refusal, run_fake
from tests.engines.openai_server import ALIAS, RunningServer
from tests.support.small_pack import write_small_pack
from tipbench.engines import check_size, open_engines
from tipbench.engines.machine import MachineLock
from tipbench.engines.openai.engine import OpenAiAccess, OpenAiEngine, OpenAiModel
from tipbench.errors import EngineBusy, EngineUnavailable, GenerationFailed, ModelRefused
from tipbench.records import Model
from tipbench.settings import Settings

EXTRAS = ("top_k", "min_p", "repeat_penalty")
WAYS_TO_SAY_NO: dict[str, Callable[[str], Scripted]] = {
    "in words": lambda name: refusal(400, f"Unrecognized request argument supplied: {name}"),
    "as param": lambda name: refusal(400, "Unknown parameter.", param=name, code="unknown_parameter"),
    "as detail": lambda name: Scripted(422, {"detail": [{"loc": ["body", name], "msg": "Extra inputs"}]}),
    "as text": lambda name: Scripted(400, {"error": f"unknown field {name}"}),
}


def test_every_name_of_the_real_server_is_unpinned_and_bound_to_its_address(
    openai_engine: OpenAiEngine, openai_server: RunningServer
) -> None:
    (model,) = openai_engine.list_models()
    assert (model.name, model.pinned, model.local) == (f"openai:{ALIAS}", False, True)
    assert model.location == openai_server.url
    assert openai_engine.find_model(model.name) == model
    check_size(model, max_model_b=0.2)
    with pytest.raises(ModelRefused, match=r"limit is 0\.05"):
        check_size(model, max_model_b=0.05)


def test_a_name_that_the_real_server_would_answer_to_but_does_not_offer_is_refused(
    openai_engine: OpenAiEngine,
) -> None:
    # llama.cpp answers to any name with what it has: the board would show a model that never was.
    with pytest.raises(ModelRefused, match="'openai:gpt-9'") as caught:
        openai_engine.find_model("openai:gpt-9")
    assert f"openai:{ALIAS}" in caught.value.hint


def test_a_prompt_longer_than_the_context_fails_with_both_lengths(openai_loaded: OpenAiModel) -> None:
    with pytest.raises(GenerationFailed, match=r"20\d\d tokens.*1024 tokens"):
        openai_loaded.generate("word " * 2000, sampling=SAMPLING, seed=1)


def test_without_its_key_the_real_server_lets_nobody_in(openai_server: RunningServer, tmp_path: Path) -> None:
    lock = MachineLock(tmp_path / "lock", holder="", wait=False, report=print)
    engine = OpenAiEngine(OpenAiAccess(openai_server.url), local=True, lock=lock, report=print)
    with pytest.raises(EngineUnavailable, match=r"401.*no key was sent") as caught:
        engine.list_models()
    assert "TIPBENCH_OPENAI_URL" in caught.value.hint


def test_collect_through_the_command_line_marks_the_board_and_makes_nothing_twice(
    cli: Cli, openai_server: RunningServer, monkeypatch: pytest.MonkeyPatch, experiment_name: str
) -> None:
    pack = write_small_pack(Path("pack").absolute())
    monkeypatch.setenv("TIPBENCH_OPENAI_URL", openai_server.url)
    monkeypatch.setenv("TIPBENCH_OPENAI_KEY", openai_server.key)
    command = (
        "collect",
        "--models",
        f"openai:{ALIAS}",
        "--prompts",
        "v1",
        "--n-tips",
        "3",
        "--pack",
        str(pack),
    )
    command = (*command, "--experiment", experiment_name, "--json")
    made = [json.loads(cli.ok(*command).out.splitlines()[-1])["collected"] for _ in range(2)]
    assert made == [2, 0]
    compare = ("compare", "--experiment", experiment_name)
    (line,) = cli(*compare, "--json").json()["standings"]
    assert (line["name"], line["pinned"], line["cells"]) == (f"openai:{ALIAS}+v1", False, 2)
    assert line["answered"] > 0
    shown = cli(*compare).out
    assert f"openai:{ALIAS}+v1 (unpinned)" in shown
    assert f"the server may change it under this name: openai:{ALIAS}" in shown
    heading, row = cli(*compare, "--csv").out.splitlines()
    assert dict(zip(heading.split(","), row.split(","), strict=True))["pinned"] == "False"


def test_models_are_listed_with_why_they_are_admitted(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    with run_fake(answer()) as fake:
        monkeypatch.setenv("TIPBENCH_OPENAI_URL", fake.url)
        assert _line_of("openai:m", cli.ok("models").out).endswith("admitted, unpinned")
        fake.models = Scripted(200, {"data": [{"id": "m"}]})
        assert _line_of("openai:m", cli.ok("models").out).endswith("cannot be established")
        monkeypatch.setenv("TIPBENCH_OPENAI_LOCAL", "false")
        assert _line_of("openai:m", cli.ok("models").out).endswith("admitted, unpinned, not loaded here")


def test_a_server_that_is_down_hides_no_other_models(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TIPBENCH_OPENAI_URL", "http://127.0.0.1:9/v1")
    outcome = cli.ok("models")
    assert "no server at http://127.0.0.1:9/v1" in outcome.err
    assert "smollm2" in outcome.out


def test_without_an_address_openai_names_are_refused_with_the_next_step(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="'openai:gpt-9'") as caught:
        open_engines(Settings(home=tmp_path), report=print).admit("openai:gpt-9")
    assert "TIPBENCH_OPENAI_URL" in caught.value.hint


@pytest.mark.parametrize("status", [404, 405, 501])
def test_a_remote_server_without_a_list_is_tried_out(tmp_path: Path, status: int) -> None:
    with run_fake(answer(), refusal(404, "The model `x` does not exist")) as fake:
        fake.models = Scripted(status, {"error": "no such page"})
        engine = Bench(fake, tmp_path, local=False).engine
        assert engine.find_model("m").name == "openai:m"
        assert engine.list_models() == []
        with pytest.raises(ModelRefused, match="'x'"):
            engine.find_model("x")


def test_an_unknown_size_is_admitted_only_for_an_unpinned_name_elsewhere(tmp_path: Path) -> None:
    with run_fake(answer()) as fake:
        fake.models = Scripted(200, {"data": [{"id": "m"}]})
        check_size(Bench(fake, tmp_path, local=False).engine.find_model("m"), max_model_b=4.0)
        with pytest.raises(ModelRefused, match="cannot be established") as caught:
            check_size(Bench(fake, tmp_path, local=True).engine.find_model("m"), max_model_b=4.0)
    assert "openai_local" in caught.value.hint
    elsewhere = Model(name="m", engine="ollama", digest="d", parameters=None, size_bytes=1, local=False)
    with pytest.raises(ModelRefused, match="cannot be established"):
        check_size(elsewhere, max_model_b=4.0)


def test_a_known_size_is_compared_wherever_the_model_is(tmp_path: Path) -> None:
    with run_fake(answer()) as fake:
        fake.models = Scripted(200, {"data": [{"id": "m", "meta": {"n_params": 70_000_000_000}}]})
        with pytest.raises(ModelRefused, match=r"70\.0 billion"):
            check_size(Bench(fake, tmp_path, local=False).engine.find_model("m"), max_model_b=4.0)


def test_a_local_server_takes_the_lock_of_the_machine_and_a_remote_one_its_own(tmp_path: Path) -> None:
    machine = MachineLock(tmp_path / "engine.lock", holder="the embedded engine", wait=False, report=print)
    with run_fake(answer()) as fake, machine.hold("a model"):
        with pytest.raises(EngineBusy, match="the embedded engine"):
            Bench(fake, tmp_path, local=True).ask()
        assert fake.questions == []
        remote = Bench(fake, tmp_path, local=False)
        with remote.engine.load(remote.engine.find_model("m")), pytest.raises(EngineBusy, match="'openai:m'"):
            Bench(fake, tmp_path, local=False).ask()


def test_the_same_name_at_another_address_is_another_model(tmp_path: Path) -> None:
    with run_fake(answer()) as one, run_fake(answer()) as two:
        digests = {Bench(fake, tmp_path).engine.find_model("m").digest for fake in (one, one, two)}
    assert len(digests) == 2


def test_every_sampling_parameter_is_sent(tmp_path: Path) -> None:
    with run_fake(answer("Hi there")) as fake:
        generation = Bench(fake, tmp_path).ask()
    assert (generation.text, generation.finish) == ("Hi there", "stop")
    assert (generation.prompt_tokens, generation.output_tokens) == (3, 2)
    assert fake.questions == [
        {
            "model": "m",
            "messages": [{"role": "user", "content": "Hi"}],
            "stream": False,
            "max_tokens": 7,
            "temperature": 0.5,
            "top_p": 0.9,
            "seed": 5,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_k": 40,
            "min_p": 0.0,
            "repeat_penalty": 1.0,
        }
    ]


@pytest.mark.parametrize("way", WAYS_TO_SAY_NO)
def test_a_parameter_that_the_server_refuses_is_left_out_from_then_on_and_said_once(
    tmp_path: Path, way: str
) -> None:
    with run_fake(*(WAYS_TO_SAY_NO[way](name) for name in EXTRAS), answer()) as fake:
        bench = Bench(fake, tmp_path)
        bench.ask(times=3)
    sent = [[name for name in EXTRAS if name in question] for question in fake.questions]
    assert sent == [list(EXTRAS), list(EXTRAS[1:]), list(EXTRAS[2:]), [], [], []]
    assert all("seed" in question for question in fake.questions)
    assert len(bench.reports) == 3
    assert all(name in report for name, report in zip(EXTRAS, bench.reports, strict=True))
    assert bench.pauses == []


def test_the_newer_name_of_the_token_limit_is_used_where_the_server_insists(tmp_path: Path) -> None:
    message = "Unsupported parameter: 'max_tokens' is not supported. Use 'max_completion_tokens' instead."
    with run_fake(refusal(400, message, param="max_tokens"), answer()) as fake:
        Bench(fake, tmp_path).ask(times=2)
    limits = [(q.get("max_tokens"), q.get("max_completion_tokens")) for q in fake.questions]
    assert limits == [(7, None), (None, 7), (None, 7)]


def test_a_refused_temperature_stops_the_run_instead_of_changing_it(tmp_path: Path) -> None:
    says = refusal(400, "'temperature' does not support 0.5. Only 1 is supported.", param="temperature")
    with run_fake(says) as fake, pytest.raises(EngineUnavailable, match="Only 1") as caught:
        Bench(fake, tmp_path).ask()
    assert "--temperature" in caught.value.hint
    assert len(fake.questions) == 1


def _line_of(name: str, printed: str) -> str:
    (line,) = [line.strip() for line in printed.splitlines() if line.startswith(f" {name} ")]
    return line
