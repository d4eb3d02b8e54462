"""Asking for an automatic judge, and reading what came of it."""

from collections.abc import Mapping
from typing import Any

from tests.conftest import Cli
from tests.judging.counting_judge import MODEL, OUTPUT_PRICE, PROMPT_PRICE, CountingJudge
from tests.support.official import search_official
from tipbench.bench.evidence import Evidence, read_evidence
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

ANCHORS = 12
"""Of the small pack."""
SCORES = ("relevance", "actionability", "tone", "format_ok", "overlong", "composite")


def judge_environment(judge: CountingJudge) -> dict[str, str]:
    return {
        "TIPBENCH_OPENAI_URL": judge.url,
        "TIPBENCH_OPENAI_LOCAL": "false",
        "TIPBENCH_JUDGE_PRICE_PROMPT": str(PROMPT_PRICE),
        "TIPBENCH_JUDGE_PRICE_OUTPUT": str(OUTPUT_PRICE),
    }


def auto(experiment: str, *more: str, model: str = f"openai:{MODEL}") -> tuple[str, ...]:
    return ("judge", "--auto", "--judge-model", model, "--experiment", experiment, "--json", *more)


def evidence_of(cli: Cli, url: str, experiment: str) -> Evidence:
    with open_tracking(Settings(home=cli.home, mlflow_url=url)) as tracking:
        return read_evidence(tracking.read_runs(tracking.find_experiment(experiment), fresh=True))


def auto_scores(evidence: Evidence) -> dict[tuple[str, int], Mapping[str, int]]:
    return {(g.cell.facts.key, g.verdict.slot): g.verdict.scores for g in evidence.auto}


def cells_of(url: str, experiment: str) -> list[dict[str, Any]]:
    return search_official(url, experiment, "tags.`tipbench.kind` = 'cell'")


def sitting_of(url: str, experiment: str) -> dict[str, Any]:
    (found,) = search_official(url, experiment, "tags.`tipbench.kind` = 'sitting'")
    return found
