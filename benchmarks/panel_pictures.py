"""The pictures of docs/admin.md, taken from `tipbench serve --demo`: what is shown is the recorded campaign.

usage: python -m benchmarks.panel_pictures FOLDER [docs/pictures]

FOLDER is a data folder; the demo is made in it, if it is not there yet. Needs Chromium. A judge at work is
shown only if something of the campaign waits for a judge.
"""

import argparse
import io
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import httpx2
from PIL import Image
from playwright.sync_api import Page, sync_playwright
from tests.admin.browser import FLAGS, find_chromium
from tests.support.ports import free_port

from tipbench.admin.demo import EXPERIMENT, TO_JUDGE, USER
from tipbench.policies.simulation.report import EXPERIMENT as SIMULATIONS

DESK, PHONE = (1280, 800), (360, 800)
HIGHEST, WIDE = {DESK: 1280, PHONE: 1100}, {DESK: 720, PHONE: 360}


@contextmanager
def run_demo(home: Path) -> Generator[tuple[str, str]]:
    """Where it answers, and the password."""
    port = free_port()
    command = [sys.executable, "-m", "tipbench", "serve", "--demo", f"--port={port}"]
    home.mkdir(parents=True, exist_ok=True)
    environ = os.environ | {"TIPBENCH_HOME": str(home.absolute())}
    process = subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    try:
        printed = ""
        while "Ctrl-C ends it" not in printed:
            line = process.stdout.readline()
            assert line, f"it ended: {printed}"
            printed += line
        url = f"http://127.0.0.1:{port}"
        while not _answers(url):
            time.sleep(0.2)
        yield url, re.findall(r"password (\S+)", printed)[0]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _answers(url: str) -> bool:
    with suppress(httpx2.HTTPError):
        return httpx2.get(f"{url}/sign-in").status_code == 200
    return False


@dataclass(frozen=True)
class Camera:
    """Takes pictures of the page as it is, light and dark."""

    page: Page
    url: str
    folder: Path

    def go(self, place: str) -> None:
        self.page.goto(f"{self.url}{place}")

    def shoot(self, name: str) -> None:
        for scheme in ("light", "dark"):
            self.page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
            self._save(f"{name}-{scheme}", DESK)

    def shoot_phone(self, name: str) -> None:
        self.page.emulate_media(color_scheme="light", reduced_motion="reduce")
        self._save(f"{name}-phone", PHONE)

    def _save(self, name: str, size: tuple[int, int]) -> None:
        self.page.set_viewport_size({"width": size[0], "height": size[1]})
        taken = Image.open(io.BytesIO(self.page.screenshot(full_page=True))).convert("RGB")
        cut = taken.crop((0, 0, taken.width, min(taken.height, HIGHEST[size])))
        wide = WIDE[size]
        shown = cut.resize((wide, round(cut.height * wide / cut.width)), Image.Resampling.LANCZOS)
        path = self.folder / f"{name}.webp"
        shown.save(path, quality=82, method=6)
        print(path, flush=True)


def take_all(camera: Camera, password: str) -> None:
    """Every page of docs/admin.md."""
    page = camera.page
    camera.go("/sign-in")
    camera.shoot("sign-in")
    page.get_by_label("Name").fill(USER)
    page.get_by_label("Password").fill(password)
    page.get_by_role("button", name="Sign in").click()
    places = {"experiments": "/", "board": f"/e/{EXPERIMENT}", "side": f"/side/{EXPERIMENT}",
              "judges": f"/judges/{EXPERIMENT}", "judging": "/judging", "run": "/run", "improve": "/improve",
              "simulate": "/simulate", "jobs": "/jobs", "people": "/people",
              "arm": f"/arm/{EXPERIMENT}", "report": f"/report/{EXPERIMENT}",
              "scenarios": f"/scenarios/{EXPERIMENT}", "champion": "/champion",
              "simulations": f"/simulations/{SIMULATIONS}"}  # fmt: skip
    for name, place in places.items():
        camera.go(place)
        camera.shoot(name)
    camera.go("/jobs")
    page.get_by_role("rowheader").get_by_role("link").first.click()
    camera.shoot("job")
    camera.go(f"/promotions/{EXPERIMENT}")
    page.get_by_role("button", name="Check", exact=True).click()
    page.get_by_test_id("gate").wait_for()
    camera.shoot("gate")
    camera.go(f"/e/{EXPERIMENT}")
    camera.shoot_phone("board")
    camera.go(f"/arm/{EXPERIMENT}")
    page.get_by_test_id("cells").get_by_role("link").first.click()
    camera.shoot("cell")
    _take_judging(camera)


def _take_judging(camera: Camera) -> None:
    page = camera.page
    camera.go("/judging")
    block = page.get_by_role("link", name=f"Short round of {TO_JUDGE}", exact=True)
    if not block.count():
        print("nothing waits for a judge: the pictures of judging stay as they are")
        return
    block.click()
    page.get_by_role("button", name="Begin").click()
    page.get_by_test_id("tip").wait_for()
    camera.shoot("judge")
    camera.shoot_phone("judge")
    page.get_by_text("Discard…").click()
    page.get_by_role("button", name="End the sitting and discard the rest").click()
    page.get_by_test_id("outcome").wait_for()
    camera.shoot("judged")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("home", type=Path)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("docs/pictures"))
    asked = parser.parse_args()
    asked.folder.mkdir(parents=True, exist_ok=True)
    with run_demo(asked.home) as (url, password), sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        take_all(Camera(chromium.new_page(), url, asked.folder), password)
        chromium.close()


if __name__ == "__main__":
    main()
