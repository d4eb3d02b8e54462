"""Elements of a page, safe by construction: what is no element is text, made inert and escaped."""

from collections.abc import Iterable, Sequence
from html import escape

from tipbench.inert import make_inert, make_inert_line

WIDE, LONG = 10, 24
"""Characters of a number that needs two columns of a card, and of a text that needs its whole width."""
VOID = frozenset({"br", "hr", "meta", "line", "circle", "rect"})


class Html(str):
    """Markup of ours: put into a page as it is."""

    __slots__ = ()


Content = str | Html
"""A plain `str` is text."""


def element(name: str, /, *content: Content, **attributes: str | float | None) -> Html:
    """`<name attributes>content</name>`. `class_` and `aria_label` stand for `class` and `aria-label`."""
    shown = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_attribute(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in VOID and not content:
        return Html(f"<{name}{shown}>" if name in {"br", "hr", "meta"} else f"<{name}{shown}/>")
    return Html(f"<{name}{shown}>{join(content)}</{name}>")


def join(content: Iterable[Content]) -> Html:
    """One after the other; texts are made inert and escaped."""
    return Html("".join(each if isinstance(each, Html) else escape(make_inert(each)) for each in content))


def table(
    caption: str,
    headings: Sequence[str],
    rows: Sequence[Sequence[Content]],
    *,
    named: int = 0,
    foot: Sequence[Content] = (),
) -> Html:
    """A table whose rows become cards on a narrow screen; column `named` names the row.

    Roles are spelled out: browsers forget that it is a table when its display changes.
    """
    columns = [_kind([row[place] for row in rows]) for place in range(len(headings))]
    head = element(
        "tr",
        *(
            element("th", name, class_=kind, role="columnheader", scope="col")
            for name, kind in zip(headings, columns, strict=True)
        ),
        role="row",
    )
    body = [element("tr", *_row(headings, row, columns, named), role="row") for row in rows]
    if foot:
        cells = (element("td", each, class_="empty" if not each else "plot", role="cell") for each in foot)
        body.append(element("tr", *cells, role="row", class_="foot"))
    return element(
        "table",
        element("caption", caption),
        element("thead", head, role="rowgroup"),
        element("tbody", *body, role="rowgroup"),
        role="table",
        class_="cards plots" if "plot" in columns else "cards",
    )


def _row(
    headings: Sequence[str], row: Sequence[Content], columns: Sequence[str | None], named: int
) -> list[Html]:
    cells: list[Html] = []
    for place, (heading, content, kind) in enumerate(zip(headings, row, columns, strict=True)):
        shown = content if isinstance(content, Html) else make_inert_line(content, limit=400)
        if place == named:
            cells.append(element("th", shown, role="rowheader", scope="row"))
        else:
            cells.append(
                element("td", shown, class_=kind if content else "empty", role="cell", data_label=heading)
            )
    return cells


def _kind(column: Sequence[Content]) -> str | None:
    """How a column is set: the style sheet knows these words."""
    filled = [content for content in column if content]
    if any(isinstance(content, Html) and content.startswith("<svg") for content in filled):
        return "plot"
    longest = max((len(content) for content in filled if not isinstance(content, Html)), default=0)
    if filled and all(_is_number(content) for content in filled):
        return "number wide" if longest > WIDE else "number"
    return "long" if longest > LONG else None


def _is_number(content: Content) -> bool:
    """Digits and what goes with them, such as an interval; no markup."""
    return content[0] in "+-−–<>0123456789" and not any(char.isalpha() for char in content)


def _attribute(value: str | float) -> str:
    text = value if isinstance(value, str) else f"{value:g}"
    return escape(make_inert_line(text, limit=400))
