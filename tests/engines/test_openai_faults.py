"""What can go wrong with an OpenAI-compatible server, and what is made of it."""

from pathlib import Path

import pytest

from tests.engines.fake_openai import SAMPLING, Bench, Scripted, answer, refusal, run_fake
from tipbench.engines.openai.engine import LONGEST_PAUSE_SECONDS, PAUSES_SECONDS
from tipbench.errors import EngineUnavailable, GenerationFailed
from tipbench.pack import answer_schema
from tipbench.records import Chat, Options, Turn


@pytest.mark.parametrize(
    ("scripted", "says"),
    [
        (refusal(400, "maximum context length is 8 tokens; max_tokens is too large"), "context length"),
        (refusal(400, "too long", code="context_length_exceeded"), "too long"),
        (refusal(400, "this prompt is not allowed"), "not allowed"),
        (Scripted(413, b"<html>too big</html>"), "too big"),
        (Scripted(200, {"error": {"message": "upstream is busy", "code": 502}}), "upstream is busy"),
        (Scripted(200, {"choices": [], "usage": None}), "no choices"),
        (answer("", finish="content_filter"), "content_filter"),
        (answer("…", finish=None), "None"),
        (answer("", finish="length", reasoning_content="Let me think"), "thought and said nothing"),
        (answer("", refusal="I cannot help with that"), "I cannot help"),
    ],
)
def test_a_failed_answer_is_told_and_the_next_one_works(
    tmp_path: Path, scripted: Scripted, says: str
) -> None:
    with run_fake(scripted, answer("fine")) as fake:
        engine = Bench(fake, tmp_path).engine
        with engine.load(engine.find_model("m")) as model:
            with pytest.raises(GenerationFailed, match=says):
                model.generate("Hi", sampling=SAMPLING, seed=1)
            assert model.generate("Hi", sampling=SAMPLING, seed=1).text == "fine"
    assert len(fake.questions) == 2
    assert fake.questions[0] == fake.questions[1]


def test_a_cut_answer_says_so(tmp_path: Path) -> None:
    with run_fake(answer("Once upon", finish="length")) as fake:
        assert Bench(fake, tmp_path).ask().finish == "length"


def test_half_a_surrogate_pair_in_an_answer_becomes_valid_text(tmp_path: Path) -> None:
    with run_fake(answer("tea \ud83d")) as fake:
        assert Bench(fake, tmp_path).ask().text == "tea \ufffd"


@pytest.mark.parametrize("status", [408, 429, 500, 502, 503])
def test_what_may_pass_is_tried_again(tmp_path: Path, status: int) -> None:
    with run_fake(refusal(status, "later"), refusal(status, "later"), answer("at last")) as fake:
        bench = Bench(fake, tmp_path)
        assert bench.ask().text == "at last"
    assert bench.pauses == list(PAUSES_SECONDS[:2])


def test_a_server_that_stays_down_is_given_up_after_a_few_attempts(tmp_path: Path) -> None:
    with run_fake(refusal(503, "Loading model")) as fake:
        bench = Bench(fake, tmp_path)
        with pytest.raises(EngineUnavailable, match="503: Loading model"):
            bench.ask()
    assert len(fake.questions) == 1 + len(PAUSES_SECONDS)


def test_the_pause_that_a_server_asks_for_is_kept(tmp_path: Path) -> None:
    busy = Scripted(429, {"error": {"message": "slow down"}}, {"Retry-After": "17"})
    with run_fake(busy, answer()) as fake:
        bench = Bench(fake, tmp_path)
        bench.ask()
    assert bench.pauses == [17.0]


@pytest.mark.parametrize(
    "busy",
    [
        Scripted(429, {"error": {"message": "no"}}, {"Retry-After": f"{LONGEST_PAUSE_SECONDS + 1:g}"}),
        Scripted(429, {"error": {"message": "no"}}, {"Retry-After": "inf"}),
        refusal(429, "You exceeded your current quota", code="insufficient_quota"),
    ],
)
def test_nobody_waits_for_what_does_not_pass(tmp_path: Path, busy: Scripted) -> None:
    with run_fake(busy) as fake:
        bench = Bench(fake, tmp_path)
        with pytest.raises(EngineUnavailable, match="429"):
            bench.ask()
    assert bench.pauses == []


@pytest.mark.parametrize("pause", ["soon", "-5", "nan", "Wed, 21 Oct 2026 07:28:00 GMT"])
def test_a_pause_that_is_no_number_is_the_ordinary_one(tmp_path: Path, pause: str) -> None:
    with run_fake(Scripted(503, {}, {"Retry-After": pause}), answer()) as fake:
        bench = Bench(fake, tmp_path)
        bench.ask()
    assert bench.pauses == [PAUSES_SECONDS[0]]


def test_nobody_at_the_address_is_named_with_the_next_step(tmp_path: Path) -> None:
    with run_fake(answer()) as fake:
        bench = Bench(fake, tmp_path)
        model = bench.engine.find_model("m")
    with pytest.raises(EngineUnavailable, match=f"no server at {fake.url}") as caught:
        bench.engine.find_model("m")
    assert "openai_url" in caught.value.hint
    assert bench.pauses == []
    with pytest.raises(EngineUnavailable, match="no server at"), bench.engine.load(model):
        pass
    assert bench.pauses == list(PAUSES_SECONDS)


@pytest.mark.parametrize("body", [b"<html>hello</html>", {"tips": []}, b"", b"[" * 100_000])
def test_another_program_at_the_address_is_told_as_such(tmp_path: Path, body: object) -> None:
    with (
        run_fake(Scripted(200, body)) as fake,
        pytest.raises(EngineUnavailable, match="no OpenAI-compatible"),
    ):
        Bench(fake, tmp_path).ask()
    with run_fake(answer()) as fake:
        fake.models = Scripted(200, body)
        with pytest.raises(EngineUnavailable, match="no OpenAI-compatible"):
            Bench(fake, tmp_path).engine.list_models()


def test_a_model_that_vanishes_stops_the_run(tmp_path: Path) -> None:
    with run_fake(refusal(404, "gone")) as fake:
        bench = Bench(fake, tmp_path)
        model = bench.engine.find_model("m")
        with pytest.raises(EngineUnavailable, match="has no model 'm'"):
            bench.ask()
        fake.models = Scripted(200, {"data": []})
        with pytest.raises(EngineUnavailable, match="no longer offers 'm'"), bench.engine.load(model):
            pass


def test_a_server_that_does_not_count_is_refused(tmp_path: Path) -> None:
    body = {"choices": [{"message": {"content": "Hi"}, "finish_reason": "stop"}]}
    with run_fake(Scripted(200, body)) as fake, pytest.raises(EngineUnavailable, match="count its tokens"):
        Bench(fake, tmp_path).ask()


def test_turns_and_form_are_sent_and_only_the_limits_that_a_server_refuses_are_left_out(
    tmp_path: Path,
) -> None:
    options = Options(sampling=SAMPLING, n_tips=2, diversity=False, seed=0)
    turns = tuple(Turn(role=role, text=role) for role in ("system", "user", "assistant", "user"))
    chat = Chat(turns=turns, form=answer_schema(options))
    said = "Invalid schema for response_format 'answer': In context=('properties', 'tips', 'items')"
    no = refusal(400, f"{said}, 'minLength' is not permitted.", param="response_format")
    with run_fake(no, answer('{"tips": ["a", "b"]}')) as fake:
        bench = Bench(fake, tmp_path)
        with bench.engine.load(bench.engine.find_model("m")) as model:
            assert model.generate(chat, sampling=SAMPLING, seed=1).text == '{"tips": ["a", "b"]}'
            model.generate("Hi", sampling=SAMPLING, seed=1)
    whole, adapted, plain = fake.questions
    assert whole["response_format"]["json_schema"]["schema"] == chat.form
    assert [message["role"] for message in whole["messages"]] == ["system", "user", "assistant", "user"]
    tips = adapted["response_format"]["json_schema"]["schema"]["properties"]["tips"]
    assert (tips["minItems"], sorted(tips["items"])) == (2, ["maxLength", "type"])
    assert "response_format" not in plain
    assert bench.reports == [f"{fake.url} does not take minLength: 'm' is asked without"]
