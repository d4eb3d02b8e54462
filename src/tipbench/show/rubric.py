"""The rubric as people read it: Markdown as harmless HTML, and the sentence of each point of a scale."""

import re
from collections.abc import Mapping
from functools import lru_cache

from markdown_it import MarkdownIt
from markdown_it.token import Token
from markupsafe import Markup

from tipbench.inert import make_inert, make_inert_line
from tipbench.judging.sheet import SheetRubric

BELOW = 2
"""A heading of the rubric stands so many levels lower on a page that has headings of its own."""
_CELL = re.compile(r"(?<!\\)\|")
_MARKS = re.compile(r"(\*{1,3}|`)(?=\S)(.+?)(?<=\S)\1")


@lru_cache(maxsize=64)
def render_markdown(text: str) -> Markup:
    """Headings, lists, tables and emphasis; raw HTML, links and pictures stay text."""
    parser = MarkdownIt("commonmark", {"html": False}).enable("table")
    parser.disable(["html_block", "html_inline", "link", "image", "autolink", "reference"])
    tokens = parser.parse(make_inert(text))
    for token in tokens:
        _fit_page(token)
    # The parser escapes every text, and nothing but its own tags is left.
    return Markup(parser.renderer.render(tokens, parser.options, {}))  # noqa: S704


def _fit_page(token: Token) -> None:
    """Below our own headings, without inline style: the policy of the pages forbids it."""
    if token.type in ("heading_open", "heading_close"):
        token.tag = f"h{min(6, int(token.tag[1]) + BELOW)}"
    token.attrs.pop("style", None)


def find_scale(text: str, scale: str) -> str:
    """The part of the rubric about a scale, with its heading; empty when no heading names it."""
    part = re.search(rf"^#+ *({re.escape(scale)}\b.*(?:\n(?!#).*)*)", text, re.MULTILINE | re.IGNORECASE)
    return part[1] if part else ""


def read_points(rubric: SheetRubric) -> Mapping[str, Mapping[int, str]]:
    """Scale → score → what that score means, out of the tables; what cannot be read is left out."""
    return {
        scale: _read_table(find_scale(rubric.text, scale), *ends) for scale, ends in rubric.scales.items()
    }


def _read_table(part: str, low: int, high: int) -> dict[int, str]:
    found: dict[int, str] = {}
    for line in part.splitlines():
        cells = split_row(line)
        if len(cells) > 1 and re.fullmatch(r"-?\d{1,4}", cells[0]) and low <= int(cells[0]) <= high:
            found.setdefault(int(cells[0]), _plain(cells[1]))
    return {score: sentence for score, sentence in found.items() if sentence}


def split_row(line: str) -> list[str]:
    """The cells of one line of a table; none of any other line."""
    line = line.strip()
    if not line.startswith("|"):
        return []
    return [_plain(cell) for cell in _CELL.split(line.strip("|"))]


def _plain(cell: str) -> str:
    return make_inert_line(_MARKS.sub(r"\2", cell.replace("\\|", "|")).strip())
