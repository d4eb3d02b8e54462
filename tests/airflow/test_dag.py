"""The DAG on a real Airflow, by `dag.test`: a real MLflow, a real model, a judge who is a program."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tipbench_airflow.conf import KEYS

from tests.airflow.conftest import Bench, drive, migrate
from tests.support.airflow_processes import REPOSITORY, VENV, AirflowProcesses
from tests.support.mcp_agent import AGENT
from tests.support.sheets import judge_soundly
from tests.support.waiting import eventually
from tipbench.bench.evidence import read_evidence
from tipbench.tracking import Tracking

pytestmark = [pytest.mark.airflow, pytest.mark.timeout(3600)]

ORDER = {
    "plan": [],
    "collect": ["plan"],
    "export_for_judge": ["collect"],
    "wait_judged": ["export_for_judge"],
    "auto_judge": ["export_for_judge"],
    "judge_agent": ["export_for_judge"],
    "compare": ["auto_judge", "wait_judged"],
    "gate": ["compare"],
    "approve": ["gate"],
    "promote": ["approve", "gate"],
}
BEFORE_3_1 = {name: after for name, after in ORDER.items() if name != "approve"} | {"promote": ["gate"]}
OLDEST = REPOSITORY / ".venv-airflow-oldest"


def check_shape(found: Any, order: dict[str, list[str]] = ORDER) -> None:
    assert found["problems"] == []
    assert {name: task["after"] for name, task in found["tasks"].items()} == order
    assert {name for name, task in found["tasks"].items() if task["pool"] == "ollama"} == {
        "collect",
        "auto_judge",
    }
    assert found["tasks"]["collect"]["queue"] == found["tasks"]["auto_judge"]["queue"] == "gpu"
    assert found["tasks"]["compare"]["queue"] == "default"
    assert found["params"] == {key: how["default"] for key, how in KEYS.items()}
    assert found["schedule"] == "None"


def test_the_dag_is_read_without_a_warning(tmp_path: Path) -> None:
    airflow = migrate(AirflowProcesses(tmp_path, environ={"TIPBENCH_QUEUE": "gpu"}))
    check_shape(drive(airflow, "parse"))
    own = {"TIPBENCH_SCHEDULE": "0 6 * * 1", "TIPBENCH_DEFAULTS": '{"until": "approve", "n_tips": 2}'}
    scheduled = drive(airflow, "parse", **own)
    assert (scheduled["problems"], scheduled["schedule"]) == ([], "0 6 * * 1")
    assert (scheduled["params"]["until"], scheduled["params"]["n_tips"]) == ("approve", 2)
    [wrong] = drive(airflow, "parse", TIPBENCH_DEFAULTS='{"n_tip": 2}')["problems"]
    assert "TIPBENCH_DEFAULTS" in wrong


def test_the_same_files_are_read_by_the_oldest_airflow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (OLDEST / "bin" / "airflow").exists():
        pytest.skip("no Airflow 3.0 here: make test-airflow sets one up where it can")
    monkeypatch.setenv(VENV, str(OLDEST))
    found = drive(migrate(AirflowProcesses(tmp_path, environ={"TIPBENCH_QUEUE": "gpu"})), "parse")
    check_shape(found, BEFORE_3_1)


def test_what_makes_no_sense_is_refused_before_anything_starts(
    tmp_path: Path, make_bench: Callable[[], Bench], tracking: Tracking, experiment_name: str
) -> None:
    airflow = migrate(AirflowProcesses(tmp_path, environ=make_bench().environ()))
    bad: list[dict[str, object]] = [
        {"n_tips": "many"},
        {"n_tips": 0},
        {"n_scenarios": -1},
        {"temperature": 9},
        {"diversity": "yes"},
        {"judge_kind": "nobody"},
        {"models": " "},
        {"mlflow_url": "file:///etc/passwd"},
        {"until": "the end"},
    ]
    *by_airflow, by_us = drive(airflow, "run", *map(json.dumps, [*bad, {"modles": "x"}]))
    for conf, answer in zip(bad, by_airflow, strict=True):
        assert next(iter(conf)) in answer["refused"], answer
    assert by_us["state"] == "failed"
    assert by_us["tasks"]["plan -1"] == "failed"
    assert {state for task, state in by_us["tasks"].items() if task.startswith("collect")} == {
        "upstream_failed"
    }
    assert all(each.name != "tip-bench-auto" for each in tracking.list_experiments())


def test_the_whole_way_from_a_model_to_a_promotion(
    tmp_path: Path, make_bench: Callable[[], Bench], tracking: Tracking, experiment_name: str
) -> None:
    bench = make_bench()
    grid = ("--models=smollm2", "--n-tips=3")
    first = f"{experiment_name}-first"
    bench.tipbench("collect", *grid, "--prompts=v1", f"--experiment={first}")
    bench.tipbench("promote", "--initial=smollm2+v1", "--reason=the first", f"--experiment={first}")
    airflow = migrate(AirflowProcesses(tmp_path, environ=bench.environ()))
    judge = threading.Thread(target=judge_in_the_middle, args=(bench, tracking, experiment_name), daemon=True)
    judge.start()
    conf = {"models": "smollm2,not-there", "prompts": "v2", "n_tips": 3, "experiment": experiment_name}
    [ended] = drive(airflow, "run", json.dumps(conf | {"judge_model": "smollm2", "until": "promote"}))
    judge.join(60)
    assert ended["state"] == "success", ended
    assert ended["gave"]["collect 0"] == "smollm2"
    assert ended["tasks"]["collect 1"] == "failed", "a model that is not there ends its own task only"
    assert ended["gave"]["collect 2"] == "the champion"
    # So small a model cannot judge. That is an answer and not a failure: the lazy judge decides alone.
    assert ended["tasks"]["auto_judge -1"] == "success"
    assert ended["gave"]["auto_judge -1"]["exit_code"] == 3
    assert Path(ended["gave"]["export_for_judge -1"]).parent == bench.sheets
    check_evidence(tracking, experiment_name, ended)


def test_the_worker_s_own_agent_judges_if_the_run_asks_for_it(
    tmp_path: Path, make_bench: Callable[[], Bench], tracking: Tracking, experiment_name: str
) -> None:
    """The other tasks are taken for done: `dag.test` runs one after the other, and the wait would wait."""
    bench = make_bench()
    airflow = migrate(AirflowProcesses(tmp_path, environ=bench.environ(TIPBENCH_JUDGE_COMMAND=AGENT)))
    conf = {"models": "smollm2", "prompts": "v1", "n_tips": 3, "experiment": experiment_name}
    plain, judged = drive(airflow, "collect", json.dumps(conf), json.dumps(conf | {"judge_agent": True}))
    assert plain["tasks"]["judge_agent -1"] == "skipped"
    assert judged["tasks"]["judge_agent -1"] == "success", judged
    evidence = read_evidence(tracking.read_runs(tracking.find_experiment(experiment_name), fresh=True))
    candidates = sum(cell.answered_count for cell in evidence.cells)
    told = judged["gave"]["judge_agent -1"]
    assert (told["exit_code"], told["answer"]["judged"]) == (0, candidates)
    assert len(evidence.lazy) >= candidates


def check_evidence(tracking: Tracking, experiment: str, ended: Any) -> None:
    stored = tracking.find_experiment(experiment)
    runs = tracking.read_runs(stored, fresh=True)
    evidence = read_evidence(runs)
    assert {cell.facts.arm for cell in evidence.cells} == {"smollm2+v1", "smollm2+v2"}
    assert len(evidence.cells) == 4
    assert not evidence.duplicates
    candidates = sum(cell.answered_count for cell in evidence.cells)
    waited = ended["gave"]["wait_judged -1"]
    assert waited["said"] == f"judged {candidates} of {candidates}: nothing waits for a judge"
    board = ended["gave"]["compare -1"]
    assert board["exit_code"] in {0, 3, 4}
    assert {standing["name"] for standing in board["answer"]["standings"]} == {"smollm2+v1", "smollm2+v2"}
    kept = [run for run in runs if run.tags["tipbench.kind"] == "kept"]
    leaderboard = next(run for run in kept if run.name.startswith("leaderboard"))
    assert json.loads(tracking.read_artifact(leaderboard, "leaderboard.json")) == board["answer"]
    assert "<svg" in tracking.read_artifact(leaderboard, "leaderboard.html")
    assert ended["gave"]["gate -1"]["exit_code"] == ended["gave"]["promote -1"]["exit_code"]
    assert ended["gave"]["gate -1"]["answer"]["champion"] == "smollm2+v1"


def judge_in_the_middle(bench: Bench, tracking: Tracking, experiment: str) -> None:
    """Takes the sheet out of MLflow, as somebody without the worker's disk does, and fills it in."""
    eventually(lambda: bool(find_sheets(tracking, experiment)), seconds=1500, every=0.5)
    [run] = find_sheets(tracking, experiment)
    [name] = [path.name for path in bench.sheets.glob("*-1.json")]
    sheet = bench.home / "sheet.json"
    sheet.write_text(tracking.read_artifact(run, name))
    judge_soundly(sheet)
    bench.tipbench("judge", "--apply", str(sheet))


def find_sheets(tracking: Tracking, experiment: str) -> list[Any]:
    found = [each for each in tracking.list_experiments() if each.name == experiment]
    where = "tags.`tipbench.kind` = 'kept' AND tags.`tipbench.state` = 'complete'"
    return tracking.search_runs([found[0].id], where) if found else []
