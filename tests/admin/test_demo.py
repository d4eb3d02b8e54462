"""`tipbench serve --demo` in a real Chromium: everything stands, and nothing of the user's is touched."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
import pytest
from fastapi.testclient import TestClient
from playwright.sync_api import Browser, Page, expect, sync_playwright

from tests.admin.browser import FLAGS, find_chromium
from tests.admin.walking import shoot
from tests.conftest import Cli
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.admin.app import make_app
from tipbench.admin.demo import EXPERIMENT, TO_JUDGE
from tipbench.admin.deps import make_parts
from tipbench.clock import make_stamps
from tipbench.settings import Settings
from tipbench.tracking.tracking import open_managed_folder


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield chromium
        chromium.close()


@dataclass(frozen=True)
class Demo:
    """A demo that runs: where, and how to get in."""

    url: str
    password: str
    process: subprocess.Popen[str]


@contextmanager
def run_demo(home: Path) -> Generator[Demo]:
    """The command as a user types it, in a folder with settings that must not reach it."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "tipbench", "serve", "--demo", f"--port={port}"],
        env=os.environ | {"TIPBENCH_HOME": str(home), "MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
        cwd=home,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    try:
        printed = ""
        while "Ctrl-C ends it" not in printed:
            line = process.stdout.readline()
            assert line, f"it ended: {printed}"
            printed += line
        (password,) = re.findall(r"password (\S+)", printed)
        assert "a recorded campaign: " in printed
        assert "judged blind by " in printed
        yield Demo(f"http://127.0.0.1:{port}", password, process)
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(PATIENCE_SECONDS)
        process.stdout.close()


def _answers(demo: Demo) -> bool:
    assert demo.process.poll() is None, "it ended"
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"{demo.url}/sign-in").status_code == 200
    return False


def sign_in(page: Page, demo: Demo) -> None:
    eventually(lambda: _answers(demo), "the demo answers")
    page.goto(f"{demo.url}/sign-in")
    page.get_by_label("Name").fill("demo")
    page.get_by_label("Password").fill(demo.password)
    page.get_by_role("button", name="Sign in").click()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_demo_is_ready_to_click_through_and_touches_nothing(browser: Browser, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "tipbench.toml").write_text('experiment = "mine"\nwebhook_urls = "http://127.0.0.1:9/mine"\n')
    page = browser.new_page(viewport={"width": 1280, "height": 900})
    with run_demo(home) as demo:
        sign_in(page, demo)
        expect(page.get_by_role("complementary", name="Demo")).to_contain_text("judged blind by")
        shoot(page, "demo-experiments")
        page.get_by_role("link", name=EXPERIMENT, exact=True).click()
        expect(page.get_by_test_id("standings")).to_contain_text("+v1")
        # Five of fifteen are tied, and nothing is left to judge: that is no dead end.
        expect(page.get_by_test_id("what-next").get_by_role("link", name="collect more")).to_be_visible()
        shoot(page, "demo-board")
        page.get_by_role("link", name="Judges", exact=True).click()
        expect(page.get_by_role("row", name=re.compile("accepted")).first).to_be_visible()
        page.get_by_role("link", name="Promotions", exact=True).click()
        page.get_by_role("button", name="Check", exact=True).click()
        expect(page.get_by_test_id("gate")).to_be_visible()
        shoot(page, "demo-gate")
        page.get_by_role("link", name="Judging", exact=True).click()
        expect(page.get_by_role("heading", name="Judging")).to_be_visible()
        waiting = page.get_by_role("row").filter(has_text=TO_JUDGE)
        expect(waiting.get_by_role("link", name=f"Judge {TO_JUDGE}", exact=True)).to_be_visible()
        shoot(page, "demo-judging")
        page.get_by_role("link", name="Jobs", exact=True).click()
        page.get_by_role("rowheader").get_by_role("link").first.click()
        expect(page.get_by_test_id("state")).to_have_text("finished", timeout=120_000)
        first = demo.password
    made = home / "serve-demo"
    assert {path.name for path in home.iterdir()} == {"tipbench.toml", "serve-demo", "serve-demo.lock"}
    assert not open_managed_folder(made).lives(), "its MLflow ended with it"
    began = time.monotonic()
    with run_demo(home) as demo:
        sign_in(page, demo)
        expect(page.get_by_role("link", name=EXPERIMENT, exact=True)).to_be_visible()
        assert demo.password != first
        print(f"the second start took {time.monotonic() - began:.0f} s")


@pytest.mark.parametrize("shows", ["", "a recorded campaign: 3 <models>; judged blind by somebody"])
def test_the_banner_says_what_a_demo_shows(settings: Settings, shows: str) -> None:
    app = make_app(make_parts(settings, make_stamps(), demo=shows), dispatch=False)
    with TestClient(app, base_url="http://localhost") as client:
        page = client.get("/sign-in").text
    assert ("Demo: a recorded campaign: 3 &lt;models&gt;; judged blind by somebody. Nothing" in page) == bool(
        shows
    )
    assert ('aria-label="Demo"' in page) == bool(shows)


def test_the_demo_stays_on_this_machine(cli: Cli) -> None:
    for more in (("--expose",), ("--mlflow-url", "http://127.0.0.1:9")):
        refused = cli("serve", "--demo", *more)
        assert (refused.code, "--demo" in refused.err) == (2, True)
