"""What the engine and its child process say to each other: one record per line, as JSON."""

from typing import Any

from tipbench.records import Generation, Record, Sampling


class LoadOrder(Record):
    """The first line to the child: load this."""

    path: str
    context_tokens: int
    threads: int


class LoadReport(Record):
    """The child's answer when the model is ready. A child that cannot load ends instead."""

    load_seconds: float


class ModelQuestion(Record):
    """Every further line to the child; with `form`, a JSON Schema, the answer is JSON that fits it."""

    prompt: str
    sampling: Sampling
    seed: int
    form: dict[str, Any] | None = None


class ModelAnswer(Record):
    """The child's answer: a generation, or why there is none."""

    generation: Generation | None = None
    failure: str = ""
