"""Any OpenAI-compatible server as an engine. Its models cannot be pinned: a name may change its meaning."""

import json
import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence, Set
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Self, TypeVar, cast

import httpx2
from pydantic import BeforeValidator, ValidationError

from tipbench.engines.machine import MachineLock, lock_for_origin
from tipbench.engines.protocol import check_question
from tipbench.errors import EngineUnavailable, GenerationFailed, ModelRefused
from tipbench.records import Chat, Generation, Model, Sampling, Schema, as_chat, content_hash
from tipbench.settings import Settings
from tipbench.web import (
    Body,
    Credential,
    Reply,
    WebClient,
    WebFailures,
    find_credential,
    is_loopback,
    normalise_url,
)

# Which key goes to which server.


OWN_KEY, OWN_URL = "TIPBENCH_OPENAI_KEY", "TIPBENCH_OPENAI_URL"
GENERAL_KEY, GENERAL_URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
GENERAL_DEFAULT = "https://api.openai.com/v1"
KEY_HINT = (
    f"A key is sent only to the origin that stands beside it in the environment: {OWN_KEY} to that of "
    f"{OWN_URL}, {GENERAL_KEY} to that of {GENERAL_URL}, else of {GENERAL_DEFAULT}."
)


def find_key(url: str, environ: Mapping[str, str]) -> Credential | None:
    """The key for the server at this address, if the environment has one for its origin.

    Raises:
        UsageError: the key is not one, or would cross the network unencrypted.
    """
    homes = {OWN_KEY: environ.get(OWN_URL), GENERAL_KEY: environ.get(GENERAL_URL) or GENERAL_DEFAULT}
    hint = "Use https, or a tunnel to localhost and openai_local = false; or unset the key."
    return find_credential(url, homes, environ, hint=hint)


# What an OpenAI-compatible server sends, as far as we use it.


def _as_unicode(text: object) -> object:
    """The same as valid Unicode: JSON may hold halves of a pair, which no file takes."""
    if isinstance(text, str):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


Text = Annotated[str, BeforeValidator(_as_unicode)]


class OpenAiWeights(Reply):
    """What a llama.cpp server says about the model it has loaded."""

    n_params: int | None = None
    size: int | None = None


class Offer(Reply):
    """One entry of the server's list of models."""

    id: Text
    meta: OpenAiWeights | None = None


class Offers(Reply):
    """The server's list of models."""

    data: tuple[Offer, ...]


class OpenAiMessage(Reply):
    """What the model said; `reasoning_content` or `reasoning` is what it only thought."""

    content: Text | None = None
    refusal: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None


class ReplyChoice(Reply):
    """One answer, and why it ended."""

    message: OpenAiMessage
    finish_reason: str | None = None


class Usage(Reply):
    """How long question and answer are."""

    prompt_tokens: int
    completion_tokens: int


class Completion(Reply):
    """The reply to a question."""

    choices: tuple[ReplyChoice, ...]
    usage: Usage | None = None
    seconds: float = 0.0


class Trouble(Reply):
    """What a server says when it says no."""

    message: Text = ""
    param: str | None = None
    code: str | int | None = None
    type: str | None = None


class Failed(Reply):
    """The body of an error."""

    error: Trouble | Text


PAUSES_SECONDS = (1.0, 3.0, 8.0)
LONGEST_PAUSE_SECONDS = 60.0
LIST_SECONDS = 20.0
NOT_THERE = frozenset({404, 405, 501})
TRY_AGAIN = frozenset({408, 425, 429})
QUOTA_USED_UP = "insufficient_quota"
AGAIN = "Run the same command again when it answers: what is finished is kept."
FAILURES = WebFailures(
    setting="openai_url",
    name="",
    error=EngineUnavailable,
    if_absent=f"Start it, or set openai_url to where it is. {AGAIN}",
    if_slow=AGAIN,
    if_broken=AGAIN,
)


@dataclass(frozen=True)
class OpenAiRefusal:
    """The server understood the question and does not answer it."""

    status: int
    trouble: Trouble


@dataclass(frozen=True)
class _Setback:
    """Something that may pass, and how long the server asks to wait."""

    error: EngineUnavailable
    pause_seconds: float = 0.0
    final: bool = False


R = TypeVar("R", bound=Reply)


@dataclass(frozen=True)
class OpenAiAccess:
    """How to reach a server: its address, its key, how long to wait for an answer, how to pause."""

    url: str
    key: Credential | None = None
    timeout_seconds: float = 300.0
    sleep: Callable[[float], None] = time.sleep


class OpenAiServer:
    """A connection to one server."""

    def __init__(self, access: OpenAiAccess) -> None:
        self.url = url = access.url
        self._key = key = access.key
        self._access = access
        self._client = WebClient(url, FAILURES, headers=key.header_for(url) if key else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def list_models(self, *, patient: bool = False) -> tuple[Offer, ...] | None:
        """What the server offers; None if it has no such list. A patient caller waits for a busy server.

        Raises:
            EngineUnavailable: it does not answer, or not as such a server.
        """
        response = self._send("GET", "/models", seconds=LIST_SECONDS, patient=patient)
        if response.status_code in NOT_THERE:
            return None
        if response.status_code >= 400:
            refusal = self._refusal(response)
            raise EngineUnavailable(
                f"{self.url} answered {refusal.status} to the list of models: {refusal.trouble.message}"
            )
        return self._parse(response, Offers).data

    def chat(self, question: Mapping[str, object], *, patient: bool = True) -> Completion | OpenAiRefusal:
        """The reply to a question, or why there is none. A patient caller tries again what may pass.

        Raises:
            EngineUnavailable: it does not answer, does not let us in, or is no such server.
        """
        seconds = self._access.timeout_seconds
        response = self._send("POST", "/chat/completions", question, seconds=seconds, patient=patient)
        if response.status_code >= 400 or _read(response, Failed) is not None:
            return self._refusal(response)
        completion = self._parse(response, Completion)
        return completion.model_copy(update={"seconds": response.elapsed.total_seconds()})

    def _send(
        self, method: str, path: str, body: Body | None = None, *, seconds: float, patient: bool
    ) -> httpx2.Response:
        pauses = list(PAUSES_SECONDS) if patient else []
        while True:
            outcome = self._attempt(lambda: self._client.send(method, path, body, seconds=seconds))
            if isinstance(outcome, httpx2.Response):
                return outcome
            if outcome.final or not pauses:
                raise outcome.error
            self._access.sleep(max(pauses.pop(0), outcome.pause_seconds))

    def _attempt(self, send: Callable[[], httpx2.Response]) -> httpx2.Response | _Setback:
        try:
            response = send()
        except EngineUnavailable as error:
            return _Setback(error)
        if response.status_code >= 500 and response.status_code not in NOT_THERE:
            return self._setback(response)
        if response.status_code in TRY_AGAIN:
            return self._setback(response)
        self._check_let_in(response)
        return response

    def _setback(self, response: httpx2.Response) -> _Setback:
        refusal = self._refusal(response)
        pause = _read_pause(response)
        text = f"{self.url} answered {refusal.status}: {refusal.trouble.message}"
        if pause > LONGEST_PAUSE_SECONDS:
            text += f"; it asks to wait {pause:g} s"
        final = pause > LONGEST_PAUSE_SECONDS or QUOTA_USED_UP in {refusal.trouble.code, refusal.trouble.type}
        return _Setback(EngineUnavailable(text, hint=AGAIN), pause_seconds=pause, final=final)

    def _check_let_in(self, response: httpx2.Response) -> None:
        if response.status_code in {401, 403}:
            # Never the server's own words here: some repeat parts of the key.
            sent = f"the key of {self._key.variable} was sent" if self._key else "no key was sent"
            raise EngineUnavailable(
                f"{self.url} does not let us in ({response.status_code}); {sent}", hint=KEY_HINT
            )

    def _refusal(self, response: httpx2.Response) -> OpenAiRefusal:
        failed = _read(response, Failed)
        trouble = failed.error if failed else response.text
        if isinstance(trouble, str):
            trouble = Trouble(message=trouble)
        shown = self._client.words(trouble.message)
        return OpenAiRefusal(response.status_code, trouble.model_copy(update={"message": shown}))

    def _parse(self, response: httpx2.Response, reply: type[R]) -> R:
        parsed = _read(response, reply)
        if parsed is None:
            raise EngineUnavailable(
                f"what answers at {self.url} is no OpenAI-compatible server "
                f"({response.request.url.path} gave something else)",
                hint="Another program has this port, or the path is wrong (mostly it ends in /v1).",
            )
        return parsed


def _read(response: httpx2.Response, reply: type[R]) -> R | None:
    try:
        # Not by pydantic: it takes no half of a surrogate pair.
        return reply.model_validate(json.loads(response.content))
    except (ValidationError, ValueError, RecursionError):
        return None


def _read_pause(response: httpx2.Response) -> float:
    """The seconds that the server asks to wait; 0 if it does not say, or says it in words."""
    try:
        seconds = float(response.headers.get("retry-after", ""))
    except ValueError:
        return 0.0
    return seconds if seconds > 0 else 0.0


# One model behind an OpenAI-compatible server: every sampling parameter is sent, if the server takes it.


SEEDS = 2**31
MAY_BE_LEFT_OUT = (
    "top_p",
    "seed",
    "presence_penalty",
    "frequency_penalty",
    "top_k",
    "min_p",
    "repeat_penalty",
    "minLength",
    "maxLength",
    "minItems",
    "maxItems",
)
"""What some servers refuse to know. Temperature is not among them: another one is another experiment."""
FORM = "response_format"
TOKEN_LIMITS = ("max_tokens", "max_completion_tokens")
"""The limit's first name, and the one that newer models of OpenAI insist on."""


class ModelGone(EngineUnavailable):
    """The server does not know the model."""


class OpenAiModel:
    """A model behind a server. Remembers which parameters this server does not take for it."""

    def __init__(
        self, name: str, server: OpenAiServer, *, load_seconds: float, report: Callable[[str], None]
    ) -> None:
        self.load_seconds = load_seconds
        self._name = name
        self._server = server
        self._report = report
        self._left_out: set[str] = set()
        self._token_limit = TOKEN_LIMITS[0]

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:
        """The model's answer to a chat.

        Raises:
            GenerationFailed: the prompt does not fit, was refused, or the answer was withheld.
            EngineUnavailable: the server is gone, does not let us in, or no longer has the model.
        """
        check_question(prompt, sampling)
        return self._read(self.ask(as_chat(prompt), sampling=sampling, seed=seed))

    def generate_json(self, prompt: str, *, schema: Schema, sampling: Sampling, seed: int) -> Generation:
        """The same as JSON that fits the schema, as far as this server holds to it. Nothing is retried."""
        check_question(prompt, sampling)
        chat = as_chat(prompt).model_copy(update={"form": dict(schema)})
        return self._read(self.ask(chat, sampling=sampling, seed=seed, patient=False))

    def _read(self, completion: Completion) -> Generation:
        if not completion.choices:
            raise GenerationFailed(f"{self._name!r}: the server sent no choices")
        if completion.usage is None:
            raise EngineUnavailable(f"{self._server.url} does not count its tokens (no usage in its reply)")
        if min(completion.usage.prompt_tokens, completion.usage.completion_tokens) < 0:
            raise GenerationFailed(f"{self._name!r}: the server counts its tokens below zero")
        text, finish = _read_choice(completion.choices[0], name=self._name)
        return Generation(
            text=text,
            finish="length" if finish == "length" else "stop",
            prompt_tokens=completion.usage.prompt_tokens,
            output_tokens=completion.usage.completion_tokens,
            seconds=completion.seconds,
        )

    def ask(self, chat: Chat, *, sampling: Sampling, seed: int, patient: bool = True) -> Completion:
        """The server's reply, asked without the parameters that it does not take.

        Raises:
            GenerationFailed: the server refused the question.
            EngineUnavailable: the server is gone, does not let us in, or no longer has the model.
        """
        while True:
            question = {
                "model": self._name,
                "messages": chat.messages,
                "stream": False,
                self._token_limit: sampling.max_tokens,
                **self._options(sampling, seed=seed),
                **self._form(chat),
            }
            reply = self._server.chat(question, patient=patient)
            if isinstance(reply, Completion):
                return reply
            # Ends: every turn takes a parameter away, or raises.
            self._adapt(reply)

    def _options(self, sampling: Sampling, *, seed: int) -> dict[str, float]:
        options = {**sampling.for_openai(), "seed": seed % SEEDS}
        return {name: value for name, value in options.items() if name not in self._left_out}

    def _form(self, chat: Chat) -> dict[str, object]:
        if chat.form is None:
            return {}
        form = {"name": "answer", "strict": True, "schema": _without(chat.form, self._left_out)}
        return {FORM: {"type": "json_schema", "json_schema": form}}

    def _adapt(self, refusal: OpenAiRefusal) -> None:
        """Leaves out what the server does not take, from now on.

        Raises:
            GenerationFailed: that is not why it refused.
            EngineUnavailable: nothing can be asked of it.
        """
        said = f"{self._name!r}: {refusal.trouble.message or f'the server answered {refusal.status}'}"
        if refusal.status == 404:
            raise ModelGone(f"{self._server.url} has no model {self._name!r}", hint="See: tipbench models")
        if refusal.status not in {400, 422} or _is_too_long(refusal):
            raise GenerationFailed(said)
        if self._token_limit == TOKEN_LIMITS[0] and _names(refusal, *TOKEN_LIMITS):
            self._token_limit = TOKEN_LIMITS[1]
            return
        refused = [name for name in MAY_BE_LEFT_OUT if name not in self._left_out and _names(refusal, name)]
        if refused:
            self._left_out.update(refused)
            self._report(
                f"{self._server.url} does not take {', '.join(refused)}: {self._name!r} is asked without"
            )
            return
        if _names(refusal, "temperature"):
            raise EngineUnavailable(said, hint="Choose a temperature that it takes, with --temperature.")
        raise GenerationFailed(said)


def _without(schema: Schema, words: Set[str]) -> dict[str, object]:
    """The schema without limits that this server does not know; what answers is checked anyway."""
    return {
        name: _without(cast(Schema, value), words) if isinstance(value, dict) else value
        for name, value in schema.items()
        if name not in words
    }


def _read_choice(choice: ReplyChoice, *, name: str) -> tuple[str, str]:
    """The text and why it ended."""
    message, finish = choice.message, choice.finish_reason
    if finish not in {"stop", "length"}:
        raise GenerationFailed(f"{name!r}: the answer ended with {finish!r}")
    if message.refusal and not message.content:
        raise GenerationFailed(f"{name!r} refused: {message.refusal[:200]}")
    if not message.content and (message.reasoning_content or message.reasoning):
        raise GenerationFailed(f"{name!r} thought and said nothing (it ended with {finish!r})")
    return message.content or "", finish


def _is_too_long(refusal: OpenAiRefusal) -> bool:
    trouble = refusal.trouble
    kinds = {"context_length_exceeded", "exceed_context_size_error"}
    return bool(kinds & {trouble.code, trouble.type}) or bool(
        re.search(r"context (length|size|window)", trouble.message, re.IGNORECASE)
    )


def _names(refusal: OpenAiRefusal, *parameters: str) -> bool:
    """Whether the server says that it is about one of these parameters."""
    # Of a form its words matter: the parameter is the same for all of them.
    if refusal.trouble.param and refusal.trouble.param != FORM:
        return refusal.trouble.param in parameters
    return any(re.search(rf"\b{name}\b", refusal.trouble.message) for name in parameters)


PREFIX = "openai:"
LISTED_IN_HINT = 20


class OpenAiEngine:
    """One OpenAI-compatible server. `local` says whether its weights are in this machine's memory."""

    name = "openai"

    def __init__(
        self,
        access: OpenAiAccess,
        *,
        local: bool,
        lock: MachineLock,
        report: Callable[[str], None],
    ) -> None:
        self._access = access
        self._url = access.url
        self._local = local
        self._lock = lock if local else lock_for_origin(lock, access.url)
        self._report = report

    def list_models(self) -> Sequence[Model]:
        """What the server offers; nothing if it keeps no list.

        Raises:
            EngineUnavailable: it cannot be asked.
        """
        with self._connect() as server:
            return [self._describe(offer) for offer in server.list_models() or ()]

    def find_model(self, name: str) -> Model:
        """The model of that name, with or without `openai:` before it.

        Raises:
            ModelRefused: the server does not offer it.
            EngineUnavailable: it cannot be asked.
        """
        wanted = name.removeprefix(PREFIX)
        with self._connect() as server:
            offers = server.list_models()
            if offers is None:
                self._try_out(wanted, server)
                return self._describe(Offer(id=wanted))
        found = next((offer for offer in offers if offer.id == wanted), None)
        if found is None:
            names = [PREFIX + offer.id for offer in offers[:LISTED_IN_HINT]]
            more = ", …" if len(offers) > LISTED_IN_HINT else ""
            raise ModelRefused(
                f"{self._url} has no model {name!r}",
                hint=f"It offers: {', '.join(names)}{more}" if names else "It offers none.",
            )
        return self._describe(found)

    @contextmanager
    def load(self, model: Model) -> Generator[OpenAiModel]:
        """The model for as long as the lock is held: the machine's, or one for the server elsewhere.

        The server loads and unloads when it likes; `load_seconds` is how long it took to answer at all.

        Raises:
            EngineBusy: another process holds the lock and waiting was not wanted.
            EngineUnavailable: the server cannot be asked, or no longer has the model.
        """
        with self._lock.hold(f"model {model.name!r}"), self._connect() as server:
            name = model.name.removeprefix(PREFIX)
            started = time.perf_counter()
            offers = server.list_models(patient=True)
            if offers is not None and all(offer.id != name for offer in offers):
                raise ModelGone(f"{self._url} no longer offers {name!r}", hint="See: tipbench models")
            seconds = time.perf_counter() - started
            yield OpenAiModel(name, server, load_seconds=seconds, report=self._report)

    def _try_out(self, name: str, server: OpenAiServer) -> None:
        """Asks for a few words, since the server keeps no list; a local one is refused later anyway."""
        if self._local:
            return
        model = OpenAiModel(name, server, load_seconds=0.0, report=self._report)
        try:
            model.ask(as_chat("Hello"), sampling=Sampling(max_tokens=16), seed=0)
        except (GenerationFailed, ModelGone) as error:
            raise ModelRefused(
                f"{self._url} keeps no list of models and does not answer for {name!r}: {error.message}",
                hint="Is the name right? Ask those who run the server.",
            ) from error

    def _connect(self) -> OpenAiServer:
        return OpenAiServer(self._access)

    def _describe(self, offer: Offer) -> Model:
        return Model(
            name=PREFIX + offer.id,
            engine=self.name,
            digest=content_hash({"url": self._url, "name": offer.id}),
            parameters=offer.meta.n_params if offer.meta else None,
            size_bytes=(offer.meta.size if offer.meta else None) or 0,
            pinned=False,
            local=self._local,
            location=self._url,
        )


def open_openai(
    settings: Settings, *, environ: Mapping[str, str], lock: MachineLock, report: Callable[[str], None]
) -> OpenAiEngine | None:
    """The server of `openai_url`, if one is set.

    Raises:
        UsageError: the address or its key is wrong.
    """
    if settings.openai_url is None:
        return None
    url = normalise_url(settings.openai_url, setting="openai_url")
    local = is_loopback(url) if settings.openai_local is None else settings.openai_local
    return OpenAiEngine(OpenAiAccess(url, find_key(url, environ)), local=local, lock=lock, report=report)
