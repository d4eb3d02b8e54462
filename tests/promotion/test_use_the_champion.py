"""`tipbench.open_champion`: an application sends what was benched, and cuts answers as the bench does."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import tipbench
from tests.conftest import Cli
from tests.promotion.campaign import Campaign
from tests.support.scripted import make_model
from tipbench.bench.bench import open_bench
from tipbench.bench.champions import ALIAS, entry_name
from tipbench.champion import Champion, ChampionFile, open_champion_on
from tipbench.errors import NewerSchema, NoChampion, UsageError
from tipbench.grid import Cell
from tipbench.pack import answer_tokens, builtin_pack
from tipbench.records import ChampionArm, Options, Prompt, Sampling, content_hash

PACK = builtin_pack()
MODEL = make_model("qwen2.5:1.5b")
SCENARIO = PACK.scenarios[0]
CHAT = """---
form: json
---
# system
You write {{n_tips}} tips.
# user
Hello
# assistant
{"tips": ["Rest."]}
# user
{{persona}}
{{diversity}}
"""


def make_champion(prompt: Prompt, options: Options) -> Champion:
    arm = ChampionArm(
        pack=PACK.name,
        pack_hash=PACK.hash,
        model=MODEL.name,
        engine=MODEL.engine,
        model_digest=MODEL.digest,
        pinned=True,
        prompt=prompt.name,
        template=prompt.text,
        diversity_request=PACK.diversity_request,
        options=options,
    )
    fields: dict[str, Any] = {
        name: "text" if isinstance(value, str) else "list" for name, value in SCENARIO.values.items()
    }
    return Champion(ChampionFile(arm=arm, fields=fields).sealed())


def make_options(*, diversity: bool = False, n_tips: int = 5) -> Options:
    sampling = Sampling(max_tokens=answer_tokens(PACK, n_tips=n_tips))
    return Options(sampling=sampling, n_tips=n_tips, diversity=diversity, seed=7)


@pytest.mark.parametrize("diversity", [False, True])
def test_every_prompt_of_the_pack_is_rendered_as_benched_for_every_scenario(diversity: bool) -> None:
    options = make_options(diversity=diversity)
    for prompt in PACK.prompts:
        champion = make_champion(prompt, options)
        for scenario in PACK.scenarios:
            cell = Cell(PACK, MODEL, prompt, scenario, options)
            as_an_app_has_it = json.loads(json.dumps(scenario.values))
            for given in (scenario, as_an_app_has_it):
                assert champion.render(given).encode() == cell.text.encode()
                assert champion.seed(given) == cell.seed
            assert champion.messages(scenario) == cell.question.messages
            assert champion.form == cell.question.form


def test_the_options_are_those_of_the_bench_by_the_servers_own_names() -> None:
    champion = make_champion(PACK.prompts[0], make_options(n_tips=10))
    for options in (champion.ollama_options(SCENARIO), champion.openai_options(SCENARIO)):
        assert (options["temperature"], options["seed"]) == (0.7, champion.seed(SCENARIO))
    assert champion.ollama_options(SCENARIO)["num_predict"] == 640
    assert champion.openai_options(SCENARIO)["max_tokens"] == 640


def test_a_champion_with_turns_and_a_form_is_asked_and_cut_as_it_was_benched(tmp_path: Path) -> None:
    made = make_champion(Prompt(name="v9", text=CHAT), make_options(n_tips=2))
    made.save(tmp_path / "champion.json")
    champion = tipbench.open_champion(file=tmp_path / "champion.json")
    assert [message["role"] for message in champion.messages(SCENARIO)] == [
        "system", "user", "assistant", "user",
    ]  # fmt: skip
    assert champion.messages(SCENARIO)[0]["content"] == "You write 2 tips."
    assert champion.form is not None
    assert champion.form["properties"]["tips"]["maxItems"] == 2
    assert champion.ollama_form == {"format": champion.form}
    asked: Any = champion.openai_options(SCENARIO)
    assert asked["response_format"]["json_schema"]["schema"] == champion.form
    assert champion.parse('{"tips": ["Walk.", "Rest."]}') == ["Walk.", "Rest."]
    assert champion.parse("1. Walk.\n2. Rest.") == []
    plain = make_champion(PACK.prompts[0], make_options(n_tips=2))
    assert (plain.form, plain.ollama_form) == (None, {})
    assert "response_format" not in plain.openai_options(SCENARIO)


def test_a_champion_without_a_chat_template_has_text_and_no_messages() -> None:
    known = make_champion(PACK.prompts[0], make_options())
    bare = known.stored.arm.model_copy(update={"model_digest": f"{MODEL.digest}/raw"})
    champion = Champion(known.stored.model_copy(update={"arm": bare}).sealed())
    assert champion.render(SCENARIO) == known.render(SCENARIO)
    with pytest.raises(UsageError, match="no chat template"):
        champion.messages(SCENARIO)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"now": None}, "'now' is missing"),
        ({"persno": "Maya"}, "'persno' is no field of the pack"),
        ({"tasks": "sign, order"}, "'tasks' is 'sign, order': give a list of texts"),
        ({"tasks": []}, "'tasks' is []: give a list of texts, none of them empty"),
        ({"tasks": ["sign", " "]}, "none of them empty"),
        ({"tasks": ["sign", 3]}, "give a list of texts"),
        ({"now": 740}, "'now' is 740: give a text"),
        ({"now": ["a", "b"]}, "give a text"),
        ({"now": " "}, "fill it"),
    ],
)
def test_a_scenario_that_is_not_the_packs_is_refused_by_field(change: dict[str, Any], said: str) -> None:
    champion = make_champion(PACK.prompts[0], make_options())
    given = {k: v for k, v in (dict(SCENARIO.values) | change).items() if v is not None}
    with pytest.raises(UsageError) as caught:
        champion.render(given)
    assert said in caught.value.message
    assert caught.value.hint == "Its fields are: persona (text), time_slot (text), now (text), tasks (list)"


def test_without_the_pack_the_prompts_own_fields_are_asked_for() -> None:
    known = make_champion(PACK.prompts[0], make_options())
    champion = Champion(known.stored.model_copy(update={"fields": {}}).sealed())
    assert set(champion.fields) == {"persona", "now", "tasks"}
    assert champion.render(SCENARIO) == known.render(SCENARIO)
    with pytest.raises(UsageError, match="'tasks' is missing"):
        champion.render({"persona": "x", "now": "y"})


def test_from_mlflow_it_renders_and_cuts_what_the_cells_hold(campaign: Campaign, mlflow_url: str) -> None:
    champion = tipbench.open_champion(campaign.pack.name, mlflow_url=mlflow_url)
    bench = open_bench(campaign.tracking, campaign.experiment, stamps=campaign.stamps)
    cells = [cell for cell in bench.evidence.cells if cell.facts.arm == "old+v1"]
    assert len(cells) == len(campaign.pack.scenarios)
    for cell in cells:
        texts = json.loads(bench.read_artifact(cell.run, "texts.json"))
        rendered = champion.render(texts["context.json"]["values"])
        assert rendered == "\n".join(texts["prompt.txt"]) == bench.texts_of(cell).prompt
        tips = champion.parse("\n".join(texts["raw.txt"]))
        assert tips == [each.text for each in bench.candidates_of(cell) if each.answered] != []
    assert (champion.model, champion.model_digest, champion.stored.version) == ("old", "sha256:old", 1)
    assert champion.fields["tasks"] == "list"


def test_a_saved_file_gives_the_same_without_mlflow(cli: Cli, campaign: Campaign, tmp_path: Path) -> None:
    cli.ok("champion", "--pack", campaign.pack.name, "--save", "champion.json")
    there = open_champion_on(campaign.tracking, campaign.pack.name)
    assert (tmp_path / "champion.json").read_text() == there.to_json()
    program = (
        "import json, sys, tipbench\n"
        "champion = tipbench.open_champion(file='champion.json')\n"
        "print(json.dumps(champion.render(json.load(sys.stdin))))\n"
        "print(sorted({'numpy', 'httpx2', 'mlflow', 'click'} & set(sys.modules)))\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program],
        input=json.dumps(dict(SCENARIO.values)),
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env={"MLFLOW_TRACKING_URI": "http://127.0.0.1:9"},
        check=False,
    )
    assert ended.returncode == 0, ended.stderr
    rendered, imported = ended.stdout.splitlines()
    assert json.loads(rendered) == there.render(SCENARIO)
    assert imported == "[]"
    refused = cli("champion", "--pack", campaign.pack.name, "--save", "nowhere/champion.json")
    assert (refused.code, "cannot be written" in refused.err) == (1, True)


def _edit(stored: dict[str, Any]) -> None:
    stored["arm"]["template"] += "!"


def _make_newer(stored: dict[str, Any]) -> None:
    stored |= {"tipbench_schema": 2, "something": "new"}


def _add_a_field(stored: dict[str, Any]) -> None:
    stored["something"] = "new"


@pytest.mark.parametrize(
    ("change", "error", "said"),
    [
        (_edit, UsageError, "was edited"),
        (_make_newer, NewerSchema, "has schema 2; this tipbench knows 1"),
        (_add_a_field, UsageError, "is not a champion's file"),
        (dict[str, Any].clear, UsageError, "is not a champion's file"),
    ],
)
def test_a_file_that_was_edited_or_is_newer_is_refused(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], error: type[Exception], said: str
) -> None:
    file = tmp_path / "champion.json"
    make_champion(PACK.prompts[0], make_options()).save(file)
    tipbench.open_champion(file=file)
    stored = json.loads(file.read_text())
    change(stored)
    file.write_text(json.dumps(stored))
    with pytest.raises(error, match=said):
        tipbench.open_champion(file=file)


def test_a_file_that_is_not_there_and_a_pack_without_champion_say_what_to_do(
    tmp_path: Path, mlflow_url: str
) -> None:
    with pytest.raises(UsageError, match="cannot be read") as caught:
        tipbench.open_champion(file=tmp_path / "champion.json")
    assert "tipbench champion --save" in caught.value.hint
    with pytest.raises(NoChampion, match="has no champion yet"):
        tipbench.open_champion(f"none-{content_hash(str(tmp_path))}", mlflow_url=mlflow_url)


def test_reading_leaves_a_moved_alias_where_it_is(cli: Cli, campaign: Campaign) -> None:
    name, registry = entry_name(campaign.pack.name), campaign.tracking.registry
    campaign.promoting().force("good+v1", experiment=campaign.experiment, reason="by hand")
    registry.point_alias(name, ALIAS, 1)
    assert open_champion_on(campaign.tracking, campaign.pack.name).stored.version == 2
    entry = registry.find_entry(name)
    assert entry is not None
    assert entry.aliases[ALIAS] == 1
    cli.ok("champion", "--pack", campaign.pack.name)
    entry = registry.find_entry(name)
    assert entry is not None
    assert entry.aliases[ALIAS] == 2, "the command puts it right"
