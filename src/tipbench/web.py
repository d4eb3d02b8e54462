"""JSON over HTTP: one client for every server that we speak to, and one normal form of its address.

A client speaks to one origin only: redirects are not followed, and a credential goes nowhere else.
"""

import ipaddress
import socket
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar
from urllib.parse import SplitResult, unquote, urlsplit

import httpx2
from pydantic import BaseModel, ConfigDict, ValidationError

from tipbench.errors import TipbenchError, UsageError

PORTS = {"http": 80, "https": 443}
CONNECT_SECONDS = 5.0
MOST_BYTES = 64 * 2**20
"""Of one answer, unless the caller expects more."""
MAX_MESSAGE = 300

Body = Mapping[str, object]


# Where a server is: its address in one form, its origin, and whether that is this machine.


def normalise_url(url: str, *, setting: str) -> str:
    """The address as scheme, host, port unless it is the usual one, and path.

    Raises:
        UsageError: it is no such address, or holds more; the value is not shown, it may hold a password.
    """
    parts = _split(url, setting=setting)
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(
            f"{setting} holds more than scheme, host, port and path",
            hint="Leave out name, password and everything after a question mark: keys are set apart.",
        )
    return _join(parts)


def split_credentials(url: str, *, setting: str) -> tuple[str, str, str]:
    """The address in its normal form, and the name and the password that were written into it.

    Raises:
        UsageError: it is not the address of a server.
    """
    parts = _split(url, setting=setting)
    return _join(parts), unquote(parts.username or ""), unquote(parts.password or "")


def _split(url: str, *, setting: str) -> SplitResult:
    # Python's own words about a port that makes no sense may show a piece of a password.
    with suppress(ValueError):
        parts = urlsplit(url.strip())
        if parts.scheme in PORTS and parts.hostname and parts.port != 0:
            return parts
    raise UsageError(f"{setting} is not an address such as http://localhost:8080")


def _join(parts: SplitResult) -> str:
    host = f"[{parts.hostname}]" if ":" in (parts.hostname or "") else parts.hostname
    port = "" if parts.port in {None, PORTS[parts.scheme]} else f":{parts.port}"
    return f"{parts.scheme}://{host}{port}{parts.path.rstrip('/')}"


def origin_of(url: str) -> str:
    """Scheme, host and port of a normalised address: who is spoken to."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_loopback(url: str) -> bool:
    """Whether the address leads to this machine and to nowhere else."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    address = _read_ip(host)
    if isinstance(address, ipaddress.IPv6Address):
        address = address.ipv4_mapped or address
    # To connect to 0.0.0.0 is to connect to oneself.
    return address is not None and (address.is_loopback or address.is_unspecified)


def _read_ip(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        if ":" in host:
            return ipaddress.IPv6Address(host)
        # As the system reads it when it connects: 127.1 and 2130706433 are 127.0.0.1, too. It would also
        # take an address that is followed by a blank and anything.
        return None if " " in host else ipaddress.IPv4Address(socket.inet_aton(host))
    except (OSError, ValueError):
        return None


# Which secret goes to which server. It belongs to one origin: the one named beside it in the environment.
# The address that is asked may come from a file in the current folder, which somebody else may have written.
# So it never decides where a secret goes.


@dataclass(frozen=True)
class Credential:
    """A secret, the variable it came from, and the only origin it may be sent to."""

    variable: str
    origin: str
    value: str = field(repr=False)

    def header_for(self, url: str) -> dict[str, str]:
        """The header that carries the secret; none for any other origin than its own."""
        return {"Authorization": f"Bearer {self.value}"} if origin_of(url) == self.origin else {}


def find_credential(
    url: str, homes: Mapping[str, str | None], environ: Mapping[str, str], *, hint: str
) -> Credential | None:
    """The secret for the server at this address, if the environment has one for its origin.

    `homes` says for each variable which address its secret was set for.

    Raises:
        UsageError: the secret is not one, or would cross the network unencrypted; `hint` says what to do.
    """
    for variable, home in homes.items():
        value = environ.get(variable, "").strip()
        if not value or not home or not _is_same_origin(url, home):
            continue
        # Said here, without the value: the HTTP library would print it.
        if not (value.isascii() and value.isprintable() and " " not in value):
            raise UsageError(f"{variable} holds characters that no key has", hint="Was it copied completely?")
        check_encrypted(url, secret=variable, hint=hint)
        return Credential(variable, origin_of(url), value)
    return None


def check_encrypted(url: str, *, secret: str, hint: str) -> None:
    """Returns if what is sent to this address stays on this machine or is encrypted on the way.

    Raises:
        UsageError: anybody could read it.
    """
    if url.startswith("http:") and not is_loopback(url):
        raise UsageError(
            f"{secret} is not sent to {origin_of(url)}: anybody on the way could read it", hint=hint
        )


def _is_same_origin(url: str, home: str) -> bool:
    try:
        return origin_of(normalise_url(home, setting="")) == origin_of(url)
    except UsageError:
        # An address that we cannot read is not the origin of any server that we ask.
        return False


# The client.


class Reply(BaseModel):
    """What a server sends; what we do not know of it is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore", defer_build=True)


R = TypeVar("R", bound=Reply)


@dataclass(frozen=True)
class WebFailures:
    """What our errors call a server, which ones they are, and what a user can do about each.

    `setting` is where the address was set. `absent` is the error when nobody listens there, `refused` the one
    when it sends us away, where they are not the usual `error`.
    """

    setting: str
    name: str
    error: type[TipbenchError]
    absent: type[TipbenchError] | None = None
    refused: type[TipbenchError] | None = None
    if_absent: str = ""
    if_slow: str = ""
    if_broken: str = ""

    @property
    def server(self) -> str:
        return f"{self.name} server".lstrip()


class WebClient:
    """Asks the server at `url`, an address in normal form. Safe to use from several threads."""

    def __init__(
        self,
        url: str,
        failures: WebFailures,
        *,
        headers: Mapping[str, str] | None = None,
        connect_seconds: float = CONNECT_SECONDS,
        keeps_alive: bool = True,
    ) -> None:
        self.url = url
        self._failures = failures
        self._connect_seconds = connect_seconds
        headers = {"Accept": "application/json", **(headers or {})}
        self._secret = headers.get("Authorization", "").rpartition(" ")[2]
        transport = httpx2.HTTPTransport(
            limits=httpx2.Limits(max_keepalive_connections=20 if keeps_alive else 0),
            # Loading certificates takes longer than most calls; plain HTTP has no use for them.
            verify=url.startswith("https:"),
            trust_env=False,
        )
        self._deadline = _use_deadlines(transport)
        self._client = httpx2.Client(
            headers=headers, follow_redirects=False, transport=transport, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._client.close()

    def send(
        self,
        method: str,
        path: str,
        body: Body | bytes | None = None,
        *,
        seconds: float,
        headers: Mapping[str, str] | None = None,
        most_bytes: int = MOST_BYTES,
    ) -> httpx2.Response:
        """The server's answer, good or bad, complete within so many seconds.

        A `body` that is not bytes is sent as JSON.

        Raises:
            TipbenchError: there is no answer, or too much of one, or a redirect; as the failures of this
                client say it.
        """
        content, json = (body, None) if isinstance(body, bytes) else (None, body)
        timeout = httpx2.Timeout(seconds, connect=min(seconds, self._connect_seconds))
        what = f"{method} {path.partition('?')[0]}".strip()
        self._deadline.at = time.monotonic() + seconds
        try:
            with self._client.stream(
                method, self.url + path, json=json, content=content, headers=headers, timeout=timeout
            ) as answer:
                response = self._read_whole(answer, what=what, most_bytes=most_bytes)
        except (httpx2.HTTPError, httpx2.InvalidURL) as error:
            raise self._explain(error, what=what, seconds=seconds) from error
        if response.is_redirect:
            failures = self._failures
            raise (failures.refused or failures.error)(
                f"{self.url} redirects to {self.words(redirect_target(response))}; "
                "redirects are not followed",
                hint=f"Set {failures.setting} to the address of the {failures.server} itself.",
            )
        return response

    def _read_whole(self, answer: httpx2.Response, *, what: str, most_bytes: int) -> httpx2.Response:
        """The answer with its body, which is read piece by piece: a server may send without end."""
        pieces: list[bytes] = []
        room = most_bytes
        for piece in answer.iter_bytes():
            pieces.append(piece)
            room -= len(piece)
            if room < 0:
                failures = self._failures
                raise (failures.refused or failures.error)(
                    f"the {failures.server} at {self.url} answered {what} with more than "
                    f"{most_bytes / 2**20:,.0f} MB: the rest was not read",
                    hint=f"Is {failures.setting} the address of the server that you mean?",
                )
        # As it was decoded: the new answer must not be taken for a compressed one.
        headers = [pair for pair in answer.headers.multi_items() if pair[0] not in ENCODED]
        whole = httpx2.Response(
            answer.status_code, headers=headers, content=b"".join(pieces), request=answer.request
        )
        whole.elapsed = answer.elapsed
        return whole

    def words(self, text: str) -> str:
        """A server's own words: one line, not long, and without our secret in case it repeats it."""
        return shorten(text.replace(self._secret, "[key]") if self._secret else text)

    def _explain(self, error: Exception, *, what: str, seconds: float) -> TipbenchError:
        failures = self._failures
        place = f"{failures.name} at {self.url}" if failures.name else self.url
        match error:
            case httpx2.InvalidURL() | httpx2.UnsupportedProtocol():
                return UsageError(f"{failures.setting} is not the address of a server: {error}")
            case httpx2.ConnectError() | httpx2.ConnectTimeout():
                # "Connection refused" says no more than that nobody is there; a name that is unknown does.
                why = "" if "refused" in str(error) else f": {error}"
                kind = failures.absent or failures.error
                return kind(f"no {failures.server} at {self.url}{why}", hint=failures.if_absent)
            case httpx2.TimeoutException():
                text = f"{place} did not answer {what} within {seconds:g} s"
                return failures.error(text, hint=failures.if_slow)
            case _:
                text = f"the connection to {place} broke during {what}: {type(error).__name__}"
                return failures.error(text, hint=failures.if_broken)


# A time-out of the library is one of each piece that is read: who sends a byte now and then is never late.
# So every read is given what is left until the deadline of its answer.


ENCODED = ("content-encoding", "content-length", "transfer-encoding")


class _Deadline(threading.local):
    """When the answer that this thread waits for has to be complete."""

    at: float = 0.0

    def shorten(self, seconds: float | None) -> float:
        left = max(self.at - time.monotonic(), 0.001)
        return left if seconds is None else min(seconds, left)


class _TimedStream:
    """A connection of the library. TLS is begun by the library's own means, within the connection's time."""

    def __init__(self, stream: Any, deadline: _Deadline) -> None:
        self._stream = stream
        self._deadline = deadline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        return self._stream.read(max_bytes, timeout=self._deadline.shorten(timeout))

    def write(self, buffer: bytes, timeout: float | None = None) -> None:
        self._stream.write(buffer, timeout=self._deadline.shorten(timeout))

    def start_tls(self, *given: Any, **named: Any) -> "_TimedStream":
        return _TimedStream(self._stream.start_tls(*given, **named), self._deadline)


class _TimedNetwork:
    """What the library opens connections with."""

    def __init__(self, network: Any, deadline: _Deadline) -> None:
        self._network = network
        self._deadline = deadline

    def __getattr__(self, name: str) -> Any:
        return getattr(self._network, name)

    def connect_tcp(self, *given: Any, **named: Any) -> _TimedStream:
        return _TimedStream(self._network.connect_tcp(*given, **named), self._deadline)


def _use_deadlines(transport: httpx2.HTTPTransport) -> _Deadline:
    """Makes the transport's connections obey a deadline. The library has no public way to say so."""
    deadline = _Deadline()
    pool: Any = transport._pool  # pyright: ignore[reportPrivateUsage]
    pool._network_backend = _TimedNetwork(pool._network_backend, deadline)
    return deadline


def read_reply(response: httpx2.Response, reply: type[R]) -> R | None:
    """What was answered; None if it is anything else."""
    try:
        return reply.model_validate_json(response.content)
    except ValidationError:
        return None


def redirect_target(response: httpx2.Response) -> str:
    """Where a redirect leads, without what may be secret in it."""
    try:
        target = urlsplit(response.headers.get("location", ""))
        return f"{target.scheme}://{target.hostname}{target.path}" if target.hostname else repr(target.path)
    except ValueError:
        return "no address"


def shorten(text: str) -> str:
    """Words on one line, at most 300 characters."""
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else line[: MAX_MESSAGE - 1] + "…"
