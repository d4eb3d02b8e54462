"""Stores for tests: every kind of them, opened and opened again."""

import resource
import shutil
import socket
import subprocess
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.waiting import eventually
from tipbench.policies.events import Decided, Rewarded, make_decision_id
from tipbench.policies.policy import list_policies
from tipbench.policies.stores.file import FileStore
from tipbench.policies.stores.store import MemoryStore, Store

REDIS = shutil.which("redis-server")


@dataclass
class RedisServer:
    """A real Redis server on a socket of its own, with every write on disk before it is acknowledged."""

    folder: Path
    appendfsync: str = "always"
    process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        return f"unix://{self.folder}/redis.sock"

    def start(self) -> None:
        assert REDIS is not None
        self.process = subprocess.Popen(
            [
                REDIS, "--port", "0", "--unixsocket", str(self.folder / "redis.sock"),
                "--dir", str(self.folder),
                "--appendonly", "yes", "--appendfsync", self.appendfsync, "--save", "",
                "--logfile", str(self.folder / "redis.log"),
            ]
        )  # fmt: skip
        eventually(self._answers, "Redis answers")

    def _answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as plug:
            try:
                plug.connect(str(self.folder / "redis.sock"))
                plug.sendall(b"PING\r\n")
                return plug.recv(10).startswith(b"+PONG")
            except OSError:
                return False

    def used_mb(self) -> float:
        with socket.socket(socket.AF_UNIX) as plug:
            plug.connect(str(self.folder / "redis.sock"))
            plug.sendall(b"INFO memory\r\n")
            text = plug.recv(100_000).decode()
        return int(text.split("used_memory:")[1].split()[0]) / 2**20

    def kill(self) -> None:
        assert self.process is not None
        self.process.kill()
        self.process.wait()


def run_redis(folder: Path) -> Iterator[RedisServer]:
    """The server, for a fixture; the test is skipped by name where there is no Redis."""
    if REDIS is None:
        pytest.skip("needs redis-server")
    server = RedisServer(folder)
    server.start()
    yield server
    server.kill()


Opening = Callable[[], Store]


def open_memory() -> Store:
    return MemoryStore()


def open_redis(server: RedisServer) -> Store:
    from tipbench.policies.stores.redis import RedisStore

    return RedisStore(server.url, policies=list_policies())


def open_files(folder: Path, **options: int) -> FileStore:
    return FileStore(folder, **options)


def decided(
    word: str,
    *,
    user: str = "ann",
    policy: str = "egreedy-v1",
    x: tuple[float, ...] = (1.0, 0.5),
    kind: str = "focus",
    epoch: int = 0,
    at_ms: int = 1_000,
) -> Decided:
    return Decided(
        at_ms=at_ms,
        user=user,
        policy=policy,
        epoch=epoch,
        id=make_decision_id(epoch, word),
        tip="t1",
        tip_kind=kind,
        x=x,
        propensity=0.5,
    )


def rewarded(decision: Decided, reward: float = 1.0, *, user: str = "", policy: str = "") -> Rewarded:
    return Rewarded(
        at_ms=2_000,
        user=user or decision.user,
        policy=policy or decision.policy,
        epoch=decision.epoch,
        decision=decision.id,
        reward=reward,
    )


@contextmanager
def no_file_above(size: int) -> Generator[None]:
    """A full disk: no file may grow beyond this size."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
