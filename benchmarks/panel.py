"""The panel: what its pages weigh, when they can be used, and a big leaderboard that many poll.

usage: python -m benchmarks.panel FOLDER [--clients 50] [--seconds 4] [--turns 5] [--workers 1] [--visits 5]
                                [--reading]

FOLDER is what benchmarks.big_experiment left. The leaderboard's figures stand beside those of a bare FastAPI
route in the same run, in short turns: whatever else the machine does, it does to both.
"""

import argparse
import asyncio
import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx2
from playwright.sync_api import sync_playwright
from tests.admin.browser import FLAGS, Server, Visitor, find_chromium, run_server, visit
from tests.admin.making import PASSWORD, collect_small
from tests.ranking.campaign import SKILL, judge_lazily, open_judging, skilled_engine
from tests.support.ports import free_port

from benchmarks.big_experiment import EXPERIMENT
from tipbench.admin.deps import make_parts
from tipbench.clock import make_stamps
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.tracking import open_managed_folder

BARE = """
import sys
from fastapi import FastAPI
import uvicorn
app = FastAPI()
@app.get("/")
def read() -> dict[str, bool]:
    return {"ok": True}
if __name__ == "__main__":
    port, workers = map(int, sys.argv[1:])
    uvicorn.run("bare:app", port=port, workers=workers, log_level="warning", access_log=False)
"""
READ = ("/e/", "/report/", "/scenarios/", "/arm/", "/side/")
"""Pages of the big experiment."""
READY = "() => document.documentElement.dataset.ready === '1'"
USABLE = """() => Math.max(
  performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd,
  ...performance.getEntriesByName("first-contentful-paint").map((entry) => entry.startTime))"""
NEXT = """() => new Promise((done) => {
  const begun = performance.now(), judge = document.getElementById("judge");
  new MutationObserver((_, seen) => { seen.disconnect(); done(performance.now() - begun); })
    .observe(judge, {childList: true});
  document.body.dispatchEvent(new KeyboardEvent("keydown", {key: "3", bubbles: true}));
})"""


@dataclass
class Asked:
    """One kind of request, and how long each answer took."""

    name: str
    port: int
    request: bytes
    seconds: list[float] = field(default_factory=list[float])
    statuses: set[int] = field(default_factory=set[int])
    size: int = 0


def make_request(path: str, *headers: str) -> bytes:
    return "\r\n".join((f"GET {path} HTTP/1.1", "Host: 127.0.0.1", *headers, "", "")).encode()


async def ask(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, request: bytes
) -> tuple[int, bytes, int]:
    """Status, head, and length of the body."""
    writer.write(request)
    head = await reader.readuntil(b"\r\n\r\n")
    lengths = [line for line in head.lower().split(b"\r\n") if line.startswith(b"content-length")]
    length = int(lengths[0].split(b":")[1]) if lengths else 0
    await reader.readexactly(length)
    return int(head[9:12]), head, length


async def poll(asked: Asked, *, clients: int, seconds: float) -> None:
    """So many clients ask again and again, each as soon as it has its answer."""
    end = time.perf_counter() + seconds

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", asked.port)
        while (begun := time.perf_counter()) < end:
            status, _, asked.size = await ask(reader, writer, asked.request)
            asked.seconds.append(time.perf_counter() - begun)
            asked.statuses.add(status)
        writer.close()

    await asyncio.gather(*(one() for _ in range(clients)))


async def read_mark(port: int, request: bytes) -> str:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    _, head, _ = await ask(reader, writer, request)
    writer.close()
    return next(
        line.partition(b":")[2].strip().decode()
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"etag")
    )


def measure_leaderboard(server: Server, options: argparse.Namespace) -> None:
    """Prints requests per second and delays, beside the bare route."""
    parts = make_parts(server.settings, make_stamps())
    _, token = parts.credentials.make_token("vi", label="benchmark", days=1, by="benchmark")
    parts.close()
    path, who = f"/api/bench/leaderboard/{EXPERIMENT}", f"Authorization: Bearer {token}"
    begun = time.perf_counter()
    mark = asyncio.run(read_mark(server.port, make_request(path, who)))
    print(f"first answer after {time.perf_counter() - begun:.1f} s", flush=True)
    with run_bare(server, options.workers) as port:
        everything = [
            Asked("bare FastAPI route", port, make_request("/")),
            Asked(
                "leaderboard, polled with its mark",
                server.port,
                make_request(path, who, f"If-None-Match: {mark}"),
            ),
            Asked("leaderboard, whole, gzip", server.port, make_request(path, who, "Accept-Encoding: gzip")),
            Asked("leaderboard, whole, plain", server.port, make_request(path, who)),
        ]
        for _ in range(options.turns):
            for asked in everything:
                asyncio.run(poll(asked, clients=options.clients, seconds=options.seconds))
    print_load(everything, seconds=options.turns * options.seconds)


def measure_reading(server: Server, options: argparse.Namespace) -> None:
    """Prints what pages of the big experiment weigh and take, one reader at a time, beside the bare route."""
    with httpx2.Client(base_url=server.url) as client:
        form = {"name": "vi", "password": PASSWORD}
        client.post("/sign-in", data=form, headers={"Sec-Fetch-Site": "same-origin"})
        cookie = f"Cookie: tipbench_session={client.cookies['tipbench_session']}"
        for place in READ:
            begun = time.perf_counter()
            answer = client.get(f"{place}{EXPERIMENT}", timeout=600)
            assert answer.status_code == 200, answer.text
            print(
                f"{place}: {len(answer.content)} bytes, first after {time.perf_counter() - begun:.1f} s",
                flush=True,
            )
    with run_bare(server, options.workers) as port:
        everything = [Asked("bare FastAPI route", port, make_request("/"))]
        everything += [
            Asked(
                f"page {place}, {how or 'plain'}",
                server.port,
                make_request(f"{place}{EXPERIMENT}", cookie, *more),
            )
            for place in READ
            for how, more in (("", ()), ("gzip", ("Accept-Encoding: gzip",)))
        ]
        for _ in range(options.turns):
            for asked in everything:
                asyncio.run(poll(asked, clients=1, seconds=options.seconds))
    print_load(everything, seconds=options.turns * options.seconds)


@contextmanager
def run_bare(server: Server, workers: int) -> Generator[int]:
    """A server with one route that does nothing, in a process of its own; its port."""
    folder = server.settings.home / "bare"
    folder.mkdir(exist_ok=True)
    (folder / "bare.py").write_text(BARE, encoding="utf-8")
    port = free_port()
    bare = subprocess.Popen([sys.executable, "bare.py", str(port), str(workers)], cwd=folder)
    try:
        wait_for(port)
        yield port
    finally:
        bare.terminate()
        bare.wait()


def wait_for(port: int) -> None:
    for _ in range(600):
        try:
            asyncio.run(asyncio.wait_for(asyncio.open_connection("127.0.0.1", port), 1))
        except OSError:
            time.sleep(0.1)
        else:
            return
    raise SystemExit("the bare server does not start")


def print_load(everything: Sequence[Asked], *, seconds: float) -> None:
    bare = everything[0]
    print("| asked | status | bytes | requests/s | p50 ms | p99 ms | of bare |")
    print("| --- " * 7 + "|")
    for asked in everything:
        cuts = statistics.quantiles(asked.seconds, n=100)
        share = len(asked.seconds) / len(bare.seconds)
        statuses = ", ".join(map(str, sorted(asked.statuses)))
        print(
            f"| {asked.name} | {statuses} | {asked.size} | {len(asked.seconds) / seconds:.0f} "
            f"| {1000 * cuts[49]:.0f} | {1000 * cuts[98]:.0f} | {share:.2f} |",
            flush=True,
        )


@dataclass(frozen=True)
class Visit:
    """One load of a page."""

    kib: float
    requests: int
    seconds: float


def load_page(visitor: Visitor, place: str, name: str, *, cold: bool) -> Visit:
    """Loads the page, with an empty cache if it is to be cold."""
    page = visitor.page
    wire = page.context.new_cdp_session(page)
    sizes: list[float] = []

    def note(event: dict[str, Any]) -> None:
        sizes.append(event["encodedDataLength"])

    wire.send("Network.enable")  # pyright: ignore[reportUnknownMemberType]
    wire.on("Network.loadingFinished", note)
    if cold:
        wire.send("Network.clearBrowserCache")  # pyright: ignore[reportUnknownMemberType]
    visitor.go(place, name)
    page.wait_for_function(READY)
    seconds = page.evaluate(USABLE) / 1000
    wire.detach()
    return Visit(sum(sizes) / 1024, len(sizes), seconds)


def measure_pages(server: Server, *, small: str, visits: int) -> None:
    """Prints weights and times of pages, and of a score that is given by a key."""
    print("| page | KiB cold | requests | usable cold s | KiB warm | usable warm s |")
    print("| --- " * 6 + "|")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        with visit(browser, server, "ada", viewport={"width": 1440, "height": 900}) as visitor:
            places = (
                ("experiments", "/", ""),
                ("board", "/e/", small),
                ("board, all cells", "/e/", EXPERIMENT),
                ("scenarios, all cells", "/scenarios/", EXPERIMENT),
                ("report", "/report/", small),
                ("an arm", "/arm/", small),
                ("judges", "/judges/", small),
                ("promotions", "/promotions/", small),
                ("jobs", "/jobs", ""),
                ("judge", "/judge/", small),
            )
            for title, place, name in places:
                cold = [load_page(visitor, place, name, cold=True) for _ in range(visits)]
                warm = [load_page(visitor, place, name, cold=False) for _ in range(visits)]
                print(
                    f"| {title} | {cold[0].kib:.1f} | {cold[0].requests} | {_middle(cold):.2f} "
                    f"| {warm[0].kib:.1f} | {_middle(warm):.2f} |",
                    flush=True,
                )
            visitor.judge(small)
            scored = [_score(visitor) for _ in range(visits)]
            print(f"\nkey press to next item: {1000 * statistics.median(scored):.0f} ms (stored in MLflow)")
        browser.close()


def _middle(visits: Sequence[Visit]) -> float:
    return statistics.median(each.seconds for each in visits)


def _score(visitor: Visitor) -> float:
    """Seconds from the last key of an item to the next one."""
    page = visitor.page
    for _ in range(page.locator("fieldset[data-scale]").count() - 1):
        page.keyboard.press("3")
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.evaluate(NEXT) / 1000


def make_small(mlflow_url: str, home: Path) -> str:
    """An experiment as small as those that the prototype was measured with."""
    name = f"tip-bench-panel-{uuid4().hex[:6]}"
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        collect_small(tracking, name, engine=skilled_engine(SKILL))
        judge_lazily(open_judging(tracking, home), name, folder=home, blocks=4)
    return name


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--clients", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=4, help="of one turn")
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--visits", type=int, default=5)
    parser.add_argument("--reading", action="store_true", help="only the pages of the big experiment")
    options = parser.parse_args()
    mlflow_url = open_managed_folder(options.folder).start().url
    home = options.folder / "panel"
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir()
    small = "" if options.reading else make_small(mlflow_url, home)
    print(f"load of the machine: {os.getloadavg()[0]:.1f}", flush=True)
    with run_server(home, mlflow_url, workers=options.workers) as server:
        measure_reading(server, options)
        if options.reading:
            return
        measure_leaderboard(server, options)
        measure_pages(server, small=small, visits=options.visits)


if __name__ == "__main__":
    main()
