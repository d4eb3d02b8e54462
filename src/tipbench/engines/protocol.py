"""What collect needs of an engine: names to models, a model to a loaded model, a prompt to text."""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from tipbench.errors import GenerationFailed
from tipbench.records import Chat, Generation, Model, Sampling, Schema, as_chat


class LoadedModel(Protocol):
    """A model whose weights are in memory."""

    @property
    def load_seconds(self) -> float:
        """What its last load took."""
        ...

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:
        """The model's answer to one user message, or to a chat through the model's own chat template.

        With a form the engine decodes by it. A model without a template gets the bare text.

        Raises:
            GenerationFailed: this answer failed, the engine is still there.
            EngineUnavailable: the engine is gone.
        """
        ...


@runtime_checkable
class FormModel(Protocol):
    """A loaded model that can judge: many short questions with one long beginning, held to a form."""

    def generate_json(self, prompt: str, *, schema: Schema, sampling: Sampling, seed: int) -> Generation:
        """The model's answer to one user message, asked once, as JSON of that schema. Check it yourself.

        Raises:
            GenerationFailed: this answer failed, the engine is still there.
            EngineUnavailable: the engine is gone.
        """
        ...


@runtime_checkable
class PlacedModel(Protocol):
    """A loaded model that knows how many of its layers a graphics card computes."""

    @property
    def gpu_layers(self) -> int:
        """0: all is computed on the processor."""
        ...


class Engine(Protocol):
    """Turns prompts into text, one model in memory at a time."""

    name: str

    def list_models(self) -> Sequence[Model]:
        """All models this engine could load, without loading any."""
        ...

    def find_model(self, name: str) -> Model:
        """The model of that name.

        Raises:
            ModelRefused: there is none, with the next step as hint.
            EngineUnavailable: the engine cannot be asked.
        """
        ...

    def load(self, model: Model) -> AbstractContextManager[LoadedModel]:
        """Takes the machine's engine lock and loads; at the end unloads, verifies it, and releases.

        Raises:
            EngineBusy: another process holds the lock and waiting was not wanted.
            EngineUnavailable: the model does not load.
        """
        ...


# What no engine can be asked.


def check_question(prompt: str | Chat, sampling: Sampling) -> None:
    """Refuses text that cannot be sent, and answers of no length, which some engines take for endless.

    Raises:
        GenerationFailed: says why.
    """
    try:
        as_chat(prompt).text.encode()
    except UnicodeEncodeError as error:
        raise GenerationFailed(f"the prompt is not valid Unicode: {error}") from error
    if sampling.max_tokens < 1:
        raise GenerationFailed(f"max_tokens is {sampling.max_tokens}, it must be at least 1")
