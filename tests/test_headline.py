"""The original's headline on real models: what must be told apart is, what must not be is not."""

from pathlib import Path

import pytest

from tests.support.headline import CELLS, EMBEDDED, run_headline
from tipbench.settings import read_settings


@pytest.mark.timeout(1800)
def test_the_headline_puts_word_salad_last_and_names_no_winner_by_chance(
    mlflow_url: str, tmp_path: Path, experiment_name: str
) -> None:
    flags = {"home": tmp_path / "home", "mlflow_url": mlflow_url, "experiment": experiment_name}
    settings = read_settings(flags, folder=tmp_path)
    found = run_headline(settings, seed=1)
    assert sum(standing.cells for standing in found.by_arm.standings) == CELLS
    assert found.by_arm.judged == found.by_arm.candidates
    assert found.by_arm.waiting == 0
    assert min(found.means, key=lambda model: found.means[model]) == EMBEDDED.salad
    assert found.means[EMBEDDED.salad] < found.means[EMBEDDED.original]
    assert found.same_minus_original.low <= 0 <= found.same_minus_original.high
    assert found.shuffled.winner is None
