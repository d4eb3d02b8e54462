"""Hostile texts come out harmless: on a screen, in a CSV file, on a Markdown page, in a sheet."""

import csv
import io
import json
import random
import re
from xml.etree import ElementTree

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from tests.judging.cells import make_cell
from tests.judging.desks import desk_of
from tests.judging.hostile import SIZES, acting, hostile_texts, kinds
from tipbench.bench.evidence import Evidence
from tipbench.bench.sittings import StoredDrift
from tipbench.inert import LIMIT, cell_for_csv, make_inert, make_inert_line, text_for_markdown
from tipbench.judging.draw import Member, draw_blocks
from tipbench.judging.handout import build_sitting
from tipbench.judging.records import SittingLine
from tipbench.judging.sheet import Section, Sheet, blind_text, sheet_rubric
from tipbench.judging.status import JudgeSitting
from tipbench.pack import builtin_pack
from tipbench.ranking.standings import make_report
from tipbench.records import Candidate
from tipbench.show.charts import draw_drift
from tipbench.show.console import InertConsole
from tipbench.show.terminal import format_csv, print_report

EVERYTHING = st.text(st.characters(), max_size=60)  # lone surrogates too


@pytest.fixture(scope="module", params=SIZES)
def texts(request: pytest.FixtureRequest) -> list[str]:
    return hostile_texts(request.param)


def test_no_hostile_text_keeps_anything_that_acts(texts: list[str]) -> None:
    for text in texts:
        shown = make_inert(text)
        assert acting(shown) == []
        assert len(shown) <= LIMIT
        assert shown.encode()


@given(EVERYTHING)
@example("\ud800\udc00")
@example("\x1b[31m\x9b\x7f\r\n\t")
@settings(max_examples=500, deadline=None)
def test_any_text_becomes_inert_once_and_for_all(text: str) -> None:
    shown = make_inert(text)
    assert acting(shown) == []
    assert make_inert(shown) == shown
    assert "\n" not in make_inert_line(text)


@pytest.mark.parametrize(
    "text",
    [
        "Call the dentist at 8:00, then rest.",
        "Zähle bis drei – dann “los”!",
        "先に歯医者に電話する。",
        "two\nlines",
        "naïve cafe\u0301",
        "5 °C × 3 = 15",
    ],
)
def test_ordinary_text_stays_as_it_is(text: str) -> None:
    assert make_inert(text) == text


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("\x1b[2J", "␛[2J"),
        ("a\tb\rc\r\nd", "a␉b␍c\nd"),
        ("x\u202ey", "x⟨U+202E⟩y"),
        ("\u200b" * 500, "⟨U+200B⟩⟨×500⟩"),
        ("❤\ufe0f 👩\u200d🚒", "❤ 👩🚒"),
        ("می\u200cخواهم", "میخواهم"),
        ("e" + "\u0301" * 7, "e" + "\u0301" * 4 + "⟨U+0301⟩⟨×3⟩"),
    ],
)
def test_what_acts_is_shown_and_what_only_styles_is_left_out(text: str, shown: str) -> None:
    assert make_inert(text) == shown


def test_a_megabyte_is_cut_and_says_so() -> None:
    shown = make_inert("walk " * 200_000)
    assert len(shown) == LIMIT
    assert shown.endswith("[… only the beginning of 1,000,000 characters is shown]")


def test_a_console_shows_hostile_texts_inert(texts: list[str]) -> None:
    for text in texts:
        out = io.StringIO()
        InertConsole(file=out, width=80, color_system=None).print(text[:5_000], markup=False)
        assert acting(out.getvalue()) == []


def test_no_cell_of_a_csv_file_is_a_formula(texts: list[str]) -> None:
    out = io.StringIO()
    csv.writer(out).writerows([cell_for_csv(text), "1"] for text in texts)
    rows = list(csv.reader(io.StringIO(out.getvalue(), newline="")))
    assert len(rows) == len(texts)
    for cell, _ in rows:
        assert not re.match(r"\s*[=+\-@＝＋－＠\t\r]", cell), cell
        assert acting(cell) == []
    # Where a list is parted by semicolons a spreadsheet would look behind them too.
    assert not any(re.search(r";\s*[=+\-@]", cell) for cell, _ in rows)


def test_nothing_of_a_markdown_page_comes_from_a_text(texts: list[str]) -> None:
    page = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"])
    assert {"html_block", "link_open"} <= kinds(page.parse("<b>\n\n[a](https://b.example)"))
    for text in texts:
        cell = text_for_markdown(text)
        plain = kinds(page.parse(cell))
        assert plain <= {"paragraph_open", "paragraph_close", "inline", "code_inline"}
        table = page.parse(f"| a | b |\n| --- | --- |\n| {cell} | 1 |\n")
        assert sum(token.type == "td_open" for token in table) == 2
        assert not kinds(table) & {"html_inline", "html_block", "link_open", "image", "heading_open"}


def test_a_sheet_of_hostile_texts_is_valid_and_one_item_stays_one_item(texts: list[str]) -> None:
    pack = builtin_pack()
    scenario = pack.scenarios[0]
    cells = [
        make_cell(model=f"m{place}", scenario=scenario.id, scenario_hash=scenario.hash, slots="a")
        for place in range(len(texts))
    ]
    text_of = {cell.run.run_id: text for cell, text in zip(cells, texts, strict=True)}
    desk = desk_of(pack)

    def candidate_of(member: Member) -> Candidate:
        flags = {flag.name: False for flag in pack.rubric.flags}
        return Candidate(slot=0, text=text_of[member.cell.run.run_id], flags=flags)

    desk = type(desk)(desk.rubric, desk.scenarios, desk.anchors, candidate_of, desk.hidden_names)
    blocks = draw_blocks(cells, taken={}, limit=None, rng=random.Random(0))
    sitting = build_sitting(blocks, material=desk, order_seed=1)
    section = Section(
        sitting=sitting.token, judged_by="anna", expires="", scenarios=sitting.scenarios, items=sitting.items
    )
    sheet = Sheet(experiment="e", experiment_uid="u", rubric=sheet_rubric(pack.rubric), sections=(section,))
    written = sheet.model_dump_json(indent=1)
    assert acting(written) == []
    items = json.loads(written)["sections"][0]["items"]
    different = {blind_text(text, desk.hidden_names).strip() for text in texts}
    assert len(items) == len(different) + len(sitting.anchors)
    assert len({item["id"] for item in items}) == len(items)
    assert "zzzzzzzz" not in {item["id"] for item in items}
    assert all(set(item["scores"].values()) == {None} for item in items)


def test_a_board_of_hostile_names_stays_a_board(texts: list[str]) -> None:
    rubric = builtin_pack().rubric
    for text in texts[: len(texts) // 4]:
        name = text[:200] or "m"
        cells = tuple(make_cell(model=model, scenario="s") for model in (name, "other"))
        evidence = Evidence(cells, (), (), (), (), None)
        report = make_report(evidence, experiment=name, rubric=rubric)
        rows = list(csv.reader(io.StringIO(format_csv(report), newline="")))
        assert len(rows) == 3
        assert not any(
            re.match(r"\s*[=+\-@＝＋－＠\t\r]", cell) or acting(cell) for row in rows for cell in row
        )
        out = io.StringIO()
        print_report(report, InertConsole(file=out, width=132, color_system=None))
        assert acting(out.getvalue()) == []


def test_a_drawing_with_hostile_names_is_one_drawing(texts: list[str]) -> None:
    drift = StoredDrift(offset=0.1, se=0.5, correction=0.0, slope=1.0, alarms=(), anchors=6, exact=False)
    for name in texts[:60]:
        line = SittingLine(
            sitting="s", judged_by=name, judge_kind="human", state="accepted", items=1, anchors=6, blocks=1,
            blocks_counted=1, submissions=1, drawn="block", expires="", drift=drift,
        )  # fmt: skip
        drawing = draw_drift([JudgeSitting(experiment=name, closed_ms=1, mark="", line=line)])
        assert drawing is not None
        tags = {element.tag.split("}")[1] for element in ElementTree.fromstring(drawing).iter()}
        assert tags == {"svg", "rect", "line", "circle", "text", "title"}
        assert acting(drawing) == []
