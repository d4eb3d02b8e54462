"""What a judge is handed tells nothing about who wrote it, nor which items are anchors."""

import json
import random
import re
import statistics
from dataclasses import replace
from itertools import count
from pathlib import Path

import pytest

from tests.judging.cells import make_cell
from tests.judging.desks import MODELS, desk_of
from tests.ranking.evidence import make_sitting
from tests.support.benches import hold_bench
from tests.support.experiments import Where, collect_with
from tests.support.scripted import ScriptedEngine, make_model
from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import Evidence
from tipbench.clock import make_stamps
from tipbench.grid import Cell
from tipbench.judging.anchors import find_shown
from tipbench.judging.draw import Block, draw_blocks, split_sections
from tipbench.judging.handout import Sitting, build_sitting, make_sittings
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import mask_names
from tipbench.pack import builtin_pack, parse_pack
from tipbench.records import Options, Pack, Sampling, compute_flags
from tipbench.tracking import Tracking

SHEETS = 200


@pytest.fixture(scope="module")
def pack() -> Pack:
    return builtin_pack()


@pytest.fixture(scope="module")
def cells(pack: Pack) -> list[StoredCell]:
    rng = random.Random(0)
    return [
        make_cell(
            model=model,
            prompt=prompt.name,
            scenario=scenario.id,
            scenario_hash=scenario.hash,
            slots="".join(rng.choices("af", weights=(7, 3), k=5)),
        )
        for model in MODELS
        for prompt in pack.prompts
        for scenario in pack.scenarios[:4]
    ]


def build(cells: list[StoredCell], pack: Pack, seed: int) -> Sitting:
    section = split_sections(draw_blocks(cells, taken={}, limit=3, rng=random.Random(seed)))[0]
    desk = desk_of(pack)
    return build_sitting(section, material=desk, order_seed=seed)


def test_a_sitting_has_six_anchors_on_its_own_scenarios(cells: list[StoredCell], pack: Pack) -> None:
    sitting = build(cells, pack, 1)
    labels = {item.id: item.scenario for item in sitting.items}
    anchors = {item.id for item in sitting.key.items if item.anchor}
    assert len(anchors) == 6
    assert {labels[i] for i in anchors} <= {labels[i] for i in labels if i not in anchors}


def test_anchors_of_a_sitting_are_spread_over_the_scale(cells: list[StoredCell], pack: Pack) -> None:
    references = {
        a.id: pack.rubric.composite(a.scores, compute_flags(a.text, pack.rubric)) for a in pack.anchors
    }
    spreads: list[float] = []
    for seed in range(50):
        chosen = [references[i.anchor] for i in build(cells, pack, seed).key.items if i.anchor]
        spreads.append(max(chosen) - min(chosen))
    assert statistics.fmean(spreads) > 6


def test_anchors_rest_for_a_judge_who_saw_them(cells: list[StoredCell], pack: Pack) -> None:
    desk = desk_of(pack)
    sections = split_sections(draw_blocks(cells, taken={}, limit=None, rng=random.Random(0)))
    sittings = make_sittings(sections, material=desk, shown=(), seeds=count().__next__)
    assert len(sittings) > 4
    for place, (section, sitting) in enumerate(zip(sections, sittings, strict=True)):
        lately = {anchor for earlier in sittings[max(0, place - 3) : place] for anchor in earlier.anchors}
        there = {block.scenario for block in section if block.items}
        left = {anchor.id for anchor in desk.anchors if anchor.scenario in there} - lately
        hidden = set(sitting.anchors)
        assert len(hidden) == 6
        assert not hidden & lately or left < hidden, "one comes again while others are left"


def one_of_each(pack: Pack) -> list[Block]:
    """A block of one candidate on each of four scenarios."""
    cells = [make_cell(model="m", scenario=s.id, scenario_hash=s.hash, slots="a") for s in pack.scenarios[:4]]
    return draw_blocks(cells, taken={}, limit=None, rng=random.Random(0))


def test_where_too_few_have_rested_the_longest_rested_come_first(pack: Pack) -> None:
    desk, section = desk_of(pack), one_of_each(pack)
    there = {block.scenario for block in section}
    few = [anchor for anchor in desk.anchors if anchor.scenario in there][:16]
    made = make_sittings(
        [section] * 4, material=replace(desk, anchors=tuple(few)), shown=(), seeds=count().__next__
    )
    first, second, third, fourth = (set(sitting.anchors) for sitting in made)
    assert [len(each) for each in (first, second, third, fourth)] == [6, 6, 6, 6]
    unseen = {anchor.id for anchor in few} - first - second
    assert not first & second
    assert third > unseen
    assert third - unseen < first
    assert fourth > first - third
    assert fourth - first < second, "after those of the first the ones of the second, never of the third"


def test_anchors_rest_although_the_judge_has_not_answered_yet(cells: list[StoredCell], pack: Pack) -> None:
    section = split_sections(draw_blocks(cells, taken={}, limit=3, rng=random.Random(1)))[0]
    first = build_sitting(section, material=desk_of(pack), order_seed=1)
    bench = backlog_with_open(first, handed_to="anna")
    desk = desk_of(pack)
    drawn = {
        judge: make_sittings(
            [section],
            material=desk,
            shown=find_shown(bench, judge, desk.anchors, elsewhere=()),
            seeds=lambda: first.order_seed,
        )[0].anchors
        for judge in ("Anna ", "bert")
    }
    # From the same seed: whoever has seen none gets the same ones.
    assert drawn["bert"] == first.anchors
    assert drawn["Anna "]
    assert not set(drawn["Anna "]) & set(first.anchors)


def test_the_same_anchors_of_another_version_of_the_pack_rest_too_and_strange_ones_do_not_count(
    cells: list[StoredCell], pack: Pack
) -> None:
    section = split_sections(draw_blocks(cells, taken={}, limit=3, rng=random.Random(1)))[0]
    bench = backlog_with_open(build_sitting(section, material=desk_of(pack), order_seed=1), handed_to="anna")
    anchors = desk_of(pack).anchors
    renamed = [anchor.model_copy(update={"id": f"{anchor.id}-2"}) for anchor in anchors]
    (met,) = find_shown(bench, "anna", anchors, elsewhere=())
    assert find_shown(bench, "anna", renamed, elsewhere=()) == [{f"{anchor}-2" for anchor in met}]
    others = [anchor.model_copy(update={"text": f"{anchor.text} Now."}) for anchor in anchors]
    assert find_shown(bench, "anna", others, elsewhere=()) == []


def backlog_with_open(sitting: Sitting, *, handed_to: str) -> Bench:
    """An experiment of which only this sitting is known: it is with a judge."""
    made = make_sitting(sitting.token, judged_by="", state="open")
    run = made.run.model_copy(update={"tags": {"tipbench.for": handed_to}})
    still_open = replace(made, run=run, closed=None, submissions=(), drift=None)
    evidence = Evidence((), (), (still_open,), (), (), None)
    return hold_bench(evidence, read_artifact=lambda _, __: sitting.key.model_dump_json())


def test_a_scenario_has_one_label_in_all_sections_of_a_sheet_and_others_in_the_next(
    cells: list[StoredCell], pack: Pack
) -> None:
    sections = split_sections(draw_blocks(cells, taken={}, limit=None, rng=random.Random(0)))
    sheets: list[dict[str, str]] = []
    for sheet in range(3):
        seeds = count(100 * sheet).__next__
        said = [
            (json.dumps(scenario.values), scenario.label)
            for sitting in make_sittings(sections, material=desk_of(pack), shown=(), seeds=seeds)
            for scenario in sitting.scenarios
        ]
        assert len(said) > len(set(said)) == 4
        sheets.append(dict(said))
        assert len(sheets[-1]) == 4
    assert any(sheet != sheets[0] for sheet in sheets)


def test_the_same_items_get_other_ids_in_every_sitting(cells: list[StoredCell], pack: Pack) -> None:
    section = split_sections(draw_blocks(cells, taken={}, limit=3, rng=random.Random(1)))[0]
    first, second = (
        {item.id for item in build_sitting(section, material=desk_of(pack), order_seed=seed).items}
        for seed in (1, 2)
    )
    assert len(first) == len(second)
    assert not first & second


def features(sitting: Sitting) -> list[tuple[bool, dict[str, float]]]:
    """Everything beside text and flags, as numbers."""
    anchor = {item.id: bool(item.anchor) for item in sitting.key.items}
    return [
        (
            anchor[item.id],
            {
                "place": place,
                "id": int.from_bytes(item.id.encode(), "big") / 256**8,
                "id length": len(item.id),
                "digits in id": sum(c.isdigit() for c in item.id),
                "keys": len(json.loads(item.model_dump_json())),
                "score keys": len(item.scores),
                "scenario": int(item.scenario[1:]),
            },
        )
        for place, item in enumerate(sitting.items)
    ]


def test_no_field_beside_text_and_flags_tells_an_anchor(cells: list[StoredCell], pack: Pack) -> None:
    sheets = [features(build(cells, pack, seed)) for seed in range(SHEETS)]
    rng = random.Random(0)
    for name in sheets[0][0][1]:
        values = [[row[name] for _, row in sheet] for sheet in sheets]
        marks = [[anchor for anchor, _ in sheet] for sheet in sheets]
        seen = _difference(values, marks)
        shuffled = [_difference(values, [rng.sample(m, len(m)) for m in marks]) for _ in range(200)]
        share = sum(abs(s) >= abs(seen) - 1e-12 for s in shuffled) / len(shuffled)
        assert share > 0.01, f"{name} tells anchors from candidates: {seen:.3f}, p = {share}"


def test_the_permutation_test_can_fail(cells: list[StoredCell], pack: Pack) -> None:
    """Anchors that always stand last would be found."""
    sheets = [features(build(cells, pack, seed)) for seed in range(20)]
    values = [[float(place) for place in range(len(sheet))] for sheet in sheets]
    marks = [sorted(anchor for anchor, _ in sheet) for sheet in sheets]
    rng = random.Random(0)
    seen = _difference(values, marks)
    assert all(abs(_difference(values, [rng.sample(m, len(m)) for m in marks])) < seen for _ in range(100))


def _difference(values: list[list[float]], marks: list[list[bool]]) -> float:
    anchors = [v for vs, ms in zip(values, marks, strict=True) for v, m in zip(vs, ms, strict=True) if m]
    others = [v for vs, ms in zip(values, marks, strict=True) for v, m in zip(vs, ms, strict=True) if not m]
    return statistics.fmean(anchors) - statistics.fmean(others)


def test_no_model_prompt_digest_run_or_key_is_in_the_sheet(cells: list[StoredCell], pack: Pack) -> None:
    for seed in range(20):
        sitting = build(cells, pack, seed)
        shown = json.dumps([item.model_dump() for item in sitting.items]) + json.dumps(
            [scenario.model_dump() for scenario in sitting.scenarios]
        )
        for cell in cells:
            facts = cell.facts
            for secret in (facts.model, facts.model_digest, cell.run.run_id, facts.key, facts.arm):
                assert secret not in shown
            # `v1` is two letters: looked for as a word, not as part of an id.
            assert not re.search(rf"(?<![\w-]){re.escape(facts.prompt)}(?![\w-])", shown)


CHAT = """---
form: {form}
---
# system
You are {name}, a prompt for smollm2 and qwen2.5:0.5b. {{{{diversity}}}}

# user
Who are you?

# assistant
{answer}

# user
{{{{persona}}}}
{{{{tasks}}}}
{{{{n_tips}}}} tips as {form}.
"""


def test_200_exported_items_name_no_model_or_prompt_although_chat_prompts_and_answers_do(
    tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    answers = {"v8-pirate": "1. I am v8-pirate.", "v9-json": '{"tips": ["I am v9-json."]}'}
    forms = {"v8-pirate": "list", "v9-json": "json"}
    texts = {
        f"prompts/{name}.md": CHAT.format(form=forms[name], name=name, answer=answer)
        for name, answer in answers.items()
    }
    files = {name: text for name, text in builtin_pack().files.items() if not name.startswith("prompts/")}
    pack = parse_pack(files | texts)
    options = Options(sampling=Sampling(), n_tips=5, diversity=True, seed=1)
    cells = [
        Cell(pack, make_model(model), prompt, scenario, options)
        for model in ("smollm2", "qwen2.5:0.5b")
        for prompt in pack.prompts
        for scenario in pack.scenarios[:10]
    ]

    def parrot(model: str, prompt: str, rng: random.Random) -> str:
        told = re.findall(r"You are (\S+), a prompt", prompt)[0]
        tips = [
            f"I am {model} and was told to be {told} on day {rng.randrange(10**6)}: walk." for _ in range(5)
        ]
        if prompt.endswith("as json."):
            return json.dumps({"tips": tips})
        return "\n".join(f"{n}. {tip}" for n, tip in enumerate(tips, start=1))

    engine = ScriptedEngine(("smollm2", "qwen2.5:0.5b"), parrot)
    assert collect_with(lambda _: engine, cells, where=Where(tracking, experiment_name)) == len(cells)
    judging = Judging(tracking, make_stamps(), tmp_path / "locks")
    judging.hand_out(tmp_path / "sheet.json", SittingRequest("anna"), experiment=experiment_name)
    sheet = (tmp_path / "sheet.json").read_text(encoding="utf-8")
    items = [item for section in json.loads(sheet)["sections"] for item in section["items"]]
    assert len(items) >= 200
    assert sum("[model] and was told to be [model] on day" in item["text"] for item in items) == 200
    secrets = ["smollm2", "qwen2.5", "v8-pirate", "v9-json", "pirate", "a prompt for", "sha256:"]
    assert [secret for secret in secrets if secret in sheet.lower()] == []
    schema = next(tmp_path.glob("*schema*"), None)
    assert schema is None or not any(secret in schema.read_text() for secret in secrets)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("As Qwen2.5, I suggest a walk.", "As [model], I suggest a walk."),
        ("SmolLM2-135M says: breathe.", "[model] says: breathe."),
        ("I am qwen2.5:0.5b!", "I am [model]!"),
        ("Visit the llama farm with Philip.", "Visit the llama farm with Philip."),
        ("I am Llama 3.2, made by Meta.", "I am [model], made by [model]."),
        ("Gemma here, created by Google DeepMind.", "[model] here, created by [model]."),
        ("Take a philosophical view of the granite.", "Take a philosophical view of the granite."),
        ("Meet Anna at Google.", "Meet Anna at Google."),
        ("Write it down.", "Write it down."),
    ],
)
def test_a_text_that_names_its_own_model_is_masked(text: str, shown: str) -> None:
    assert mask_names(text, MODELS) == shown


def test_ordinary_words_stay_when_a_model_is_called_like_one() -> None:
    assert mask_names("Ask your coach.", ["coach"]) == "Ask your coach."
