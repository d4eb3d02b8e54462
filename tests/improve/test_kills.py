"""`improve` killed with -9 in the middle and run again: nothing is doubled, the end is the same."""

import json
import os
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

import pytest

from tests.improve.conftest import DEFECTIVE, GOOD, fill_sheets, write_pack
from tests.improve.scripted_server import (
    MODEL,
    N_TIPS,
    ScriptedServer,
    read_brief,
    remove_what_is_blamed,
    run_server,
)
from tests.support.fault_proxy import FaultProxy, Plan
from tipbench.bench.champions import read_arm, read_chain
from tipbench.bench.evidence import read_evidence
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking

COMMANDS = {
    "prompts": (
        "improve",
        "--prompts",
        "v1,v2",
        "--models",
        MODEL,
        "--n-tips",
        str(N_TIPS),
        "--scenarios",
        "all",
    ),
    "improve": ("improve",),
}
SHARES = {"prompts": (0.35, 0.8), "improve": (0.6,)}
"""Where in a leg it is killed: after these shares of its requests to MLflow."""
MOST_LEGS = 12


@dataclass
class Course:
    """A command from its beginning to its end, each leg a process; judged and answered in between."""

    work: Path
    proxy: FaultProxy
    server: ScriptedServer
    command: tuple[str, ...]
    experiment: str
    pack: str = ""
    legs: list[int] = field(default_factory=list[int])
    """Requests to MLflow of every leg that was not killed."""
    killed: int = 0

    def begin(self) -> None:
        """`v1` with its defect is champion, from an experiment of its own."""
        self.pack = write_pack(self.work / "pack")
        (self.work / "home").mkdir()
        start = f"{self.experiment}-start"
        asked = ("--models", MODEL, "--prompts", "v1", "--n-tips", str(N_TIPS), "--n-scenarios", "2")
        for arguments in (
            ("collect", *asked, "--pack", str(self.work / "pack"), "--experiment", start),
            ("promote", "--experiment", start, "--initial", f"{MODEL}+v1", "--reason", "in use"),
        ):
            code, said = self._run(arguments)
            assert code == 0, said

    def run(self, *, leg: int = -1, at: int = 0) -> None:
        """To the end. That leg is killed once at that request, and then begun again."""
        more: tuple[str, ...] = ()
        for number in range(MOST_LEGS):
            arguments = (
                *self.command,
                *more,
                "--pack",
                str(self.work / "pack"),
                "--experiment",
                self.experiment,
            )
            if number == leg:
                self.killed += self._run(arguments, kill_at=at)[0] == -9
            before = len(self.proxy.requests)
            code, said = self._run(arguments)
            self.legs.append(len(self.proxy.requests) - before)
            if code != 4:
                assert code == 0, said
                return
            more = self._answer(said)
        raise AssertionError(f"no end after {MOST_LEGS} legs")

    def _answer(self, said: str) -> tuple[str, ...]:
        """What a judge or a writer does when the command waits; the options to go on with."""
        if "--export brief.md" in said:
            return ("--export", "brief.md")
        if "--apply versions.json" in said:
            brief = (self.work / "brief.md").read_text(encoding="utf-8")
            answer = {"brief": read_brief(brief).id, "versions": [remove_what_is_blamed(brief)]}
            (self.work / "versions.json").write_text(json.dumps(answer), encoding="utf-8")
            return ("--apply", "versions.json")
        assert "Verdicts " in said, said
        fill_sheets()
        return ()

    def _run(self, arguments: tuple[str, ...], *, kill_at: int = -1) -> tuple[int, str]:
        environment = os.environ | {
            "TIPBENCH_HOME": str(self.work / "home"),
            "MLFLOW_TRACKING_URI": self.proxy.url,
            "TIPBENCH_OPENAI_URL": self.server.url,
            "TIPBENCH_OPENAI_LOCAL": "false",
            "TIPBENCH_JUDGE_MODEL": MODEL,
            "TIPBENCH_GATE_LOOKS": "1",
            "TIPBENCH_GATE_LATENCY_RATIO": "1000",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "tipbench", *arguments],
            env=environment, cwd=self.work, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        at = len(self.proxy.requests) + kill_at if kill_at >= 0 else -1
        self.proxy.plan = Plan(fault="kill_client", at=at, kill_client=process.kill)
        said = process.communicate(timeout=300)[0]
        return process.returncode, said


@dataclass(frozen=True)
class Facts:
    """What the store holds in the end, without ids and times.

    Of lazy verdicts how many there are in each cell: which candidates are drawn into blocks is chance.
    """

    auto: dict[tuple[str, int], dict[str, int]]
    lazy: Counter[str]
    cells: dict[str, int]
    promotions: list[tuple[str, str]]
    looks: int
    versions: int
    champion: str


def read_facts(tracking: Tracking, course: Course) -> Facts:
    """Of the experiment and of those it made: nothing in it may be there twice."""
    auto: dict[tuple[str, int], dict[str, int]] = {}
    lazy = Counter[str]()
    cells: dict[str, int] = {}
    looks = versions = 0
    for experiment in tracking.list_experiments():
        if not experiment.name.startswith(course.experiment):
            continue
        runs = tracking.read_runs(experiment, fresh=True)
        evidence = read_evidence(runs)
        assert evidence.duplicates == evidence.doubles == ()
        where = experiment.name.removeprefix(course.experiment)
        cells[where] = len(evidence.cells)
        lazy.update(f"{where} {given.cell.facts.key}" for given in evidence.lazy)
        auto |= {
            (f"{where} {given.cell.facts.key}", given.verdict.slot): given.verdict.scores
            for given in evidence.auto
        }
        looks += sum(run.tags.get("tipbench.kind") == "look" for run in runs)
        versions += sum(run.tags.get("tipbench.kind") == "version" for run in runs)
    chain = read_chain(tracking, course.pack)
    assert chain.in_force is not None
    return Facts(
        auto=auto,
        lazy=lazy,
        cells=cells,
        promotions=[(each.facts.how, each.facts.arm) for each in chain.promotions],
        looks=looks,
        versions=versions,
        champion=read_arm(tracking, chain.in_force).template,
    )


@pytest.fixture
def server() -> Iterator[ScriptedServer]:
    with run_server(ScriptedServer(lambda prompt: DEFECTIVE if "weather" in prompt else GOOD)) as running:
        yield running


def follow(
    name: str, server: ScriptedServer, url: str, folder: Path, monkeypatch: pytest.MonkeyPatch,
    *, leg: int = -1, at: int = 0,
) -> tuple[Course, Facts, int]:  # fmt: skip
    """One course with one kill, what it left, and how many answers it cost."""
    work = folder / uuid4().hex[:8]
    work.mkdir()
    monkeypatch.chdir(work)
    before = server.generated
    with FaultProxy(url) as proxy:
        course = Course(work, proxy, server, COMMANDS[name], f"kills-{work.name}")
        course.begin()
        course.run(leg=leg, at=at)
    with open_tracking(Settings(home=work / "reader", mlflow_url=url)) as tracking:
        return course, read_facts(tracking, course), server.generated - before


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", COMMANDS)
def test_killed_anywhere_and_run_again_nothing_is_doubled(
    name: str, server: ScriptedServer, mlflow_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calm, expected, generated = follow(name, server, mlflow_url, tmp_path, monkeypatch)
    killed = 0
    for leg, requests in enumerate(calm.legs):
        for share in SHARES[name]:
            at = int(share * requests)
            course, facts, again = follow(name, server, mlflow_url, tmp_path, monkeypatch, leg=leg, at=at)
            where = f"{name}, leg {leg}, request {at} of {requests}"
            assert facts == expected, where
            # The answer that was under way may be asked for again.
            assert again <= generated + course.killed, where
            killed += course.killed
    assert killed >= len(calm.legs)
