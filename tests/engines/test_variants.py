"""The variants of the small model that other tests rank."""

import numpy as np
import pytest
from gguf import GGUFReader

from tests.engines.conftest import OpenEngine
from tests.engines.variants import Recipe, prepare_models
from tipbench.records import Sampling


@pytest.mark.slow
def test_variants_load_and_write_and_are_what_they_say(open_engine: OpenEngine) -> None:
    folder = prepare_models("q8_0", "prune:6", "sim2")
    engine = open_engine(folder=folder)
    original = engine.find_model("smollm2")
    for name in ("smollm2-q8_0", "smollm2-prune6", "smollm2-sim2"):
        model = engine.find_model(name)
        assert model.digest != original.digest
        assert (model.parameters == original.parameters) == ("prune" not in name)
        with engine.load(model) as loaded:
            assert loaded.generate("Name a colour.", sampling=Sampling(max_tokens=8), seed=1).text
    pruned = GGUFReader(folder / "smollm2-prune6.gguf")
    assert pruned.fields["llama.block_count"].contents() == 24
    assert len([tensor for tensor in pruned.tensors if tensor.name.endswith("attn_q.weight")]) == 24


def test_an_unknown_recipe_is_refused() -> None:
    with pytest.raises(ValueError, match="soup"):
        Recipe.parse("soup")
    assert Recipe.parse("sim2").levels == 4
    assert np.isclose(Recipe.parse("prune:6").forget_layers, 6)
