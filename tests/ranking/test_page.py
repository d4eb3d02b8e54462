"""The page in a real browser: nothing is cut, nothing scrolls sideways, nothing is fetched."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, ViewportSize, sync_playwright

from tests.admin.browser import find_chromium
from tests.ranking.conftest import Campaign
from tests.ranking.evidence import CASES, details_of, levels, make_evidence, report_of, with_noise
from tipbench.bench.bench import read_bench
from tipbench.clock import make_stamps
from tipbench.promotion.gate import Gate
from tipbench.promotion.rules import GatePreview
from tipbench.ranking.compare import compare_bench, read_details
from tipbench.settings import GateSettings
from tipbench.show.page import make_page

WIDTHS = (360, 768, 1280)
PAPER = 688
"""A4 between its margins, in pixels."""
# What reaches over the sides of the screen, or over its own box. A table's head is there for screen readers
# only when its rows are cards.
CUT = """() => [...document.querySelectorAll("body *")].filter(e => {
  const head = e.closest("thead");
  if (head && getComputedStyle(head).position === "absolute") return false;
  const box = e.getBoundingClientRect();
  if (!box.width || !box.height) return false;
  const boxed = !e.closest("svg") && getComputedStyle(e).display !== "inline";
  return (boxed && e.scrollWidth > e.clientWidth + 1) || box.left < -1 || box.right > innerWidth + 1;
}).map(e => e.outerHTML.slice(0, 160))"""


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=find_chromium())
        yield opened
        opened.close()


@pytest.fixture(scope="module")
def campaign_page(campaign: Campaign, tmp_path_factory: pytest.TempPathFactory) -> Path:
    bench = read_bench(campaign.tracking, campaign.experiment, stamps=make_stamps())
    path = tmp_path_factory.mktemp("page") / "report.html"
    gate = Gate(campaign.tracking, make_stamps(), GateSettings()).preview(bench)
    report = compare_bench(bench, "arm")
    path.write_text(make_page(report, read_details(bench, report), gate), encoding="utf-8")
    return path


def look_at(browser: Browser, path: Path, *, width: int, dark: bool) -> tuple[list[str], list[str], bool]:
    """What is cut, what was fetched, and whether the page scrolls sideways."""
    size: ViewportSize = {"width": width, "height": 900}
    page = browser.new_page(viewport=size, color_scheme="dark" if dark else "light")
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url))
    page.goto(path.as_uri())
    cut: list[str] = page.evaluate(CUT)
    root = "document.scrollingElement"
    sideways: bool = page.evaluate(f"() => {root}.scrollWidth > {root}.clientWidth")
    page.close()
    return cut, fetched, sideways


@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", WIDTHS)
def test_nothing_is_cut_and_nothing_is_fetched(
    browser: Browser, campaign_page: Path, width: int, dark: bool
) -> None:
    cut, fetched, sideways = look_at(browser, campaign_page, width=width, dark=dark)
    assert cut == []
    assert not sideways
    assert fetched == [campaign_page.as_uri()]


def test_pages_with_little_and_with_much_to_show_fit_too(browser: Browser, tmp_path: Path) -> None:
    long = levels(
        {f"a-model-with-a-name-that-does-not-end:{n}b-instruct-q4_K_M": 2 + n / 6 for n in range(14)}
    )
    cases = {name: evidence for name, (evidence, _, _) in CASES.items()}
    cases["much"] = make_evidence(long, auto=with_noise(long))
    for name, evidence in cases.items():
        path = tmp_path / "page.html"
        path.write_text(make_page(report_of(evidence), details_of(evidence), GatePreview()), encoding="utf-8")
        for width in WIDTHS:
            cut, _, sideways = look_at(browser, path, width=width, dark=False)
            assert (cut, sideways) == ([], False), (name, width)


def test_the_page_says_what_the_board_says(browser: Browser, campaign: Campaign, campaign_page: Path) -> None:
    report = compare_bench(read_bench(campaign.tracking, campaign.experiment, stamps=make_stamps()), "arm")
    page = browser.new_page(color_scheme="dark")
    page.goto(campaign_page.as_uri())
    names = page.locator("#standings tbody th").all_inner_texts()
    assert names == [line.name for line in report.ranked]
    assert page.locator("#standings tbody svg.strip:not(.axis)").count() == len(report.ranked)
    assert page.locator("#heat td").count() == len(report.standings)
    assert page.locator("#judges tbody").first.get_by_text("careless").count() == 1
    assert page.locator("#candidates article").count() >= 2
    assert "Names the task and its first step." in page.locator("#candidates").inner_text()
    assert "No champion yet" in page.locator("#gate").inner_text()
    # Every drawing and every table has a name, and every row a heading: colours are never alone.
    assert page.locator("svg:not([aria-label]):not([aria-hidden])").count() == 0
    assert page.locator("table:not(:has(caption))").count() == 0
    assert page.locator("tbody tr:not(.foot):not(:has(th[scope=row]))").count() == 0
    page.close()


def test_it_prints_on_paper_in_black_on_white(browser: Browser, campaign_page: Path) -> None:
    paper: ViewportSize = {"width": PAPER, "height": 1000}
    page = browser.new_page(viewport=paper, color_scheme="dark")
    page.goto(campaign_page.as_uri())
    page.emulate_media(media="print")
    assert page.evaluate("() => getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("() => document.scrollingElement.scrollWidth") <= PAPER
    assert not page.locator("nav").is_visible()
    assert page.locator("#standings thead").is_visible()
    page.close()
