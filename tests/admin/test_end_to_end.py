"""The whole way in a browser, on a real model: a run from the form, auto judge, a sitting, a leaderboard."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect, sync_playwright

from tests.admin.browser import FLAGS, find_chromium, run_server, visit
from tests.admin.walking import finish, shoot
from tests.support.small_pack import PROMPT, write_small_pack

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3000)]


@pytest.fixture
def browser() -> Iterator[Browser]:
    with sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=find_chromium(), args=FLAGS)
        yield chromium
        chromium.close()


def test_a_run_from_the_form_ends_in_a_leaderboard(
    browser: Browser, mlflow_url: str, models_folder: Path, tmp_path: Path, experiment_name: str
) -> None:
    home = tmp_path / "home"
    home.mkdir()
    (home / "models").symlink_to(models_folder)
    pack = write_small_pack(tmp_path / "pack")
    other = PROMPT.replace("one short tip a line", "one tip a line, each with a verb first")
    (pack / "prompts" / "v2.md").write_text(other)
    settings = {"TIPBENCH_THREADS": "1", "TIPBENCH_JUDGE_MODEL": "smollm2", "TIPBENCH_PACK": str(pack)}
    with (
        run_server(home, mlflow_url, environ=settings) as server,
        visit(browser, server, "ada") as visitor,
        visit(browser, server, "jo") as judge,
    ):
        page = visitor.page
        page.get_by_role("link", name="Run collection").click()
        form = page.get_by_role("dialog")
        form.get_by_label("Experiment").fill(experiment_name)
        for name in ("smollm2", "v1", "v2"):
            form.get_by_role("checkbox", name=name, exact=name != "smollm2").first.check()
        form.get_by_label("Tips a cell").fill("2")
        form.get_by_role("button", name="Start").click()
        state = page.get_by_test_id("state")
        expect(state).to_have_text(re.compile("waiting for"), timeout=1_500_000)
        visitor.go("/e/", experiment_name)
        page.get_by_role("button", name="Start auto judge").click()
        expect(state).to_have_text("finished", timeout=600_000)
        shoot(page, "job-1280-light")
        # Not ada: who watches the board judges for agreement only.
        while True:
            judge.go("/judge/", experiment_name)
            if judge.page.get_by_role("heading", name="Nothing to judge").count():
                break
            judge.page.get_by_role("button", name="Begin").click()
            finish(judge)
        visitor.go("/jobs")
        page.get_by_role("link", name=re.compile("^run ")).click()
        expect(state).to_have_text("finished", timeout=300_000)
        expect(page.get_by_test_id("result")).to_contain_text("smollm2+v1")
        expect(page.get_by_test_id("log")).to_contain_text("Standings")
        page.get_by_role("link", name="To the leaderboard").click()
        expect(page.get_by_test_id("standings")).to_contain_text("smollm2+v1")
        shoot(page, "leaderboard-1280-light")
