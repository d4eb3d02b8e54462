"""What the engine and its child process say to each other: one record per line, as JSON."""

from tipbench.records import Chat, Generation, Record, Sampling


class LoadOrder(Record):
    """The first line to the child: load this."""

    path: str
    context_tokens: int
    threads: int
    gpu_layers: int = 0


class LoadReport(Record):
    """The child's answer when the model is ready. A child that cannot load ends instead."""

    load_seconds: float


class ModelQuestion(Record):
    """Every further line to the child.

    `raw`: the text alone, without a chat template. `shares_beginning`: it is read only once for neighbours,
    and what was asked before may change the last digits of the computation.
    """

    chat: Chat
    sampling: Sampling
    seed: int
    raw: bool = False
    shares_beginning: bool = False


class ModelAnswer(Record):
    """The child's answer: a generation, or why there is none."""

    generation: Generation | None = None
    failure: str = ""
