"""Verdicts as assessments: read by MLflow's own client, and not doubled by a second time."""

import json
from pathlib import Path
from typing import Any

from tests.conftest import PERSON, Cli
from tests.support.official import MlflowClient, official_client_at
from tests.support.sheets import REFERENCES, fill


def read_assessments(url: str, experiment: str) -> list[dict[str, Any]]:
    """What the official client finds, one dict per assessment."""
    client = MlflowClient(url)
    found = client.get_experiment_by_name(experiment)
    assert found is not None
    with official_client_at(url):
        traces = client.search_traces(locations=[found.experiment_id], include_spans=False)
    return [
        {
            "trace": trace.info.trace_id,
            "response": trace.info.response_preview,
            "name": each.name,
            "value": each.feedback.value if each.feedback else None,
            "source": (each.source.source_type, each.source.source_id),
            "rationale": each.rationale,
        }
        for trace in traces
        for each in trace.info.assessments
    ]


def test_published_verdicts_are_there_once(cli: Cli, collected: str, mlflow_url: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    fill(Path("sheet.json"), score=4)
    sheet = json.loads(Path("sheet.json").read_text())
    texts: set[str] = set()
    for item in sheet["sections"][0]["items"]:
        item["reason"] = f"said of {item['id']}"
        if item["text"] not in REFERENCES:
            texts.add(item["text"])
    Path("sheet.json").write_text(json.dumps(sheet))
    cli.ok("judge", "--apply", "sheet.json")
    cli.ok("mlflow", "publish", "--experiment", collected)
    first = read_assessments(mlflow_url, collected)
    assert {each["response"] for each in first} == texts
    assert {each["name"] for each in first} == {
        "relevance",
        "actionability",
        "tone",
        "format_ok",
        "overlong",
        "composite",
    }
    assert {each["value"] for each in first if each["name"] == "tone"} == {4}
    assert {each["source"] for each in first} == {("LLM_JUDGE", PERSON)}
    assert all(each["rationale"].startswith("said of ") for each in first)
    cli.ok("mlflow", "publish", "--experiment", collected)

    def in_order(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
        return sorted(found, key=lambda each: (each["trace"], each["name"]))

    assert in_order(read_assessments(mlflow_url, collected)) == in_order(first)
