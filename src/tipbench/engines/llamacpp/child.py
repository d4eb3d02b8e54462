"""The child process that holds one model: `python -m tipbench.engines.llamacpp.child SOCKET`.

Its end is the proof that the weights are out of memory. When whoever started it is gone or done, the kernel
ends it at once.
"""

import importlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Mapping
from typing import Any, Protocol, cast

from tipbench.engines.llamacpp.wire import LoadOrder, LoadReport, ModelAnswer, ModelQuestion
from tipbench.processes import end_with_parent
from tipbench.records import Generation, Sampling


class Server(Protocol):
    """A loaded model, as far as we use it."""

    def handle_chat_completions(self, request: Mapping[str, object]) -> dict[str, Any]:
        """The reply in the form of OpenAI's API, or {"error": …}."""
        ...

    def handle_completions(self, request: Mapping[str, object]) -> dict[str, Any]:
        """The same for bare text."""
        ...


class Library(Protocol):
    """xllamacpp, which has no types of its own."""

    llama_flash_attn_type: Any

    def CommonParams(self) -> Any:  # noqa: N802
        """All settings at their defaults."""
        ...

    def Server(self, parameters: Any) -> Server:  # noqa: N802
        """Loads, with the interpreter stopped meanwhile."""
        ...


xllamacpp = cast(Library, importlib.import_module("xllamacpp"))

QUIET = 2
SEEDS = 2**32 - 1
"""The engine takes 32 bits, and the highest value means a random seed."""


def main() -> None:
    """Loads what the first line asks for and answers questions until nobody listens."""
    end_with_parent()
    with socket.socket(fileno=int(sys.argv[1])) as connection, connection.makefile("rwb") as lines:
        order = LoadOrder.model_validate_json(lines.readline())
        started = time.perf_counter()
        try:
            server = xllamacpp.Server(make_parameters(order))
        except RuntimeError as error:
            sys.exit(str(error))
        reply: LoadReport | ModelAnswer = LoadReport(load_seconds=time.perf_counter() - started)
        while True:
            lines.write(reply.model_dump_json().encode() + b"\n")
            lines.flush()
            line = lines.readline()
            if not line:
                # No tidy shutdown: ending the process is quicker and frees the same memory.
                os._exit(0)
            reply = answer(server, ModelQuestion.model_validate_json(line))


def make_parameters(order: LoadOrder) -> Any:
    """Settings under which an answer depends on its question alone."""
    parameters = xllamacpp.CommonParams()
    parameters.model.path = order.path
    parameters.n_ctx = order.context_tokens
    parameters.cpuparams.n_threads = order.threads
    parameters.cpuparams_batch.n_threads = order.threads
    parameters.n_gpu_layers = order.gpu_layers
    # Without layers of its own a card would still be given large products: then nothing goes there.
    parameters.no_op_offload = order.gpu_layers == 0
    parameters.fit_params = False
    parameters.warmup = True
    # Answers must not depend on what was asked before.
    parameters.n_parallel = 1
    parameters.cache_prompt = False
    parameters.cache_ram_mib = 0
    parameters.n_ctx_checkpoints = 0
    # Flash attention splits its sums among the threads: other threads, other text.
    parameters.flash_attn_type = xllamacpp.llama_flash_attn_type.LLAMA_FLASH_ATTN_TYPE_DISABLED
    # The library also listens on a loopback port; nobody but us shall use it, and we do not.
    parameters.api_keys = [secrets.token_hex(32)]
    parameters.verbosity = QUIET
    return parameters


def answer(server: Server, question: ModelQuestion) -> ModelAnswer:
    """What the model says to a chat, or how it goes on with a bare text."""
    request = {
        "seed": question.seed % SEEDS,
        "cache_prompt": question.shares_beginning,
        **sampling_options(question.sampling),
        **form_options(question),
    }
    started = time.perf_counter()
    try:
        if question.raw:
            reply = server.handle_completions({**request, "prompt": question.chat.text})
        else:
            thinking = {"enable_thinking": False}
            reply = server.handle_chat_completions(
                {**request, "messages": question.chat.messages, "chat_template_kwargs": thinking}
            )
    except RuntimeError as error:
        return ModelAnswer(failure=str(error))
    seconds = time.perf_counter() - started
    if "error" in reply:
        return ModelAnswer(failure=str(reply["error"]["message"]))
    choice, usage = reply["choices"][0], reply["usage"]
    if choice["finish_reason"] not in {"stop", "length"}:
        return ModelAnswer(failure=f"ended with {choice['finish_reason']!r}")
    said = choice["text"] if question.raw else choice["message"]["content"]
    generation = Generation(
        text=without_lone_surrogates(said or ""),
        finish=choice["finish_reason"],
        prompt_tokens=usage["prompt_tokens"],
        output_tokens=usage["completion_tokens"],
        seconds=seconds,
    )
    return ModelAnswer(generation=generation)


def sampling_options(sampling: Sampling) -> dict[str, float | list[str]]:
    """Every option by its name here, and which samplers run in which order: nothing is left to defaults."""
    return {
        "samplers": ["penalties", "top_k", "top_p", "min_p", "temperature"],
        "temperature": sampling.temperature,
        "top_p": sampling.top_p,
        "top_k": sampling.top_k,
        "min_p": sampling.min_p,
        "repeat_penalty": sampling.repeat_penalty,
        "repeat_last_n": 64,
        "presence_penalty": 0.0,
        "frequency_penalty": 0.0,
        "dynatemp_range": 0.0,
        "mirostat": 0,
        "max_tokens": sampling.max_tokens,
    }


def form_options(question: ModelQuestion) -> dict[str, object]:
    """What holds an answer to its form."""
    if question.chat.form is None:
        return {}
    if question.raw:
        return {"json_schema": question.chat.form}
    form = {"name": "answer", "schema": question.chat.form}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


def without_lone_surrogates(text: str) -> str:
    """The same text as valid Unicode: halves of a pair are joined, lonely ones replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


if __name__ == "__main__":
    main()
