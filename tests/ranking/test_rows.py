"""Rows: one for each candidate and verdict, against an oracle that reads nothing but MLflow's own client."""

import csv
import json
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest

from tests.conftest import Cli
from tests.judging.hostile import FORMULAS
from tests.ranking.campaign import collect_campaign, judge_automatically, judge_lazily, open_judging
from tests.support.official import MlflowClient
from tests.support.scripted import ScriptedEngine
from tests.support.sheets import fill
from tipbench.judging.request import SittingRequest
from tipbench.ranking.rows import load_parquet
from tipbench.tracking import Tracking

Place = tuple[str, int]


def oracle(url: str, experiment: str, folder: Path) -> tuple[dict[Place, str], Counter[tuple[str, int, str]]]:
    """The text of every candidate, and how many submissions say something of it, by sitting."""
    client = MlflowClient(tracking_uri=url)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    texts: dict[Place, str] = {}
    said: Counter[tuple[str, int, str]] = Counter()
    for run in client.search_runs([found.experiment_id], max_results=5000):
        if run.data.tags["tipbench.kind"] != "cell":
            continue
        path = client.download_artifacts(run.info.run_id, "texts.json", str(folder))
        for each in json.loads(Path(path).read_text(encoding="utf-8"))["candidates.json"]:
            texts[run.info.run_id, each["slot"]] = each["text"]
        for tag, value in run.data.tags.items():
            if tag.startswith("verdict:"):
                for verdict in json.loads(value)["verdicts"]:
                    said[run.info.run_id, verdict["slot"], tag.split(":")[1]] = 1
    return texts, said


def read_lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text(encoding="ascii").splitlines()]


def test_there_is_a_row_for_every_candidate_and_verdict_in_all_three_kinds_of_file(
    cli: Cli, tracking: Tracking, experiment_name: str, mlflow_url: str, tmp_path: Path
) -> None:
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=2, skill={"one": 0.9, "two": 0.2})
    judging = open_judging(tracking, tmp_path)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="careless", blocks=1, off_by=-4)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="anna", blocks=4)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="ben", second=0.5)
    judge_automatically(judging, experiment_name, folder=tmp_path)
    told = cli.ok("export", experiment_name, "rows.jsonl").out
    rows = read_lines("rows.jsonl")
    assert f"rows.jsonl: {len(rows)} rows of 8 cells" in told
    texts, said = oracle(mlflow_url, experiment_name, tmp_path)
    assert {(row["run"], row["slot"]): row["text"] for row in rows} == texts
    judged = Counter((row["run"], row["slot"], row["sitting"]) for row in rows if row["sitting"])
    assert judged == said
    bare = [row for row in rows if row["sitting"] is None]
    assert {(row["run"], row["slot"]) for row in bare} == set(texts) - {place[:2] for place in said}
    assert all(row["counted"] is None and row["composite"] is None for row in bare)
    reasons = {(row["judge"], row["why"]) for row in rows if row["counted"] is False}
    assert ("careless", "the sitting is refused") in reasons
    assert ("ben", "a second opinion counts for agreement") in reasons
    assert {row["tier"] for row in rows if row["counted"]} == {"lazy", "auto"}
    # What counts is what the board counts, verdict by verdict.
    board = json.loads(cli("compare", "--experiment", experiment_name, "--json").out)
    counted = [row for row in rows if row["counted"] and row["tier"] == "lazy" and not row["failure"]]
    assert (len(counted), {row["judge"] for row in counted}) == (board["judged"], {"anna"})
    one = counted[0]
    scores = one["score.relevance"] + one["score.actionability"] + one["score.tone"]
    assert one["composite"] == scores + 2 * one["flag.format_ok"] - one["flag.overlong"]
    assert one["reason"]
    assert one["cell_seconds"] > 0 < one["cell_output_tokens"]

    cli.ok("export", experiment_name, "rows.csv")
    with Path("rows.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    assert [list(row) for row in table[:1]] == [list(rows[0])]
    assert [(row["run"], row["slot"], row["sitting"], row["composite"]) for row in table] == [
        (
            row["run"],
            str(row["slot"]),
            row["sitting"] or "",
            "" if row["composite"] is None else str(row["composite"]),
        )
        for row in rows
    ]
    cli.ok("export", experiment_name, "rows.parquet")
    stored = load_parquet()[1].read_table("rows.parquet")
    assert stored.to_pylist() == rows


def test_rows_say_why_a_verdict_does_not_count(
    cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=1, skill={"one": 0.9, "two": 0.2})
    judging = open_judging(tracking, tmp_path)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="anna", blocks=2)
    sheet = tmp_path / "open.json"
    assert judging.hand_out(sheet, SittingRequest("eve", blocks=2), experiment=experiment_name) is not None
    fill(sheet, items=5)
    judging.take_in(sheet, experiment=experiment_name, judged_by=None, close=False)
    cells = judging.open(experiment_name).evidence.cells
    content = next(cell for cell in cells if cell.facts.model == "two").facts.model_digest
    cli.ok(
        "collect",
        "retire",
        "--experiment",
        experiment_name,
        "--model",
        f"two@{content.removeprefix('sha256:')[:12]}",
    )
    cli.ok("export", experiment_name, "rows.jsonl")
    whys = {(row["model"], row["judge"], row["why"]) for row in read_lines("rows.jsonl") if row["sitting"]}
    assert ("two", "anna", "the cell was retired") in whys
    assert ("one", "anna", "") in whys
    assert ("one", "eve", "the sitting is open") in whys


def test_no_field_of_a_csv_file_is_a_formula(
    cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    hostile = [f"{formula} and ten more words, so that it is a tip" for formula in FORMULAS]

    def write(model: str, prompt: str, rng: Random) -> str:
        return "\n".join(f"{n}. {rng.choice(hostile)}" for n in range(1, 6))

    collect_campaign(
        tracking, experiment_name, scenarios=2, prompts=2, engine=ScriptedEngine(["=1+1"], write)
    )
    judging = open_judging(tracking, tmp_path)

    def score(text: str, rng: Random) -> tuple[dict[str, int], str]:
        return {"relevance": 3, "actionability": 3, "tone": 3}, rng.choice(hostile)

    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="@SUM(A1)", blocks=4, score_of=score)
    cli.ok("export", experiment_name, "rows.csv")
    with Path("rows.csv").open(encoding="utf-8", newline="") as file:
        table = list(csv.reader(file))
    fields = [field for row in table for field in row]
    assert any("=1+1" in field for field in fields)
    assert any("SUM(A1)" in field for field in fields)
    for field in fields:
        assert not field.lstrip().startswith(("=", "+", "@", "\t", "\r")), field
        assert not field.startswith("-") or float(field) < 0, field


def test_what_cannot_be_written_is_said_before_anything_is_read(
    cli: Cli, collected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    odd = cli("export", collected, "rows.xlsx")
    assert (odd.code, ".parquet" in odd.err, Path("rows.xlsx").exists()) == (2, True, False)
    keys = cli("export", collected, "rows.csv", "--with-keys")
    assert (keys.code, "--with-keys" in keys.err) == (2, True)
    nowhere = cli("export", collected, "missing/rows.csv")
    assert (nowhere.code, "cannot be written" in nowhere.err) == (1, True)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    missing = cli("export", collected, "rows.parquet")
    assert (missing.code, "pip install pyarrow" in missing.err) == (1, True)
    assert not list(Path().glob("rows.*"))


def test_texts_that_are_gone_are_named_in_their_rows(
    cli: Cli, tracking: Tracking, collected: str, mlflow_url: str
) -> None:
    client = MlflowClient(tracking_uri=mlflow_url)
    found = client.get_experiment_by_name(collected)
    assert found is not None
    cells: Mapping[str, Any] = {
        run.info.run_id: run
        for run in client.search_runs([found.experiment_id])
        if run.data.tags["tipbench.kind"] == "cell"
    }
    edited = next(iter(cells))
    client.log_text(edited, "{}", "texts.json")
    cli.ok("export", collected, "rows.jsonl")
    rows = read_lines("rows.jsonl")
    assert {row["run"] for row in rows} == set(cells)
    assert all(("cannot be read" in row["failure"]) == (row["run"] == edited) for row in rows)
