"""Engines turn prompts into text. A name leads to one model on one engine."""

import os
import sys
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Self

from tipbench.engines.llamacpp.card import LayerCount
from tipbench.engines.llamacpp.engine import LlamaCppEngine, LlamaCppOptions
from tipbench.engines.machine import MachineLock, machine_lock_path
from tipbench.engines.ollama.api import NoServer, OllamaApi
from tipbench.engines.ollama.engine import OllamaEngine, OllamaOptions, start_ollama_serve
from tipbench.engines.ollama.residency import clear_left_behind, make_room
from tipbench.engines.openai.engine import OpenAiEngine, open_openai
from tipbench.engines.protocol import Engine
from tipbench.engines.weights import KNOWN_WEIGHTS, DigestCache
from tipbench.errors import EngineUnavailable, ModelRefused
from tipbench.records import Model
from tipbench.settings import Settings

__all__ = ["Admission", "Engines", "check_size", "open_engines"]


@dataclass(frozen=True)
class Admission:
    """Which models may be asked: up to a size, and with `raw` also those that get bare text."""

    max_model_b: float
    raw: bool = False

    def check(self, model: Model) -> None:
        """Refuses the others.

        Raises:
            ModelRefused: says why.
        """
        check_size(model, max_model_b=self.max_model_b)
        if model.raw and not self.raw:
            raise ModelRefused(
                f"{model.name!r} has no chat template: it would not see who says what",
                hint="Give it one (Ollama: TEMPLATE in its Modelfile), take its instruct version, or send "
                "it the bare text: collect --raw.",
            )


class Engines:
    """All engines of this machine under one roof."""

    def __init__(
        self,
        *,
        llamacpp: LlamaCppEngine,
        ollama: OllamaEngine,
        openai: OpenAiEngine | None,
        admission: Admission,
        at_end: ExitStack | None = None,
    ) -> None:
        self._llamacpp = llamacpp
        self._ollama = ollama
        self._openai = openai
        self._engines: dict[str, Engine] = {llamacpp.name: llamacpp, ollama.name: ollama}
        if openai is not None:
            self._engines[openai.name] = openai
        self._admission = admission
        self._at_end = at_end or ExitStack()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._at_end.close()

    def list_models(self, *, pass_over: Callable[[EngineUnavailable], None] | None = None) -> Sequence[Model]:
        """Every model of every engine, admitted or not. `pass_over` is told of engines that cannot be asked.

        Raises:
            EngineUnavailable: an engine cannot be asked, and nobody is there to be told.
        """
        models: list[Model] = []
        for engine in self._engines.values():
            try:
                models += engine.list_models()
            except EngineUnavailable as error:
                if pass_over is None:
                    raise
                pass_over(error)
        return models

    def find_model(self, name: str) -> Model:
        """The model of that name on the engine before the colon; else a file if there is one, else Ollama's.

        Raises:
            ModelRefused: no engine has it.
            EngineUnavailable: the engine that is named cannot be asked.
        """
        prefix, _, rest = name.partition(":")
        if prefix == OpenAiEngine.name:
            return self._find_on_openai(name)
        if rest and prefix in self._engines:
            return self._engines[prefix].find_model(rest)
        if self._is_a_file(name):
            return self._llamacpp.find_model(name)
        try:
            return self._ollama.find_model(name)
        except NoServer as error:
            raise ModelRefused(
                f"unknown model {name!r}: no file of the models folder, and {error.message}",
                hint=f"With Ollama: ollama serve, then ollama pull {name}. {self._llamacpp.what_there_is()}",
            ) from error

    def admit(self, name: str) -> Model:
        """The same, if it is within the size limit and has a chat template, or is wanted without one.

        Raises:
            ModelRefused: no engine has it, it is too big, its size cannot be established, or it is raw.
        """
        model = self.find_model(name)
        self._admission.check(model)
        return model

    def count_layers(self, models: Iterable[Model]) -> dict[str, LayerCount]:
        """For each sound model of the embedded engine what the graphics cards would compute of it.

        Raises:
            EngineUnavailable: cards are wanted, and nobody can say which there are.
        """
        placement = self._llamacpp.look_at_cards()
        ours = [model for model in models if model.engine == self._llamacpp.name and model.parameters]
        return {model.name: self._llamacpp.count_layers(model, placement) for model in ours}

    def engine_of(self, model: Model) -> Engine:
        """The engine that loads this model."""
        return self._engines[model.engine]

    def _is_a_file(self, name: str) -> bool:
        # Weights that can be fetched and were not yet: the embedded engine says how.
        return self._llamacpp.offers(name) or (name in KNOWN_WEIGHTS and not self._ollama.offers(name))

    def _find_on_openai(self, name: str) -> Model:
        if self._openai is None:
            raise ModelRefused(
                f"{name!r} needs an OpenAI-compatible server, and none is set",
                hint="Set openai_url in tipbench.toml, or TIPBENCH_OPENAI_URL, as in http://localhost:8080/v1",
            )
        return self._openai.find_model(name)


def check_size(model: Model, *, max_model_b: float) -> None:
    """Refuses what is over the limit, to one decimal, and what would be loaded here with no known size.

    Raises:
        ModelRefused: with size and limit.
    """
    if model.billions is None and not (model.local or model.pinned):
        # A name on somebody's server: nothing of it comes into this machine's memory.
        return
    if model.billions is None:
        raise ModelRefused(
            f"the size of {model.name!r} cannot be established",
            hint="If its server computes on another machine, set openai_local = false."
            if model.engine == OpenAiEngine.name
            else "",
        )
    if model.billions > max_model_b:
        raise ModelRefused(
            f"{model.name!r} has {model.billions:.1f} billion parameters, the limit is {max_model_b:g}",
            hint="Use a smaller model, or raise the limit with --max-model-b.",
        )


def open_engines(settings: Settings, *, wait: bool = True, report: Callable[[str], None]) -> Engines:
    """The engines of this machine. `report` gets a line when the engine lock has to be waited for.

    Raises:
        EngineUnavailable: a server of our own was wanted and does not start.
    """
    # Only the command's name, never its options: others on this machine read it.
    command = " ".join(["tipbench", *sys.argv[1:2]])
    lock = MachineLock(
        machine_lock_path(os.environ),
        holder=f"pid {os.getpid()} ({command})",
        wait=wait,
        report=report,
        clear=clear_left_behind,
    )
    at_end = ExitStack()
    url = settings.ollama_url
    if settings.ollama_serve:
        url = at_end.enter_context(start_ollama_serve(os.environ))
    api = OllamaApi(url)
    llamacpp = LlamaCppEngine(
        settings.models_folder,
        lock=lock,
        digests=DigestCache(settings.home / "digests.json"),
        options=LlamaCppOptions(
            threads=settings.threads,
            context_tokens=settings.context_tokens,
            gpu_layers=settings.gpu_layers,
        ),
        make_room=lambda: make_room(api, evict=settings.foreign == "evict", report=report),
    )
    options = OllamaOptions(
        context_tokens=settings.context_tokens,
        threads=settings.threads,
        foreign=settings.foreign,
        unload_every_call=settings.unload == "every-call",
    )
    return Engines(
        llamacpp=llamacpp,
        ollama=OllamaEngine(api, lock=lock, options=options, report=report),
        openai=open_openai(settings, environ=os.environ, lock=lock, report=report),
        admission=Admission(settings.max_model_b, raw=settings.raw),
        at_end=at_end,
    )
