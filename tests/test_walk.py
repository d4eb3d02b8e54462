"""How a tip walks: the stations in CONTRIBUTING are files that the real commands enter.

`python -m pytest tests/test_walk.py -s` prints the whole walk, in the order of first entry.
"""

import re
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType

import tipbench
from tests.conftest import Cli
from tests.support.sheets import judge_soundly
from tests.support.small_pack import write_small_pack

HERE = str(Path(tipbench.__file__).parent) + "/"
STATION = re.compile(r"^\| \d (\w+) \|.*\| (`.*`) \|$", re.MULTILINE)
"""One row of the table: the station's name, and its files."""
MOST = 82
"""Files that a tip meets from collect to compare; run alone, it enters some that others warmed up before it.
More of them means that rooms were cut again."""


@contextmanager
def follow() -> Generator[dict[str, None]]:
    """The files whose functions are called meanwhile, in every thread that begins."""
    entered: dict[str, None] = {}

    def note(frame: FrameType, event: str, _argument: object) -> None:
        name = frame.f_code.co_filename
        if event == "call" and name.startswith(HERE) and frame.f_code.co_name != "<module>":
            entered[name.removeprefix(HERE)] = None

    threading.setprofile(note)
    sys.setprofile(note)
    try:
        yield entered
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_tip_walks_through_the_stations(cli: Cli, experiment_name: str, tmp_path: Path) -> None:
    pack, sheet = write_small_pack(tmp_path / "pack"), str(tmp_path / "sheet.json")
    manifest = pack / "pack.toml"
    manifest.write_text(re.sub(r"max_tokens = \d+", "max_tokens = 24", manifest.read_text()))
    where = ("--experiment", experiment_name)
    with follow() as entered:
        cli.ok(
            "collect", "--pack", str(pack), "--models", "smollm2", "--prompts", "v1", "--n-tips", "1", *where
        )
        exported = cli("judge", "--export", sheet, *where)
        assert exported.code == 0, exported.err
        judge_soundly(Path(sheet))
        cli.ok("judge", "--apply", sheet)
        cli("compare", *where)
    print(f"{len(entered)} files:", " > ".join(entered))
    stations = STATION.findall((Path(__file__).parents[1] / "CONTRIBUTING.md").read_text(encoding="utf-8"))
    assert [name for name, _ in stations] == ["pack", "collect", "tracking", "judging", "ranking", "show"]
    named = [file for _, files in stations for file in re.findall(r"`([^`]+)`", files)]
    assert [file for file in named if file not in entered] == []
    assert len(entered) <= MOST
