"""The panel in a real Chromium, on a real server and a real MLflow."""

import re
from random import Random
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, expect

from tests.admin.browser import Server, visit
from tests.admin.making import collect_builtin, collect_small, make_foreign
from tests.admin.walking import (
    LOOK,
    Others,
    Walk,
    finish,
    list_pages,
    press_one_item,
    press_scores,
    shoot,
    walk_everywhere,
)
from tests.ranking.campaign import judge_lazily, open_judging, skilled_engine
from tests.support.copying import own_server
from tipbench.admin.deps import make_parts
from tipbench.clock import make_stamps
from tipbench.jobs.records import Step
from tipbench.jobs.store import NewJob
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

HOSTILE = (
    '<script>document.title="owned"</script>',
    "<img src=x onerror='document.title=\"owned\"'>",
    "{{ 7*7 }} \u202eevil\u202c \x1b[31m",
)

pytestmark = [pytest.mark.timeout(900)]


@pytest.fixture(scope="module")
def bench(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An experiment of 3 models × 2 prompts × 2 scenarios, partly judged, with hostile texts in it."""
    home = tmp_path_factory.mktemp("bench")
    name = f"panel/{uuid4().hex[:8]}"

    def write(prompt: str, rng: Random) -> str:
        return "\n".join(f"{n}. Tip {rng.randint(100, 999)} {HOSTILE[n % 3]}" for n in range(1, 4))

    engine = skilled_engine({"llama3.2:1b": 0.9, "qwen2.5:0.5b": 0.3, "<b>bold</b>": 0.5}, write=write)
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        collect_small(tracking, name, engine=engine)
        judge_lazily(open_judging(tracking, home), name, folder=home, blocks=2)
    return name


@pytest.fixture(scope="module")
def others(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Others:
    """An experiment without a cell, one of another program, and one that is judged."""
    home, part = tmp_path_factory.mktemp("others"), uuid4().hex[:8]
    found = Others(
        empty=f"panel/{part}-empty",
        foreign=f"tip-bench-{part}",
        judged=f"panel/{part}-judged",
        unjudged=f"panel/{part}-unjudged",
    )
    make_foreign(mlflow_url, found.foreign)
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        tracking.ensure_experiment(found.empty)
        collect_small(tracking, found.judged, scenarios=1)
        judge_lazily(open_judging(tracking, home), found.judged, folder=home)
        collect_builtin(tracking, found.unjudged)
    return found


def test_every_page_fits_and_is_accessible(
    browser: Browser, server: Server, bench: str, others: Others
) -> None:
    with visit(browser, server, "") as stranger:
        outside = Walk(stranger)
        stranger.go("/sign-in")
        outside.look("sign-in")
    with visit(browser, server, "ada") as visitor:
        walk = Walk(visitor)
        walk_everywhere(walk, bench, others)
    assert not outside.found + walk.found, "\n".join(outside.found + walk.found)
    assert outside.pages | walk.pages == list_pages()


def test_the_board_shows_arms_and_drills_down_to_texts_that_do_nothing(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "vi") as visitor:
        page = visitor.page
        page.get_by_label("Name contains").fill(bench)
        page.get_by_role("button", name="Find").click()
        page.get_by_role("link", name=bench, exact=True).click()
        expect(page.get_by_test_id("answer")).to_be_visible()
        page.get_by_label("Name contains").fill("QWEN")
        page.get_by_label("Sort by").select_option("name")
        page.get_by_role("button", name="Show").click()
        expect(page.get_by_text("2 of 6")).to_be_visible()
        rows = page.get_by_test_id("standings").locator("tbody").get_by_role("rowheader")
        assert rows.all_inner_texts() == sorted(rows.all_inner_texts())
        page.get_by_test_id("heat").get_by_role("link").last.click()
        expect(page.get_by_test_id("arm")).to_contain_text("qwen2.5:0.5b")
        page.get_by_test_id("cells").get_by_role("link").first.click()
        expect(page.get_by_test_id("candidate").nth(2)).to_contain_text("<script>")
        assert "owned" not in page.title()
        assert "\x1b" not in page.content()
        assert "\u202e" not in page.content()
        expect(page.get_by_role("button", name="Run collection")).to_have_count(0)


def test_two_keys_in_one_frame_store_one_score(browser: Browser, server: Server, bench: str) -> None:
    with visit(browser, server, "jo") as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        assert "llama3.2" not in page.content()
        page.evaluate(
            "() => { for (const key of ['4', '4']) "
            "document.body.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true})); }"
        )
        assert page.locator("fieldset[data-scale] :checked").count() == 1
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.keyboard.press("u")
        assert page.locator("fieldset[data-scale] :checked").count() == 0
        shoot(page, "judge-1280-light")


def test_a_judge_is_blind_undoes_and_is_refused_after_the_sign_out(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "jo") as visitor:
        page = visitor.page
        visitor.judge(bench)
        press_one_item(page)
        first = page.get_by_test_id("progress").inner_text()
        page.keyboard.press("u")
        expect(page.locator("fieldset[data-scale] :checked")).to_have_count(3)
        visitor.go("/e/", bench)
        expect(page.get_by_role("heading", name="You may not see this")).to_be_visible()
        visitor.judge(bench)
        expect(page.get_by_test_id("progress")).to_have_text(first)
        page.evaluate("() => fetch('/sign-out', {method: 'POST'})")
        press_scores(page)
        page.wait_for_url("**/sign-in")
        visitor.sign_in("jo")
        visitor.judge(bench)
        expect(page.get_by_test_id("progress")).to_have_text(first)


def test_two_judges_at_once_get_different_tips_and_the_server_may_go_away(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "jo") as one, visit(browser, server, "kim") as two:
        one.judge(bench)
        two.judge(bench)
        ids = [each.page.get_by_test_id("tip").get_attribute("data-id") for each in (one, two)]
        assert ids[0] != ids[1]
        press_one_item(two.page)
        before = one.page.get_by_test_id("progress").inner_text()
        server.kill()
        press_scores(one.page)
        expect(one.page.get_by_role("alert").first).to_contain_text("Not saved")
        server.start()
        one.page.get_by_role("button", name="Save").click()
        expect(one.page.get_by_test_id("progress")).not_to_have_text(before)
        expect(one.page.locator("#alert")).to_be_hidden()
        finish(one)


def test_the_form_says_what_is_wrong_beside_the_field_and_closes(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "ada") as visitor:
        page = visitor.page
        page.get_by_role("link", name="Run collection").click()
        dialog = page.get_by_role("dialog")
        dialog.get_by_label("Tips a cell").fill("99")
        dialog.get_by_text("More settings").click()
        dialog.get_by_label("Temperature").fill("warm")
        dialog.get_by_label("Other models").fill("{error.args} <b>")
        dialog.get_by_role("button", name="Start").click()
        expect(dialog.locator("#p-n_tips")).to_have_text("At most 50.")
        expect(dialog.locator("#p-temperature")).to_have_text("Give a number.")
        expect(dialog.get_by_label("Other models")).to_have_value("{error.args} <b>")
        dialog.get_by_label("Tips a cell").fill("3")
        dialog.get_by_label("Temperature").fill("0.5")
        dialog.get_by_role("button", name="Start").click()
        expect(dialog.locator("#p-models")).to_contain_text("{error.args} <b>")
        shoot(page, "form-errors-1280-light")
        dialog.get_by_role("button", name="Close").click()
        expect(dialog).to_be_hidden()


def test_the_first_run_needs_no_choice_says_what_it_makes_and_is_stopped_only_after_a_question(
    browser: Browser, server: Server
) -> None:
    """What is ticked can run here; the rest is made small, for the time it takes."""
    name = f"panel/{uuid4().hex[:8]}-first"
    with visit(browser, server, "ada") as visitor:
        page = visitor.page
        page.get_by_role("link", name="Run collection").click()
        form = page.get_by_role("dialog")
        expect(form.get_by_role("checkbox", name="smollm2")).to_be_checked()
        expect(form.get_by_test_id("models")).to_contain_text("fits here")
        expect(form.get_by_test_id("plan")).to_contain_text(
            "1 model × 3 prompts × 8 scenarios × 5 tips = 120"
        )
        form.get_by_label("Experiment").fill(name)
        form.get_by_role("checkbox", name="v2-mentor").uncheck()
        form.get_by_role("checkbox", name="v3-few-shot").uncheck()
        form.get_by_label("Scenarios at most").fill("1")
        expect(form.get_by_test_id("plan")).to_have_text(
            re.compile(r"1 scenario × 5 tips = 5 tips, about 1 min")
        )
        form.get_by_role("button", name="Start").click()
        page.wait_for_url("**/jobs/*")
        state, stop = page.get_by_test_id("state"), page.get_by_role("button", name="Stop it")
        expect(state).to_have_text(re.compile(r"waiting for \d scores?"), timeout=240_000)
        shoot(page, "job-waits-1280-light")
        expect(stop).to_be_hidden()
        page.get_by_text("Stop this job…").click()
        expect(stop).to_be_visible()
        stop.click()
        expect(state).to_have_text("stopped")
        expect(page.get_by_role("link", name="Change and start again")).to_be_visible()
    own_server().delete_experiment(name)


def test_a_step_that_failed_is_red_and_a_wide_log_scrolls_sideways(browser: Browser, server: Server) -> None:
    parts = make_parts(server.settings, make_stamps())
    steps = (Step(name="collect", arguments=("jobs", "log", "x" * 300)), Step(name="compare"))
    job = parts.jobs.add(NewJob("pipeline", "none", "ada", steps, make_stamps().new_id()))
    parts.close()
    with visit(browser, server, "ada") as visitor:
        page = visitor.page
        visitor.go("/jobs/", job.id)
        expect(page.get_by_test_id("state")).to_have_text("failed: collect", timeout=120_000)
        failed = page.get_by_test_id("steps").get_by_role("listitem").first
        expect(failed).to_have_text("collect: failed")
        expect(failed).to_have_css("color", "rgb(160, 35, 24)")
        log = page.get_by_test_id("log")
        assert log.evaluate("(text) => text.scrollWidth > text.clientWidth")
        assert page.evaluate(LOOK) == []
        shoot(page, "job-failed-1280-light")


def test_an_admin_closes_judging_with_a_reason_and_opens_it_again(
    browser: Browser, server: Server, others: Others
) -> None:
    with visit(browser, server, "ada") as visitor:
        page = visitor.page
        visitor.go("/judging")
        for row, word in (("What waits", "Close judging"), ("Experiments whose judging was closed", "Open")):
            line = page.get_by_role("table", name=row).get_by_role("row", name=others.unjudged)
            line.get_by_text(f"{word}{' again' if word == 'Open' else ''}…").click()
            line.get_by_label("Reason").fill("tried")
            line.get_by_role("button", name=word).click()
            expect(line).to_have_count(0)
        visitor.go("/audit")
        expect(page.get_by_text(f"opened judging of {others.unjudged} again: tried")).to_be_visible()


def test_pages_work_without_javascript(browser: Browser, server: Server, bench: str) -> None:
    with visit(browser, server, "kim", java_script_enabled=False) as visitor:
        page = visitor.page
        visitor.judge(bench)
        before = page.get_by_test_id("progress").inner_text()
        for scale in page.locator("fieldset[data-scale]").all():
            scale.locator("input[value='3']").check(force=True)
        page.get_by_role("button", name="Save").click()
        expect(page.get_by_test_id("progress")).not_to_have_text(before)


def test_an_admin_adds_somebody_and_makes_a_token_that_is_shown_once_and_not_made_again(
    browser: Browser, server: Server
) -> None:
    with visit(browser, server, "ada") as visitor:
        page = visitor.page
        visitor.go("/people")
        page.get_by_text("Add user").click()
        page.get_by_label("Name").fill("jo")
        page.get_by_label("Password, 10 characters at least").fill("a long enough one")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("alert")).to_contain_text("already")
        expect(page.get_by_label("Name")).to_have_value("jo")
        page.get_by_label("Name").fill("new.one")
        page.get_by_label("Password, 10 characters at least").fill("a long enough one")
        page.get_by_role("button", name="Add", exact=True).click()
        expect(page.get_by_role("rowheader", name="new.one")).to_be_visible()
        page.get_by_text("New password for new.one").click()
        page.get_by_label("New password of new.one").fill("another long one")
        page.get_by_role("button", name="Set password").last.click()
        expect(page.get_by_test_id("told")).to_contain_text("The password is set")
        page.get_by_text("Make a token for a program of yours").click()
        page.get_by_label("What for").fill("shown once")
        page.get_by_role("button", name="Make", exact=True).click()
        secret = page.get_by_test_id("secret").inner_text()
        assert secret.startswith("tb_")
        page.reload()
        expect(page.get_by_role("cell", name="shown once")).to_have_count(1)
        assert secret not in page.content()
