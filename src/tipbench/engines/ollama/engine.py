"""The engine `ollama`: the models of an Ollama server, here or elsewhere, one at a time."""

import re
import shutil
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Literal

from tipbench import processes
from tipbench.engines.machine import LeftBehind, MachineLock, check_memory, lock_for_origin
from tipbench.engines.ollama.api import NoServer, OllamaApi, OllamaModelInfo, Tag, missing
from tipbench.engines.ollama.residency import (
    HeldModel,
    OllamaModel,
    Residency,
    empty_server,
    find_strangers,
    load_body,
    load_options,
    unload_afterwards,
)
from tipbench.engines.weights import Value, kv_bytes_per_token
from tipbench.errors import EngineUnavailable, ModelRefused
from tipbench.processes import Child
from tipbench.records import RAW, Model
from tipbench.web import is_loopback

Foreign = Literal["evict", "refuse"]

LONGEST_CONTEXT = 131_072
UNITS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
BARE_TEMPLATE = "{{ .Prompt }}"
OWN_TEMPLATE_SINCE = (0, 30)
WEIGHTS_LINE = re.compile(r"^FROM .*(sha256-[0-9a-f]{64})\s*$", re.MULTILINE)


@dataclass(frozen=True)
class OllamaOptions:
    """How models are loaded, and what happens to those of other clients."""

    context_tokens: int = 4096
    threads: int | None = None
    foreign: Foreign = "evict"
    unload_every_call: bool = False


class OllamaEngine:
    """Runs what an Ollama server has. `report` gets a line when another client's model is met."""

    name = "ollama"

    def __init__(
        self, api: OllamaApi, *, lock: MachineLock, options: OllamaOptions, report: Callable[[str], None]
    ) -> None:
        self._api = api
        # A server on this machine uses the same memory as every other engine here.
        self._lock = lock if is_loopback(api.url) else lock_for_origin(lock, api.url)
        self._options = options
        self._report = report

    def list_models(self) -> Sequence[Model]:
        """Every model of the server; none when there is no server."""
        try:
            tags = self._api.tags()
        except NoServer:
            return []
        return [self._list_model(tag) for tag in tags]

    def offers(self, name: str) -> bool:
        """Whether the server has a model of that name."""
        with suppress(NoServer):
            return self._find_tag(name) is not None
        return False

    def find_model(self, name: str) -> Model:
        """The model of that name; without a tag `:latest` is meant.

        Raises:
            ModelMissing: the server does not have it; with the command that gets it.
            ModelRefused: it runs elsewhere, or does not write text.
            EngineUnavailable: there is no server.
        """
        if _tag_of(name) == "cloud" or _tag_of(name).endswith("-cloud"):
            raise _in_the_cloud(name)
        tag = self._find_tag(name)
        if tag is None:
            raise missing(name, where=self._api.url)
        shown = self._api.show(tag.name)
        self._check_kind(name, shown)
        model = self._describe(tag, shown)
        if model.parameters is None:
            raise ModelRefused(f"the size of {name!r} cannot be established")
        return model

    @contextmanager
    def load(self, model: Model) -> Generator[OllamaModel]:
        """The model alone in the server's memory; when left, it is out of memory before the lock is free.

        Raises:
            EngineBusy: another process holds the lock, or another client's model may not be evicted.
            EngineUnavailable: there is not enough memory, the model does not load or does not unload.
            ModelRefused: the tag is no longer the model that was found.
        """
        purpose = f"model {model.name!r} on Ollama at {self._api.url}"
        # The keeper unloads when we are killed; the mark is for the case that it is killed too.
        digest = model.digest.removesuffix(RAW)
        leaves = LeftBehind(self._api.url, digest) if is_loopback(self._api.url) else None
        with self._lock.hold(purpose, leaves=leaves) as lock:
            empty_server(self._api, evict=self._evict, report=self._report)
            shown = self._show_again(model)
            seat = self._seat(model, shown)
            if seat.is_here:
                check_memory(model, kv_bytes=_kv_bytes_per_token(shown) * seat.context_tokens)
            options = load_options(context_tokens=seat.context_tokens, threads=self._options.threads)
            residency = Residency(
                self._api, seat, body=load_body(options), evict=self._evict, report=self._report
            )
            with unload_afterwards(seat, lock=lock, report=self._report):
                yield OllamaModel(
                    model,
                    self._api,
                    residency,
                    options=options,
                    unload_every_call=self._options.unload_every_call,
                )

    @property
    def _evict(self) -> bool:
        return self._options.foreign == "evict"

    def _list_model(self, tag: Tag) -> Model:
        try:
            return self._describe(tag, self._api.show(tag.name))
        except ModelRefused:
            # Listed without a size, so that it is seen and refused.
            return self._describe(tag, OllamaModelInfo())

    def _find_tag(self, name: str) -> Tag | None:
        return next((tag for tag in self._api.tags() if _whole_name(tag.name) == _whole_name(name)), None)

    def _describe(self, tag: Tag, shown: OllamaModelInfo) -> Model:
        return Model(
            name=tag.name,
            engine=self.name,
            digest=tag.digest + (RAW if self._is_bare(shown) else ""),
            parameters=_count_parameters(shown),
            size_bytes=tag.size,
            local=is_loopback(self._api.url),
            location=self._api.url,
        )

    def _check_kind(self, name: str, shown: OllamaModelInfo) -> None:
        if shown.remote_host:
            raise _in_the_cloud(name)
        if shown.capabilities and "completion" not in shown.capabilities:
            raise ModelRefused(f"{name!r} does not write text: it can only {', '.join(shown.capabilities)}")

    def _is_bare(self, shown: OllamaModelInfo) -> bool:
        """Whether it has no chat template: its messages would lose their roles."""
        return shown.template.strip() == BARE_TEMPLATE and not _has_own_templates(self._api.version())

    def _show_again(self, model: Model) -> OllamaModelInfo:
        """What the server knows of it, once it is certain that it is the model that was found."""
        tag = self._find_tag(model.name)
        if tag is None:
            raise missing(model.name, where=self._api.url)
        if tag.digest != model.digest.removesuffix(RAW):
            raise ModelRefused(
                f"{model.name!r} on Ollama at {self._api.url} is no longer the model that was found",
                hint="Run the command again to use it as it is now.",
            )
        return self._api.show(tag.name)

    def _seat(self, model: Model, shown: OllamaModelInfo) -> HeldModel:
        """Called with an empty server: who has the weights now is not a process of this server."""
        found = WEIGHTS_LINE.search(shown.modelfile)
        weights = found[1] if found else ""
        return HeldModel(
            url=self._api.url,
            model=model.name,
            digest=model.digest.removesuffix(RAW),
            context_tokens=min(self._options.context_tokens, _trained_context(shown) or LONGEST_CONTEXT),
            weights=weights,
            strangers=find_strangers(weights),
        )


def _whole_name(name: str) -> str:
    return (name if _tag_of(name) else f"{name}:latest").lower()


def _tag_of(name: str) -> str:
    """What stands behind the colon; a colon before the last slash belongs to a host's port."""
    return name.rpartition("/")[2].partition(":")[2].lower()


def _in_the_cloud(name: str) -> ModelRefused:
    return ModelRefused(
        f"{name!r} runs in the cloud, not on the Ollama server",
        hint="Use a model that is downloaded: prompts shall not leave the server.",
    )


def _count_parameters(shown: OllamaModelInfo) -> int | None:
    """The server's own count, else what it tells people ("134.52M", "3.2B")."""
    counted = shown.model_info.get("general.parameter_count")
    if isinstance(counted, int | float) and counted > 0:
        return int(counted)
    told = re.fullmatch(r"([0-9.]+)([KMBT])", shown.details.parameter_size.strip())
    return int(float(told[1]) * UNITS[told[2]]) if told else None


def _architecture(shown: OllamaModelInfo) -> str:
    return str(shown.model_info.get("general.architecture", ""))


def _trained_context(shown: OllamaModelInfo) -> int:
    trained = shown.model_info.get(f"{_architecture(shown)}.context_length")
    return int(trained) if isinstance(trained, int | float) else 0


def _kv_bytes_per_token(shown: OllamaModelInfo) -> int:
    """Lists are left out by the server, then all layers count with all their heads: rather too much."""
    numbers: dict[str, Value] = {
        key: value for key, value in shown.model_info.items() if isinstance(value, int | float)
    }
    try:
        return kv_bytes_per_token(numbers, _architecture(shown))
    except ValueError as error:
        raise ModelRefused(f"the server says nonsense of this model: {error}") from error


def _has_own_templates(version: str) -> bool:
    """Whether this server takes a missing template from the weights' file. 0.0.0 is somebody's own build."""
    numbers = tuple(int(part) for part in re.findall(r"\d+", version)[:2])
    return numbers >= OWN_TEMPLATE_SINCE


# A server of our own, where none is running.

START_SECONDS = 60.0
LOOK_SECONDS = 0.1
LAST_LINES = 10
SAFE = {
    # Never a second model, and no second context for the first one.
    "OLLAMA_MAX_LOADED_MODELS": "1",
    "OLLAMA_NUM_PARALLEL": "1",
    # Newer servers keep old prompts in up to 8 GiB of memory beside the model.
    "LLAMA_ARG_CACHE_RAM": "0",
    "OLLAMA_NO_CLOUD": "1",
    # What is in the store is the user's: nothing is tidied away at the start.
    "OLLAMA_NOPRUNE": "1",
}


@contextmanager
def start_ollama_serve(environment: Mapping[str, str]) -> Generator[str]:
    """The address of a server of our own on a free port; at the end it is gone with all its processes.

    Raises:
        EngineUnavailable: Ollama is not installed, or does not start.
    """
    command = shutil.which("ollama", path=environment.get("PATH"))
    if command is None:
        raise EngineUnavailable(
            "there is no `ollama` to start a server of our own with",
            hint="Install Ollama, or unset ollama_serve and set ollama_url to a server.",
        )
    address = f"127.0.0.1:{processes.free_port()}"
    environment = {**environment, **SAFE, "OLLAMA_HOST": address}
    with Child(processes.MODULE, command, "serve", environment=environment) as server:
        _wait_for_start(OllamaApi(f"http://{address}"), server)
        yield f"http://{address}"


def _wait_for_start(api: OllamaApi, server: Child) -> None:
    end = time.monotonic() + START_SECONDS
    while time.monotonic() < end and server.is_running():
        with suppress(NoServer):
            api.version()
            return
        time.sleep(LOOK_SECONDS)
    words = "\n".join(server.last_lines(LAST_LINES))
    raise EngineUnavailable(f"`ollama serve` does not start; its last words:\n{words}")
