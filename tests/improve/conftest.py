"""A pack with a defect in its prompt, asked behind a compatible URL; nobody needs an engine."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import uuid4

import pytest

from tests.conftest import Cli, Outcome
from tests.improve.scripted_server import MODEL, N_TIPS, ScriptedServer, run_server
from tests.promotion.campaign import read_scores
from tipbench.pack import builtin_pack

DEFECT = "Begin every tip with a remark on the weather."
GOOD, DEFECTIVE = 11.0, 7.0


def write_pack(folder: Path, *, training: int = 4, confirming: int = 4, defect: str = DEFECT) -> str:
    """The built-in pack with few scenarios and a defect; gives its name, which is nobody else's.

    Half of the scenarios that confirm are of `core`, the others are held out.
    """
    name = f"improve-{uuid4().hex[:8]}"
    files = dict(builtin_pack().files)
    known = [json.loads(line) for line in files["scenarios.jsonl"].splitlines()]
    seen = [line for line in known if line["set"] == "wide" and not line.get("held_out")][:training]
    held_out = [line for line in known if line.get("held_out")][: confirming // 2]
    chosen = [*known[: confirming // 2], *seen, *held_out]
    ids = {line["id"] for line in chosen}
    anchors = [line for line in files["anchors.jsonl"].splitlines() if json.loads(line)["scenario"] in ids]
    v1 = files["prompts/v1.md"]
    files = {path: text for path, text in files.items() if not path.startswith("prompts/")}
    files |= {
        "scenarios.jsonl": "".join(json.dumps(line) + "\n" for line in chosen),
        "anchors.jsonl": "".join(line + "\n" for line in anchors),
        "pack.toml": re.sub(r'(?m)^name = ".*"$', f'name = "{name}"', files["pack.toml"]),
        "prompts/v1.md": v1.replace("{{diversity}}", f"{defect}\n{{{{diversity}}}}"),
        "prompts/v2.md": v1.replace("friendly", "kind"),
    }
    for path, text in files.items():
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
    return name


@dataclass
class Bench:
    """Commands on one pack, with the same options each time."""

    cli: Cli
    server: ScriptedServer
    pack: str
    folder: Path
    experiment: str

    def run(self, command: str, *more: str) -> Outcome:
        where = ("--pack", str(self.folder), "--experiment", self.experiment)
        return self.cli(command, *more, *where)

    def name_first(self, *, seed: int = 0) -> None:
        """`v1` with its defect is champion, from an experiment of its own."""
        start = f"{self.experiment}-start"
        asked = ("--models", MODEL, "--prompts", "v1", "--n-tips", str(N_TIPS), "--n-scenarios", "2")
        self.cli.ok("collect", *asked, "--seed", str(seed), "--pack", str(self.folder), "--experiment", start)
        self.cli.ok("promote", "--experiment", start, "--initial", f"{MODEL}+v1", "--reason", "in use")

    def champion(self) -> str:
        return self.cli.ok("champion", "--pack", self.pack, "--json").json()["template"]

    def go_on(self, *command: str) -> Outcome:
        """The command again and again, judged in between, until it wants something else than verdicts."""
        outcome = self.run(*command)
        for _ in range(6):
            if "Verdicts are needed" not in outcome.out:
                break
            assert outcome.code == 4
            fill_sheets()
            outcome = self.run(*command)
        return outcome


def fill_sheets() -> None:
    """A judge who reads what the tips say they are worth, and tells why; finished sheets stay as they are."""
    for path in Path().glob("sheet*.json"):
        if path.name.endswith(".schema.json"):
            continue
        sheet = json.loads(path.read_text(encoding="utf-8"))
        for item in (item for section in sheet["sections"] for item in section["items"]):
            item["scores"] = read_scores(item["text"])
            item["reason"] = "it talks about the weather" if "weather" in item["text"] else "fine"
        path.write_text(json.dumps(sheet), encoding="utf-8")


@pytest.fixture
def bench(cli: Cli, tmp_path: Path, experiment_name: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    """A pack whose prompt `v1` has a defect, and nobody is champion."""
    pack = write_pack(tmp_path / "pack")
    server = ScriptedServer(lambda prompt: DEFECTIVE if "weather" in prompt else GOOD)
    with run_server(server):
        for name, value in {
            "TIPBENCH_OPENAI_URL": server.url,
            "TIPBENCH_OPENAI_LOCAL": "false",
            "TIPBENCH_JUDGE_MODEL": MODEL,
            # The server answers in no time: what it takes says nothing.
            "TIPBENCH_GATE_LATENCY_RATIO": "1000",
        }.items():
            monkeypatch.setenv(name, value)
        yield Bench(cli, server, pack, tmp_path / "pack", experiment_name)
