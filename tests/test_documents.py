"""The pages: every link leads somewhere, every page is found, and what the original's users need is said."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tipbench.improve.state import LEAST_TRAINING
from tipbench.judging.anchors import ANCHORS_PER_SITTING, REST_SITTINGS
from tipbench.policies.serving.records import RecommendRequest, RewardRequest, Scored, ScoreRequest
from tipbench.run_keys import RUN_KEYS
from tipbench.settings import GateSettings, Settings
from tipbench.stats.sittings import ENOUGH_ANCHORS

ROOT = Path(__file__).parents[1]
PAGES = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    ROOT / "llms.txt",
]
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(?<!\\)\]\(([^)\s]+)\)")


def anchors_of(page: Path) -> set[str]:
    """The places that a heading makes, as GitHub names them."""
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    names: set[str] = set()
    for heading in re.findall(r"^#+ (.+)$", text, re.MULTILINE):
        plain = re.sub(r"[`*]|\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower().strip()
        names.add(re.sub(r"[^\w\- ]", "", plain).replace(" ", "-"))
    return names


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_leads_to_a_file_and_a_heading_that_are_there(page: Path) -> None:
    broken: list[str] = []
    for link in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, place = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or (place and place not in anchors_of(target)):
            broken.append(link)
    assert broken == []


def test_agents_and_people_find_every_page() -> None:
    pages = {str(page.relative_to(ROOT)) for page in (ROOT / "docs").glob("*.md")}
    for index in ("llms.txt", "README.md"):
        linked = set(LINK.findall((ROOT / index).read_text(encoding="utf-8")))
        # Plans and results of tests are for those who work on it.
        apart = {"docs/plan.md", "docs/faults.md", "docs/test-rings.md", "docs/benchmarks.md"}
        apart |= {"docs/benchmarks-statistics.md"}
        assert pages - apart - linked == set(), f"{index} does not lead there"


def test_the_page_for_users_of_the_original_has_its_defaults_and_every_kind_of_judge() -> None:
    text = (ROOT / "docs" / "from-the-original.md").read_text(encoding="utf-8")
    for name in ("models", "prompts", "experiment", "ollama_url"):
        assert f"{RUN_KEYS[name].default}" in text
    for kind in RUN_KEYS["judge_kind"].choices:
        assert re.search(rf"^\| `{kind}`", text, re.MULTILINE)
    first_screen = "\n".join((ROOT / "README.md").read_text(encoding="utf-8").splitlines()[:40])
    assert str(RUN_KEYS["models"].default) in first_screen
    assert "No telemetry" in first_screen


def test_the_readme_takes_a_newcomer_from_the_models_to_a_person_who_judges() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    in_order = (
        "ollama pull",
        "source .venv/bin/activate",
        "$ tipbench collect",
        "--interactive",
        "--export sheet.json",
    )
    places = [text.index(each) for each in in_order]
    assert places == sorted(places)
    assert len(text.splitlines()) <= 120


def test_the_steps_to_a_pack_of_ones_own_name_the_numbers_that_hold() -> None:
    page = (ROOT / "docs" / "packs.md").read_text(encoding="utf-8")
    steps = page.partition("## Your own pack")[2].partition("\n## ")[0]
    found = re.search(r"```toml\n(.*?)```", steps, re.DOTALL)
    assert found is not None
    assert tomllib.loads(found[1]).keys() <= Settings.model_fields.keys()
    words = {2: "two", 3: "three", 4: "four", 6: "six"}
    flat = " ".join(steps.split())
    for said in (
        f"{words[GateSettings().scenarios].capitalize()} are the least that the gate takes",
        f"needs {words[LEAST_TRAINING]} to train on and {words[GateSettings().scenarios]} others",
        f"{words[ENOUGH_ANCHORS].capitalize()} in a sitting are the least",
        f"{words[ANCHORS_PER_SITTING]} are hidden in each",
        f"in the next {words[REST_SITTINGS]} sittings: hence {(REST_SITTINGS + 1) * ANCHORS_PER_SITTING}",
    ):
        assert said in flat, said


def test_the_page_of_the_policies_shows_bodies_that_the_server_takes() -> None:
    page = (ROOT / "docs" / "policies.md").read_text(encoding="utf-8")
    kinds = {"score": ScoreRequest, "reward": RewardRequest, "recommend": RecommendRequest}
    sent = dict(re.findall(r"localhost:8321/(\w+)\S* .*?-d '(.*?)'\n", page, re.DOTALL))
    assert sent.keys() == kinds.keys()
    for name, body in sent.items():
        kinds[name].model_validate_json(body)
    (answered,) = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
    Scored.model_validate(json.loads(answered))
