"""`action.yml`, step by step in bash as the runner runs it; only the API of the comment is a stand-in."""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
import yaml

from tests.conftest import Cli
from tests.promotion.campaign import Campaign
from tests.support.servers import serve

ROOT = Path(__file__).parents[2]
ACTION: Any = yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))
STEPS: dict[str, Any] = {step["name"]: step for step in ACTION["runs"]["steps"]}
NUMBER = 17


@dataclass
class Comments:
    """The comments of a pull request; others have written more than a page of them."""

    url: str = ""
    bodies: dict[int, str] = field(default_factory=lambda: {n: f"comment {n}" for n in range(1, 131)})
    allowed: bool = True
    methods: list[str] = field(default_factory=list[str])


@pytest.fixture
def comments() -> Iterator[Comments]:
    kept = Comments()

    class Api(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            asked = urlsplit(self.path)
            assert asked.path == f"/repos/team/prompts/issues/{NUMBER}/comments"
            page, size = (int(parse_qs(asked.query)[name][0]) for name in ("page", "per_page"))
            listed = [{"id": number, "body": body} for number, body in sorted(kept.bodies.items())]
            self._answer(200, listed[(page - 1) * size : page * size])

        def do_POST(self) -> None:
            assert self.path == f"/repos/team/prompts/issues/{NUMBER}/comments"
            self._write(max(kept.bodies) + 1)

        def do_PATCH(self) -> None:
            self._write(int(self.path.removeprefix("/repos/team/prompts/issues/comments/")))

        def _write(self, number: int) -> None:
            assert self.headers["Authorization"] == "Bearer the-token"
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["body"]
            if not kept.allowed:
                self._answer(403, {"message": "Resource not accessible by integration"})
                return
            kept.methods.append(self.command)
            kept.bodies[number] = body
            self._answer(200, {"id": number})

        def _answer(self, status: int, content: object) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            pass

    with serve(Api) as kept.url:
        yield kept


@dataclass
class Job:
    """A job on a runner: its files, its inputs, and what its steps said."""

    folder: Path
    inputs: Mapping[str, str]
    environ: Mapping[str, str]
    outputs: dict[str, dict[str, str]] = field(default_factory=dict[str, dict[str, str]])
    summary: str = ""

    def fill(self, text: str) -> str:
        """`${{ … }}` as the runner fills it in."""
        usual = {name: str(each.get("default", "")) for name, each in ACTION["inputs"].items()}
        known = {f"inputs.{name}": value for name, value in (usual | dict(self.inputs)).items()}
        known |= {"runner.temp": str(self.folder), "github.action_path": str(ROOT)}
        for step, values in self.outputs.items():
            known |= {f"steps.{step}.outputs.{name}": value for name, value in values.items()}
        return re.sub(r"\$\{\{ (.*?) \}\}", lambda found: known[found[1]], text)

    def run(self, name: str) -> "subprocess.CompletedProcess[str]":
        step, key = STEPS[name], STEPS[name].get("id", name)
        assert "${{" not in step["run"], "what somebody wrote is never part of a script"
        script, summary, output = (self.folder / each for each in ("step.sh", "summary.md", "output"))
        script.write_text(step["run"])
        summary.write_text("")
        output.write_text("")
        environ = {
            **self.environ,
            **{name: self.fill(str(value)) for name, value in step.get("env", {}).items()},
            "RUNNER_TEMP": str(self.folder),
            "GITHUB_STEP_SUMMARY": str(summary),
            "GITHUB_OUTPUT": str(output),
        }
        ended = subprocess.run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", str(script)],
            env=environ, capture_output=True, text=True, check=False,
        )  # fmt: skip
        self.summary += summary.read_text()
        pairs = re.findall(r"^([a-z-]+)<<(.+)\n([\s\S]*?)\n\2$", output.read_text(), re.MULTILINE)
        self.outputs[key] = {name: value for name, _, value in pairs}
        return ended

    def ok(self, name: str) -> str:
        ended = self.run(name)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        return ended.stdout


def start_job(tmp_path: Path, comments: Comments, **inputs: str) -> Job:
    folder = tmp_path / "runner"
    folder.mkdir(exist_ok=True)
    event = folder / "event.json"
    event.write_text(json.dumps({"number": NUMBER, "pull_request": {"number": NUMBER}}))
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    github = {
        "GITHUB_API_URL": comments.url,
        "GITHUB_REPOSITORY": "team/prompts",
        "GITHUB_EVENT_PATH": str(event),
    }
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("TIPBENCH", "MLFLOW"))}
    given = {
        "install": "",
        "token": "the-token",
        **{key.replace("_", "-"): value for key, value in inputs.items()},
    }
    gate = {"TIPBENCH_GATE_LOOKS": "1", "TIPBENCH_GATE_REQUIRE": "lazy"}
    lock = {
        name: os.environ[name] for name in ("TIPBENCH_ENGINE_LOCK", "TIPBENCH_THREADS") if name in os.environ
    }
    return Job(folder, given, kept | github | gate | lock | {"PATH": path})


def test_the_gate_s_steps_write_one_comment_and_update_it(
    campaign: Campaign, comments: Comments, mlflow_url: str, tmp_path: Path
) -> None:
    job = start_job(tmp_path, comments, experiment=campaign.experiment, mlflow_url=mlflow_url)
    assert "tipbench, version" in job.ok("Install")
    job.ok("Ask the gate")
    said = job.outputs["gate"]
    assert (said["answer"], said["exit-code"], said["champion"]) == ("undecided", "4", "old+v1")
    assert f"{said['missing']} more verdicts" in job.summary
    assert "written" in job.ok("Tell the pull request")
    assert job.ok("Answer").startswith("::notice title=tipbench::"), "not decided fails nobody's check"
    campaign.judge()
    job.ok("Ask the gate")
    assert job.outputs["gate"]["answer"] == "promote"
    assert job.outputs["gate"]["challenger"] == "good+v1"
    assert "updated" in job.ok("Tell the pull request")
    assert comments.methods == ["POST", "PATCH"]
    (ours,) = [body for body in comments.bodies.values() if "tipbench" in body]
    assert "✅ tipbench: promote" in ours
    assert "✓" in ours
    assert job.ok("Answer").startswith("::notice")
    job.ok("Stop the local MLflow")


def test_a_no_fails_after_the_comment_and_a_missing_right_fails_nothing(
    campaign: Campaign, comments: Comments, mlflow_url: str, tmp_path: Path
) -> None:
    campaign.judge(score_of={"relevance": 3, "actionability": 3, "tone": 3})
    job = start_job(tmp_path, comments, experiment=campaign.experiment, mlflow_url=mlflow_url)
    comments.allowed = False
    job.ok("Ask the gate")
    assert job.outputs["gate"]["answer"] == "no"
    assert "::warning" in job.ok("Tell the pull request")
    refused = job.run("Answer")
    assert (refused.returncode, refused.stdout[:9]) == (1, "::error t")
    (job.folder / "event.json").write_text("{}")
    assert "not a pull request" in job.ok("Tell the pull request")
    broken = start_job(tmp_path, comments, experiment="nothing-there", mlflow_url=mlflow_url)
    assert broken.run("Ask the gate").returncode == 2


def test_options_of_collect_are_taken_as_typed(
    cli: Cli, base: tuple[str, Path], collected: str, comments: Comments, mlflow_url: str, tmp_path: Path
) -> None:
    touched = tmp_path / "touched"
    options = f"--models smollm2 --prompts v1 --dry-run --scenarios 'a b; touch {touched} $(touch {touched})'"
    job = start_job(tmp_path, comments, experiment=collected, mlflow_url=mlflow_url, collect=options)
    (job.folder / "tipbench").mkdir()
    (job.folder / "tipbench" / "models").symlink_to((cli.home / "models").resolve())
    refused = job.run("Collect what is missing")
    assert refused.returncode == 2
    assert f"a b; touch {touched} $(touch {touched})" in refused.stderr
    assert not touched.exists()
    fine = start_job(
        tmp_path, comments, experiment=collected, mlflow_url=mlflow_url,
        collect=f"--pack '{base[1]}' --models smollm2 --prompts v1 --n-tips 3 --dry-run",
    )  # fmt: skip
    assert "cells" in fine.ok("Collect what is missing")


def test_other_actions_are_only_used_to_keep_files() -> None:
    assert [step["uses"] for step in ACTION["runs"]["steps"] if "uses" in step] == ["actions/cache@v4"]
    assert set(ACTION["outputs"]) == {"answer", "words", "challenger", "missing"}


def test_outside_of_a_runner_nothing_is_claimed(cli: Cli, collected: str, tmp_path: Path) -> None:
    refused = cli("compare", "--experiment", collected, "--github")
    assert (refused.code, "GITHUB_STEP_SUMMARY" in refused.err) == (2, True)


def test_both_pages_and_outputs_are_told_to_the_runner(
    cli: Cli, campaign: Campaign, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    summary, output = tmp_path / "summary.md", tmp_path / "output"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    monkeypatch.setenv("GITHUB_OUTPUT", str(output))
    page = cli("gate", "--experiment", campaign.experiment, "--markdown", "--github")
    assert summary.read_text() == page.out + "\n"
    beside = cli("gate", "--experiment", campaign.experiment, "--json", "--page", str(tmp_path / "gate.md"))
    assert (beside.json()["answer"], (tmp_path / "gate.md").read_text()) == ("undecided", page.out)
    board = cli("compare", "--experiment", campaign.experiment, "--markdown", "--github")
    assert summary.read_text() == f"{page.out}\n{board.out}\n"
    assert re.findall(r"^answer<<.*\n(.*)", output.read_text(), re.MULTILINE) == ["undecided", "undecided"]
    both = cli("gate", "--experiment", campaign.experiment, "--markdown", "--json")
    assert both.code == 2
