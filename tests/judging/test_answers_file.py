"""An agent answers in one file, one JSON object a line: checked as a sheet is, and told what was stored."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.support.sheets import REFERENCES, fill, hand_out, sections
from tipbench.judging.sheet import read_sheet

Line = dict[str, Any]
AGENT = ("--judged-by", "claude-code-session")
SHEET, ANSWERS = Path("judge-sheet.json"), Path("judge-answers.jsonl")


@pytest.fixture
def items(cli: Cli, collected: str) -> list[Any]:
    """The items of the only section of an exported sheet."""
    cli.ok("judge", "--experiment", collected, "--export", str(SHEET))
    (section,) = sections(SHEET)
    return section["items"]


def answer(item: Any, **more: object) -> Line:
    scores = REFERENCES.get(item["text"], dict.fromkeys(item["scores"], 3))
    return {"item": item["id"], "scores": dict(scores), "reason": "as it deserves", **more}


def write(*lines: Line | str) -> None:
    ANSWERS.write_text(
        "\n".join(each if isinstance(each, str) else json.dumps(each) for each in lines) + "\n"
    )


def apply(cli: Cli, *more: str) -> Any:
    return cli("judge", "--apply", str(ANSWERS), "--sheet", str(SHEET), *more)


def status(cli: Cli, experiment: str) -> Any:
    return cli.ok("judge", "status", "--experiment", experiment, "--json").json()


def test_one_file_of_answers_closes_the_sitting_and_the_sheet_stays_as_it_was(
    cli: Cli, collected: str, items: list[Any]
) -> None:
    before = SHEET.read_bytes()
    write(*map(answer, items))
    (section,) = json.loads(apply(cli, "--json", *AGENT).out)
    assert (section["outcome"], section["judged_by"]) == ("accepted", "claude-code-session")
    assert section["stored"]["scores"] == {item["id"]: answer(item)["scores"] for item in items}
    assert section["stored"]["overruled"] == {}
    assert SHEET.read_bytes() == before
    found = status(cli, collected)
    assert found["judged"] == found["candidates"]
    # A file that says nothing of it, as one for the next section does, finds it judged.
    (untouched,) = json.loads(cli.ok("judge", "--apply", str(SHEET), "--json", *AGENT).out)
    assert (untouched["outcome"], untouched["answered"]) == ("unchanged", len(items))
    again = apply(cli, *AGENT)
    assert "unchanged" in again.out
    assert "stored:" not in again.out


def test_what_was_stored_is_repeated_and_an_overruled_flag_named(cli: Cli, items: list[Any]) -> None:
    flag = not items[1]["flags"]["format_ok"]
    write(answer(items[0]), "", answer(items[1], flags={"format_ok": flag}))
    out = apply(cli).out
    first, second = ([str(s) for s in answer(item)["scores"].values()] for item in items[:2])
    assert "stored: item relevance actionability tone" in out
    assert f"{items[0]['id']} {' '.join(first)}\n" in out
    assert f"{items[1]['id']} {' '.join(second)}; overruled: format_ok is {str(flag).lower()}" in out
    # The same in a sheet that is filled in by hand.
    sheet = json.loads(SHEET.read_text())
    third = sheet["sections"][0]["items"][2]
    third["scores"] = answer(third)["scores"]
    third["flags"]["overlong"] = not third["flags"]["overlong"]
    SHEET.write_text(json.dumps(sheet))
    (section,) = json.loads(cli.ok("judge", "--apply", str(SHEET), "--json").out)
    assert section["stored"]["overruled"] == {third["id"]: {"overlong": third["flags"]["overlong"]}}
    assert list(section["stored"]["scores"]) == [third["id"]]


def test_every_mistake_is_named_by_its_line_and_nothing_is_stored(
    cli: Cli, collected: str, items: list[Any]
) -> None:
    good = [answer(item) for item in items]
    good[1]["scores"]["tone"] = 6
    good[2]["scores"].pop("relevance")
    good[3]["flags"] = {"kind": True}
    good[4]["scores"]["tone"] = "five"
    good[5]["scores"] = {}
    good[6]["score"] = 3
    write(*good[:7], "give it a 5", "", answer(items[0]), {**answer(items[7]), "item": "strange"}, "[1]")
    refused = apply(cli)
    assert refused.code != 0
    told = " ".join(refused.err.split())
    for part in (
        f"line 2: item {items[1]['id']!r}: tone is 6, allowed are 1 to 5",
        f"line 3: item {items[2]['id']!r}: relevance is missing",
        f"line 4: item {items[3]['id']!r}: there is no flag 'kind'",
        "line 5: scores.tone: Input should be a valid integer",
        f"line 6: item {items[5]['id']!r}: there are no scores",
        "line 7: score: Extra inputs are not permitted",
        "line 8: not JSON",
        f"line 10: item {items[0]['id']!r} was answered in line 1 already",
        "line 11: item 'strange' is not in the sheet",
        "line 12: it: Input should be",
    ):
        assert part in told, told
    assert "nothing saved" in told
    assert [line["submissions"] for line in status(cli, collected)["sittings"]] == [0]


@pytest.mark.parametrize("text", ["", "\n\n", "[]"])
def test_a_file_without_answers_says_so(cli: Cli, items: list[Any], text: str) -> None:
    assert items
    ANSWERS.write_text(text)
    refused = apply(cli)
    assert refused.code != 0
    assert "nothing saved" in refused.err


def test_a_file_of_answers_is_not_taken_for_a_sheet_nor_a_sheet_for_answers(
    cli: Cli, items: list[Any]
) -> None:
    write(*map(answer, items))
    alone = cli("judge", "--apply", str(ANSWERS))
    assert alone.code != 0
    assert "holds answers, not a sheet" in alone.err
    assert f"--apply {ANSWERS} --sheet" in " ".join(alone.err.split())
    swapped = cli("judge", "--apply", str(SHEET), "--sheet", str(ANSWERS))
    assert "holds answers, not a sheet" in swapped.err
    twice = cli("judge", "--apply", str(SHEET), "--sheet", str(SHEET))
    assert "is a sheet, not a file of answers" in twice.err
    assert "--sheet does not go with --export" in cli("judge", "--export", "x", "--sheet", "y").err


def test_nobody_is_sent_to_the_board_who_has_items_left(cli: Cli, items: list[Any]) -> None:
    write(*map(answer, items[:-2]))
    out = apply(cli).out
    assert "tipbench compare" not in out
    assert "answer the other 2 items of this sheet" in out
    write(*map(answer, items[-2:]))
    assert "tipbench compare" in apply(cli).out


def test_when_the_last_sitting_is_closed_it_says_so_and_what_comes_next(cli: Cli, collected: str) -> None:
    hand_out(SHEET, collected, blocks=1)
    fill(SHEET)
    told = cli.ok("judge", "--apply", str(SHEET)).out
    assert "All sittings of this sheet are closed." in told
    assert "about 1 sitting waits" in told
    assert f"tipbench judge --experiment {collected} --export judge-sheet-2.json" in told
    assert "tipbench compare" not in told
    cli.ok("judge", "--experiment", collected, "--export", "rest.json")
    fill(Path("rest.json"), items=2)
    assert "are closed" not in cli.ok("judge", "--apply", "rest.json").out
    fill(Path("rest.json"))
    told = cli.ok("judge", "--apply", "rest.json").out
    assert "All sittings of this sheet are closed." in told
    assert f"tipbench compare --experiment {collected}" in told


def test_a_sheet_has_a_line_for_every_item_and_is_the_json_it_always_was(cli: Cli, items: list[Any]) -> None:
    lines = SHEET.read_text().splitlines()
    for item in items:
        (line,) = (line for line in lines if f'"id":"{item["id"]}"' in line)
        assert json.loads(line.strip().rstrip(",")) == item
    scenarios = sections(SHEET)[0]["scenarios"]
    assert {item["scenario"] for item in items} <= {scenario["label"] for scenario in scenarios}
    sheet = read_sheet(SHEET)
    assert json.loads(SHEET.read_text()) == json.loads(sheet.model_dump_json())
    fill(SHEET)
    assert cli.ok("judge", "--apply", str(SHEET)).code == 0
