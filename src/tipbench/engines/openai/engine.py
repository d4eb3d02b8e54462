"""Any OpenAI-compatible server as an engine. Its models cannot be pinned: a name may change its meaning."""

import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager

from tipbench.engines.lock import MachineLock, is_loopback, lock_for_origin, normalise_url
from tipbench.engines.openai.api import Access, Offer, OpenAiServer, find_key
from tipbench.engines.openai.model import ModelGone, OpenAiModel
from tipbench.errors import GenerationFailed, ModelRefused
from tipbench.records import Model, Sampling, content_hash
from tipbench.settings import Settings

PREFIX = "openai:"
LISTED_IN_HINT = 20


class OpenAiEngine:
    """One OpenAI-compatible server. `local` says whether its weights are in this machine's memory."""

    name = "openai"

    def __init__(
        self,
        access: Access,
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
    return OpenAiEngine(Access(url, find_key(url, environ)), local=local, lock=lock, report=report)
