"""A whole campaign on real weights and a real MLflow: one promotes, one refuses, and back."""

import json
import re
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import Cli
from tests.engines.variants import prepare_models
from tests.judging.auto_asking import auto
from tests.judging.counting_judge import CountingJudge
from tests.support.official import MlflowClient
from tests.support.sheets import REFERENCES, judge_soundly
from tests.support.small_pack import MAX_TOKENS, PROMPT
from tipbench.bench.champions import entry_name
from tipbench.pack import builtin_pack

WORSE, BETTER, SAME = "smollm2-sim2", "smollm2", "smollm2-q8_0"
SCENARIOS = 8
KNOWN = {
    word
    for text in (*(anchor.text for anchor in builtin_pack().anchors), builtin_pack().rubric.text)
    for word in re.findall(r"[a-z]+", text.lower())
}


def write_pack(folder: Path) -> str:
    """Eight scenarios and one short prompt; gives its name, which is nobody else's."""
    name = f"real-{uuid4().hex[:8]}"
    files = dict(builtin_pack().files)
    lines = files["scenarios.jsonl"].splitlines()[:SCENARIOS]
    ids = {json.loads(line)["id"] for line in lines}
    anchors = [line for line in files["anchors.jsonl"].splitlines() if json.loads(line)["scenario"] in ids]
    manifest = re.sub(r'(?m)^name = ".*"$', f'name = "{name}"', files["pack.toml"])
    files = {path: text for path, text in files.items() if not path.startswith("prompts/")}
    files |= {
        "scenarios.jsonl": "\n".join(lines) + "\n",
        "anchors.jsonl": "\n".join(anchors) + "\n",
        "pack.toml": manifest.replace("max_tokens = 320", f"max_tokens = {MAX_TOKENS}"),
        "prompts/v3.md": PROMPT,
    }
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return name


def score_by_words(text: str) -> str:
    """An automatic judge: references for anchors; else whether words are words, and how often they repeat."""
    scores = REFERENCES.get(text)
    if scores is None:
        words = re.findall(r"[a-z]+", text.lower()) or ["?"]
        real = sum(word in KNOWN for word in words) / len(words)
        fresh = len(set(words)) / len(words)
        length = 5 if 5 <= len(words) <= 25 else 2
        values = (1 + 4 * real, 1 + 4 * fresh, length)
        names = ("relevance", "actionability", "tone")
        scores = {name: max(1, min(5, round(value))) for name, value in zip(names, values, strict=True)}
    return json.dumps(scores)


def judge_all(cli: Cli, experiment: str) -> None:
    """Everything that waits, by the file; then the automatic judge."""
    sheet = Path(f"{experiment}.json")
    cli.ok("judge", "--experiment", experiment, "--export", str(sheet))
    judge_soundly(sheet)
    cli.ok("judge", "--apply", str(sheet))
    cli.ok(*auto(experiment))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_one_campaign_promotes_one_refuses_and_rollback_goes_back(
    cli: Cli,
    auto_judge: CountingJudge,
    tmp_path: Path,
    experiment_name: str,
    mlflow_url: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # How fast the weights of tests are says nothing on a busy machine.
    monkeypatch.setenv("TIPBENCH_GATE_LATENCY_RATIO", "1000")
    prepare_models("q8_0", "sim2")
    auto_judge.say = score_by_words
    pack = write_pack(tmp_path / "pack")
    asked = ("collect", "--pack", str(tmp_path / "pack"), "--prompts", "v3", "--n-tips", "2")
    client = MlflowClient(tracking_uri=mlflow_url, registry_uri=mlflow_url)

    def champion() -> tuple[int, str]:
        seen = client.get_prompt_version_by_alias(entry_name(pack), "champion")
        assert seen.template == PROMPT
        return seen.version, seen.tags["tipbench.arm"]

    first = experiment_name
    cli.ok(*asked, "--experiment", first, "--models", f"{WORSE},{BETTER}")
    cli.ok("promote", "--experiment", first, "--initial", f"{WORSE}+v3", "--reason", "in use")
    assert champion() == (1, f"{WORSE}+v3")
    judge_all(cli, first)
    passed = cli("promote", "--experiment", first)
    assert passed.code == 0, passed.out + passed.err
    assert "FAIL" not in passed.out
    assert champion() == (2, f"{BETTER}+v3")

    second = f"{experiment_name}-second"
    added = cli.ok(*asked, "--experiment", second, "--models", SAME)
    assert f"{BETTER}+v3 is added" in added.out + added.err
    judge_all(cli, second)
    refused = cli("promote", "--experiment", second)
    assert refused.code == 3, refused.out + refused.err
    assert "FAIL verdicts of people and agents" in " ".join(refused.out.split())
    assert f"{BETTER}+v3 stays champion" in refused.out
    assert champion() == (2, f"{BETTER}+v3")

    cli.ok("champion", "rollback", "--pack", pack, "--reason", "complaints")
    assert champion() == (1, f"{WORSE}+v3")
    is_prompt = "tags.`mlflow.prompt.is_prompt` = 'true'"
    versions = client.search_model_versions(f"name='{entry_name(pack)}' AND {is_prompt}")
    assert sorted(int(version.version) for version in versions) == [1, 2]
    told = cli.ok("champion", "history", "--pack", pack, "--json").json()
    assert [line["how"] for line in told["promotions"]] == ["initial", "gate", "rollback"]
    assert [look["answer"] for look in told["looks"]] == ["promote", "no"]
