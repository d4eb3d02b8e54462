"""Hostile text made harmless, wherever people or agents see it. One function; outlets that need more add it.

What cannot be seen is shown: control bytes as their pictures, the rest by its code. Nothing of it acts.
"""

import re
import unicodedata
from functools import lru_cache

LIMIT = 20_000
"""Characters of one text that anybody is shown."""
MARKS = 4
"""Combining marks on one letter; more of them climb over the lines around it."""
_EMOJI = "\u00a9\u00ae\u203c-\u3299\U0001f000-\U0001faff"
_JOINED = "\u0590-\u1fff"
# They choose how an emoji or a letter of a joined script is drawn. Left out they hide nothing.
_STYLE = re.compile(
    rf"(?<=[{_EMOJI}0-9#*])\ufe0f|(?<=[{_EMOJI}])\u200d(?=[{_EMOJI}])"
    rf"|(?<=[{_JOINED}])[\u200c\u200d](?=[{_JOINED}])"
)
_NOT_PLAIN = re.compile(r"[^\n -~]")
# Letters and marks that are drawn as nothing.
_UNSEEN = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\uffa0\ufe00-\ufe0f\U000e0100-\U000e01ef]"
)
_HIDDEN = ("Cc", "Cf", "Cn", "Co", "Cs", "Zl", "Zp")
_FORMULA = re.compile(r"(^|[;\n])(\s*)(?=[=+\-@＝＋－＠])")


_JOINERS = "\u200c\u200d"  # part of words in some scripts, and of emoji


def clean_line(text: str) -> str:
    """One line without control characters, direction overrides, lone surrogates or double blanks."""
    if not (text.isascii() and text.isprintable()):
        text = "".join(_clean_character(character) for character in text)
    return " ".join(text.split())


def _clean_character(character: str) -> str:
    if character in _JOINERS:
        return character
    match unicodedata.category(character):
        case "Cc":
            return " " if character.isspace() else ""
        case "Cf":
            return ""
        case "Cs":
            return "\ufffd"
        case _:
            return character


def make_inert(text: str, *, limit: int = LIMIT) -> str:
    """The text as it can be shown anywhere: no control byte but newlines, nothing invisible, not too long.

    Made inert again it stays the same.
    """
    shown = _STYLE.sub("", text[:limit].replace("\r\n", "\n"))
    if _NOT_PLAIN.search(shown):
        shown = _show_hidden(shown)
    if len(text) <= limit and len(shown) <= limit:
        return shown
    note = f"\n[… only the beginning of {len(text):,} characters is shown]"
    return shown[: max(0, limit - len(note))] + note


def make_inert_line(text: str, *, limit: int = 200) -> str:
    """The same on one line: for names, and for cells of a table."""
    text = make_inert(text).replace("\n", "␊")
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def cell_for_csv(text: str) -> str:
    """For a CSV file: no spreadsheet takes it for a formula."""
    return _FORMULA.sub(r"\1\2'", make_inert(text))


def text_for_markdown(text: str) -> str:
    """For a Markdown page: code on one line, so that no link, image, HTML, heading or table comes of it."""
    line = make_inert(text).replace("\n", " ␊ ").replace("`", "ˋ").replace("|", "│").strip()
    return f"`{line}`" if line else ""


def _show_hidden(text: str) -> str:
    shown: list[str] = []
    marks, last, times = MARKS, "", 0
    for char in text:
        seen, is_mark = _look_at(char)
        marks = marks + 1 if is_mark else (MARKS if char in "\n " else 0)
        if is_mark and marks > MARKS:
            seen = _code(char)
        if seen != char and seen == last:
            times += 1
            continue
        shown.append(_repeated(times))
        last, times = seen, 0
        shown.append(seen)
    shown.append(_repeated(times))
    return "".join(shown)


def _repeated(times: int) -> str:
    """Many of one kind take little room."""
    return f"⟨×{times + 1}⟩" if times else ""


@lru_cache(maxsize=4096)
def _look_at(char: str) -> tuple[str, bool]:
    """What is shown for a character, and whether it sits on the one before."""
    category = unicodedata.category(char)
    if char == "\n":
        return char, False
    if char < " ":
        return chr(0x2400 + ord(char)), False
    if char == "\x7f":
        return "␡", False
    if category in _HIDDEN or _UNSEEN.match(char):
        return _code(char), False
    return char, category in {"Mn", "Me"}


def _code(char: str) -> str:
    return f"⟨U+{ord(char):04X}⟩"
