"""`[gate]` in tipbench.toml, each value settable by itself."""

from pathlib import Path

import pytest

from tipbench.errors import UsageError
from tipbench.settings import read_settings


def test_values_of_the_file_and_of_the_environment_go_together(tmp_path: Path) -> None:
    (tmp_path / "tipbench.toml").write_text('[gate]\nrequire = "lazy"\nlooks = [0.4, 1]\n')
    gate = read_settings(environ={"TIPBENCH_GATE_LOOKS": "0.5, 1", "HOME": "/"}, folder=tmp_path).gate
    assert (gate.require, gate.looks, gate.alpha) == ("lazy", (0.5, 1.0), 0.05)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[gate]\nlooks = [0.5, 0.4, 1]", "gate.looks"),
        ("[gate]\nlooks = [0.5]", "end at 1"),
        ("[gate]\nmargin = -1", "gate.margin"),
        ("[gate]\nmargim = 1", "unknown setting 'gate.margim'"),
        ("gate = 3", "gate 3 from"),
    ],
)
def test_wrong_values_are_named(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "tipbench.toml").write_text(text)
    with pytest.raises(UsageError) as refused:
        read_settings(environ={"HOME": "/"}, folder=tmp_path)
    assert said in refused.value.message
