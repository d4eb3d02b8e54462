"""Engines turn prompts into text. A name leads to one model on one engine."""

import os
import sys
from collections.abc import Callable, Sequence

from tipbench.engines.digests import DigestCache
from tipbench.engines.llamacpp import LlamaCppEngine
from tipbench.engines.machine import count_cores
from tipbench.engines.machine_lock import MachineLock, machine_lock_path
from tipbench.engines.protocol import Engine
from tipbench.errors import ModelRefused
from tipbench.records import Model
from tipbench.settings import Settings

__all__ = ["Engines", "check_size", "open_engines"]


class Engines:
    """All engines of this machine under one roof."""

    def __init__(self, *, llamacpp: LlamaCppEngine, max_model_b: float) -> None:
        self._llamacpp = llamacpp
        self._engines: dict[str, Engine] = {llamacpp.name: llamacpp}
        self._max_model_b = max_model_b

    def list_models(self) -> Sequence[Model]:
        """Every model of every engine, admitted or not."""
        return [model for engine in self._engines.values() for model in engine.list_models()]

    def find_model(self, name: str) -> Model:
        """The model of that name on the engine that offers it.

        Raises:
            ModelRefused: no engine has it.
        """
        return self._llamacpp.find_model(name)

    def admit(self, name: str) -> Model:
        """The same, if it is within the size limit.

        Raises:
            ModelRefused: no engine has it, it is too big, or its size cannot be established.
        """
        model = self.find_model(name)
        check_size(model, max_model_b=self._max_model_b)
        return model

    def engine_of(self, model: Model) -> Engine:
        """The engine that loads this model."""
        return self._engines[model.engine]


def check_size(model: Model, *, max_model_b: float) -> None:
    """Refuses what is over the limit, to one decimal, and what has no known size.

    Raises:
        ModelRefused: with size and limit.
    """
    if model.billions is None:
        raise ModelRefused(f"the size of {model.name!r} cannot be established")
    if model.billions > max_model_b:
        raise ModelRefused(
            f"{model.name!r} has {model.billions:.1f} billion parameters, the limit is {max_model_b:g}",
            hint="Use a smaller model, or raise the limit with --max-model-b.",
        )


def open_engines(settings: Settings, *, wait: bool = True, report: Callable[[str], None]) -> Engines:
    """The engines of this machine. `report` gets a line when the engine lock has to be waited for."""
    # Only the command's name, never its options: others on this machine read it.
    command = " ".join(["tipbench", *sys.argv[1:2]])
    lock = MachineLock(machine_lock_path(), holder=f"pid {os.getpid()} ({command})", wait=wait, report=report)
    llamacpp = LlamaCppEngine(
        settings.models_folder,
        lock=lock,
        digests=DigestCache(settings.home / "digests.json"),
        threads=settings.threads or count_cores(),
        context_tokens=settings.context_tokens,
    )
    return Engines(llamacpp=llamacpp, max_model_b=settings.max_model_b)
