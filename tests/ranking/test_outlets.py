"""Hostile names, candidates and reasons: nothing acts in CSV, Markdown and HTML."""

import csv
import io
import re
from html.parser import HTMLParser

import pytest
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.judging.hostile import SIZES, acting, hostile_texts, kinds
from tipbench.bench.plans import GateAnswer, GateRule, LookResult
from tipbench.bench.scores import JudgeAgreement
from tipbench.promotion.rules import GatePreview, GateReport
from tipbench.ranking.details import ComparedJudges, Contrast, Example, JudgedSitting
from tipbench.ranking.records import CountedSitting, Details, Interval, Report, Side, Standing, Tiers
from tipbench.show.charts import element
from tipbench.show.markdown import format_markdown
from tipbench.show.page import make_page
from tipbench.show.terminal import format_csv
from tipbench.stats import Alpha

OURS = {
    "html", "head", "meta", "title", "style", "body", "header", "nav", "main", "section", "footer", "article",
    "div", "p", "h1", "h2", "h3", "h4", "span", "b", "a", "ul", "li", "dl", "dt", "dd", "table", "caption",
    "thead", "tbody", "tr", "th", "td", "blockquote", "svg", "line", "circle", "text",
}  # fmt: skip


@pytest.fixture(scope="module", params=SIZES)
def texts(request: pytest.FixtureRequest) -> list[str]:
    return [text[:400] for text in hostile_texts(request.param)]


def hostile_report(texts: list[str]) -> Report:
    """Every text is the name of an arm, of a judge, and a remark."""
    lines = tuple(
        Standing(
            name=text, model=text, prompt=text, place=place, composite=10.0,
            latency_seconds=1.0 + place, output_tokens=5.0,
            against_best=Interval(name=text, to=texts[0], difference=0.0, low=-1.0, high=1.0),
        )
        for place, text in enumerate(texts, start=1)
    )  # fmt: skip
    return Report(
        experiment=texts[7], by="arm", judged=1, candidates=1, waiting=0, judging_closed=False, scenarios=4,
        rubric=texts[8], lowest=2, highest=17, winner=texts[9], standings=lines, pairs=(),
        set_aside=tuple(texts[:50]), remarks=tuple(texts), tiers=Tiers(said=texts[12]),
        sittings=(CountedSitting(number=1, sitting="t", tier="lazy", judged_by=texts[10], verdicts=1),),
    )  # fmt: skip


def hostile_details(report: Report, texts: list[str]) -> Details:
    """Every text is a candidate, a reason and a scenario's name."""
    examples = [
        Example(arm=text, text=text, composite=5.0, parts={"tone": "5"}, judged_by=text, reason=text)
        for text in texts
    ]
    sittings = tuple(JudgedSitting("t", "lazy", text, "accepted", 1, None, text) for text in texts)
    agreed = JudgeAgreement(2, Alpha(None, None, None, 2), "composite", 0.0, {})
    pairs = tuple(ComparedJudges((text, text), agreed) for text in texts)
    return Details(
        arms=report,
        sides={text: Side(text, texts[30]) for text in texts[:60]},
        sittings=sittings,
        judges=pairs,
        contrasts=tuple(Contrast(None, each.arm, each, each) for each in examples),
        made_ms=0,
    )


def hostile_gate(texts: list[str]) -> GatePreview:
    rules = (GateRule(name=texts[20], passed=False, detail=texts[21]),)
    answer = GateAnswer(
        answer="no", promoted=None, challenger=texts[24], difference=None, bound=None, auto_difference=None,
        level=0.05, rules=rules,
    )  # fmt: skip
    look = LookResult(look=0, of=2, counted=3, champion=texts[25], best=answer, by_arm={})
    report = GateReport(
        experiment=texts[7], pack=texts[8], champion=texts[22], version=1, champion_run="r", against="",
        asked_for=None, answer="undecided", challenger=texts[23], rules=rules, counted=3,
        doubtful=(texts[26],), remarks=(texts[27],),
    )  # fmt: skip
    return GatePreview(champion=texts[22], report=report, looks=(look,))


def test_no_hostile_name_acts_in_csv(texts: list[str]) -> None:
    rows = list(csv.reader(io.StringIO(format_csv(hostile_report(texts)), newline="")))
    assert len(rows) == 1 + len(texts)
    for cell in (cell for row in rows for cell in (row[0], *row[-3:])):
        assert not re.match(r"\s*[=+\-@＝＋－＠\t\r]", cell), cell
        assert acting(cell) == []


def test_no_hostile_name_acts_in_markdown(texts: list[str]) -> None:
    text = format_markdown(hostile_report(texts))
    assert acting(text) == []
    tokens: list[Token] = (
        MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).parse(text)
    )
    assert not kinds(tokens) & {"html_inline", "html_block", "link_open", "image", "fence", "code_block"}
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1", "h2", "h2", "h2", "h2"]
    assert sum(token.type == "list_item_open" for token in tokens) == len(texts)
    rows = len(texts) + len(texts) + 1
    assert sum(token.type == "tr_open" for token in tokens) == rows + 3


class Page(HTMLParser):
    """What a browser would make of the page."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: dict[str, int] = {}
        self.attributes: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags[tag] = self.tags.get(tag, 0) + 1
        self.attributes += [(name, value or "") for name, value in attrs]


def test_no_hostile_text_acts_on_the_page(texts: list[str]) -> None:
    report = hostile_report(texts)
    text = make_page(report, hostile_details(report, texts), hostile_gate(texts))
    page = Page()
    page.feed(text)
    assert acting(text) == []
    assert set(page.tags) <= OURS
    assert not [name for name, _ in page.attributes if name.startswith("on") or name == "src"]
    assert all(value.startswith("#") for name, value in page.attributes if name == "href")
    assert all(
        re.fullmatch(r"background:#[0-9a-f]{6};color:#[0-9a-f]{6}", v)
        for n, v in page.attributes
        if n == "style"
    )
    assert (page.tags["article"], page.tags["blockquote"]) == (len(texts), 2 * len(texts))
    assert page.tags["style"] == page.tags["body"] == page.tags["h1"] == 1


def test_text_is_text_and_elements_are_elements() -> None:
    assert element("p", "<b>&\x1b", element("b", '"', class_='x" onclick="y')) == (
        '<p>&lt;b&gt;&amp;␛<b class="x&quot; onclick=&quot;y">&quot;</b></p>'
    )
