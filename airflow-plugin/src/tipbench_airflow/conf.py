"""The configuration of a run: keys, limits and defaults, and the arguments that tipbench is called with."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

Conf = Mapping[str, Any]

MLFLOW_URL = "http://localhost:5000"
OLLAMA_URL = "http://localhost:11434"
REMOTE = ("litellm:", "openai:")
"""How the names of judges begin that may cost money."""
TEXT = r"^[^\x00]*[^\x00\s][^\x00]*$"

KEYS: dict[str, dict[str, Any]] = {
    "models": {
        "default": "qwen2.5:0.5b,qwen2.5:1.5b,gemma3:1b,llama3.2:3b",
        "type": "string",
        "pattern": TEXT,
        "maxLength": 4000,
        "description": "Comma-separated models, names from `tipbench models`",
    },
    "prompts": {
        "default": "v1,v2-mentor,v3-few-shot",
        "type": "string",
        "pattern": TEXT,
        "maxLength": 4000,
        "description": "Comma-separated prompt versions",
    },
    "n_tips": {
        "default": 5,
        "type": "integer",
        "minimum": 1,
        "maximum": 50,
        "description": "Candidates per cell",
    },
    "n_scenarios": {
        "default": 0,
        "type": "integer",
        "minimum": 0,
        "maximum": 1_000_000,
        "description": "Cap on scenarios, 0 = all of the set",
    },
    "temperature": {
        "default": 0.7,
        "type": "number",
        "minimum": 0,
        "maximum": 2,
        "description": "Sampling temperature",
    },
    "diversity": {"default": False, "type": "boolean", "description": "Ask for tips that differ in angle"},
    "seed": {
        "default": 0,
        "type": "integer",
        "minimum": 0,
        "exclusiveMaximum": 2**63,
        "description": "Seed of the whole grid",
    },
    "scenarios": {
        "default": "core",
        "type": "string",
        "pattern": TEXT,
        "maxLength": 250,
        "description": "Scenario set",
    },
    "judge_kind": {
        "default": "claude-code",
        "enum": ["claude-code", "human", "haiku"],
        "description": "The judge the cells wait for",
    },
    "experiment": {
        "default": "tip-bench-auto",
        "type": "string",
        "pattern": TEXT,
        "maxLength": 500,
        "description": "MLflow experiment",
    },
    "max_model_b": {
        "default": 4.0,
        "type": "number",
        "exclusiveMinimum": 0,
        "description": "Refuse larger models (billions of parameters)",
    },
    "ollama_url": {
        "default": OLLAMA_URL,
        "type": "string",
        "pattern": r"^https?://\S+$",
        "maxLength": 2000,
        "description": "Ollama; the default stands for each worker's own",
    },
    "mlflow_url": {
        "default": None,
        "type": ["null", "string"],
        "pattern": r"^https?://\S+$",
        "maxLength": 2000,
        "description": f"MLflow; empty: the worker's MLFLOW_TRACKING_URI, else {MLFLOW_URL}",
    },
    "judge_model": {
        "default": None,
        "type": ["null", "string"],
        "pattern": TEXT,
        "maxLength": 250,
        "description": "An automatic judge beside the other one; empty: none",
    },
    "judge_budget": {
        "default": None,
        "type": ["null", "number"],
        "minimum": 0,
        "description": "US dollars for the automatic judge, at most the worker's own TIPBENCH_JUDGE_BUDGET; "
        "empty: all of that",
    },
    "judge_agent": {
        "default": False,
        "type": "boolean",
        "description": "Let the coding agent judge that the worker's own TIPBENCH_JUDGE_COMMAND starts",
    },
    "until": {
        "default": "compare",
        "enum": ["compare", "gate", "approve", "promote"],
        "description": "The last step: the leaderboard, the gate's answer, or the promotion it allows; "
        "approve: that one after a person has approved it here",
    },
}
"""Key → default, JSON Schema and description: names, types and defaults are those of `tipbench collect`."""

CONTENT_KEYS = ("prompts", "n_tips", "n_scenarios", "temperature", "seed", "scenarios")
"""What decides, with the models and `diversity`, what is generated."""


class ConfRefused(ValueError):
    """The configuration of this run cannot be used; nothing was started."""


def check_conf(conf: Conf, environ: Mapping[str, str]) -> None:
    """What JSON Schema does not see: unknown keys, files for names, a judge or addresses nobody configured.

    Raises:
        ConfRefused: says which key, which value, and what would be right.
    """
    unknown = sorted(set(conf) - set(KEYS))
    if unknown:
        raise ConfRefused(f"unknown keys {', '.join(unknown)}; known: {', '.join(KEYS)}")
    for name in split_models(conf["models"]):
        if is_file(name):
            raise ConfRefused(f"models: {name!r} is a file; give names from `tipbench models`")
    if conf["judge_kind"] == "haiku" and not conf["judge_model"]:
        raise ConfRefused("judge_kind: 'haiku' waits for an automatic judge; name it in judge_model")
    if conf["judge_model"]:
        judge_arguments(conf, environ)
    mlflow_arguments(conf, environ)
    ollama_arguments(conf, environ)


def check_approval(conf: Conf, missing: str) -> None:
    """Refuses a run that wants an approval where Airflow has none.

    Raises:
        ConfRefused: says why, and what would do.
    """
    if conf["until"] == "approve" and missing:
        raise ConfRefused(
            f"until: 'approve' needs Airflow 3.1 or newer ({missing}); "
            "say 'gate', look at its answer, and type tipbench promote"
        )


def read_defaults(environ: Mapping[str, str]) -> dict[str, dict[str, Any]]:
    """The keys, with the defaults that this Airflow has for them (`TIPBENCH_DEFAULTS`, a JSON object).

    Raises:
        ConfRefused: it is not one, or has other keys.
    """
    text = environ.get("TIPBENCH_DEFAULTS") or "{}"
    try:
        own: Any = json.loads(text)
    except ValueError as error:
        raise ConfRefused(f"TIPBENCH_DEFAULTS: {text!r} is not JSON: {error}") from error
    if not isinstance(own, dict) or not KEYS.keys() >= own.keys():
        raise ConfRefused(f"TIPBENCH_DEFAULTS: {text!r} is not an object of these keys: {', '.join(KEYS)}")
    return {key: how | ({"default": own[key]} if key in own else {}) for key, how in KEYS.items()}


def split_models(models: str) -> list[str]:
    """The names, each once, in order.

    Raises:
        ConfRefused: there is none.
    """
    names = list(dict.fromkeys(name.strip() for name in models.split(",") if name.strip()))
    if not names:
        raise ConfRefused(f"models: {models!r} names none")
    return names


def plan_parts(conf: Conf) -> list[dict[str, str]]:
    """What is collected, each by a task of its own: every model, and the champion's arm (no model)."""
    return [{"model": name} for name in split_models(conf["models"])] + [{}]


def part_name(part: Mapping[str, str]) -> str:
    """What people see of a part."""
    return part.get("model", "the champion")


def collect_arguments(conf: Conf, part: Mapping[str, str], environ: Mapping[str, str]) -> list[str]:
    """`tipbench collect` for one model, or for the champion's arm alone."""
    if "model" in part:
        which = [f"--models={part['model']}", "--without-champion"]
    else:
        which = [f"--models={conf['models']}", "--only-champion"]
    how = [f"--judge-kind={conf['judge_kind']}", f"--max-model-b={conf['max_model_b']}"]
    where = [*ollama_arguments(conf, environ), *bench(conf, environ)]
    return ["collect", *which, *content_options(conf), *how, *where]


def content_options(conf: Conf) -> list[str]:
    """What every part is asked with."""
    options = [f"--{key.replace('_', '-')}={conf[key]}" for key in CONTENT_KEYS]
    return [*options, "--diversity" if conf["diversity"] else "--no-diversity"]


def bench(conf: Conf, environ: Mapping[str, str]) -> list[str]:
    """The experiment and its MLflow: the end of every command."""
    return [f"--experiment={conf['experiment']}", *mlflow_arguments(conf, environ)]


def mlflow_arguments(conf: Conf, environ: Mapping[str, str]) -> list[str]:
    """Which MLflow. Always one that is there: a local one is never started by a task.

    Raises:
        ConfRefused: the address is not of a configured origin.
    """
    own = environ.get("TIPBENCH_MLFLOW_URL") or environ.get("MLFLOW_TRACKING_URI")
    asked = conf["mlflow_url"]
    if asked:
        more = environ.get("TIPBENCH_MLFLOW_URLS", "")
        _check_origin("mlflow_url", asked, [own or MLFLOW_URL, *more.split(",")])
        return [f"--mlflow-url={asked}"]
    # What the environment says stays there: it may hold credentials, and arguments are seen by everybody.
    return [] if own else [f"--mlflow-url={MLFLOW_URL}"]


def ollama_arguments(conf: Conf, environ: Mapping[str, str]) -> list[str]:
    """Which Ollama, if not the worker's own.

    Raises:
        ConfRefused: the address is not of a configured origin.
    """
    asked = conf["ollama_url"]
    if asked == OLLAMA_URL:
        return []
    allowed = [environ.get("TIPBENCH_OLLAMA_URL", ""), *environ.get("TIPBENCH_OLLAMA_URLS", "").split(",")]
    _check_origin("ollama_url", asked, allowed)
    return [f"--ollama-url={asked}"]


def judge_arguments(conf: Conf, environ: Mapping[str, str]) -> list[str]:
    """Which automatic judge, and what it may cost: nothing, unless the workers have a budget.

    Raises:
        ConfRefused: it is not one that was configured, or would cost more than that.
    """
    name, own = conf["judge_model"], environ.get("TIPBENCH_JUDGE_MODEL", "")
    listed = [each.strip() for each in environ.get("TIPBENCH_JUDGE_MODELS", "").split(",") if each.strip()]
    if name.startswith("command:"):
        raise ConfRefused("judge_model: a run does not say which program judges (command:…)")
    elsewhere = name.startswith(REMOTE)
    if name not in (listed or [own]) and (listed or elsewhere or is_file(name)):
        raise ConfRefused(f"judge_model: {name!r} is not configured; add it to TIPBENCH_JUDGE_MODELS")
    ceiling = _read_number(environ, "TIPBENCH_JUDGE_BUDGET")
    budget = ceiling if conf["judge_budget"] is None else conf["judge_budget"]
    if not 0 <= budget <= ceiling:  # not a number is neither
        raise ConfRefused(f"judge_budget: {budget:g} is more than the workers' {ceiling:g} USD")
    if elsewhere and not budget:
        raise ConfRefused(f"judge_model: {name!r} may cost money; set TIPBENCH_JUDGE_BUDGET, in US dollars")
    return [f"--judge-model={name}", f"--budget={budget}"]


def _read_number(environ: Mapping[str, str], variable: str) -> float:
    try:
        return float(environ.get(variable) or 0)
    except ValueError:
        raise ConfRefused(f"{variable}: {environ[variable]!r} is not a number") from None


def is_file(name: str) -> bool:
    """Whether a model's name is the path of its weights."""
    return name.startswith(("/", ".", "~")) or name.lower().endswith(".gguf")


def _check_origin(key: str, url: str, allowed: list[str]) -> None:
    parts = urlsplit(url)
    if "@" in parts.netloc:
        raise ConfRefused(f"{key} holds credentials: set them in the environment of the workers")
    if _origin(url) not in {_origin(each) for each in allowed if each.strip()}:
        variable = f"TIPBENCH_{key.upper()}S"
        raise ConfRefused(f"{key}: {url!r} is not of an origin that is configured; add it to {variable}")


def _origin(url: str) -> tuple[str, str, int | None]:
    parts = urlsplit(url.strip())
    try:
        port = parts.port
    except ValueError:
        raise ConfRefused(f"{url!r} has no such port") from None
    return parts.scheme, parts.hostname or "", port or {"http": 80, "https": 443}.get(parts.scheme)
