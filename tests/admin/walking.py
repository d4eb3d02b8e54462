"""A walk over every page of the panel: each is looked at in three widths, light and dark."""

import os
import re
from dataclasses import dataclass, field
from importlib.resources import files
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.admin.browser import Visitor
from tests.admin.making import pack_name_of
from tests.support.sheets import REFERENCES
from tipbench.admin.panel import HERE
from tipbench.policies.simulation.report import EXPERIMENT as SIMULATIONS

AXE = (Path(str(files("axe_playwright_python"))) / "axe.min.js").read_text(encoding="utf-8")
SHOTS = os.environ.get("TIPBENCH_TEST_SHOTS", "")
WIDTHS = (360, 768, 1280)
LOOK = """() => {
  const found = [], width = document.documentElement.clientWidth;
  const over = document.documentElement.scrollWidth - width;
  if (over > 0) found.push(`scrolls sideways by ${over} px`);
  const unseen = (element) => {
    for (let each = element; each; each = each.parentElement) {
      if (getComputedStyle(each).clipPath.startsWith("inset") || each.matches(".skip")) return true;
    }
    return !element.checkVisibility();
  };
  for (const element of document.querySelectorAll("body *")) {
    if (element.closest("svg svg, svg *, .scroll-x *, select") || unseen(element)) continue;
    const box = element.getBoundingClientRect(), style = getComputedStyle(element);
    const text = element.textContent.trim();
    const name = `${element.tagName.toLowerCase()}.${element.className}: ${text.slice(0, 40)}`;
    if (!element.children.length && (box.right > width + 1 || box.left < -1)) found.push(`outside ${name}`);
    const hides = style.overflowX === "hidden" || style.overflowX === "clip";
    if (hides && text && element.scrollWidth > element.clientWidth + 1) found.push(`cut ${name}`);
  }
  return found;
}"""


def shoot(page: Page, name: str, *, whole: bool = True) -> None:
    """A picture of the page, or of what is on the screen of it, if pictures are wanted."""
    if SHOTS:
        page.screenshot(path=Path(SHOTS) / f"{name}.png", full_page=whole)


def list_pages() -> set[str]:
    """Every template that is a page."""
    return {path.stem for path in (HERE / "templates").glob("[a-z]*.html")} - {"base"}


@dataclass
class Walk:
    """What was found on the way, and which pages were seen."""

    visitor: Visitor
    found: list[str] = field(default_factory=list[str])
    pages: set[str] = field(default_factory=set[str])

    def go(self, name: str, place: str, experiment: str = "") -> None:
        """To a page by its address, and looks."""
        self.visitor.go(place, experiment)
        self.look(name)

    def look(self, name: str) -> None:
        """Nothing is cut, nothing scrolls sideways, and axe has nothing to say, light and dark."""
        page = self.visitor.page
        self.pages.add(page.locator("body").get_attribute("data-page") or "")
        page.emulate_media(color_scheme="light", reduced_motion="reduce")
        for width in WIDTHS:
            page.set_viewport_size({"width": width, "height": 900})
            self.found += [f"{name} at {width}: {problem}" for problem in page.evaluate(LOOK)]
            shoot(page, f"{name}-{width}-light")
        self.found += [f"{name}, light: {problem}" for problem in self._ask_axe("{}")]
        page.emulate_media(color_scheme="dark", reduced_motion="reduce")
        shoot(page, f"{name}-{WIDTHS[-1]}-dark")
        # All that the dark can change.
        self.found += [
            f"{name}, dark: {problem}" for problem in self._ask_axe('{runOnly: ["color-contrast"]}')
        ]

    def _ask_axe(self, options: str) -> list[str]:
        page, kept = self.visitor.page, list(self.visitor.violations)
        if not page.evaluate("() => Boolean(window.axe)"):
            page.evaluate(AXE)
        problems: list[dict[str, Any]] = page.evaluate(
            f"() => axe.run(document, {options}).then((all) => all.violations)"
        )
        self.visitor.violations[:] = kept  # axe brings styles of its own
        return [f"{each['id']} {each['nodes'][0]['html'][:120]}" for each in problems]


@dataclass(frozen=True)
class Others:
    """Experiments without a cell, of another program, with nothing left to judge, and with nothing judged."""

    empty: str
    foreign: str
    judged: str
    unjudged: str


def walk_everywhere(walk: Walk, bench: str, others: Others) -> None:
    """An admin looks at everything; at the end judges, and is blind meanwhile."""
    page = walk.visitor.page
    walk.go("experiments", "/")
    walk.go("experiments-none", "/?contains=there is none of this name")
    walk.go("board", "/e/", bench)
    walk.go("report", "/report/", bench)
    walk.go("scenarios", "/scenarios/", bench)
    walk.go("versions", "/versions/", bench)
    walk.go("board-empty", "/e/", others.empty)
    walk.go("board-foreign", "/e/", others.foreign)
    walk.go("problem", "/e/", "there is none")
    walk.visitor.go("/e/", bench)
    page.get_by_test_id("standings").get_by_role("link").first.click()
    expect(page.get_by_test_id("prompt")).to_be_visible()
    walk.look("arm")
    page.get_by_test_id("cells").get_by_role("link").first.click()
    expect(page.get_by_test_id("raw")).to_be_attached()
    walk.look("cell")
    walk.go("side", "/side/", bench)
    walk.go("judges", "/judges/", bench)
    walk.go("judging", "/judging")
    walk_promotions(walk, bench)
    walk_orders(walk)
    walk_people(walk)
    walk.go("nothing-waits", "/judge/", others.judged)
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_test_id("start")).to_contain_text("a second opinion on 20 %")
    walk.look("second-opinion")
    walk_desk(walk, bench, others)


def walk_promotions(walk: Walk, bench: str) -> None:
    """Without a champion, with one, and with what the gate says."""
    page = walk.visitor.page
    walk.go("promotions", "/promotions/", bench)
    if page.get_by_role("button", name="Name it").count():
        page.get_by_label("Reason").fill("the first one")
        page.get_by_role("button", name="Name it").click()
        expect(page.get_by_role("button", name="Name it")).to_have_count(0)
    page.get_by_role("button", name="Check", exact=True).click()
    expect(page.get_by_test_id("gate")).to_be_visible()
    walk.look("gate")
    walk.visitor.go(f"/champion?pack={pack_name_of(bench)}")
    expect(page.get_by_test_id("champion")).to_be_visible()
    walk.look("champion")


def walk_orders(walk: Walk) -> None:
    """The forms, as pages and as a dialog; and a job to its end."""
    page = walk.visitor.page
    walk.go("improve", "/improve")
    walk.go("run", "/run")
    page.get_by_label("Tips a cell").fill("99")
    page.get_by_role("button", name="Start").click()
    expect(page.locator("#p-n_tips")).to_be_visible()
    walk.look("run-wrong")
    walk.visitor.go("/")
    page.get_by_role("link", name="Run collection").click()
    expect(page.get_by_role("dialog", name="Run collection")).to_be_visible()
    walk.look("run-dialog")
    walk.go("simulate", "/simulate")
    page.get_by_label("Users").fill("8")
    page.get_by_label("Rounds").fill("10")
    page.get_by_role("button", name="Start").click()
    expect(page.get_by_test_id("state")).to_have_text(re.compile("finished|failed"), timeout=120_000)
    assert page.get_by_test_id("state").inner_text() == "finished", page.get_by_test_id("log").inner_text()
    walk.go("jobs", "/jobs")
    page.get_by_role("rowheader").get_by_role("link").first.click()
    expect(page.get_by_test_id("log")).to_contain_text("rewards per tip")
    expect(page.get_by_test_id("result").get_by_role("rowheader").first).to_have_text("egreedy-v1")
    walk.look("job")
    walk.visitor.go("/e/", SIMULATIONS)
    expect(page.get_by_test_id("policies")).to_be_visible()
    walk.look("simulations")


def walk_people(walk: Walk) -> None:
    """Users, tokens and the audit, with a token that is shown."""
    page = walk.visitor.page
    walk.visitor.go("/people")
    page.get_by_text("Make a token for a program of yours").click()
    page.get_by_role("button", name="Make", exact=True).click()
    expect(page.get_by_test_id("secret")).to_be_visible()
    walk.look("people")
    walk.go("audit", "/audit")
    expect(page.get_by_text("made a token for ada, good for 90 days")).to_be_visible()


def walk_desk(walk: Walk, bench: str, others: Others) -> None:
    """The start, practice, the desk, what a judge may not see, and the end of the sitting."""
    page = walk.visitor.page
    walk.go("begin", "/judge/", others.unjudged)
    page.get_by_role("button", name="Practise on 3 tips first").click()
    expect(page.get_by_role("button", name="Compare")).to_be_visible()
    for scale in page.locator("fieldset[data-scale]").all():
        scale.locator("label.score").nth(2).click()
    page.get_by_role("button", name="Compare").click()
    expect(page.get_by_test_id("reference")).to_be_visible()
    walk.look("practice")
    walk.visitor.judge(bench)
    expect(page.get_by_test_id("tip")).to_be_visible()
    walk.look("judge")
    walk.go("blind", "/e/", bench)
    walk.go("judging-mine", "/judging")
    page.get_by_role("link", name=f"Go on with {bench}").click()
    expect(page.get_by_test_id("tip")).to_be_visible()
    # With our script the end replaces the desk; without it is a page of its own.
    page.evaluate("() => document.querySelector('#judge form').removeAttribute('data-swap')")
    page.get_by_text("Discard…").click()
    page.get_by_role("button", name="End the sitting and discard the rest").click()
    expect(page.get_by_test_id("outcome")).to_be_visible()
    walk.look("judged")


def press_scores(page: Page) -> None:
    """Scores the item on the screen with the keyboard; anchors get what they deserve."""
    deserved = REFERENCES.get(page.get_by_test_id("tip").inner_text(), {})
    for scale in page.locator("fieldset[data-scale]").all():
        wanted = str(deserved.get(scale.get_attribute("data-scale") or "", 3))
        # One key a frame is heard. Waited for before the key: the last one may lead to another page.
        page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")
        page.keyboard.press(wanted)


def press_one_item(page: Page) -> None:
    """The same, and waits until the next one is there."""
    before = page.get_by_test_id("progress").inner_text()
    press_scores(page)
    expect(page.get_by_test_id("progress")).not_to_have_text(before)


def finish(visitor: Visitor) -> None:
    """Judges to the end and closes the sitting."""
    page = visitor.page
    expect(page.get_by_test_id("tip").or_(page.get_by_test_id("done"))).to_be_visible()
    while page.get_by_test_id("tip").count():
        press_one_item(page)
    page.get_by_role("button", name="Close the sitting").click()
    expect(page.get_by_test_id("outcome")).to_be_visible()
    shoot(page, "closed-1280-light")
    assert page.get_by_test_id("outcome").inner_text() == "accepted"
