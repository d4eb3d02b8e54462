"""The applications of docs/use-the-champion.md, as they stand, on real engines."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.engines.ollama_server import SMOLLM2, OllamaServer
from tests.engines.openai_server import ALIAS, RunningServer
from tipbench.champion import Champion, ChampionFile
from tipbench.pack import builtin_pack
from tipbench.records import ChampionArm, Options, Sampling

PAGE = Path(__file__).parents[2] / "docs" / "use-the-champion.md"
OLLAMA, OPENAI = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


def run_app(program: str, *, model: str, folder: Path, prompt: str = "v1", **variables: str) -> list[str]:
    """What the application prints, with a champion of that model beside it."""
    pack = builtin_pack()
    asked = next(each for each in pack.prompts if each.name == prompt)
    arm = ChampionArm(
        pack=pack.name,
        pack_hash=pack.hash,
        model=model,
        engine="any",
        model_digest="sha256:any",
        pinned=True,
        prompt=asked.name,
        template=asked.text,
        diversity_request=pack.diversity_request,
        options=Options(sampling=Sampling(max_tokens=80), n_tips=2, diversity=False, seed=0),
    )
    Champion(ChampionFile(arm=arm).sealed()).save(folder / "champion.json")
    ended = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        cwd=folder,
        env=variables,
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def test_the_openai_application_of_the_page_gets_tips(openai_server: RunningServer, tmp_path: Path) -> None:
    tips = run_app(
        OPENAI,
        model=ALIAS,
        folder=tmp_path,
        OPENAI_BASE_URL=openai_server.url,
        OPENAI_API_KEY=openai_server.key,
    )
    # What a small model says is its own affair: slots it does not fill are no tips.
    assert len(tips) <= 2
    assert not any(re.match(r"\s*\d+[.)]", tip) for tip in tips)


def test_the_openai_application_gets_the_tips_of_a_champion_that_answers_as_json(
    openai_server: RunningServer, tmp_path: Path
) -> None:
    where = {"OPENAI_BASE_URL": openai_server.url, "OPENAI_API_KEY": openai_server.key}
    tips = run_app(OPENAI, model=ALIAS, folder=tmp_path, prompt="v4-json", **where)
    # Two texts come whatever the model says; one that says nothing is no tip.
    assert 1 <= len(tips) <= 2
    assert not any(tip.startswith(("{", "[", '"')) for tip in tips)


@pytest.mark.ollama
@pytest.mark.parametrize(("prompt", "least"), [("v1", 0), ("v4-json", 2), ("v5-chat", 0)])
def test_the_ollama_application_of_the_page_gets_tips(
    ollama_server: OllamaServer, tmp_path: Path, prompt: str, least: int
) -> None:
    tips = run_app(OLLAMA, model=SMOLLM2, folder=tmp_path, prompt=prompt, OLLAMA_URL=ollama_server.url)
    assert least <= len(tips) <= 2
