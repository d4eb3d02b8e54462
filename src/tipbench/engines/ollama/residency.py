"""One model in an Ollama server's memory, and no other beside it."""

import os
import signal
import sys
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from tipbench.engines.machine import LeftBehind, find_residents
from tipbench.engines.ollama.api import Chatted, NoServer, OllamaApi, OllamaResident
from tipbench.engines.protocol import check_question
from tipbench.errors import (
    EngineBusy,
    EngineError,
    EngineUnavailable,
    GenerationFailed,
    ModelMissing,
    ModelRefused,
)
from tipbench.processes import Child
from tipbench.records import Chat, Generation, Model, Record, Sampling, Schema, as_chat
from tipbench.web import Body, is_loopback

EVICT_SECONDS = 60.0
LOOK_SECONDS = 0.1
LOAD_ATTEMPTS = 3


class HeldModel(Record):
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
        self, api: OllamaApi, seat: HeldModel, *, body: Body, evict: bool, report: Callable[[str], None]
    ) -> None:
        self._api = api
        self._seat = seat
        self._body = body
        self._evict = evict
        self._report = report
        self._ours: OllamaResident | None = None

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

    def _checked(self, resident: OllamaResident) -> OllamaResident:
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


def find_left(api: OllamaApi, seat: HeldModel) -> str:
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


def _find_runners(seat: HeldModel) -> str:
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


def _identity(resident: OllamaResident | None) -> tuple[str, str, int] | None:
    return resident and (resident.name, resident.digest, resident.context_length)


def _names(residents: Sequence[OllamaResident]) -> str:
    return ", ".join(repr(each.name) for each in residents)


def _busy(api: OllamaApi, residents: Sequence[OllamaResident]) -> EngineBusy:
    return EngineBusy(
        f"Ollama at {api.url} has {_names(residents)} in memory",
        hint=f"Unload it with: ollama stop NAME. {_hint(api.url)}",
    )


def _hint(url: str) -> str:
    again = "Run the same command again: what is finished is kept."
    if is_loopback(url):
        return f"Use --foreign evict, or a server of our own: TIPBENCH_OLLAMA_SERVE=true. {again}"
    return f"Make sure that nobody else uses it. {again}"


# A model loaded on an Ollama server: questions in, answers out.


KEEP_ALIVE = "10m"
"""Finite, so that nothing stays loaded for ever; every question renews it."""
RELOAD_SECONDS = 0.5
NANO = 1e-9
SEEDS = 2**32 - 1
"""Servers take 32 bits, and the highest value means a random seed."""


def load_options(*, context_tokens: int, threads: int | None) -> dict[str, int]:
    """What decides how a model is loaded: the same in every call, or the server loads it again."""
    options = {"num_ctx": context_tokens}
    return options | {"num_thread": threads} if threads else options


def load_body(options: Mapping[str, int]) -> Body:
    """The fields of the call that loads the model."""
    return {"options": options, "shift": False, "keep_alive": KEEP_ALIVE}


class OllamaModel:
    """A loaded model. With `unload_every_call` it leaves the memory after each answer."""

    def __init__(
        self,
        model: Model,
        api: OllamaApi,
        residency: Residency,
        *,
        options: Mapping[str, int],
        unload_every_call: bool,
    ) -> None:
        self.load_seconds = residency.load()
        self._name = model.name
        self._raw = model.raw
        self._api = api
        self._residency = residency
        self._options = options
        self._unload_every_call = unload_every_call

    def generate(self, prompt: str | Chat, *, sampling: Sampling, seed: int) -> Generation:
        """The model's answer to a chat.

        Raises:
            GenerationFailed: the prompt does not fit, or the answer is no answer.
            EngineUnavailable: server or runner are gone, or did not answer in time.
            EngineBusy: another client uses the server, and is to be respected.
            ModelMissing: the model was deleted meanwhile.
        """
        return self._answer(as_chat(prompt), sampling, seed)

    def generate_json(self, prompt: str, *, schema: Schema, sampling: Sampling, seed: int) -> Generation:
        """The same as JSON that fits the schema, as far as this server's version holds to it."""
        return self._answer(as_chat(prompt).model_copy(update={"form": dict(schema)}), sampling, seed)

    def _answer(self, chat: Chat, sampling: Sampling, seed: int) -> Generation:
        check_question(chat, sampling)
        body = self._body(sampling, seed) | ({} if chat.form is None else {"format": chat.form})
        self._residency.check(may_be_gone=self._unload_every_call)
        chatted = self._ask(chat, body)
        if self._unload_every_call:
            self._residency.wait_until_gone()
        elif chatted.load_duration * NANO >= RELOAD_SECONDS:
            seconds = chatted.load_duration * NANO
            self._residency.interfered(
                f"{self._name!r} was not in memory when it was asked ({seconds:.1f} s): "
                "another client uses this server"
            )
        self._residency.check(may_be_gone=self._unload_every_call)
        return _generation(self._name, chatted)

    def _body(self, sampling: Sampling, seed: int) -> dict[str, object]:
        return {
            "options": {**self._options, **sampling.for_ollama(), "seed": seed % SEEDS},
            "think": False,
            # Rather a failure than an answer to half of the question.
            "truncate": False,
            "shift": False,
            "keep_alive": 0 if self._unload_every_call else KEEP_ALIVE,
        }

    def _ask(self, chat: Chat, body: Body) -> Chatted:
        try:
            if self._raw:
                return self._api.go_on(self._name, body, text=chat.text)
            return self._api.chat(self._name, body, chat=chat)
        except ModelMissing as error:
            raise ModelMissing(f"{error.message} any more", get=error.get) from error
        except EngineUnavailable as error:
            raise EngineUnavailable(f"{self._name!r}: {error.message}", hint=error.hint) from error


def _generation(name: str, chatted: Chatted) -> Generation:
    if not chatted.done:
        raise GenerationFailed(
            f"{name!r}: degenerate, the server stopped an answer that repeated the same token"
        )
    if chatted.done_reason not in {"stop", "length"}:
        raise GenerationFailed(f"{name!r}: ended with {chatted.done_reason!r}")
    text = chatted.message.content or chatted.response
    if not text and chatted.message.thinking:
        raise GenerationFailed(f"{name!r}: thought for {chatted.eval_count} tokens and said nothing")
    return Generation(
        text=text,
        finish="length" if chatted.done_reason == "length" else "stop",
        prompt_tokens=chatted.prompt_eval_count,
        output_tokens=chatted.eval_count,
        # Without the time until the model was ready: that is not the answer's.
        seconds=max(0, chatted.total_duration - chatted.load_duration) * NANO,
    )


# The process that unloads: `python -m tipbench.engines.ollama.residency SEAT`, started beside every load.
# An Ollama server goes on holding a model when the command that loaded it is killed. The keeper outlives
# that command: it has the engine lock too, and lets go of it only when the model is out of memory.


MODULE = "tipbench.engines.ollama.residency"
PATIENCE_SECONDS = 20.0
"""How long a command waits for the unload. The keeper itself waits longer than any model stays loaded."""
KEEPER_SECONDS = 900.0
KEEPER_LOOK_SECONDS = 0.2
CERTAIN_LOOKS = 2
"""A load that was under way when its command was killed may show up once more."""


@contextmanager
def unload_afterwards(seat: HeldModel, *, lock: int, report: Callable[[str], None]) -> Generator[None]:
    """However this is left, the model is unloaded, and the lock is kept until it is out of memory.

    Raises:
        EngineUnavailable: it is still in memory after a while.
    """
    with Child(MODULE, seat.model_dump_json(), keeps=(lock,), may_outlive=True) as keeper:
        try:
            yield
        except BaseException:
            if failure := _finish(keeper, seat):
                report(f"{failure.message} · {failure.hint}")
            raise
        if failure := _finish(keeper, seat):
            raise failure


def _finish(keeper: Child, seat: HeldModel) -> EngineUnavailable | None:
    """Tells the keeper to begin and waits for it; what went wrong, if anything did."""
    code = keeper.end(PATIENCE_SECONDS)
    if code is None:
        return EngineUnavailable(
            f"{seat.model!r} is still in the memory of Ollama at {seat.url}",
            hint="The engine stays locked until it is gone. Restart that server to free it at once.",
        )
    if code == 0:
        return None
    said = keeper.last_lines(1) or [f"exit code {code}"]
    return EngineUnavailable(
        f"unloading {seat.model!r} could not be verified: {said[0]}",
        hint=f"Look at what Ollama at {seat.url} has in memory with: ollama ps",
    )


def main() -> None:
    """Waits for the end of the command, unloads, and ends when the model is out of memory."""
    seat = HeldModel.model_validate_json(sys.argv[1])
    sys.stdin.buffer.read()
    left = take_away(seat)
    if left:
        sys.exit(left)


def take_away(seat: HeldModel) -> str:
    """Unloads until nothing is left; what is left when time is up."""
    api = OllamaApi(seat.url)
    end = time.monotonic() + KEEPER_SECONDS
    left, clear = "", 0
    while clear < CERTAIN_LOOKS and time.monotonic() < end:
        try:
            left = find_left(api, seat)
        except EngineError as error:
            left = error.message
        if left:
            clear = 0
            # Whatever it answers, the next look tells.
            with suppress(EngineError):
                api.unload(seat.model)
        else:
            clear += 1
        time.sleep(KEEPER_LOOK_SECONDS)
    return left


if __name__ == "__main__":
    main()
