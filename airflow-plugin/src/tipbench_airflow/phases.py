"""What the tasks do: each calls one phase of tipbench and keeps what it answers. No Airflow in here."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tipbench_airflow.command import ANSWERS, Answer, run_tipbench
from tipbench_airflow.conf import (
    Conf,
    bench,
    collect_arguments,
    content_options,
    judge_arguments,
    part_name,
)

CHAMPION_FACTS = ("pack", "arm", "model", "prompt", "prompt_name", "version", "experiment", "promotion_run")
"""What is told of a new champion: enough to find the rest in MLflow."""


def check_fits(conf: Conf) -> None:
    """Refuses a run whose experiment holds other contents, before anything is generated."""
    run_tipbench(
        "collect", "check", f"--models={conf['models']}", *content_options(conf), *bench(conf, os.environ)
    )


def collect_part(conf: Conf, part: Mapping[str, str]) -> str:
    """Collects one model's cells, or the champion's; gives what people call the part."""
    run_tipbench(*collect_arguments(conf, part, os.environ))
    return part_name(part)


def export_sheet(conf: Conf, *, run_id: str) -> str | None:
    """Hands out what waits for a lazy judge; gives the sheet's path, None when nobody has to judge.

    The sheet is in MLflow, too: whoever judges needs no disk in common with this worker.
    """
    folder = sheets_folder(os.environ)
    folder.mkdir(parents=True, exist_ok=True)
    path, before = _next_sheet(folder, run_id)
    # Whoever fills the sheet may say so when it is applied; the worker's own user is no judge.
    judge = f"--judged-by={os.environ.get('TIPBENCH_JUDGED_BY', 'claude-code-session')}"
    run = run_tipbench("judge", f"--export={path}", judge, "--json", *bench(conf, os.environ))
    if run.json()["file"] is None:
        # Everything is with a judge already: maybe by an earlier try of this task, which got no further.
        path = before
    if path is not None:
        keep_files(conf, [path], name=f"sheet of {run_id}")
    return None if path is None else str(path)


def judge_automatically(conf: Conf) -> dict[str, Any]:
    """The automatic judge. One that may not judge (3) or may spend no more (4) has answered."""
    arguments = ("judge", "--auto", *judge_arguments(conf, os.environ), "--json")
    return _answer(run_tipbench(*arguments, *bench(conf, os.environ), passing=ANSWERS))


def judge_with_agent(conf: Conf) -> dict[str, Any]:
    """The worker's own coding agent. A sitting that does not count (3) and a rest (4) are answers."""
    return _answer(run_tipbench("judge", "--agent", "--json", *bench(conf, os.environ), passing=ANSWERS))


def compare(conf: Conf, *, run_id: str) -> dict[str, Any]:
    """The leaderboard; also in MLflow, as JSON and as a page."""
    with tempfile.TemporaryDirectory(prefix="tipbench-") as folder:
        board, page = Path(folder, "leaderboard.json"), Path(folder, "leaderboard.html")
        run = run_tipbench("compare", "--json", f"--html={page}", *bench(conf, os.environ), passing=ANSWERS)
        board.write_text(run.text, encoding="utf-8")
        keep_files(conf, [board, page], name=f"leaderboard of {run_id}")
    return _answer(run)


def ask_gate(conf: Conf) -> dict[str, Any]:
    """What the gate says, also as Markdown; takes the look that is due."""
    with tempfile.TemporaryDirectory(prefix="tipbench-") as folder:
        page = Path(folder, "gate.md")
        run = run_tipbench("gate", "--json", f"--page={page}", *bench(conf, os.environ), passing=ANSWERS)
        return _answer(run) | {"markdown": page.read_text(encoding="utf-8")}


def approvable_arm(gate: Mapping[str, Any]) -> str | None:
    """The arm that the gate lets pass."""
    return gate["answer"]["promoted"]


def is_approved(approval: Mapping[str, Any] | None) -> bool:
    """Whether somebody said yes: not who skipped the question, or marked it as done."""
    return approval is not None and list(approval["chosen_options"]) == ["Approve"]


def promote(conf: Conf, *, arm: str | None = None) -> dict[str, Any]:
    """Makes the arm champion that the gate lets pass: that one and no other, if one was approved."""
    approved = [] if arm is None else [f"--challenger={arm}"]
    return _answer(run_tipbench("promote", "--json", *approved, *bench(conf, os.environ), passing=ANSWERS))


def new_champion(promotion: Mapping[str, Any]) -> dict[str, Any] | None:
    """What other DAGs are told of a champion; None when nobody was promoted."""
    outcome = promotion["answer"]
    if outcome["outcome"] != "promoted":
        return None
    return {name: outcome["champion"][name] for name in CHAMPION_FACTS}


def champion_uri(pack: str) -> str:
    """The asset that changes when a pack has a new champion."""
    return f"tipbench://champion/{pack}"


def keep_files(conf: Conf, paths: list[Path], *, name: str) -> None:
    """Puts the files into MLflow as artifacts of one run."""
    run_tipbench("mlflow", "keep", f"--name={name}", *map(str, paths), *bench(conf, os.environ))


def sheets_folder(environ: Mapping[str, str]) -> Path:
    """Where this worker writes sheets."""
    airflow = environ.get("AIRFLOW_HOME") or Path.home() / "airflow"
    return Path(environ.get("TIPBENCH_SHEETS") or Path(airflow, "tipbench-sheets"))


def _next_sheet(folder: Path, run_id: str) -> tuple[Path, Path | None]:
    """A path for a new sheet of the run, and its newest sheet so far.

    A task that is run again hands out what came since; an export that was killed half-way is found under the
    same name and finished.
    """
    word = re.sub(r"[^A-Za-z0-9._-]", "_", run_id)
    before = None
    number = 1
    while (path := folder / f"{word}-{number}.json").exists():
        before = path
        number += 1
    return path, before


def _answer(run: Answer) -> dict[str, Any]:
    """Exit code (0 yes or done, 3 no, 4 not decided) and what was printed for machines."""
    return {"exit_code": run.code, "answer": run.json()}
