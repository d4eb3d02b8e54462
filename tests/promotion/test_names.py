"""What an experiment calls the champion: contents decide, names do not."""

from dataclasses import replace

from tests.judging.cells import make_cell
from tipbench.bench.champions import ChampionArm
from tipbench.records import Options, Sampling, content_hash

TEMPLATE = "Give {n_tips} tips."
REQUEST = "Let them differ."
CHAMPION = ChampionArm(
    pack="p",
    pack_hash="p",
    model="old",
    engine="llamacpp",
    model_digest="sha256:weights",
    pinned=True,
    prompt="v1",
    template=TEMPLATE,
    diversity_request=REQUEST,
    options=Options(sampling=Sampling(), n_tips=3, diversity=False, seed=0),
)


def name_of_champion(*, model: str, prompt: str, digest: str, prompt_hash: str) -> str:
    """In an experiment with this one cell."""
    cell = make_cell(model=model, prompt=prompt)
    facts = cell.facts.model_copy(update={"model_digest": digest, "prompt_hash": prompt_hash})
    return CHAMPION.name_in([replace(cell, facts=facts)], diversity_request=REQUEST)


def test_the_champion_is_found_by_its_weights_and_prompt_under_whatever_names() -> None:
    digest, prompt_hash = CHAMPION.model_digest, content_hash(TEMPLATE)
    found = name_of_champion(model="renamed", prompt="v7", digest=digest, prompt_hash=prompt_hash)
    assert found == "renamed+v7"
    diverse = content_hash([TEMPLATE, REQUEST])
    assert name_of_champion(model="old", prompt="v1", digest=digest, prompt_hash=diverse) == "old+v1"


def test_an_edited_prompt_or_other_weights_under_the_champions_name_are_not_the_champion() -> None:
    edited = content_hash(f"{TEMPLATE} Please.")
    same = content_hash(TEMPLATE)
    digest = CHAMPION.model_digest
    assert name_of_champion(model="old", prompt="v1", digest=digest, prompt_hash=edited) == ""
    assert name_of_champion(model="old", prompt="v1", digest="sha256:new", prompt_hash=same) == ""
