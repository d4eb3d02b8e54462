"""Ports for servers that must be told one; whoever can bind to 0 and say where it listens, should."""

import os
import socket
from pathlib import Path


def free_port() -> int:
    """A port on the loopback that nobody listens on, from outside the range that outgoing connections take.

    The kernel gives connections and port 0 a port of its ephemeral range: a port found there may be gone
    before the server binds it. Below that range only another server can take it.
    """
    lowest, highest = 15_000, _ephemeral_start() - 1
    for _ in range(1000):
        port = lowest + int.from_bytes(os.urandom(4)) % (highest - lowest)
        with socket.socket() as probe:
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return port
    raise AssertionError(f"no free port between {lowest} and {highest}")


def _ephemeral_start() -> int:
    try:
        return int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except OSError:
        return 32_768
