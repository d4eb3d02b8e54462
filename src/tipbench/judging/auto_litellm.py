"""Judges behind LiteLLM (extra `judge`): Claude Haiku and the rest. Imported when it is needed: it is big."""

import importlib
import importlib.util
import os
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any, Protocol, cast

from tipbench.engines.protocol import Schema
from tipbench.errors import EngineUnavailable, ModelRefused
from tipbench.judging.auto_graders import MAX_TOKENS, SEED, Graded, Grader, GradingFailed, JudgeModel, Price
from tipbench.records import content_hash

TIMEOUT_SECONDS = 60.0
BEFORE_IMPORT = {"LITELLM_LOCAL_MODEL_COST_MAP": "True", "LITELLM_MODE": "PRODUCTION"}
"""Otherwise its import goes to the network, and reads a `.env` of the current folder."""
NEEDED = "response_format"
PASSING = frozenset({408, 409, 425, 429, 500, 502, 503, 504, 529})


class Library(Protocol):
    """LiteLLM, as far as we use it."""

    suppress_debug_info: bool
    completion: Callable[..., Any]
    get_model_info: Callable[..., Any]
    get_supported_openai_params: Callable[..., list[str] | None]


def judge_behind_litellm(name: str, *, price: Price | None) -> JudgeModel:
    """The judge that LiteLLM knows by `provider/name`. Its meaning may change: it is not pinned.

    Raises:
        EngineUnavailable: LiteLLM is not installed.
        ModelRefused: LiteLLM does not know it, or it takes no schema.
    """
    provider, _, model = name.partition("/")
    if not model:
        raise ModelRefused(f"{name!r} names no provider", hint="Write litellm:anthropic/NAME, for example.")
    if provider.startswith("ollama"):
        # Its weights would come into this machine's memory beside those of our engines.
        raise ModelRefused(f"{name!r} would bypass the engine lock", hint=f"Use --judge-model {model}")
    library = _import_litellm()
    try:
        supported = library.get_supported_openai_params(model=name)
    except Exception as error:
        raise ModelRefused(f"LiteLLM does not know {name!r}: {_first_line(error)}") from error
    if not supported or NEEDED not in supported:
        raise ModelRefused(f"LiteLLM does not know {name!r}, or that model cannot be held to a schema")
    listed = price or _listed_price(library, name)

    @contextmanager
    def open_it() -> Generator[Grader]:
        yield _LiteLlmGrader(library, name, supported=supported, price_is_set=price is not None)

    return JudgeModel(
        name=f"litellm:{name}",
        digest=content_hash({"litellm": name}),
        pinned=False,
        price=listed,
        patient=True,
        open=open_it,
    )


class _LiteLlmGrader:
    def __init__(self, library: Library, name: str, *, supported: list[str], price_is_set: bool) -> None:
        self._library = library
        self._name = name
        self._options = {k: v for k, v in (("temperature", 0.0), ("seed", SEED)) if k in supported}
        self._price_is_set = price_is_set

    def grade(self, question: str, *, schema: Schema) -> Graded:
        form = {"name": "answer", "strict": True, "schema": dict(schema)}
        started = time.perf_counter()
        try:
            reply = self._library.completion(
                model=self._name,
                messages=[{"role": "user", "content": question}],
                response_format={"type": "json_schema", "json_schema": form},
                max_tokens=MAX_TOKENS,
                timeout=TIMEOUT_SECONDS,
                # Retries would be calls that nobody counts.
                num_retries=0,
                max_retries=0,
                **self._options,
            )
        except Exception as error:
            raise _translate(error, self._name) from error
        choice, usage = reply.choices[0], reply.usage
        cost = None if self._price_is_set else reply._hidden_params.get("response_cost")
        return Graded(
            text=choice.message.content or "",
            prompt_tokens=usage.prompt_tokens,
            output_tokens=usage.completion_tokens,
            seconds=time.perf_counter() - started,
            usd=cost,
            cut_off=choice.finish_reason == "length",
        )


def _import_litellm() -> Library:
    if importlib.util.find_spec("litellm") is None:
        raise EngineUnavailable(
            "LiteLLM is not installed", hint="Install it with: pip install 'tipbench[judge]'"
        )
    for name, value in BEFORE_IMPORT.items():
        os.environ[name] = value
    library = cast(Library, importlib.import_module("litellm"))
    library.suppress_debug_info = True
    return library


def _listed_price(library: Library, name: str) -> Price | None:
    try:
        listed = library.get_model_info(model=name)
    except Exception:  # noqa: BLE001 - a bare Exception is how it says that it has no price
        return None
    prompt, output = listed.get("input_cost_per_token"), listed.get("output_cost_per_token")
    return Price(float(prompt), float(output)) if None not in (prompt, output) else None


def _translate(error: Exception, name: str) -> Exception:
    """Their error in our words; what is no answer of a server is a bug and stays what it is."""
    status = getattr(error, "status_code", None)
    if not isinstance(status, int):
        return error
    if status in {401, 403}:
        # Never the server's own words here: some repeat parts of the key.
        return EngineUnavailable(
            f"{name!r}: the provider does not let us in ({status})",
            hint="LiteLLM takes the key from the provider's own variable, such as ANTHROPIC_API_KEY.",
        )
    if status in {400, 413, 422}:
        return GradingFailed(f"{name!r}: {_first_line(error)}")
    hint = "Run the same command again: what is judged is kept." if status in PASSING else ""
    return EngineUnavailable(f"{name!r}: {_first_line(error)}", hint=hint)


def _first_line(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text if len(text) <= 300 else text[:299] + "…"
