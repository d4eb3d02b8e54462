"""New anchors: from what three judges agree on, sealed, never twice, and never an example of the rubric."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.big_experiment import make_pack

from tests.conftest import Cli
from tests.judging.scripted import Scores, collect_scripted, fill_with, same
from tests.support.sheets import REFERENCES, sections
from tipbench.pack import read_pack
from tipbench.records import Pack

JUDGES = ("anna", "bert", "carl")


def write_pack(folder: Path, pack: Pack) -> Path:
    for name, text in pack.files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def judge_thrice(cli: Cli, experiment: str, scores: list[Callable[[str], Scores]]) -> None:
    """One export, filled by three people."""
    cli.ok("judge", "--experiment", experiment, "--export", "sheet.json")
    for name, score in zip(JUDGES, scores, strict=True):
        shutil.copy("sheet.json", f"{name}.json")
        fill_with(Path(f"{name}.json"), score, judged_by=name)
        cli.ok("judge", "--apply", f"{name}.json")


def handed(path: Path) -> list[str]:
    texts = [item["text"] for section in sections(path) for item in section["items"]]
    return [text for text in texts if text not in REFERENCES]


@pytest.fixture
def folder(cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path) -> Path:
    """A pack of one scenario, collected for one arm."""
    pack = make_pack(1, prompts=1)
    collect_scripted(cli.home, mlflow_url, experiment_name, models=1, pack=pack)
    return write_pack(tmp_path / "pack", pack)


def add(cli: Cli, experiment: str, folder: Path, *more: str) -> str:
    return cli.ok("judge", "anchors", "--experiment", experiment, "--pack", str(folder), *more).out


def test_what_three_judges_agree_on_becomes_an_anchor(cli: Cli, experiment_name: str, folder: Path) -> None:
    before, text = read_pack(folder), (folder / "anchors.jsonl").read_text()
    assert "0 new anchors" in add(cli, experiment_name, folder, "--write")
    spread = {"relevance": 4, "actionability": 3, "tone": 2}

    def second(text: str) -> Scores:
        # Of every other candidate bert thinks quite differently.
        return spread | ({"tone": 5} if len(text) % 2 else {"tone": 3})

    judge_thrice(cli, experiment_name, [lambda _: spread, second, lambda _: spread])
    texts = handed(Path("sheet.json"))
    agreed = {each for each in texts if len(each) % 2 == 0}
    assert 0 < len(agreed) < len(texts), "the scripted answers have both"
    said = add(cli, experiment_name, folder)
    assert f"{len(agreed)} new anchors" in said
    assert "Nothing was written" in said
    assert (folder / "anchors.jsonl").read_text() == text
    said = add(cli, experiment_name, folder, "--write")
    after = read_pack(folder)
    assert before.hash in said
    assert after.hash in said
    new = after.anchors[len(before.anchors) :]
    assert after.anchors[: len(before.anchors)] == before.anchors
    assert {anchor.text for anchor in new} == agreed
    assert all(anchor.scores == spread for anchor in new), "the median"
    assert {anchor.origin for anchor in new} == {"model-0"}
    lines = (folder / "anchors.jsonl").read_text().splitlines()[-len(new) :]
    assert all(set(json.loads(line)) == {"id", "scenario", "text", "origin", "sealed"} for line in lines)
    assert not list(folder.glob("*.part"))
    again = add(cli, experiment_name, folder, "--write")
    assert "0 new anchors" in again
    assert again.count("there is an anchor with this text") == len(agreed)
    assert read_pack(folder).hash == after.hash
    cli.ok("pack", "check", str(folder))


def test_scores_under_another_rubric_and_overruled_flags_are_no_references(
    cli: Cli, experiment_name: str, folder: Path
) -> None:
    cli.ok("judge", "--experiment", experiment_name, "--export", "sheet.json")
    odd, *others = sorted(set(handed(Path("sheet.json"))))
    for name in JUDGES:
        shutil.copy("sheet.json", f"{name}.json")
        fill_with(Path(f"{name}.json"), same(3), judged_by=name)
    sheet = json.loads(Path("carl.json").read_text())
    for item in (item for section in sheet["sections"] for item in section["items"]):
        # One point: the judges still agree, but not with what code says of the text.
        item["flags"]["overlong"] ^= item["text"] == odd
    Path("carl.json").write_text(json.dumps(sheet))
    for name in JUDGES:
        cli.ok("judge", "--apply", f"{name}.json")
    said = add(cli, experiment_name, folder)
    assert f"{len(others)} new anchors" in said
    assert said.count("a judge overruled a computed flag") == 1
    rubric = folder / "rubric.md"
    rubric.write_text(rubric.read_text() + "\nBe kind.\n")
    wrong = cli("judge", "anchors", "--experiment", experiment_name, "--pack", str(folder))
    assert (wrong.code, "judged by another rubric" in wrong.err) == (2, True)


def test_an_example_that_stands_in_the_rubric_is_no_anchor(
    cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path
) -> None:
    plain = make_pack(1, prompts=1)
    collect_scripted(cli.home, mlflow_url, f"{experiment_name}-first", models=1, pack=plain)
    cli.ok("judge", "--experiment", f"{experiment_name}-first", "--export", "look.json")
    example, *_ = handed(Path("look.json"))
    text = plain.files["rubric.md"] + f"\nA 3 on every scale: *{example}*\n"
    folder = write_pack(
        tmp_path / "pack", plain.model_copy(update={"files": {**plain.files, "rubric.md": text}})
    )
    collect_scripted(cli.home, mlflow_url, experiment_name, models=1, pack=read_pack(folder))
    judge_thrice(cli, experiment_name, [same(3), same(3), same(3)])
    said = add(cli, experiment_name, folder)
    assert said.count("it is an example of the rubric") == handed(Path("sheet.json")).count(example) > 0


def test_a_pack_without_anchors_is_judged_unanchored(
    cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path
) -> None:
    files = {name: text for name, text in make_pack(1, prompts=1).files.items() if name != "anchors.jsonl"}
    plain = make_pack(1, prompts=1).model_copy(update={"files": files})
    folder = write_pack(tmp_path / "pack", plain)
    collect_scripted(cli.home, mlflow_url, experiment_name, models=1, pack=read_pack(folder))
    judge_thrice(cli, experiment_name, [same(2), same(3), same(2)])
    report = cli.ok("judge", "judges", "--experiment", experiment_name, "--json").json()
    assert {(each["line"]["state"], each["mark"]) for each in report["sittings"]} == {
        ("accepted", "unanchored")
    }
    board = cli("compare", "--experiment", experiment_name, "--json").json()
    assert board["judged"] == board["candidates"] > 0
    assert "0 new anchors" in add(cli, experiment_name, folder, "--write"), "2 and 3 on three scales: 3 apart"
