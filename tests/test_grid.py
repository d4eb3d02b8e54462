"""What a cell's seed and key are made of."""

from dataclasses import replace

from tests.support.scripted import make_model
from tipbench.grid import Cell
from tipbench.pack import builtin_pack
from tipbench.records import Options, Sampling


def test_the_same_weights_under_another_name_are_asked_with_the_same_seed() -> None:
    pack, model = builtin_pack(), make_model("small")
    options = Options(sampling=Sampling(), n_tips=3, diversity=False, seed=0)
    cell = Cell(pack, model, pack.prompts[0], pack.scenarios[0], options)
    renamed = replace(cell, model=model.model_copy(update={"name": "moved/elsewhere"}))
    exchanged = replace(cell, model=model.model_copy(update={"digest": "sha256:other"}))
    assert (renamed.seed, renamed.key) == (cell.seed, cell.key)
    assert exchanged.seed != cell.seed
    assert exchanged.key != cell.key
