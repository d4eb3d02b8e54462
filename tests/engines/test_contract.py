"""What every engine must do. A new engine joins by adding itself to ENGINES."""

import json
import random

import pytest

from tipbench.collect.candidates import read_json_tips
from tipbench.engines.protocol import Engine, FormModel, LoadedModel
from tipbench.errors import EngineBusy, GenerationFailed, ModelRefused
from tipbench.pack import answer_schema
from tipbench.records import Chat, Model, Options, Sampling, Turn

ENGINES = {
    "llamacpp": ("engine", "smollm2", "loaded"),
    "openai": ("openai_engine", "openai_smollm2", "openai_loaded"),
    "ollama": ("ollama_engine", "ollama_smollm2", "ollama_loaded"),
}
"""For each engine the fixtures that give it, a model of it, and that model loaded with 1024 tokens."""

MARKS = {"ollama": pytest.mark.ollama}
"""Engines that `make` cannot install everywhere have a `make test-…` of their own."""

SHORT = Sampling(temperature=0.9, max_tokens=12)
QUESTIONS = [
    ("Name one way to begin the day.", 1),
    ("Name one way to begin the day.", 2),
    ("Name one way to end the day.", 1),
    ("Give a nurse on night shift one tip.", 3),
]


@pytest.fixture(params=[pytest.param(name, marks=MARKS.get(name, ())) for name in ENGINES])
def parts(request: pytest.FixtureRequest) -> tuple[Engine, Model, LoadedModel]:
    engine, model, loaded = (request.getfixturevalue(name) for name in ENGINES[request.param])
    return engine, model, loaded


@pytest.fixture
def an_engine(parts: tuple[Engine, Model, LoadedModel]) -> Engine:
    return parts[0]


@pytest.fixture
def a_model(parts: tuple[Engine, Model, LoadedModel]) -> Model:
    return parts[1]


@pytest.fixture
def a_loaded_model(parts: tuple[Engine, Model, LoadedModel]) -> LoadedModel:
    return parts[2]


def test_a_model_is_listed_as_it_is_found(an_engine: Engine, a_model: Model) -> None:
    assert a_model in an_engine.list_models()
    assert a_model.engine == an_engine.name
    assert a_model.digest
    assert a_model.parameters == 134_515_008
    # Some count the tensors only, some the whole file, some what lies beside it.
    assert 96_000_000 < a_model.size_bytes < 98_400_000


def test_an_unknown_model_is_refused_with_the_next_step(an_engine: Engine) -> None:
    with pytest.raises(ModelRefused, match="'no-such-model'") as caught:
        an_engine.find_model("no-such-model")
    assert caught.value.hint


def test_an_answer_tells_how_long_it_is_and_why_it_ended(a_loaded_model: LoadedModel) -> None:
    generation = a_loaded_model.generate("Write a long story.", sampling=SHORT, seed=1)
    assert generation.text
    assert generation.output_tokens == 12
    assert generation.finish == "length"
    assert generation.prompt_tokens > 0
    assert generation.seconds > 0


def test_held_to_a_form_it_answers_in_that_form_and_only_then(a_loaded_model: LoadedModel) -> None:
    assert isinstance(a_loaded_model, FormModel)
    score = {"type": "integer", "enum": [1, 2, 3]}
    schema = {
        "type": "object",
        "properties": {"tone": score, "relevance": score},
        "required": ["tone", "relevance"],
        "additionalProperties": False,
    }
    sampling = Sampling(temperature=0.0, max_tokens=64)
    free = a_loaded_model.generate("Tell me about bees.", sampling=SHORT, seed=1)
    for question in ("Score this text: bees.", "Tell me about bees."):
        said = json.loads(
            a_loaded_model.generate_json(question, schema=schema, sampling=sampling, seed=1).text
        )
        assert set(said) == {"tone", "relevance"}
        assert set(said.values()) <= {1, 2, 3}
    # What was held to a form before leaves nothing behind in an answer that is not.
    assert a_loaded_model.generate("Tell me about bees.", sampling=SHORT, seed=1).text == free.text


THREE_TIPS = answer_schema(Options(sampling=Sampling(max_tokens=90), n_tips=3, diversity=False, seed=0))


def test_a_system_message_and_earlier_turns_reach_the_model(a_loaded_model: LoadedModel) -> None:
    asked = Turn(role="user", text="Which colour do I like?")
    earlier = (Turn(role="user", text="I like green."), Turn(role="assistant", text="Green is fine."))
    system = Turn(role="system", text="You are a painter with a studio in an old town by the sea. " * 3)
    counted = [
        a_loaded_model.generate(Chat(turns=turns), sampling=SHORT, seed=1).prompt_tokens
        for turns in ((asked,), (system, asked), (*earlier, asked), (system, *earlier, asked))
    ]
    plain, with_system, with_turns, with_all = counted
    assert plain < with_system
    # Each turn in the words of the template, whatever stands before it.
    assert plain + 10 < with_turns
    assert with_turns - plain == with_all - with_system
    text = a_loaded_model.generate(asked.text, sampling=SHORT, seed=1)
    assert (text.prompt_tokens, text.text) == (
        plain,
        a_loaded_model.generate(Chat(turns=(asked,)), sampling=SHORT, seed=1).text,
    )


def test_a_chat_with_a_form_is_answered_in_it_and_the_same_every_time(a_loaded_model: LoadedModel) -> None:
    turns = (
        Turn(role="system", text="You answer with JSON."),
        Turn(role="user", text="Two words for hot."),
        Turn(role="assistant", text='{"tips": ["warm", "burning"]}'),
        Turn(role="user", text="Three tips for a rainy day."),
    )
    chat, sampling = Chat(turns=turns, form=THREE_TIPS), Sampling(max_tokens=90)
    free = a_loaded_model.generate("Tell me about bees.", sampling=SHORT, seed=1)
    said = a_loaded_model.generate(chat, sampling=sampling, seed=1)
    tips = json.loads(said.text)["tips"]
    assert len(tips) == 3
    assert all(isinstance(tip, str) and 0 < len(tip) <= 90 for tip in tips)
    assert read_json_tips(said.text) == [" ".join(tip.split()) for tip in tips]
    assert a_loaded_model.generate("Tell me about bees.", sampling=SHORT, seed=1).text == free.text
    assert a_loaded_model.generate(chat, sampling=sampling, seed=1).text == said.text


def test_an_answer_that_ends_by_itself_says_so(a_loaded_model: LoadedModel) -> None:
    sampling = Sampling(temperature=0.0, max_tokens=200)
    assert a_loaded_model.generate("Say only: yes", sampling=sampling, seed=1).finish == "stop"


def test_answers_are_the_same_whatever_was_asked_before(
    an_engine: Engine, a_model: Model, a_loaded_model: LoadedModel
) -> None:
    first = _ask_all(a_loaded_model, QUESTIONS)
    shuffled = random.Random(7).sample(QUESTIONS * 2, k=2 * len(QUESTIONS))
    assert _ask_all(a_loaded_model, shuffled) == first
    with an_engine.load(a_model) as fresh:
        assert _ask_all(fresh, QUESTIONS[::-1]) == first


def test_another_seed_gives_another_answer(a_loaded_model: LoadedModel) -> None:
    answers = _ask_all(a_loaded_model, [("Tell a story.", seed) for seed in (0, 2**32 - 1, 2**63, -1)])
    # The highest 32-bit number means "random" to some engines; seeds must stay seeds.
    assert (
        _ask_all(a_loaded_model, [("Tell a story.", seed) for seed in (0, 2**32 - 1, 2**63, -1)]) == answers
    )
    assert len(set(answers.values())) > 1


@pytest.mark.parametrize("prompt", ["", "a\0b", "Repeat: 🧘🏽‍♀️ 漢字 é", "\u202e\x1b[31m", "<|im_end|>"])
def test_strange_prompts_get_valid_text(a_loaded_model: LoadedModel, prompt: str) -> None:
    for max_tokens in (1, 2, 5):
        sampling = Sampling(temperature=0.0, max_tokens=max_tokens)
        a_loaded_model.generate(prompt, sampling=sampling, seed=1).text.encode()


@pytest.mark.parametrize(
    ("prompt", "max_tokens"), [("word " * 2000, 12), ("half a pair: \ud83d", 12), ("hello", 0), ("hello", -1)]
)
def test_a_question_that_cannot_be_answered_fails_and_the_engine_goes_on(
    a_loaded_model: LoadedModel, prompt: str, max_tokens: int
) -> None:
    with pytest.raises(GenerationFailed):
        a_loaded_model.generate(prompt, sampling=Sampling(max_tokens=max_tokens), seed=1)
    assert a_loaded_model.generate("Hello", sampling=SHORT, seed=1).text


def test_two_loads_exclude_each_other(an_engine: Engine, a_model: Model) -> None:
    with an_engine.load(a_model), pytest.raises(EngineBusy, match="smollm2"), an_engine.load(a_model):
        pass
    with an_engine.load(a_model) as again:
        assert again.load_seconds > 0


def _ask_all(model: LoadedModel, questions: list[tuple[str, int]]) -> dict[tuple[str, int], str]:
    return {(text, seed): model.generate(text, sampling=SHORT, seed=seed).text for text, seed in questions}
