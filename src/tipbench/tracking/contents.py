"""One name, one content: whoever compares refuses anything else and says how to resolve it."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from tipbench.errors import MixedContents
from tipbench.records import CellFacts
from tipbench.tracking.cells import StoredCell

_SIDES: Mapping[str, Callable[[CellFacts], tuple[str, str]]] = {
    "model": lambda facts: (facts.model, facts.model_digest),
    "prompt": lambda facts: (facts.prompt, facts.prompt_hash),
    "scenario": lambda facts: (facts.scenario, facts.scenario_hash),
    "options": lambda facts: ("", facts.options_hash),
    "rubric": lambda facts: ("", facts.rubric_hash),
}
KINDS = tuple(_SIDES)
SHORT = 12


def content_of(facts: CellFacts, kind: str) -> tuple[str, str]:
    """(name, short hash) of one side of a cell. Options and rubric go without: all cells must share them."""
    name, content = _SIDES[kind](facts)
    return name, content.removeprefix("sha256:")[:SHORT]


def check_contents(cells: Sequence[StoredCell], *, experiment: str) -> None:
    """Refuses cells in which one name stands for several contents.

    Raises:
        MixedContents: lists them with their counts and the commands that resolve it.
    """
    lines: list[str] = []
    commands: list[str] = []
    for kind in KINDS:
        for name, contents in _contents_by_name(cells, kind).items():
            if len(contents) < 2:
                continue
            shown = ", ".join(f"{content} ({count} cells)" for content, count in contents.most_common())
            lines.append(
                f"{kind} {name!r} has {len(contents)} contents: {shown}" if name else f"{kind}: {shown}"
            )
            commands += [
                f"tipbench retire --experiment {experiment!r} --{kind} {format_content(name, content)}"
                for content in contents
            ]
    if lines:
        raise MixedContents(
            f"experiment {experiment!r} mixes contents under one name:\n  " + "\n  ".join(lines),
            hint="Keep one of each and retire the others (a tag; nothing is deleted):\n  "
            + "\n  ".join(commands),
        )


def format_content(name: str, content: str) -> str:
    """How a content is written on the command line: NAME@HASH, or HASH where there is no name."""
    return f"{name}@{content}" if name else content


def _contents_by_name(cells: Iterable[StoredCell], kind: str) -> dict[str, Counter[str]]:
    found: dict[str, Counter[str]] = {}
    for (name, content), count in Counter(content_of(cell.facts, kind) for cell in cells).items():
        found.setdefault(name, Counter())[content] += count
    return found
