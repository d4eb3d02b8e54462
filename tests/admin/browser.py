"""A real server and a real Chromium for the tests of the panel."""

import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, urlsplit

import httpx2
import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from tests.admin.making import PASSWORD
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.admin.deps import make_parts
from tipbench.admin.users import Role
from tipbench.clock import make_stamps
from tipbench.settings import Settings

FLAGS = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
expect.set_options(timeout=PATIENCE_SECONDS * 1000)
PEOPLE: dict[str, Role] = {"ada": "admin", "jo": "judge", "kim": "judge", "vi": "viewer"}


def find_chromium() -> str:
    """Where a Chromium is; without one the test is skipped."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium here: apt-get install chromium")


@dataclass
class Server:
    """`tipbench serve` as a process, which can be killed and started again."""

    settings: Settings
    port: int
    workers: int
    environ: dict[str, str] = field(default_factory=dict[str, str])
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start(self) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tipbench", "serve", f"--port={self.port}", f"--workers={self.workers}"],
            env=os.environ
            | {"TIPBENCH_HOME": str(self.settings.home), "MLFLOW_TRACKING_URI": str(self.settings.mlflow_url)}
            | self.environ,
            cwd=self.settings.home,
            stdout=subprocess.DEVNULL,
            start_new_session=True,
        )
        eventually(self._answers, "the server answers", every=0.1)

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, "the server ended"
        try:
            return httpx2.get(f"{self.url}/sign-in", timeout=PATIENCE_SECONDS).status_code == 200
        except httpx2.HTTPError:
            return False

    def kill(self) -> None:
        """As a crash would: at once, with all its workers."""
        assert self.process is not None
        os.killpg(self.process.pid, 9)
        self.process.wait(PATIENCE_SECONDS)


@contextmanager
def run_server(
    home: Path, mlflow_url: str, *, workers: int = 1, environ: dict[str, str] | None = None
) -> Generator[Server]:
    """A server with one user of each role, and a second judge."""
    settings = Settings(home=home, mlflow_url=mlflow_url)
    home.mkdir(parents=True, exist_ok=True)
    parts = make_parts(settings, make_stamps())
    if not parts.accounts.list_users():
        for name, role in PEOPLE.items():
            parts.accounts.create(name, role, PASSWORD, by="test")
    parts.close()
    server = Server(settings, free_port(), workers, environ or {})
    server.start()
    try:
        yield server
    finally:
        server.kill()


@dataclass
class Visitor:
    """Somebody with a browser, who notes what must not happen."""

    page: Page
    server: Server
    violations: list[str] = field(default_factory=list[str])
    strangers: list[str] = field(default_factory=list[str])

    def go(self, place: str, name: str = "") -> None:
        self.page.goto(f"{self.server.url}{place}{quote(name, safe='')}")

    def judge(self, name: str, *, blocks: int = 1) -> None:
        """To the desk: the open sitting, or a short new one.

        A click does not wait for the page it leads to, nor do `count`, `all` and `evaluate`: so this does.
        """
        self.page.goto(f"{self.server.url}/judge/{quote(name, safe='')}?blocks={blocks}")
        begin = self.page.get_by_role("button", name="Begin")
        if begin.count():
            begin.click()
        expect(self.page.get_by_test_id("progress")).to_be_visible()

    def sign_in(self, name: str) -> None:
        self.go("/sign-in")
        self.page.get_by_label("Name").fill(name)
        self.page.get_by_label("Password").fill(PASSWORD)
        self.page.get_by_role("button", name="Sign in").click()
        self.page.wait_for_url(f"{self.server.url}/")


@contextmanager
def visit(browser: Browser, server: Server, name: str, **options: object) -> Generator[Visitor]:
    """A visitor who is signed in; violations of the policy and requests to elsewhere fail the test."""
    context: BrowserContext = browser.new_context(**options)  # pyright: ignore[reportArgumentType]
    page = context.new_page()
    page.set_default_timeout(PATIENCE_SECONDS * 1000)
    visitor = Visitor(page, server)
    page.on(
        "console",
        lambda said: visitor.violations.append(said.text) if "Content Security Policy" in said.text else None,
    )
    page.on("pageerror", lambda error: visitor.violations.append(str(error)))
    page.on(
        "request",
        lambda asked: (
            visitor.strangers.append(asked.url)
            if urlsplit(asked.url).scheme.startswith("http")
            and urlsplit(asked.url).netloc != urlsplit(server.url).netloc
            else None
        ),
    )
    if name:
        visitor.sign_in(name)
    yield visitor
    context.close()
    assert visitor.violations == []
    assert visitor.strangers == []
