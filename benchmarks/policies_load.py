"""Load on `tipbench policies serve`: files and Redis, shadow off and on, beside bare FastAPI.

    python -m benchmarks.policies_load [--turns 8] [--seconds 3] [--users 10000] [--rate 60]

Every figure is beside a bare endpoint of the same run on the same machine. The load comes from one process
with a few connections: flat out, and at a fixed rate below what the slowest server can do.
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.policies.killing import TIPS, TOKEN, Server, free_port
from tests.policies.stores import REDIS, RedisServer

CONNECTIONS = 8
BARE = """
import uvicorn
from fastapi import FastAPI
from tipbench.policies.serving.records import Scored, ScoreRequest
app = FastAPI()
@app.get("/health")
def health() -> dict[str, str]:
    return {}
@app.post("/score/egreedy/v1")
def score(request: ScoreRequest) -> Scored:
    return Scored(decision="0-a", policy="p", tip="t", kind="k", propensity=1.0, reward_at="/reward")
@app.post("/reward/egreedy/v1")
def reward(request: dict[str, object]) -> dict[str, object]:
    return request
import sys
uvicorn.run(app, port=int(sys.argv[1]), log_level="warning", access_log=False)
"""


@dataclass
class Times:
    """Seconds of each answer, by what was asked; from when it should have been sent."""

    score: list[float] = field(default_factory=list[float])
    reward: list[float] = field(default_factory=list[float])
    refused: int = 0


class Connection:
    """A connection of HTTP/1.1 with as little work as possible on our side."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def post(self, path: str, body: bytes) -> tuple[int, bytes]:
        head = (
            f"POST {path} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {TOKEN}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
        )
        self._writer.write(head.encode() + body)
        answer = await self._reader.readuntil(b"\r\n\r\n")
        length = next(
            int(line.split(b":")[1])
            for line in answer.split(b"\r\n")
            if line.lower().startswith(b"content-length")
        )
        return int(answer[9:12]), await self._reader.readexactly(length)

    def close(self) -> None:
        self._writer.close()


async def load(ports: Sequence[int], *, rate: float | None, seconds: float, users: int) -> Times:
    """Scores and rewards in turn; `rate` pairs per second over all connections, or as fast as they come."""
    times = Times()
    began = time.perf_counter()
    tasks = [
        _run(ports[n % len(ports)], n, times, began=began, rate=rate, seconds=seconds, users=users)
        for n in range(CONNECTIONS)
    ]
    await asyncio.gather(*tasks)
    return times


async def _run(
    port: int, number: int, times: Times, *, began: float, rate: float | None, seconds: float, users: int
) -> None:
    connection = Connection(*await asyncio.open_connection("127.0.0.1", port))
    generator = random.Random(number)
    due = began + (number / rate if rate else 0)
    while (now := time.perf_counter()) < began + seconds:
        if rate:
            await asyncio.sleep(max(0.0, due - now))
        else:
            due = now
        await _one_pair(connection, generator, times, due=due, user=f"user {generator.randrange(users)}")
        due += CONNECTIONS / rate if rate else 0
    connection.close()


async def _one_pair(
    connection: Connection, generator: random.Random, times: Times, *, due: float, user: str
) -> None:
    asked = {"user": user, "hour": generator.uniform(0, 23.9), "weekend": False, "tips": TIPS}
    status, answer = await connection.post("/score/egreedy/v1", json.dumps(asked).encode())
    scored = time.perf_counter()
    times.score.append(scored - due)
    if status != 200:
        times.refused += 1
        return
    decision = json.loads(answer)["decision"]
    reward = {"user": user, "decision": decision, "reward": float(generator.random() < 0.4)}
    status, _ = await connection.post("/reward/egreedy/v1", json.dumps(reward).encode())
    times.reward.append(time.perf_counter() - scored)
    times.refused += status != 200


@dataclass
class Contender:
    """Servers that answer together, and what was measured of them."""

    name: str
    ports: list[int]
    servers: list[Server] = field(default_factory=list[Server])
    memory: str = ""
    flat: Times = field(default_factory=Times)
    paced: Times = field(default_factory=Times)


def describe(name: str, times: Times, seconds: float, beside: Times) -> None:
    """One line of the table; ratios are to the same of the bare endpoint."""
    cells = [f"{_count(times) / seconds:6.0f}/s ({_count(times) / _count(beside):.2f})"]
    for kind in ("score", "reward"):
        (middle, high), (bare_middle, bare_high) = (_cuts(getattr(each, kind)) for each in (times, beside))
        ratios = f"{middle / bare_middle:.2f} / {high / bare_high:.2f}"
        cells.append(f"{kind} p50 / p99 {1000 * middle:6.1f} / {1000 * high:6.1f} ms ({ratios})")
    print(f"{name:38} " + "  ".join(cells) + f"  refused {times.refused}", flush=True)


def _count(times: Times) -> int:
    return len(times.score) + len(times.reward)


def _cuts(seconds: Sequence[float]) -> tuple[float, float]:
    cuts = statistics.quantiles(seconds, n=100)
    return cuts[49], cuts[98]


def resident_mb(servers: Sequence[Server]) -> float:
    total = 0
    for server in servers:
        assert server.process is not None
        pid = server.process.pid
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        for each in (pid, *children):
            text = Path(f"/proc/{each}/status").read_text()
            total += int(next(line.split()[1] for line in text.splitlines() if line.startswith("VmRSS")))
    return total / 1024


def fill(contender: Contender, users: int) -> None:
    """Every user has a state before anything is measured."""

    async def run() -> None:
        ports = contender.ports
        connections = [
            Connection(*await asyncio.open_connection("127.0.0.1", ports[n % len(ports)])) for n in range(32)
        ]

        async def some(place: int) -> None:
            generator = random.Random(place)
            for number in range(place, users, len(connections)):
                await _one_pair(connections[place], generator, Times(), due=0.0, user=f"user {number}")

        await asyncio.gather(*(some(place) for place in range(len(connections))))
        for connection in connections:
            connection.close()

    empty = resident_mb(contender.servers)
    asyncio.run(run())
    grown = 1024 * (resident_mb(contender.servers) - empty) / users
    contender.memory = f"{grown:.1f} KB per user in {len(contender.servers)} process(es)"


def open_contenders(folder: Path) -> tuple[list[Contender], list[RedisServer]]:
    """One process on files, two servers on Redis, and one of four processes; without and with the shadow."""
    contenders: list[Contender] = []
    stores: list[RedisServer] = []
    for name, options in (("shadow off", ()), ("shadow on", ("--shadows", "egreedy-v2-shadow"))):
        alone = [Server(folder / f"files {name}", options=options)]
        contenders.append(Contender(f"files, {name}", [alone[0].port], alone))
        if REDIS is not None:
            stores.append(RedisServer(folder / name.replace(" ", "-")))
            stores[-1].folder.mkdir()
            stores[-1].start()
            url = stores[-1].url
            two = [Server(folder / f"redis {n} {name}", store=url, options=options) for n in (1, 2)]
            contenders.append(Contender(f"two on Redis, {name}", [each.port for each in two], two))
            four = Server(folder / f"redis four {name}", store=url, options=(*options, "--workers", "4"))
            contenders.append(Contender(f"--workers 4 on Redis, {name}", [four.port], [four]))
    for contender in contenders:
        for server in contender.servers:
            server.start()
    return contenders, stores


def take_turns(contenders: Sequence[Contender], options: argparse.Namespace) -> None:
    """In short turns: whatever else the machine does, it does to all of them."""
    for _ in range(options.turns):
        for contender in contenders:
            for rate, times in ((None, contender.flat), (options.rate, contender.paced)):
                measured = asyncio.run(
                    load(contender.ports, rate=rate, seconds=options.seconds, users=options.users)
                )
                times.score += measured.score
                times.reward += measured.reward
                times.refused += measured.refused


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3, help="of one turn")
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--users", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=60, help="pairs of score and reward per second")
    options = parser.parse_args()
    port = free_port()
    bare = subprocess.Popen([sys.executable, "-c", BARE, str(port)], env=os.environ)
    with tempfile.TemporaryDirectory(prefix="tipbench-load-") as folder:
        contenders, stores = open_contenders(Path(folder))
        for contender in contenders:
            fill(contender, options.users)
            print(f"{contender.name}: {contender.memory}", flush=True)
        everybody = [Contender("bare FastAPI", [port]), *contenders]
        take_turns(everybody, options)
        seconds = options.turns * options.seconds
        for contender in everybody:
            describe(f"{contender.name}, flat out", contender.flat, seconds, everybody[0].flat)
            rate = f"{options.rate:g} pairs/s"
            describe(f"{contender.name}, {rate}", contender.paced, seconds, everybody[0].paced)
        for contender in contenders:
            for server in contender.servers:
                server.stop(signal.SIGTERM)
        for store in stores:
            print(f"Redis holds {store.used_mb() * 1024 / options.users:.1f} KB per user", flush=True)
            store.kill()
    bare.terminate()
    bare.wait()


if __name__ == "__main__":
    main()
