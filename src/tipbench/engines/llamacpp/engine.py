"""The embedded engine: llama.cpp in a child process, one model at a time, any `.gguf` file."""

import re
import signal
import socket
from collections.abc import Callable, Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from tipbench.engines.llamacpp.card import (
    Card,
    GpuLayers,
    LayerCount,
    Need,
    Placement,
    check_installed,
    read_cards,
)
from tipbench.engines.llamacpp.wire import LoadOrder, LoadReport, ModelAnswer, ModelQuestion
from tipbench.engines.machine import MachineLock, check_memory
from tipbench.engines.protocol import check_question
from tipbench.engines.threads import ThreadWatch
from tipbench.engines.weights import KNOWN_WEIGHTS, DigestCache, GgufHeader, read_header
from tipbench.errors import EngineUnavailable, GenerationFailed, ModelMissing, ModelRefused
from tipbench.processes import Child
from tipbench.records import RAW, Chat, Generation, Model, Record, Sampling, Schema, as_chat

# The engine's side of a child process that holds one model.


CHILD = "tipbench.engines.llamacpp.child"
END_SECONDS = 10.0
TAIL_LINES = 8
AGAIN = "Run the same command again: what is finished is kept."
DEATHS = {
    signal.SIGKILL: "killed by somebody, or by the kernel because memory ran out",
    signal.SIGBUS: "the model file changed while it was loaded",
    signal.SIGILL: "this processor lacks an instruction that llama.cpp was built with",
}


class ModelProcess:
    """A running child. Every request gets one reply, or the child is gone."""

    def __init__(self, child: Child, *, connection: socket.socket, replies: IO[bytes]) -> None:
        self.pid = child.pid
        self._child = child
        self._connection = connection
        self._replies = replies

    def ask(self, request: Record, *, timeout_seconds: float) -> bytes:
        """The reply, one line of JSON.

        Raises:
            EngineUnavailable: the child ended, or did not reply in time and was ended.
        """
        self._connection.settimeout(timeout_seconds)
        try:
            self._connection.sendall(request.model_dump_json().encode() + b"\n")
            reply = self._replies.readline()
        except TimeoutError as error:
            self._child.kill()
            raise EngineUnavailable(
                f"no reply within {timeout_seconds:g} s; the model was unloaded",
                hint="Is the machine overloaded? Ask for fewer tokens or use a smaller model. " + AGAIN,
            ) from error
        except (BrokenPipeError, ConnectionResetError):
            reply = b""
        if not reply.endswith(b"\n"):
            raise EngineUnavailable(self._describe_end(), hint=AGAIN)
        return reply

    def _describe_end(self) -> str:
        code = self._child.wait()
        if code >= 0:
            what = f"exit code {code}"
        else:
            death = signal.Signals(-code)
            what = f"{death.name}: {DEATHS.get(death, 'a crash')}"
        tail = "\n".join(f"  {line}" for line in self._child.last_lines(TAIL_LINES))
        return f"its process ended ({what})" + (f"; its last words:\n{tail}" if tail else "")


@contextmanager
def start_model_process(*, lock: int) -> Generator[ModelProcess]:
    """A child that keeps the lock's descriptor as long as it lives; at the end it is gone for certain."""
    ours, theirs = socket.socketpair()
    with ours, theirs, ours.makefile("rb") as replies:
        descriptor = theirs.fileno()
        keeps = (descriptor, lock)
        with Child(CHILD, str(descriptor), keeps=keeps, patience_seconds=END_SECONDS) as child:
            theirs.close()
            yield ModelProcess(child, connection=ours, replies=replies)


SUFFIX = ".gguf"
DIGEST = re.compile(r"[0-9a-f]{64}")
LOAD_TIMEOUT_SECONDS = 600.0
LONGEST_CONTEXT_TOKENS = 131_072


@dataclass(frozen=True)
class LoadedProcess:
    """A child process that holds a model."""

    process: ModelProcess
    threads: int
    gpu_layers: int
    load_seconds: float


class LlamaCppModel:
    """A model loaded in a child process; in another one when other threads have long been better."""

    def __init__(
        self,
        model: Model,
        start: Callable[[int], LoadedProcess],
        *,
        watch: ThreadWatch,
        timeout_seconds: float,
    ) -> None:
        self._start = start
        self._watch = watch
        self._name = model.name
        self._raw = model.raw
        self._timeout_seconds = timeout_seconds
        self._loaded = start(watch.choose())

    @property
    def load_seconds(self) -> float:
        return self._loaded.load_seconds

    @property
    def process_id(self) -> int:
        return self._loaded.process.pid

    @property
    def threads(self) -> int:
        """How many it computes with now."""
        return self._loaded.threads

    @property
    def gpu_layers(self) -> int:
        """How many of its layers a graphics card computes."""
        return self._loaded.gpu_layers

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:
        """The model's answer to a chat: the same for the same question, whatever came before.

        Raises:
            GenerationFailed: the prompt does not fit, or the engine refused it.
            EngineUnavailable: the child process is gone or did not answer in time.
        """
        return self._ask(ModelQuestion(chat=as_chat(prompt), sampling=sampling, seed=seed, raw=self._raw))

    def generate_json(self, prompt: str, *, schema: Schema, sampling: Sampling, seed: int) -> Generation:
        """The same as JSON that fits the schema, unless it is cut off at `max_tokens`.

        What was asked before may change the last digits of the computation, so rarely an answer too.
        """
        chat = as_chat(prompt).model_copy(update={"form": dict(schema)})
        question = ModelQuestion(chat=chat, sampling=sampling, seed=seed, raw=self._raw)
        return self._ask(question.model_copy(update={"shares_beginning": True}))

    def _ask(self, question: ModelQuestion) -> Generation:
        check_question(question.chat, question.sampling)
        threads = self._watch.look(self.threads, process_id=self.process_id, load_seconds=self.load_seconds)
        if threads != self.threads:
            self._loaded = self._start(threads)
        try:
            reply = self._loaded.process.ask(question, timeout_seconds=self._timeout_seconds)
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{self._name!r}: {error.message}", hint=error.hint) from error
        answer = ModelAnswer.model_validate_json(reply)
        if answer.generation is None:
            raise GenerationFailed(f"{self._name!r}: {answer.failure}")
        return answer.generation


@dataclass(frozen=True)
class LlamaCppOptions:
    """How models are loaded and asked. Without `threads` there are as many as others leave cores.

    `gpu_layers` go to a graphics card; with `auto` as many as fit there.
    """

    threads: int | None = None
    context_tokens: int = 4096
    gpu_layers: GpuLayers = 0
    timeout_seconds: float = 300.0
    read_cards: Callable[[], Sequence[Card]] = read_cards


class LlamaCppEngine:
    """Runs the `.gguf` files of the models folder, or any other by its path.

    `make_room` is called before a load: other engines of this machine give their memory back.
    """

    name = "llamacpp"

    def __init__(
        self,
        models_folder: Path,
        *,
        lock: MachineLock,
        digests: DigestCache,
        options: LlamaCppOptions,
        make_room: Callable[[], None] | None = None,
        watch_threads: Callable[[int | None], ThreadWatch] = ThreadWatch,
    ) -> None:
        self._models_folder = models_folder
        self._lock = lock
        self._digests = digests
        self._options = options
        self._make_room = make_room
        self._watch_threads = watch_threads

    def list_models(self) -> Sequence[Model]:
        """Every `.gguf` of the models folder; a broken one has no number of parameters."""
        return [self._list_model(path) for path in self._files()]

    def offers(self, name: str) -> bool:
        """Whether that name is ours: a `.gguf` path, a file of the models folder, or a file's digest."""
        return _is_path(name) or self._path_of(name) is not None

    def find_model(self, name: str) -> Model:
        """The model of that path, of that name in the models folder, or of that digest wherever it was used.

        Raises:
            ModelMissing: there is none.
            ModelRefused: its file is broken or of a kind that cannot be run.
        """
        path = self._path_of(name)
        if path is None:
            raise ModelMissing(f"unknown model {name!r}", hint=self.what_there_is())
        header = read_header(path)
        if header.kind not in {"model", ""} or header.architecture == "clip":
            raise ModelRefused(
                f"{path} is a {header.kind} ({header.architecture}), not a model that writes text"
            )
        if header.parts > 1:
            raise ModelRefused(
                f"{path} is one of {header.parts} parts", hint="Merge them with: llama-gguf-split --merge"
            )
        return self._describe(name if name in {path.stem, _alias(path)} else path.stem, path, header)

    @contextmanager
    def load(self, model: Model) -> Generator[LlamaCppModel]:
        """The model in a child process of its own; when left, the process is gone before the lock is.

        Raises:
            EngineBusy: another process holds the machine's engine lock and waiting was not wanted.
            EngineUnavailable: there is not enough memory, here or on the card, or the model does not load.
            ModelRefused: the file is no longer the one that was found.
        """
        check_installed()
        with self._lock.hold(f"model {model.name!r}") as lock:
            if self._make_room is not None:
                self._make_room()
            with ExitStack() as child:

                def start(threads: int) -> LoadedProcess:
                    # The one before is gone for certain before the next one loads.
                    child.close()
                    order = self._make_order(model, threads)
                    return _load(child.enter_context(start_model_process(lock=lock)), order, model)

                watch = self._watch_threads(self._options.threads)
                yield LlamaCppModel(model, start, watch=watch, timeout_seconds=self._options.timeout_seconds)

    def _make_order(self, model: Model, threads: int) -> LoadOrder:
        """How to load it, once it is certain that it is the right file and fits."""
        path = Path(model.location)
        if not path.is_file() or self._digests.sha256(path) != model.digest.removesuffix(RAW):
            raise ModelRefused(
                f"{path} is no longer the file that was found as {model.name!r}",
                hint="Run the command again to use the file as it is now.",
            )
        header = read_header(path)
        context_tokens = self._context_tokens(header)
        need = _need(model, header, context_tokens)
        # Asked again for each load: others may have taken the card's memory.
        placement = self.look_at_cards()
        layers = placement.place(need)
        check_memory(model, kv_bytes=need.kv_bytes, share=placement.share_here(need, layers))
        return LoadOrder(path=str(path), context_tokens=context_tokens, threads=threads, gpu_layers=layers)

    def look_at_cards(self) -> Placement:
        """Where models go now.

        Raises:
            EngineUnavailable: cards are wanted, and llama.cpp cannot say which there are.
        """
        return Placement(self._options.gpu_layers, read=self._options.read_cards)

    def count_layers(self, model: Model, placement: Placement) -> LayerCount:
        """How many layers of a model that we listed the cards would compute.

        Raises:
            ModelRefused: its file is broken.
        """
        header = read_header(Path(model.location))
        return placement.count(_need(model, header, self._context_tokens(header)))

    def _context_tokens(self, header: GgufHeader) -> int:
        trained = header.trained_context_tokens or self._options.context_tokens
        return min(self._options.context_tokens, trained, LONGEST_CONTEXT_TOKENS)

    def _files(self) -> list[Path]:
        return sorted(path for path in self._models_folder.glob(f"*{SUFFIX}") if path.is_file())

    def _path_of(self, name: str) -> Path | None:
        if _is_path(name):
            places = (Path(name).expanduser(), self._models_folder / name)
            return next((path for path in places if path.is_file()), None)
        if DIGEST.fullmatch(name.removesuffix(RAW)):
            return self._digests.find(name.removesuffix(RAW))
        return next((path for path in self._files() if name in {path.stem, _alias(path)}), None)

    def what_there_is(self) -> str:
        """The models of the folder, or how to get a first one."""
        names = ", ".join(_alias(path) or path.stem for path in self._files())
        if names:
            return (
                f"Available: {names}. Put other .gguf files into {self._models_folder}, or give their paths."
            )
        return "There are no models yet. Get a small one with: tipbench models fetch smollm2"

    def _list_model(self, path: Path) -> Model:
        name = _alias(path) or path.stem
        try:
            return self._describe(name, path, read_header(path))
        except ModelRefused:
            # Listed without a size, so that it is seen and refused.
            size = path.stat().st_size
            return Model(name=name, engine=self.name, digest="", parameters=None, size_bytes=size)

    def _describe(self, name: str, path: Path, header: GgufHeader) -> Model:
        return Model(
            name=name,
            engine=self.name,
            digest=self._digests.sha256(path) + ("" if header.has_chat_template else RAW),
            parameters=header.parameters,
            size_bytes=path.stat().st_size,
            location=str(path.resolve()),
        )


def _load(process: ModelProcess, order: LoadOrder, model: Model) -> LoadedProcess:
    try:
        reply = process.ask(order, timeout_seconds=LOAD_TIMEOUT_SECONDS)
    except EngineUnavailable as error:
        raise EngineUnavailable(
            f"{model.name!r} does not load: {error.message}",
            hint=f"Is {model.location} complete, and a model that llama.cpp knows?",
        ) from error
    seconds = LoadReport.model_validate_json(reply).load_seconds
    return LoadedProcess(process, order.threads, order.gpu_layers, seconds)


def _need(model: Model, header: GgufHeader, context_tokens: int) -> Need:
    kv_bytes = header.kv_bytes_per_token * context_tokens
    return Need(model.name, model.size_bytes, kv_bytes, header.layers)


def _is_path(name: str) -> bool:
    return name.lower().endswith(SUFFIX)


def _alias(path: Path) -> str:
    """The short name of weights that we know how to fetch, else nothing."""
    return next((name for name, weights in KNOWN_WEIGHTS.items() if weights.file_name == path.name), "")
