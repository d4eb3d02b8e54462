"""What an Ollama server is asked and answers, and what its refusals mean."""

import json
import shlex
import time
from functools import cached_property
from typing import TypeVar, cast

import httpx2
from pydantic import Field

from tipbench.errors import EngineError, EngineUnavailable, GenerationFailed, ModelMissing, ModelRefused
from tipbench.records import Chat
from tipbench.web import Body, Reply, WebClient, WebFailures, normalise_url, read_reply, shorten

# What an Ollama server says, as far as we use it. What is zero it leaves out.


class Tag(Reply):
    """A model in the server's store."""

    name: str
    digest: str
    size: int = 0


class ModelDetails(Reply):
    """What the server says of a model for people to read."""

    parameter_size: str = ""


class OllamaModelInfo(Reply):
    """What the server knows of one model."""

    modelfile: str = ""
    template: str = ""
    details: ModelDetails = ModelDetails()
    model_info: dict[str, object] = Field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    remote_host: str = ""


class OllamaResident(Reply):
    """A model in the server's memory, by the name it was first loaded under."""

    name: str
    digest: str = ""
    context_length: int = 0


class Message(Reply):
    """What the model said, and what it only thought."""

    content: str = ""
    thinking: str = ""


class Chatted(Reply):
    """The reply to a question, `response` to a bare text. Durations are in nanoseconds."""

    message: Message = Message()
    response: str = ""
    done: bool = False
    done_reason: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    eval_count: int = 0


class OllamaVersion(Reply):
    """Which server answers."""

    version: str


class Tags(Reply):
    """The server's store."""

    models: tuple[Tag, ...] = ()


class Residents(Reply):
    """The server's memory."""

    models: tuple[OllamaResident, ...] = ()


def error_text(status: int, text: str) -> str:
    """Why the server refused, in its own words."""
    return shorten(_innermost(text)) or f"HTTP {status}"


def _innermost(text: str) -> str:
    """Newer servers wrap what their engine said, as JSON within a text, sometimes twice."""
    try:
        content = json.loads(text)
    except ValueError:
        return text
    while isinstance(content, dict):
        fields = cast(dict[str, object], content)
        content = fields.get("error", fields.get("message"))
    return _innermost(content) if isinstance(content, str) else text


CALL_SECONDS = 30.0
LOAD_SECONDS = 600.0
PS_PAUSES_SECONDS = (0.1, 0.3, 1.0, 2.0)
AGAIN = "Run the same command again: what is finished is kept."

R = TypeVar("R", bound=Reply)


class NoServer(EngineUnavailable):
    """Nothing listens at the address."""


FAILURES = WebFailures(
    setting="ollama_url",
    name="Ollama",
    error=EngineUnavailable,
    absent=NoServer,
    if_absent="Start it with: ollama serve",
    if_slow=f"Is its machine overloaded, or does another client use it? {AGAIN}",
    if_broken=f"Is it still running? {AGAIN}",
)


class OllamaApi:
    """A connection to one server; `url` is its address in normal form."""

    def __init__(self, url: str, *, timeout_seconds: float = 300.0) -> None:
        self.url = normalise_url(url, setting="ollama_url")
        self._timeout_seconds = timeout_seconds

    @cached_property
    def _client(self) -> WebClient:
        # Nothing stays open between two calls: a server that was restarted meanwhile is no surprise.
        return WebClient(self.url, FAILURES, keeps_alive=False)

    def version(self) -> str:
        """The server's version; development builds call themselves 0.0.0."""
        return self._parse(self._send("GET", "/api/version"), OllamaVersion).version

    def tags(self) -> tuple[Tag, ...]:
        """All models in the server's store."""
        return self._parse(self._send("GET", "/api/tags"), Tags).models

    def show(self, model: str) -> OllamaModelInfo:
        """What the server knows of this model.

        Raises:
            ModelMissing: it is not in the store.
        """
        return self._post("/api/show", {"model": model}, OllamaModelInfo, model=model)

    def ps(self) -> tuple[OllamaResident, ...]:
        """The models in memory, without those that are being loaded.

        Older servers sometimes fail here while a model leaves: that passes.
        """
        for pause in PS_PAUSES_SECONDS:
            answer = self._send("GET", "/api/ps")
            if answer.status_code < 500:
                break
            time.sleep(pause)
        else:
            answer = self._send("GET", "/api/ps")
        return self._parse(answer, Residents).models

    def unload(self, model: str) -> None:
        """Asks to unload; it happens when the model's running requests are done."""
        self._post("/api/generate", {"model": model, "keep_alive": 0}, Reply, model=model)

    def preload(self, model: str, body: Body) -> None:
        """Loads with the same fields as later questions: other ones would load it again.

        Raises:
            EngineUnavailable: it does not load.
        """
        request: Body = {**body, "model": model, "messages": (), "stream": False}
        try:
            self._post("/api/chat", request, Chatted, model=model, seconds=LOAD_SECONDS)
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{model!r} does not load: {error.message}", hint=error.hint) from error

    def chat(self, model: str, body: Body, *, chat: Chat) -> Chatted:
        """The answer to the last message, in one piece.

        Raises:
            GenerationFailed: the server refuses the question.
        """
        return self._ask(model, "/api/chat", {**body, "messages": chat.messages})

    def go_on(self, model: str, body: Body, *, text: str) -> Chatted:
        """How the model goes on with a bare text: no template is put around it.

        Raises:
            GenerationFailed: the server refuses the question.
        """
        # Thinking is a matter of templates, and older servers refuse the word here.
        fields = {name: value for name, value in body.items() if name != "think"}
        return self._ask(model, "/api/generate", {**fields, "prompt": text, "raw": True})

    def _ask(self, model: str, path: str, body: Body) -> Chatted:
        request: Body = {**body, "model": model, "stream": False}
        answer = self._send("POST", path, request, seconds=self._timeout_seconds)
        if answer.status_code == 400:
            raise GenerationFailed(f"{model!r}: {error_text(answer.status_code, answer.text)}")
        self._check(answer, model=model)
        return self._parse(answer, Chatted)

    def _post(self, path: str, body: Body, reply: type[R], *, model: str, seconds: float = CALL_SECONDS) -> R:
        answer = self._send("POST", path, body, seconds=seconds)
        self._check(answer, model=model)
        return self._parse(answer, reply)

    def _send(
        self, method: str, path: str, body: Body | None = None, *, seconds: float = CALL_SECONDS
    ) -> httpx2.Response:
        return self._client.send(method, path, body, seconds=seconds)

    def _check(self, answer: httpx2.Response, *, model: str) -> None:
        """Turns a refusal concerning this model into our words."""
        if answer.status_code == 404:
            raise missing(model, where=self.url)
        if answer.status_code in {400, 403}:
            raise ModelRefused(f"Ollama refuses {model!r}: {error_text(answer.status_code, answer.text)}")

    def _parse(self, answer: httpx2.Response, reply: type[R]) -> R:
        if answer.status_code >= 500:
            raise EngineUnavailable(
                f"Ollama at {self.url}: {error_text(answer.status_code, answer.text)}", hint=AGAIN
            )
        if answer.status_code != 200:
            raise self._stranger(f"with HTTP {answer.status_code}")
        parsed = read_reply(answer, reply)
        if parsed is None:
            raise self._stranger("not in its words")
        return parsed

    def _stranger(self, how: str) -> EngineError:
        return EngineUnavailable(
            f"{self.url} answers, but not as Ollama does: {how}",
            hint="Set ollama_url to the address of the Ollama server itself.",
        )


def missing(model: str, *, where: str) -> ModelMissing:
    """The error for a model that is not in the server's store."""
    return ModelMissing(
        f"model {model!r} is not on the Ollama server at {where}", get=f"ollama pull {shlex.quote(model)}"
    )
