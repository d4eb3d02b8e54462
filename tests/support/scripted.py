"""An engine without weights, for tests in which the text does not matter or must be known beforehand."""

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from tipbench.records import Chat, Generation, Model, Sampling, as_chat

Write = Callable[[str, str, Random], str]
"""The model's name, the prompt and a generator of the cell's own → the answer."""


def make_model(name: str) -> Model:
    return Model(name=name, engine="scripted", digest=f"sha256:{name}", parameters=10**9, size_bytes=10**9)


@dataclass
class ScriptedEngine:
    """Answers what `write` says; `seconds` is how long it claims to have taken."""

    models: Sequence[str]
    write: Write
    seconds: Callable[[str, Random], float] = lambda model, rng: 1.0
    name: str = "scripted"

    def list_models(self) -> Sequence[Model]:
        return [make_model(name) for name in self.models]

    def find_model(self, name: str) -> Model:
        return make_model(name)

    @contextmanager
    def load(self, model: Model) -> "Generator[ScriptedModel]":
        yield ScriptedModel(self, model.name)


@dataclass
class ScriptedModel:
    engine: ScriptedEngine
    name: str
    load_seconds: float = 0.0

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:
        rng, asked = Random(seed), as_chat(prompt).text
        text = self.engine.write(self.name, asked, rng)
        return Generation(
            text=text,
            finish="stop",
            prompt_tokens=len(asked) // 4,
            output_tokens=len(text) // 4,
            seconds=self.engine.seconds(self.name, rng),
        )
