"""Automatic judges: a model behind one small protocol, whatever serves it."""

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Protocol

from tipbench.engines.protocol import Engine, FormModel, Schema
from tipbench.errors import GenerationFailed, ModelRefused, TipbenchError
from tipbench.records import Model, Sampling

SEED = 0
MAX_TOKENS = 256
OVERHEAD_TOKENS = 1_000
"""What a server may add to a question: its template, the form."""


@dataclass(frozen=True)
class Price:
    """US dollars per token."""

    prompt: float
    output: float

    def worst(self, question: str) -> float:
        """The most that asking this can cost: no token is shorter than a byte."""
        return self.prompt * (len(question.encode()) + OVERHEAD_TOKENS) + self.output * MAX_TOKENS

    def of(self, *, prompt_tokens: int, output_tokens: int) -> float:
        """What so many tokens cost."""
        return self.prompt * prompt_tokens + self.output * output_tokens


FREE = Price(0.0, 0.0)


@dataclass(frozen=True)
class Graded:
    """A judge's reply as it came, with what it took; `usd` is None where only the price list can tell."""

    text: str
    prompt_tokens: int
    output_tokens: int
    seconds: float
    usd: float | None = None
    cut_off: bool = False


class Grader(Protocol):
    """A judge that is ready. One call is one request: nothing is tried again behind our back."""

    def grade(self, question: str, *, schema: Schema) -> Graded:
        """The reply to one question.

        Raises:
            GradingFailed: this reply failed; the judge is still there.
            EngineUnavailable: nothing more can be asked now.
        """
        ...


class GradingFailed(TipbenchError):
    """One reply failed."""


@dataclass(frozen=True)
class JudgeModel:
    """A judge by name, and how to have it at hand. `price` is None when nobody knows it.

    `patient` of a server elsewhere: what it refuses now it may take in a moment.
    """

    name: str
    digest: str
    pinned: bool
    price: Price | None
    patient: bool
    open: Callable[[], AbstractContextManager[Grader]]


def judge_on_engine(model: Model, engine: Engine, *, price: Price | None) -> JudgeModel:
    """A model of one of our engines, under the same rules as when it generates."""

    @contextmanager
    def load() -> Generator[Grader]:
        with engine.load(model) as loaded:
            if not isinstance(loaded, FormModel):
                raise ModelRefused(f"the engine {model.engine!r} cannot hold a model to a form")
            yield _EngineGrader(loaded)

    name = model.name if model.engine == "openai" else f"{model.engine}:{model.name}"
    return JudgeModel(
        name=name,
        digest=model.digest,
        pinned=model.pinned,
        price=price or (FREE if model.local or model.pinned else None),
        patient=model.engine == "openai",
        open=load,
    )


class _EngineGrader:
    def __init__(self, loaded: FormModel) -> None:
        self._loaded = loaded

    def grade(self, question: str, *, schema: Schema) -> Graded:
        try:
            reply = self._loaded.generate_json(
                question,
                schema=schema,
                sampling=Sampling(temperature=0.0, top_p=1.0, max_tokens=MAX_TOKENS),
                seed=SEED,
            )
        except GenerationFailed as error:
            raise GradingFailed(error.message, hint=error.hint) from error
        return Graded(
            reply.text,
            reply.prompt_tokens,
            reply.output_tokens,
            reply.seconds,
            cut_off=reply.finish == "length",
        )


def check_price(judge: JudgeModel, budget_usd: float | None) -> None:
    """A budget needs a price.

    Raises:
        ModelRefused: nobody knows what this judge costs.
    """
    if budget_usd is not None and judge.price is None:
        raise ModelRefused(
            f"what {judge.name!r} costs is not known, so no budget can be kept",
            hint="Set judge_price_prompt and judge_price_output, in US dollars per 1,000 tokens.",
        )
