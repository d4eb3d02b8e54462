"""Experiments as the program made them that tipbench replaces: its tags, and scores of whole cells."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import count, product
from typing import Any

import httpx2

MODELS = ("qwen2.5:0.5b", "qwen2.5:1.5b")
PROMPTS = ("v1", "v3-few-shot")
SCENARIOS = ("anna-morning", "anna-evening", "ben-morning", "ben-evening")
LEVELS = {
    ("qwen2.5:0.5b", "v1"): 2,
    ("qwen2.5:0.5b", "v3-few-shot"): 3,
    ("qwen2.5:1.5b", "v1"): 3,
    ("qwen2.5:1.5b", "v3-few-shot"): 4,
}
"""What the judge gave on every scale."""


def score(level: int, *, overlong: int = 0) -> dict[str, float]:
    """The metrics of a judged cell."""
    parts = {"relevance": level, "actionability": level, "tone": level, "format_ok": 1, "overlong": overlong}
    return {**parts, "composite": 3 * level + 2 - overlong}


def make_tips(model: str, prompt: str, scenario: str, *, n: int = 3) -> list[str]:
    """Candidates that tell cells apart, and say nothing of who wrote them."""
    mark = sum(map(ord, model + prompt + scenario))
    return [f"Spend {mark + slot} seconds on the first open task now." for slot in range(n)]


@dataclass
class Original:
    """One experiment, written over plain REST, with nothing of tipbench in it."""

    url: str
    name: str
    model_param: str = "model"
    prompt_param: str = "prompt_version"
    scenario_param: str = "scenario"
    experiment_id: str = ""
    times: "count[int]" = field(default_factory=lambda: count(1_777_000_000_000, 1_000))

    def create(self) -> "Original":
        self.experiment_id = self.post("experiments/create", {"name": self.name})["experiment_id"]
        return self

    def fill(self) -> "Original":
        """2 models × 2 prompts × 4 scenarios, all judged: the winner has composite 13.75."""
        self.create()
        for place, (model, prompt, scenario) in enumerate(product(MODELS, PROMPTS, SCENARIOS)):
            self.add(model, prompt, scenario, scores=score(LEVELS[model, prompt], overlong=place % 4 == 0))
        return self

    def add(
        self,
        model: str,
        prompt: str,
        scenario: str,
        *,
        scores: Mapping[str, float] | None = None,
        judge: tuple[str, str] = ("claude-code", "claude-code-session"),
        tags: Mapping[str, str | None] | None = None,
    ) -> str:
        """One run; tags that are None are left out."""
        kind, judged_by = judge
        tips = make_tips(model, prompt, scenario)
        known: dict[str, str | None] = {
            "judge_pending": str(scores is None).lower(),
            "judge_kind": kind,
            "rubric": "tip-v1",
            "artifact:prompt.txt": f"You are {prompt}. Write 3 tips for {scenario}.",
            "artifact:candidates.json": json.dumps(tips),
            "artifact:raw.txt": "\n".join(f"{n}. {tip}" for n, tip in enumerate(tips, start=1)),
        }
        if scores is not None:
            known |= {"judged_by": judged_by, "judged_at": "2026-04-27T18:30:00+00:00"}
        params = {self.model_param: model, self.prompt_param: prompt, self.scenario_param: scenario}
        return self.log(known | dict(tags or {}), params, scores or {})

    def log(
        self, tags: Mapping[str, str | None], params: Mapping[str, str], metrics: Mapping[str, float]
    ) -> str:
        at = next(self.times)
        pairs = [{"key": key, "value": value} for key, value in tags.items() if value is not None]
        body = {"experiment_id": self.experiment_id, "start_time": at, "tags": pairs}
        run_id: str = self.post("runs/create", body)["run"]["info"]["run_id"]
        logged = [{"key": key, "value": value} for key, value in params.items()]
        self.post("runs/log-batch", {"run_id": run_id, "params": logged, "metrics": _metrics(metrics, at)})
        return run_id

    def judge(self, run_id: str, scores: Mapping[str, float]) -> None:
        """As its judge did: metrics, and tags."""
        tags = {"judge_pending": "false", "judged_by": "claude-code-session", "judged_at": "2026-05-01"}
        pairs = [{"key": key, "value": value} for key, value in tags.items()]
        body = {"run_id": run_id, "metrics": _metrics(scores, next(self.times)), "tags": pairs}
        self.post("runs/log-batch", body)

    def dump(self) -> list[Any]:
        """Everything that it holds: to see that nobody changed it."""
        body = {"experiment_ids": [self.experiment_id], "max_results": 1000, "run_view_type": "ALL"}
        experiment = self.get("experiments/get", {"experiment_id": self.experiment_id})
        return [experiment, self.post("runs/search", body)]

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        return httpx2.post(self._at(path), json=body, timeout=60).raise_for_status().json()

    def get(self, path: str, query: dict[str, str]) -> Any:
        return httpx2.get(self._at(path), params=query, timeout=60).raise_for_status().json()

    def _at(self, path: str) -> str:
        return f"{self.url}/api/2.0/mlflow/{path}"


def _metrics(values: Mapping[str, float], at: int) -> list[dict[str, float | str]]:
    return [{"key": key, "value": value, "timestamp": at} for key, value in values.items()]
