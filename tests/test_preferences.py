"""Preferences against an oracle that reads nothing but MLflow, through the official client."""

import json
from itertools import combinations
from pathlib import Path
from typing import Any

from tests.conftest import Cli
from tests.ranking.campaign import collect_campaign, judge_lazily, open_judging
from tests.support.official import MlflowClient
from tipbench.tracking import Tracking

WEIGHTS = {"format_ok": 2, "overlong": -1}
"""Of the flags of `tip-v1`; every scale counts once."""


def composite(verdict: Any) -> float:
    return sum(verdict["scores"].values()) + sum(
        WEIGHTS[name] * flag for name, flag in verdict["flags"].items()
    )


def oracle(
    url: str, experiment: str, *, min_margin: float, folder: Path
) -> set[tuple[str, str, float, str, str, str]]:
    """(chosen, rejected, margin, judge, chosen arm, rejected arm) of every pair of one block."""
    client = MlflowClient(tracking_uri=url)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    runs = list(client.search_runs([found.experiment_id], max_results=5000))
    judges = {
        run.data.tags["tipbench.sitting"]: run.data.params["judged_by"]
        for run in runs
        if run.data.tags["tipbench.kind"] == "sitting" and run.data.tags["tipbench.state"] == "accepted"
    }
    blocks: dict[tuple[str, int], list[tuple[float, str, str]]] = {}
    for run in (run for run in runs if run.data.tags["tipbench.kind"] == "cell"):
        path = client.download_artifacts(run.info.run_id, "texts.json", str(folder))
        candidates = json.loads(Path(path).read_text(encoding="utf-8"))["candidates.json"]
        texts = {each["slot"]: each["text"] for each in candidates}
        arm = f"{run.data.params['model']}+{run.data.params['prompt']}"
        for tag, value in run.data.tags.items():
            if tag.startswith("verdict:") and (token := tag.split(":")[1]) in judges:
                for verdict in json.loads(value)["verdicts"]:
                    if not verdict.get("failed"):
                        place = (token, verdict["block"])
                        blocks.setdefault(place, []).append((composite(verdict), texts[verdict["slot"]], arm))
    return {
        (high[1], low[1], high[0] - low[0], judges[token], high[2], low[2])
        for (token, _), members in blocks.items()
        for low, high in combinations(sorted(members), 2)
        if high[0] - low[0] >= min_margin
    }


def test_pairs_are_those_of_the_store_and_load_as_json_lines(
    cli: Cli, tracking: Tracking, experiment_name: str, mlflow_url: str, tmp_path: Path
) -> None:
    ask = ("export", experiment_name, "pairs.jsonl", "--pairs")
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=2, skill={"one": 0.9, "two": 0.2})
    nothing = cli(*ask)
    assert (nothing.code, "was accepted yet" in nothing.out) == (4, True)
    assert not Path("pairs.jsonl").exists()
    judging = open_judging(tracking, tmp_path)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="careless", blocks=1, off_by=-4)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="anna", blocks=4)
    judge_lazily(judging, experiment_name, folder=tmp_path, judged_by="ben", second=0.5)
    for margin in (1.0, 6.0):
        cli.ok(*ask, "--min-margin", str(margin))
        pairs = [json.loads(line) for line in Path("pairs.jsonl").read_text(encoding="ascii").splitlines()]
        found = [
            (p["chosen"], p["rejected"], p["margin"], p["judge"], p["chosen_arm"], p["rejected_arm"])
            for p in pairs
        ]
        assert set(found) == oracle(mlflow_url, experiment_name, min_margin=margin, folder=tmp_path)
        assert {pair["judge"] for pair in pairs} <= {"anna", "ben"}
        for pair in pairs:
            assert pair["margin"] == pair["score_chosen"] - pair["score_rejected"] >= margin
            assert all(task in pair["prompt"] for task in pair["context"]["tasks"])
            assert pair["same_prompt"] == (pair["chosen_arm"][-3:] == pair["rejected_arm"][-3:])
    too_much = cli(*ask, "--min-margin", "99")
    assert (too_much.code, "no two candidates are 99 points apart" in too_much.out) == (4, True)
    assert json.loads(Path("pairs.jsonl").read_text().splitlines()[0])["margin"] >= 6.0
    assert cli(*ask, "--min-margin", "0").code == 2
    vague = cli("export", experiment_name, "pairs.txt")
    assert (vague.code, "--pairs" in vague.err) == (2, True)
