"""A model loaded on an Ollama server: questions in, answers out."""

from collections.abc import Mapping

from tipbench.engines.ollama_api import Body, OllamaApi
from tipbench.engines.ollama_residency import Residency
from tipbench.engines.ollama_wire import Chatted
from tipbench.engines.protocol import Schema
from tipbench.engines.questions import check_question
from tipbench.errors import EngineUnavailable, GenerationFailed, ModelMissing
from tipbench.records import Generation, Sampling

KEEP_ALIVE = "10m"
"""Finite, so that nothing stays loaded for ever; every question renews it."""
RELOAD_SECONDS = 0.5
NANO = 1e-9
SEEDS = 2**32 - 1
"""Servers take 32 bits, and the highest value means a random seed."""


def load_options(*, context_tokens: int, threads: int | None) -> dict[str, int]:
    """What decides how a model is loaded: the same in every call, or the server loads it again."""
    options = {"num_ctx": context_tokens}
    return options | {"num_thread": threads} if threads else options


def load_body(options: Mapping[str, int]) -> Body:
    """The fields of the call that loads the model."""
    return {"options": options, "shift": False, "keep_alive": KEEP_ALIVE}


class OllamaModel:
    """A loaded model. With `unload_every_call` it leaves the memory after each answer."""

    def __init__(
        self,
        name: str,
        api: OllamaApi,
        residency: Residency,
        *,
        options: Mapping[str, int],
        unload_every_call: bool,
    ) -> None:
        self.load_seconds = residency.load()
        self._name = name
        self._api = api
        self._residency = residency
        self._options = options
        self._unload_every_call = unload_every_call

    def generate(self, prompt: str, *, sampling: Sampling, seed: int) -> Generation:
        """The model's answer to one user message.

        Raises:
            GenerationFailed: the prompt does not fit, or the answer is no answer.
            EngineUnavailable: server or runner are gone, or did not answer in time.
            EngineBusy: another client uses the server, and is to be respected.
            ModelMissing: the model was deleted meanwhile.
        """
        return self._answer(prompt, sampling, self._body(sampling, seed))

    def generate_json(self, prompt: str, *, schema: Schema, sampling: Sampling, seed: int) -> Generation:
        """The same as JSON that fits the schema, as far as this server's version holds to it."""
        return self._answer(prompt, sampling, {**self._body(sampling, seed), "format": schema})

    def _answer(self, prompt: str, sampling: Sampling, body: Body) -> Generation:
        check_question(prompt, sampling)
        self._residency.check(may_be_gone=self._unload_every_call)
        chatted = self._ask(prompt, body)
        if self._unload_every_call:
            self._residency.wait_until_gone()
        elif chatted.load_duration * NANO >= RELOAD_SECONDS:
            seconds = chatted.load_duration * NANO
            self._residency.interfered(
                f"{self._name!r} was not in memory when it was asked ({seconds:.1f} s): "
                "another client uses this server"
            )
        self._residency.check(may_be_gone=self._unload_every_call)
        return _generation(self._name, chatted)

    def _body(self, sampling: Sampling, seed: int) -> Body:
        return {
            "options": {**self._options, **sampling_options(sampling), "seed": seed % SEEDS},
            "think": False,
            # Rather a failure than an answer to half of the question.
            "truncate": False,
            "shift": False,
            "keep_alive": 0 if self._unload_every_call else KEEP_ALIVE,
        }

    def _ask(self, prompt: str, body: Body) -> Chatted:
        try:
            return self._api.chat(self._name, body, prompt=prompt)
        except ModelMissing as error:
            raise ModelMissing(f"{error.message} any more", get=error.get) from error
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{self._name!r}: {error.message}", hint=error.hint) from error


def sampling_options(sampling: Sampling) -> dict[str, object]:
    """Every option by its name here: the defaults differ between versions, and model files change them."""
    return {
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "typical_p": 1.0,
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": 64,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "num_predict": sampling.max_tokens,
    }


def _generation(name: str, chatted: Chatted) -> Generation:
    if not chatted.done:
        raise GenerationFailed(
            f"{name!r}: degenerate, the server stopped an answer that repeated the same token"
        )
    if chatted.done_reason not in {"stop", "length"}:
        raise GenerationFailed(f"{name!r}: ended with {chatted.done_reason!r}")
    text = chatted.message.content
    if not text and chatted.message.thinking:
        raise GenerationFailed(f"{name!r}: thought for {chatted.eval_count} tokens and said nothing")
    return Generation(
        text=text,
        finish="length" if chatted.done_reason == "length" else "stop",
        prompt_tokens=chatted.prompt_eval_count,
        output_tokens=chatted.eval_count,
        # Without the time until the model was ready: that is not the answer's.
        seconds=max(0, chatted.total_duration - chatted.load_duration) * NANO,
    )
