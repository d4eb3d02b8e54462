"""Any OpenAI-compatible server as an engine. Its models cannot be pinned: a name may change its meaning."""

import re
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from tipbench.engines.lock import MachineLock, lock_for_origin
from tipbench.engines.openai.api import (
    Completion,
    Offer,
    OpenAiAccess,
    OpenAiRefusal,
    OpenAiServer,
    ReplyChoice,
    find_key,
)
from tipbench.engines.protocol import Schema, check_question
from tipbench.errors import EngineUnavailable, GenerationFailed, ModelRefused
from tipbench.records import Generation, Model, Sampling, content_hash
from tipbench.settings import Settings
from tipbench.web import is_loopback, normalise_url

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
)
"""What some servers refuse to know. Temperature is not among them: another one is another experiment."""
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

    def generate(self, prompt: str, *, sampling: Sampling, seed: int) -> Generation:
        """The model's answer to one user message.

        Raises:
            GenerationFailed: the prompt does not fit, was refused, or the answer was withheld.
            EngineUnavailable: the server is gone, does not let us in, or no longer has the model.
        """
        check_question(prompt, sampling)
        return self._read(self.ask(prompt, sampling=sampling, seed=seed))

    def generate_json(self, prompt: str, *, schema: Schema, sampling: Sampling, seed: int) -> Generation:
        """The same as JSON that fits the schema, as far as this server holds to it. Nothing is retried."""
        check_question(prompt, sampling)
        return self._read(self.ask(prompt, sampling=sampling, seed=seed, schema=schema))

    def _read(self, completion: Completion) -> Generation:
        if not completion.choices:
            raise GenerationFailed(f"{self._name!r}: the server sent no choices")
        if completion.usage is None:
            raise EngineUnavailable(f"{self._server.url} does not count its tokens (no usage in its reply)")
        text, finish = _read_choice(completion.choices[0], name=self._name)
        return Generation(
            text=text,
            finish="length" if finish == "length" else "stop",
            prompt_tokens=completion.usage.prompt_tokens,
            output_tokens=completion.usage.completion_tokens,
            seconds=completion.seconds,
        )

    def ask(self, prompt: str, *, sampling: Sampling, seed: int, schema: Schema | None = None) -> Completion:
        """The server's reply, asked without the parameters that it does not take.

        Raises:
            GenerationFailed: the server refused the question.
            EngineUnavailable: the server is gone, does not let us in, or no longer has the model.
        """
        message = {"role": "user", "content": prompt}
        while True:
            question = {
                "model": self._name,
                "messages": [message],
                "stream": False,
                self._token_limit: sampling.max_tokens,
                **self._options(sampling, seed=seed),
                **_form(schema),
            }
            reply = self._server.chat(question, patient=schema is None)
            if isinstance(reply, Completion):
                return reply
            # Ends: every turn takes a parameter away, or raises.
            self._adapt(reply)

    def _options(self, sampling: Sampling, *, seed: int) -> dict[str, float]:
        options = {**sampling.for_openai(), "seed": seed % SEEDS}
        return {name: value for name, value in options.items() if name not in self._left_out}

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


def _form(schema: Schema | None) -> dict[str, object]:
    if schema is None:
        return {}
    form = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": form}}


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
    if refusal.trouble.param:
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
            model.ask("Hello", sampling=Sampling(max_tokens=16), seed=0)
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
