"""The judging desk in a real Chromium: what is scored was seen, by touch, by keys, by screen reader."""

from collections.abc import Iterator
from uuid import uuid4

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from tests.admin.browser import Server, visit
from tests.admin.making import collect_builtin, collect_small
from tests.admin.walking import LOOK, press_one_item, press_scores, shoot
from tests.support.copying import own_server
from tests.support.waiting import eventually
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

pytestmark = [pytest.mark.timeout(900)]

PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
MEANING = "one of the open tasks, but the moment and the person play no part, or a small detail is off"
IN_SIGHT = """(tip) => {
  const box = tip.getBoundingClientRect(), line = parseFloat(getComputedStyle(tip).lineHeight);
  const top = document.elementFromPoint(box.left + 5, box.top + line / 2);
  const end = document.elementFromPoint(box.left + 5, Math.min(box.bottom, box.top + 3 * line) - line / 2);
  return top === tip && end === tip;
}"""


@pytest.fixture
def bench(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """An experiment of 3 models × 2 prompts × 2 scenarios, of which nothing is judged."""
    home, name = tmp_path_factory.mktemp("bench"), f"desk/{uuid4().hex[:8]}"
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        collect_small(tracking, name)
    yield name
    own_server().delete_experiment(name)


@pytest.fixture
def anchored(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """One arm on two scenarios of the built-in pack, which has anchors to spare."""
    home, name = tmp_path_factory.mktemp("anchored"), f"desk/{uuid4().hex[:8]}"
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        collect_builtin(tracking, name)
    yield name
    own_server().delete_experiment(name)


def tap(page: Page, target: Locator) -> None:
    """Touches what is on the screen where it is; a script that scrolled would hide the fault."""
    box = target.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    assert 0 <= x <= 360, "beside the screen"
    assert 0 <= y <= 740, f"{target} is at {y}, outside the screen"
    assert target.evaluate("(all, [x, y]) => all.contains(document.elementFromPoint(x, y))", [x, y]), (
        "covered"
    )
    page.touchscreen.tap(x, y)


def tab_to(page: Page, target: Locator) -> None:
    """Goes on with the Tab key until it has the focus."""
    for _ in range(60):
        if target.evaluate("(all) => all === document.activeElement"):
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"no way to {target} by Tab")


def test_on_a_phone_every_tip_is_in_sight_while_it_is_scored_and_the_last_tap_saves(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "kim", **PHONE) as visitor:
        page = visitor.page
        # Two more than 15 tips need: how many texts are equal hangs on the draw.
        visitor.judge(bench, blocks=7)
        expect(page.get_by_test_id("tip")).to_be_visible()
        seen = 0
        while page.get_by_test_id("tip").count():
            tip = page.get_by_test_id("tip")
            assert tip.evaluate(IN_SIGHT), f"tip {seen + 1} is out of sight"
            before = page.get_by_test_id("progress").inner_text()
            if seen in (0, 1):
                shoot(page, f"desk-phone-{seen}", whole=False)
            expect(page.locator("form[data-fresh]")).to_have_count(0)
            for scale in page.locator("fieldset[data-scale]").all():
                assert tip.evaluate(IN_SIGHT), f"tip {seen + 1} is out of sight at {scale}"
                tap(page, scale.locator("label.score").nth(2))
            expect(page.get_by_test_id("progress")).not_to_have_text(before)
            seen += 1
        assert seen >= 15
        expect(page.get_by_test_id("done")).to_be_focused()


def test_the_situation_is_folded_to_two_lines_on_a_phone_and_opens(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "kim", **PHONE) as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        scenario = page.locator("#scenario")
        lines = "(all) => all.getBoundingClientRect().height / parseFloat(getComputedStyle(all).lineHeight)"
        assert scenario.evaluate(lines) <= 2.01
        page.get_by_role("button", name="Show all").tap()
        expect(page.get_by_role("button", name="Fold")).to_have_attribute("aria-expanded", "true")
        assert scenario.evaluate(lines) > 2.01


def test_the_rubric_is_read_as_a_text_and_stays_as_it_was_left_from_tip_to_tip(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "jo", viewport={"width": 1280, "height": 900}) as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        rubric = page.get_by_role("region", name="Rubric")
        expect(rubric.get_by_role("cell", name="one of the open tasks, and it fits").first).to_be_visible()
        assert "| 5 |" not in rubric.inner_text()
        assert "**" not in rubric.inner_text()
        rubric.evaluate("(text) => { text.scrollTop = 300; }")
        shoot(page, "desk-1280-light")
        press_one_item(page)
        expect(rubric).to_be_visible()
        assert rubric.evaluate("(text) => text.scrollTop") == 300
        page.locator("summary", has_text="Rubric").click()
        press_one_item(page)
        expect(rubric).to_be_hidden()


def test_the_sentence_of_a_point_is_shown_under_pointer_and_focus_without_a_script_too(
    browser: Browser, server: Server, bench: str
) -> None:
    for scripts in (True, False):
        with visit(browser, server, "jo", java_script_enabled=scripts) as visitor:
            page = visitor.page
            visitor.judge(bench)
            expect(page.get_by_test_id("tip")).to_be_visible()
            relevance = page.locator("fieldset[data-scale=relevance]")
            sentence = relevance.get_by_text(MEANING)
            expect(sentence).to_be_hidden()
            relevance.locator("label.score").nth(3).hover()
            expect(sentence).to_be_visible()
            page.mouse.move(0, 0)
            expect(sentence).to_be_hidden()
            relevance.get_by_role("radio", name="4").focus()
            expect(sentence).to_be_visible()
            expect(relevance.get_by_role("radio", name="4")).to_have_accessible_description(f"4: {MEANING}")


def test_focus_and_live_region_carry_the_next_tip(browser: Browser, server: Server, bench: str) -> None:
    with visit(browser, server, "jo") as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        press_one_item(page)
        tip = page.get_by_test_id("tip")
        expect(tip).to_be_focused()
        expect(tip).to_have_attribute("dir", "auto")
        expect(page.locator("#live")).to_contain_text(tip.inner_text())
        page.keyboard.press("Tab")
        expect(page.get_by_role("radio").first).to_be_focused()


def test_single_keys_can_be_switched_off_and_stay_off(browser: Browser, server: Server, bench: str) -> None:
    with visit(browser, server, "jo") as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        switch = page.get_by_label("Single keys")
        switch.uncheck()
        page.keyboard.press("4")
        expect(page.locator("fieldset[data-scale] :checked")).to_have_count(0)
        page.reload()
        expect(switch).not_to_be_checked()
        page.keyboard.press("4")
        expect(page.locator("fieldset[data-scale] :checked")).to_have_count(0)
        switch.check()
        page.keyboard.press("4")
        expect(page.locator("fieldset[data-scale] :checked")).to_have_count(1)


def test_the_chosen_score_is_seen_with_forced_colours(browser: Browser, server: Server, bench: str) -> None:
    with visit(browser, server, "jo", forced_colors="active", reduced_motion="reduce") as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        page.keyboard.press("4")
        colour = "(mark) => getComputedStyle(mark).backgroundColor"
        marks = page.locator("fieldset[data-scale] label.score span").all()
        shown = [mark.evaluate(colour) for mark in marks[:5]]
        assert shown.count(shown[3]) == 1, shown
        shoot(page, "desk-forced-colours")


def test_arrow_keys_choose_a_score_without_saving_and_a_click_on_the_last_one_saves(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "jo") as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        before = page.get_by_test_id("progress").inner_text()
        scales = page.locator("fieldset[data-scale]")
        for place in range(3):
            scales.nth(place).get_by_role("radio", name="2").focus()
            page.keyboard.press("ArrowRight")
        expect(scales.locator(":checked")).to_have_count(3)
        expect(page.get_by_test_id("progress")).to_have_text(before)
        scales.nth(2).locator("label.score").nth(4).click()
        expect(page.get_by_test_id("progress")).not_to_have_text(before)


START = """
- main:
  - heading "Judge blind" [level=1]
  - heading "Rules" [level=2]
  - list
  - button "Begin"
  - link "Other experiments"
"""
TIP = """
- main:
  - heading /Blind judging/ [level=1]
  - progressbar "Judged so far"
  - article:
    - heading "Scenario" [level=2]
    - heading "Tip" [level=2]
    - paragraph
  - region "Scores":
    - group "Relevance":
      - radio "1"
      - radio "5"
    - group "Actionability"
    - group "Tone"
    - group /Automatic checks/
    - textbox "Comment"
    - paragraph:
      - button "Save"
  - link "Pause"
  - group:
    - region "Rubric"
"""
DONE = """
- main:
  - heading "Every tip is judged." [level=2]
  - paragraph:
    - button "Close the sitting"
"""
CLOSED = """
- main:
  - heading "Thank you." [level=1]
  - paragraph: "The sitting is closed: accepted."
  - paragraph: Your scores count.
  - paragraph:
    - link "Judge more"
"""


def test_a_whole_sitting_needs_only_keys_and_every_step_is_read_out_as_it_is(
    browser: Browser, server: Server, bench: str
) -> None:
    """From the list to the end without a mouse; the accessibility tree is looked at on the way."""
    with visit(browser, server, "kim") as visitor:
        page, main = visitor.page, visitor.page.get_by_role("main")
        visitor.go("/judging")
        tab_to(page, page.get_by_role("link", name=f"Short round of {bench}"))
        page.keyboard.press("Enter")
        expect(main).to_match_aria_snapshot(START)
        tab_to(page, page.get_by_role("button", name="Begin"))
        page.keyboard.press("Enter")
        expect(main).to_match_aria_snapshot(TIP)
        press_one_item(page)
        expect(page.get_by_test_id("tip")).to_be_focused()
        page.keyboard.press("u")
        expect(page.locator("fieldset[data-scale] :checked")).to_have_count(3)
        press_scores(page)  # judged before: the digits start it over
        expect(page.locator("form[data-again]")).to_have_count(0)
        while page.get_by_test_id("tip").count():
            expect(main).to_match_aria_snapshot(TIP)
            tip, told = page.get_by_test_id("tip"), page.get_by_role("status").first
            expect(tip).to_be_focused()
            expect(told).to_contain_text(tip.inner_text())
            press_one_item(page)
        expect(main).to_match_aria_snapshot(DONE)
        expect(page.get_by_test_id("done")).to_be_focused()
        page.keyboard.press("Enter")
        expect(main).to_match_aria_snapshot(CLOSED)


def test_the_start_says_what_a_sitting_is_and_looking_opens_none(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "jo") as visitor:
        page = visitor.page
        visitor.go("/judging")
        page.get_by_role("link", name=f"Judge {bench}", exact=True).click()
        start = page.get_by_test_id("start")
        expect(start).to_contain_text(bench)
        expect(start).to_contain_text("up to 46 tips, about 12 minutes")
        expect(start).to_contain_text("30 minutes after your last score")
        expect(page.locator(".rubric")).to_be_visible()
        visitor.go("/judging")
        expect(page.get_by_test_id("mine")).to_have_count(0)


def test_practice_shows_the_known_scores_only_after_ones_own(
    browser: Browser, server: Server, anchored: str
) -> None:
    with visit(browser, server, "jo") as visitor:
        page = visitor.page
        visitor.go("/judge/", anchored)
        page.get_by_role("button", name="Practise on 3 tips first").click()
        for place in range(3):
            expect(page.get_by_test_id("reference")).to_have_count(0)
            page.get_by_role("button", name="Compare").click()
            expect(page.get_by_test_id("reference")).to_have_count(0)
            for scale in page.locator("fieldset[data-scale]").all():
                scale.locator("label.score").nth(2).click()
            page.get_by_role("button", name="Compare").click()
            expect(page.get_by_test_id("reference")).to_contain_text("Why:")
            page.set_viewport_size({"width": 360, "height": 740})
            assert page.evaluate(LOOK) == []
            page.set_viewport_size({"width": 1280, "height": 900})
            page.get_by_role("link", name="Next practice tip" if place < 2 else "To the sitting").click()
        expect(page.get_by_role("link", name="Practise again")).to_be_visible()


def test_a_pause_keeps_the_place_and_judging_shows_what_is_open(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "kim") as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        press_one_item(page)
        page.get_by_role("link", name="Pause").click()
        expect(page.get_by_test_id("mine")).to_contain_text("1 of ")
        page.get_by_role("link", name=f"Go on with {bench}").click()
        expect(page.get_by_test_id("progress")).to_contain_text("1 of ")
        page.get_by_text("Discard…").click()
        page.get_by_role("button", name="End the sitting and discard the rest").click()
        expect(page.get_by_test_id("closed")).to_contain_text("You stopped before a full round")

        def is_mine_no_more() -> bool:
            visitor.go("/judging")
            return page.get_by_test_id("mine").count() == 0

        # Who holds items is believed for a second.
        eventually(is_mine_no_more, "the discarded sitting is gone")


def test_a_refused_sitting_says_what_was_off_and_who_can_accept_it(
    browser: Browser, server: Server, bench: str
) -> None:
    with visit(browser, server, "kim") as visitor:
        page = visitor.page
        visitor.judge(bench)
        expect(page.get_by_test_id("tip")).to_be_visible()
        while page.get_by_test_id("tip").count():
            before = page.get_by_test_id("progress").inner_text()
            for scale in page.locator("fieldset[data-scale]").all():
                scale.locator("label.score").nth(0).click()
            expect(page.get_by_test_id("progress")).not_to_have_text(before)
        page.get_by_role("button", name="Close the sitting").click()
        expect(page.get_by_test_id("outcome")).to_have_text("refused")
        expect(page.get_by_test_id("off")).to_contain_text("mean difference -")
        expect(page.get_by_test_id("closed")).to_contain_text("An admin can accept them")
        expect(page.get_by_test_id("closed")).to_contain_text("ada")
        shoot(page, "refused-1280-light")
