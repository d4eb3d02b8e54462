"""One model in an Ollama server's memory, and no other beside it."""

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from tipbench.engines.machine_lock import LeftBehind
from tipbench.engines.ollama_api import Body, NoServer, OllamaApi
from tipbench.engines.ollama_wire import Resident
from tipbench.engines.origins import is_loopback
from tipbench.engines.residents import find_residents
from tipbench.errors import EngineBusy, EngineUnavailable, ModelRefused
from tipbench.records import Record

EVICT_SECONDS = 60.0
LOOK_SECONDS = 0.1
LOAD_ATTEMPTS = 3


class Seat(Record):
    """A model that is to be alone in the memory of the server at `url`.

    `weights` is the name of its file in the server's store, `strangers` are processes that had the same
    file before us: some other server's.
    """

    url: str
    model: str
    digest: str
    context_tokens: int
    weights: str = ""
    strangers: tuple[int, ...] = ()

    @property
    def is_here(self) -> bool:
        """Whether its weights are in this machine's memory."""
        return is_loopback(self.url)


class Residency:
    """Keeps a model alone in the server's memory. `body` are the fields every question is sent with."""

    def __init__(
        self, api: OllamaApi, seat: Seat, *, body: Body, evict: bool, report: Callable[[str], None]
    ) -> None:
        self._api = api
        self._seat = seat
        self._body = body
        self._evict = evict
        self._report = report
        self._ours: Resident | None = None

    def load(self) -> float:
        """Empties the server and loads; how many seconds the load took.

        Raises:
            EngineBusy: others have models loaded, and may not be evicted or come back.
            EngineUnavailable: the model does not load, or not as it was asked to.
        """
        for _ in range(LOAD_ATTEMPTS):
            empty_server(self._api, evict=self._evict, report=self._report)
            self.wait_until_gone()
            started = time.perf_counter()
            self._api.preload(self._seat.model, self._body)
            seconds = time.perf_counter() - started
            residents = self._api.ps()
            if len(residents) == 1:
                self._ours = self._checked(residents[0])
                return seconds
            # Another client's load came first. A second attempt refuses or evicts it.
        raise _busy(self._api, self._api.ps())

    def check(self, *, may_be_gone: bool = False) -> None:
        """Makes certain that ours is loaded and alone: on this machine by loading it again, if allowed.

        Raises:
            EngineBusy: somebody interfered, and the run may not go on.
        """
        residents = self._api.ps()
        if residents == () and may_be_gone:
            return
        if [_identity(each) for each in residents] != [_identity(self._ours)]:
            url, model = self._seat.url, self._seat.model
            self.interfered(
                f"Ollama at {url} has {_names(residents)} in memory, not {model!r} alone: "
                "another client uses this server"
                if residents
                else f"{model!r} is no longer in the memory of Ollama at {url}: "
                "the server was restarted, or another client unloaded it"
            )
            self.load()

    def interfered(self, what: str) -> None:
        """Somebody else used the server: said, and borne where the model can be loaded again.

        Raises:
            EngineBusy: others are to be respected, or the server is not ours alone to use.
        """
        if not self._evict or not self._seat.is_here:
            raise EngineBusy(what, hint=_hint(self._seat.url))
        self._report(f"{what}; it is loaded again, and the run goes on")

    def wait_until_gone(self) -> None:
        """Returns when ours has left the memory.

        Raises:
            EngineUnavailable: it does not.
        """
        left = _wait(lambda: find_left(self._api, self._seat), seconds=EVICT_SECONDS)
        if left:
            raise EngineUnavailable(f"{left} after {EVICT_SECONDS:g} s, though it was to be unloaded")

    def _checked(self, resident: Resident) -> Resident:
        if resident.digest not in {"", self._seat.digest}:
            raise ModelRefused(
                f"{self._seat.model!r} on Ollama at {self._seat.url} is no longer the model that was found",
                hint="Run the command again to use it as it is now.",
            )
        expected = self._seat.context_tokens
        # The oldest servers do not tell.
        if resident.context_length not in {0, expected}:
            raise EngineUnavailable(
                f"{self._seat.model!r} was loaded with a context of {resident.context_length} tokens, "
                f"not {expected}",
                hint="Does another client use the same model? Stop it, or set ollama_serve = true.",
            )
        return resident


def empty_server(api: OllamaApi, *, evict: bool, report: Callable[[str], None]) -> None:
    """Unloads what others left in the server's memory.

    Raises:
        EngineBusy: there is something, and it may not be evicted or does not go.
    """
    residents = api.ps()
    if not residents:
        return
    if not evict:
        raise _busy(api, residents)
    report(f"unloading {_names(residents)} from Ollama at {api.url}")

    def look() -> str:
        staying = api.ps()
        for each in staying:
            # One that was deleted while loaded cannot be unloaded by name: it leaves when its time is up.
            with suppress(ModelRefused):
                api.unload(each.name)
        return _names(staying)

    if _wait(look, seconds=EVICT_SECONDS):
        raise _busy(api, api.ps())


def make_room(api: OllamaApi, *, evict: bool, report: Callable[[str], None]) -> None:
    """Empties a server of this machine before another engine loads; one that is elsewhere is left alone.

    Raises:
        EngineBusy: there is something, and it may not be evicted or does not go.
    """
    if is_loopback(api.url):
        with suppress(NoServer):
            empty_server(api, evict=evict, report=report)


def clear_left_behind(left: LeftBehind) -> None:
    """Unloads the model that a killed command left in the memory of a server of this machine.

    Raises:
        EngineUnavailable: it does not go.
    """
    api = OllamaApi(left.server)

    def look() -> str:
        try:
            staying = [each for each in api.ps() if each.digest == left.digest]
        except NoServer:
            return ""
        for each in staying:
            with suppress(ModelRefused):
                api.unload(each.name)
        return _names(staying)

    if still := _wait(look, seconds=EVICT_SECONDS):
        raise EngineUnavailable(
            f"{still} was left in the memory of Ollama at {left.server} by a command that was killed",
            hint="It does not go: restart that server, then run the same command again.",
        )


def find_left(api: OllamaApi, seat: Seat) -> str:
    """What of this model is still in memory, in words; nothing when it is gone."""
    try:
        residents = api.ps()
    except NoServer:
        if not seat.is_here:
            raise
        # A server that ended takes its models along, unless it was killed: its processes tell.
        residents = ()
    if any(each.digest == seat.digest or each.name == seat.model for each in residents):
        return f"{seat.model!r} is still in the memory of Ollama at {seat.url}"
    return _find_runners(seat)


def _find_runners(seat: Seat) -> str:
    """The server's processes that still hold the weights, in words; orphans among them are ended."""
    if not seat.weights or not seat.is_here:
        return ""
    left = [
        each.process_id
        for each in find_residents()
        if seat.weights in each.command and each.process_id not in seat.strangers
    ]
    for process_id in left:
        if _is_orphan(process_id):
            # Its server was killed: it would keep the weights for ever, for nobody.
            with suppress(ProcessLookupError, PermissionError):
                os.kill(process_id, signal.SIGKILL)
    return f"process {left[0]} still holds the weights of {seat.model!r}" if left else ""


def find_strangers(weights: str) -> tuple[int, ...]:
    """The processes that hold this file now."""
    return tuple(each.process_id for each in find_residents() if weights and weights in each.command)


def _is_orphan(process_id: int) -> bool:
    """Whether its parent is no Ollama server any more but whoever inherits orphans here."""
    try:
        status = Path(f"/proc/{process_id}/status").read_text(encoding="utf-8", errors="replace")
        parent = status.partition("\nPPid:")[2].split()[0]
        command = Path(f"/proc/{parent}/cmdline").read_text(encoding="utf-8", errors="replace")
    except (FileNotFoundError, ProcessLookupError):
        return False
    return "ollama" not in Path(command.partition("\0")[0]).name


def _wait(look: Callable[[], str], *, seconds: float) -> str:
    """Looks until there is nothing left; what is left when time is up."""
    end = time.monotonic() + seconds
    while (left := look()) and time.monotonic() < end:
        time.sleep(LOOK_SECONDS)
    return left


def _identity(resident: Resident | None) -> tuple[str, str, int] | None:
    return resident and (resident.name, resident.digest, resident.context_length)


def _names(residents: Sequence[Resident]) -> str:
    return ", ".join(repr(each.name) for each in residents)


def _busy(api: OllamaApi, residents: Sequence[Resident]) -> EngineBusy:
    return EngineBusy(
        f"Ollama at {api.url} has {_names(residents)} in memory",
        hint=f"Unload it with: ollama stop NAME. {_hint(api.url)}",
    )


def _hint(url: str) -> str:
    again = "Run the same command again: what is finished is kept."
    if is_loopback(url):
        return f"Use --foreign evict, or a server of our own: TIPBENCH_OLLAMA_SERVE=true. {again}"
    return f"Make sure that nobody else uses it. {again}"
