"""The HTTP side of an OpenAI-compatible server: one client, explicit time-outs, no redirects, one key."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Self, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import BaseModel, BeforeValidator, ConfigDict, ValidationError

from tipbench.engines.lock import is_loopback, normalise_url, origin_of
from tipbench.errors import EngineUnavailable, UsageError

# Which key goes to which server. A key belongs to one origin: the one named beside it in the environment.
# The address may come from a file in the current folder, which somebody else may have written. So it
# never decides where a key goes.


OWN_KEY, OWN_URL = "TIPBENCH_OPENAI_KEY", "TIPBENCH_OPENAI_URL"
GENERAL_KEY, GENERAL_URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
GENERAL_DEFAULT = "https://api.openai.com/v1"
KEY_HINT = (
    f"A key is sent only to the origin that stands beside it in the environment: {OWN_KEY} to that of "
    f"{OWN_URL}, {GENERAL_KEY} to that of {GENERAL_URL}, else of {GENERAL_DEFAULT}."
)


@dataclass(frozen=True)
class ApiKey:
    """A key, the variable it came from, and the only origin it may be sent to."""

    variable: str
    origin: str
    value: str = field(repr=False)

    def header_for(self, url: str) -> dict[str, str]:
        """The header that carries the key; none for any other origin than its own."""
        return {"Authorization": f"Bearer {self.value}"} if origin_of(url) == self.origin else {}


def find_key(url: str, environ: Mapping[str, str]) -> ApiKey | None:
    """The key for the server at this address, if the environment has one for its origin.

    Raises:
        UsageError: the key is not one, or would cross the network unencrypted.
    """
    for variable, home in (
        (OWN_KEY, environ.get(OWN_URL)),
        (GENERAL_KEY, environ.get(GENERAL_URL) or GENERAL_DEFAULT),
    ):
        value = environ.get(variable, "").strip()
        if value and home and _same_origin(url, home):
            return ApiKey(variable, origin_of(url), _checked(value, variable=variable, url=url))
    return None


def _same_origin(url: str, home: str) -> bool:
    try:
        return origin_of(normalise_url(home, setting="")) == origin_of(url)
    except UsageError:
        # An address that we cannot read is not the origin of any server that we ask.
        return False


def _checked(value: str, *, variable: str, url: str) -> str:
    # Said here, without the value: the HTTP library would print it.
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise UsageError(f"{variable} holds characters that no key has", hint="Was it copied completely?")
    if url.startswith("http:") and not is_loopback(url):
        raise UsageError(
            f"{variable} is not sent to {origin_of(url)}: anybody on the way could read it",
            hint="Use https, or a tunnel to localhost and openai_local = false; or unset the key.",
        )
    return value


# What an OpenAI-compatible server sends, as far as we use it.


def _as_unicode(text: object) -> object:
    """The same as valid Unicode: JSON may hold halves of a pair, which no file takes."""
    if isinstance(text, str):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


Text = Annotated[str, BeforeValidator(_as_unicode)]


class OpenAiReply(BaseModel):
    """What a server sends; what we do not know of it is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class OpenAiWeights(OpenAiReply):
    """What a llama.cpp server says about the model it has loaded."""

    n_params: int | None = None
    size: int | None = None


class Offer(OpenAiReply):
    """One entry of the server's list of models."""

    id: Text
    meta: OpenAiWeights | None = None


class Offers(OpenAiReply):
    """The server's list of models."""

    data: tuple[Offer, ...]


class OpenAiMessage(OpenAiReply):
    """What the model said; `reasoning_content` or `reasoning` is what it only thought."""

    content: Text | None = None
    refusal: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None


class ReplyChoice(OpenAiReply):
    """One answer, and why it ended."""

    message: OpenAiMessage
    finish_reason: str | None = None


class Usage(OpenAiReply):
    """How long question and answer are."""

    prompt_tokens: int
    completion_tokens: int


class Completion(OpenAiReply):
    """The reply to a question."""

    choices: tuple[ReplyChoice, ...]
    usage: Usage | None = None
    seconds: float = 0.0


class Trouble(OpenAiReply):
    """What a server says when it says no."""

    message: Text = ""
    param: str | None = None
    code: str | int | None = None
    type: str | None = None


class Failed(OpenAiReply):
    """The body of an error."""

    error: Trouble | Text


PAUSES_SECONDS = (1.0, 3.0, 8.0)
LONGEST_PAUSE_SECONDS = 60.0
CONNECT_SECONDS = 5.0
LIST_SECONDS = 20.0
MAX_MESSAGE = 300
NOT_THERE = frozenset({404, 405, 501})
TRY_AGAIN = frozenset({408, 425, 429})
QUOTA_USED_UP = "insufficient_quota"
AGAIN = "Run the same command again when it answers: what is finished is kept."


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


R = TypeVar("R", bound=OpenAiReply)


@dataclass(frozen=True)
class OpenAiAccess:
    """How to reach a server: its address, its key, how long to wait for an answer, how to pause."""

    url: str
    key: ApiKey | None = None
    timeout_seconds: float = 300.0
    sleep: Callable[[float], None] = time.sleep


class OpenAiServer:
    """A connection to one server."""

    def __init__(self, access: OpenAiAccess) -> None:
        self.url = url = access.url
        self._key = key = access.key
        self._access = access
        self._client = httpx2.Client(
            headers={"Accept": "application/json"} | (key.header_for(url) if key else {}),
            follow_redirects=False,
            # Loading certificates takes longer than most calls; plain HTTP has no use for them.
            verify=url.startswith("https:"),
            trust_env=False,
        )

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
        response = self._send(
            "POST", "/chat/completions", body=question, seconds=self._access.timeout_seconds, patient=patient
        )
        if response.status_code >= 400 or _read(response, Failed) is not None:
            return self._refusal(response)
        completion = self._parse(response, Completion)
        return completion.model_copy(update={"seconds": response.elapsed.total_seconds()})

    def _send(
        self,
        method: str,
        path: str,
        *,
        body: Mapping[str, object] | None = None,
        seconds: float,
        patient: bool,
    ) -> httpx2.Response:
        pauses = list(PAUSES_SECONDS) if patient else []
        timeout = httpx2.Timeout(seconds, connect=min(seconds, CONNECT_SECONDS))
        while True:
            outcome = self._attempt(
                lambda: self._client.request(method, self.url + path, json=body, timeout=timeout),
                seconds=seconds,
            )
            if isinstance(outcome, httpx2.Response):
                return outcome
            if outcome.final or not pauses:
                raise outcome.error
            self._access.sleep(max(pauses.pop(0), outcome.pause_seconds))

    def _attempt(self, send: Callable[[], httpx2.Response], *, seconds: float) -> httpx2.Response | _Setback:
        try:
            response = send()
        except httpx2.InvalidURL as error:
            raise UsageError(f"openai_url is not the address of a server: {error}") from error
        except httpx2.ConnectError as error:
            hint = f"Start it, or set openai_url to where it is. {AGAIN}"
            return _Setback(EngineUnavailable(f"no server at {self.url}: {error}", hint=hint))
        except httpx2.TimeoutException:
            return _Setback(EngineUnavailable(f"{self.url} did not answer within {seconds:g} s", hint=AGAIN))
        except httpx2.HTTPError as error:
            kind = type(error).__name__
            return _Setback(EngineUnavailable(f"the connection to {self.url} broke: {kind}", hint=AGAIN))
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
        status = response.status_code
        if 300 <= status < 400:
            target = urlsplit(response.headers.get("location", ""))
            place = f"{target.scheme}://{target.hostname}" if target.hostname else repr(target.path)
            raise EngineUnavailable(
                f"{self.url} redirects to {self._shown(place)}; redirects are not followed",
                hint="Set openai_url to the address of the server itself.",
            )
        if status in {401, 403}:
            # Never the server's own words here: some repeat parts of the key.
            sent = f"the key of {self._key.variable} was sent" if self._key else "no key was sent"
            raise EngineUnavailable(f"{self.url} does not let us in ({status}); {sent}", hint=KEY_HINT)

    def _refusal(self, response: httpx2.Response) -> OpenAiRefusal:
        failed = _read(response, Failed)
        trouble = failed.error if failed else response.text
        if isinstance(trouble, str):
            trouble = Trouble(message=trouble)
        shown = self._shown(trouble.message)
        return OpenAiRefusal(response.status_code, trouble.model_copy(update={"message": shown}))

    def _shown(self, text: str) -> str:
        """The server's words, short enough for a line and without the key, in case it repeats it."""
        text = " ".join(text.split())
        if self._key:
            text = text.replace(self._key.value, "[key]")
        return text if len(text) <= MAX_MESSAGE else text[: MAX_MESSAGE - 1] + "…"

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
