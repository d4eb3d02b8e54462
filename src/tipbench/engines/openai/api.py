"""What an OpenAI-compatible server is asked and answers, with which key, and what its refusals mean."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Self, TypeVar

import httpx2
from pydantic import BeforeValidator, ValidationError

from tipbench.errors import EngineUnavailable
from tipbench.web import Body, Credential, Reply, WebClient, WebFailures, find_credential

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
