"""A sitting is an instrument: its anchors decide whether it counts, and a person may overrule them."""

import json
import shutil
from pathlib import Path
from typing import Any, cast

import pytest

from tests.conftest import PERSON, Cli
from tests.judging.scripted import collect_scripted, fill_with
from tests.promotion.campaign import make_pack
from tests.support.official import MlflowClient, search_official
from tests.support.sheets import REFERENCES, fill, sections
from tipbench.judging.status import JudgeSitting
from tipbench.pack import read_pack
from tipbench.show.charts import draw_drift

FAR_OFF = 3
REFUSED = 3
"""Exit code."""


def judge(cli: Cli, experiment: str, file: str = "sheet.json", **how: object) -> str:
    """Exports, fills and applies one sheet; gives the token of its only sitting."""
    cli.ok("judge", "--experiment", experiment, "--export", file)
    fill(Path(file), **how)  # pyright: ignore[reportArgumentType]
    assert cli("judge", "--apply", file).code in {0, REFUSED}
    return str(sections(Path(file))[0]["sitting"])


def only_sitting(cli: Cli, experiment: str) -> dict[str, object]:
    (sitting,) = cli.ok("judge", "status", "--experiment", experiment, "--json").json()["sittings"]
    return sitting


def judged(cli: Cli, experiment: str) -> int:
    return cli("compare", "--experiment", experiment, "--json").json()["judged"]


def test_a_judge_who_hits_the_anchors_is_accepted_and_the_drift_is_stored(cli: Cli, collected: str) -> None:
    judge(cli, collected)
    sitting = only_sitting(cli, collected)
    assert sitting["state"] == "accepted"
    drift = cast(dict[str, Any], sitting["drift"])
    assert (drift["offset"], drift["alarms"], drift["anchors"], drift["exact"]) == (0.0, [], 6, True)
    assert drift["slope"] == pytest.approx(1.0)


def test_a_judge_who_is_far_off_acts_on_nothing_until_a_person_accepts(
    cli: Cli, collected: str, mlflow_url: str
) -> None:
    token = judge(cli, collected, anchors_off_by=-FAR_OFF, score=5)
    assert only_sitting(cli, collected)["state"] == "refused"
    assert judged(cli, collected) == 0
    cells = search_official(mlflow_url, collected, "tags.`tipbench.kind` = 'cell'")
    assert {cell["tags.judge_pending"] for cell in cells} == {"true"}
    assert not any("metrics.composite" in cell or "tags.judged_by" in cell for cell in cells)
    cli.ok("judge", "accept", token, "--reason", "the references were wrong", "--experiment", collected)
    assert judged(cli, collected) > 0
    cells = search_official(mlflow_url, collected, "tags.`tipbench.kind` = 'cell'")
    assert {cell["tags.judge_pending"] for cell in cells} == {"false"}
    cli.ok("judge", "refuse", token, "--reason", "no, they were right", "--experiment", collected)
    assert judged(cli, collected) == 0
    cells = search_official(mlflow_url, collected, "tags.`tipbench.kind` = 'cell'")
    assert {cell["tags.judge_pending"] for cell in cells} == {"true"}


def test_a_judge_who_gives_everything_the_same_score_is_refused(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    sheet = json.loads(Path("sheet.json").read_text())
    for item in sheet["sections"][0]["items"]:
        item["scores"] = dict.fromkeys(item["scores"], 3)
    Path("sheet.json").write_text(json.dumps(sheet))
    applied = cli("judge", "--apply", "sheet.json", "--json")
    assert (applied.code, applied.json()[0]["outcome"]) == (REFUSED, "refused")
    assert "you use the scale differently" in applied.json()[0]["refused"]


def test_a_refused_sheet_says_why_names_the_way_out_and_ends_with_3_until_a_person_accepts(
    cli: Cli, collected: str
) -> None:
    token = judge(cli, collected, anchors_off_by=-FAR_OFF, score=5)
    drift = cast(dict[str, Any], only_sitting(cli, collected)["drift"])
    again = cli("judge", "--apply", "sheet.json")
    said = " ".join(again.out.split())
    assert (again.code, "unchanged refused: too far from the checks" in said) == (REFUSED, True), said
    assert f"mean difference {drift['offset']:+.2f}, slope" in said
    assert drift["slope"] is None or f"slope {drift['slope']:.2f}" in said
    way_out = f"tipbench judge accept {token} --experiment {collected} --reason"
    assert way_out in said
    cli.ok("judge", "accept", token, "--reason", "I know her", "--experiment", collected)
    assert way_out not in cli.ok("judge", "--apply", "sheet.json").out
    cli.ok("judge", "refuse", token, "--reason", "she was drunk", "--experiment", collected)
    once_more = cli("judge", "--apply", "sheet.json")
    assert (once_more.code, "refused by a person: she was drunk" in once_more.out) == (REFUSED, True)


def test_items_of_a_refused_sitting_wait_for_another_judge(cli: Cli, collected: str) -> None:
    judge(cli, collected, anchors_off_by=-FAR_OFF, score=5)
    judge(cli, collected, "second.json", judged_by="anna")
    states = {
        sitting["judged_by"]: sitting["state"]
        for sitting in cli.ok("judge", "status", "--experiment", collected, "--json").json()["sittings"]
    }
    assert states == {PERSON: "refused", "anna": "accepted"}
    assert judged(cli, collected) > 0


def test_corrected_anchors_do_not_undo_a_refusal_and_both_versions_are_kept(cli: Cli, collected: str) -> None:
    token = judge(cli, collected, anchors_off_by=-FAR_OFF, score=5)
    fill(Path("sheet.json"), score=5)
    applied = cli("judge", "--apply", "sheet.json", "--json")
    assert (applied.code, "revision" in applied.json()[0]["outcome"]) == (REFUSED, True)
    sitting = only_sitting(cli, collected)
    assert (sitting["state"], sitting["submissions"], sitting["late"]) == ("refused", 2, 1)
    assert judged(cli, collected) == 0
    cli.ok("judge", "accept", token, "--with-late", "--reason", "typing errors", "--experiment", collected)
    assert judged(cli, collected) > 0
    assert only_sitting(cli, collected)["late"] == 0


def test_a_decision_needs_a_closed_sitting_a_reason_and_something_late(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    token = sections(Path("sheet.json"))[0]["sitting"]
    still_open = cli("judge", "accept", token, "--reason", "x", "--experiment", collected)
    assert (still_open.code, "still open" in still_open.err) == (2, True)
    unknown = cli("judge", "refuse", "nonsense", "--reason", "x", "--experiment", collected)
    assert (unknown.code, "no sitting 'nonsense'" in unknown.err) == (2, True)
    fill(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    assert cli("judge", "accept", token, "--reason", " ", "--experiment", collected).code == 2
    nothing = cli("judge", "accept", token, "--with-late", "--reason", "x", "--experiment", collected)
    assert (nothing.code, "came after" in nothing.err) == (2, True)


def test_judges_are_shown_with_drift_agreement_and_a_drawing(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"))
    cli.ok("judge", "--apply", "sheet.json")
    sheet = json.loads(Path("sheet.json").read_text())
    for number, item in enumerate(sheet["sections"][0]["items"]):
        if item["text"] not in REFERENCES:
            item["scores"] = dict.fromkeys(item["scores"], 2 + number % 3)
    sheet["sections"][0]["judged_by"] = "anna"
    Path("sheet.json").write_text(json.dumps(sheet))
    cli.ok("judge", "--apply", "sheet.json")
    report = cli.ok("judge", "judges", "--experiment", collected, "--json").json()
    assert [each["line"]["judged_by"] for each in report["sittings"]] == [PERSON, "anna"]
    (pair,) = report["pairs"]
    assert pair["judges"] == ["anna", PERSON]
    assert pair["candidates"] == judged(cli, collected)
    assert pair["flags"]["format_ok"] == 1.0
    drawing = draw_drift([JudgeSitting.model_validate(each) for each in report["sittings"]])
    assert drawing is not None
    assert drawing.count("<circle") == 4
    assert "anna" in drawing
    shown = cli.ok("judge", "judges", "--experiment", collected).out
    assert "+0.0 ± 0.5" in shown


def test_all_anchors_hit_in_two_sittings_of_one_judge_are_marked(
    cli: Cli, collected: str, base: tuple[str, Path], experiment_name: str
) -> None:
    name, pack = base
    other = f"{experiment_name}-other"
    collect = ("collect", "--models", "smollm2", "--prompts", "v1", "--n-tips", "3", "--pack", str(pack))
    cli.ok(*collect, "--experiment", other, "--reuse-from", name)
    for number, experiment in enumerate((collected, other)):
        judge(cli, experiment, f"{number}.json", judged_by=experiment_name)
    marks = [
        each["mark"]
        for each in cli.ok("judge", "judges", "--json").json()["sittings"]
        if each["line"]["judged_by"] == experiment_name
    ]
    assert marks == ["exact", "exact"]


def test_judges_who_met_under_two_rubrics_are_compared_under_each(
    cli: Cli, mlflow_url: str, experiment_name: str, tmp_path: Path
) -> None:
    cli.ok("pack", "new", "mine")
    packs = {
        f"{experiment_name}-tips": make_pack(f"pack-{experiment_name}", scenarios=2),
        f"{experiment_name}-mine": read_pack(tmp_path / "mine"),
    }
    anna, bert = f"anna {experiment_name}", f"bert {experiment_name}"
    for name, pack in packs.items():
        collect_scripted(cli.home, mlflow_url, name, pack=pack)
        for judge_name, more in ((anna, ()), (bert, ("--second-opinion", "100%"))):
            file = f"{name}-{judge_name}.json"
            cli.ok("judge", "--experiment", name, "--judged-by", judge_name, "--export", file, *more)
            # By its length: the same from every judge.
            scales = [scale.name for scale in pack.rubric.scales]
            fill_with(Path(file), lambda text, of=scales: dict.fromkeys(of, 1 + len(text) % 3), pack=pack)
            cli.ok("judge", "--apply", file)
    report = cli.ok("judge", "judges", "--json").json()
    met = {pair["rubric"]: pair for pair in report["pairs"] if pair["judges"] == [anna, bert]}
    assert {rubric: list(pair["scales"]) for rubric, pair in met.items()} == {
        "tip-v1": ["relevance", "actionability", "tone"],
        "headline-v1": ["accuracy", "appeal"],
    }
    assert all(pair["bias"] == 0 for pair in met.values())
    assert "headline-v1" in cli.ok("judge", "judges").out
    # A pack that was deleted in MLflow takes its experiment out of the report, and no other.
    client = MlflowClient(tracking_uri=mlflow_url)
    gone = f"{experiment_name}-mine"
    found = client.get_experiment_by_name(gone)
    assert found is not None
    for run in client.search_runs([found.experiment_id], "tags.`tipbench.kind` = 'pack'"):
        client.delete_run(run.info.run_id)
    shutil.rmtree(cli.home)
    told = cli.ok("judge", "judges")
    assert f"{gone} is left out" in told.out + told.err
    assert f"{experiment_name}-tips" in told.out
