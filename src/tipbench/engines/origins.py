"""Where a server is: its address in one form, its origin, and whether that is this machine."""

import ipaddress
from dataclasses import replace
from urllib.parse import urlsplit

from tipbench.engines.machine_lock import MachineLock
from tipbench.errors import UsageError
from tipbench.records import content_hash

PORTS = {"http": 80, "https": 443}


def normalise_url(url: str, *, setting: str) -> str:
    """The address as scheme, host, port unless it is the usual one, and path.

    Raises:
        UsageError: it is no such address, or holds more; the value is not shown, it may hold a password.
    """
    try:
        parts = urlsplit(url.strip())
        port = parts.port
    except ValueError as error:
        raise UsageError(f"{setting} is broken: {error}") from error
    if parts.scheme not in PORTS or not parts.hostname:
        raise UsageError(f"{setting} is not an address such as http://localhost:8080")
    if parts.username is not None or parts.query or parts.fragment:
        raise UsageError(
            f"{setting} holds more than scheme, host, port and path",
            hint="Leave name, password and everything behind a question mark away: keys are set apart.",
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    shown_port = "" if port in {None, PORTS[parts.scheme]} else f":{port}"
    return f"{parts.scheme}://{host}{shown_port}{parts.path.rstrip('/')}"


def origin_of(url: str) -> str:
    """Scheme, host and port of a normalised address: who is spoken to."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"


def is_loopback(url: str) -> bool:
    """Whether the address leads to this machine and to nowhere else."""
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return False
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        address = address.ipv4_mapped
    # To connect to 0.0.0.0 is to connect to oneself.
    return address.is_loopback or address.is_unspecified


def lock_for_origin(machine: MachineLock, url: str) -> MachineLock:
    """The lock of a server whose weights are not in this machine's memory: one per origin."""
    mark = content_hash(origin_of(url))[:12]
    return replace(machine, path=machine.path.with_name(f"{machine.path.stem}-{mark}{machine.path.suffix}"))
