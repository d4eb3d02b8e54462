"""A board that was kept is what a fresh one would be; whatever it was made of changes, it is made again."""

import json
import shlex
import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.ranking.campaign import collect_campaign, judge_lazily, open_judging, skilled_engine
from tests.support.experiments import Where, collect_with
from tests.support.official import MlflowClient
from tests.tracking.writing import make_write
from tipbench.bench import kept
from tipbench.bench.bench import read_bench
from tipbench.bench.sittings import read_sittings
from tipbench.clock import make_stamps
from tipbench.grid import Cell
from tipbench.judging.service import Judging
from tipbench.records import Options, Sampling
from tipbench.tracking import Experiment, Run, Tracking
from tipbench.tracking.client import Rest
from tipbench.tracking.search import Reading, RunCache, open_reading

SIGN = "this board was kept"
BOARDS = "SELECT name, body FROM made WHERE name LIKE 'board of %'"


@dataclass
class Scene:
    """A small judged experiment, and what changes it."""

    cli: Cli
    tracking: Tracking
    name: str
    pack: str
    folder: Path
    retired: str = ""

    @property
    def judging(self) -> Judging:
        return open_judging(self.tracking, self.folder)

    @property
    def mlflow(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.tracking.url)

    def board(self, *more: str) -> Any:
        outcome = self.cli("compare", "--experiment", self.name, "--json", *more)
        return json.loads(outcome.out) if outcome.out else outcome.err

    def runs(self, kind: str) -> list[Run]:
        found = self.tracking.find_experiment(self.name)
        return [
            run
            for run in self.tracking.read_runs(found, fresh=True)
            if run.tags.get("tipbench.kind") == kind and run.tags.get("tipbench.state") != "open"
        ]

    def token(self) -> str:
        """Of the first sitting that is closed."""
        return read_sittings(self.runs("sitting"))[0].facts.token

    def judge(self, name: str = "anna") -> None:
        judge_lazily(self.judging, self.name, folder=self.folder, judged_by=name, blocks=2)

    def do(self, *words: str) -> None:
        self.cli.ok(*words, "--experiment", self.name)

    def content(self, kind: str) -> str:
        refused = self.cli("collect", "retire", "--experiment", self.name, f"--{kind}", "nothing@0")
        return refused.err.strip().rpartition(": ")[2].split(", ")[0]

    def sign_kept(self) -> int:
        """Writes a remark into every board that is kept; gives how many there are."""
        signed = 0
        for path in (self.cli.home / "cache").glob("*.db"):
            with closing(sqlite3.connect(path)) as database, database:
                for name, body in database.execute(BOARDS).fetchall():
                    text = json.loads(body)
                    text["report"]["remarks"] = [SIGN]
                    database.execute("UPDATE made SET body = ? WHERE name = ?", (json.dumps(text), name))
                    signed += 1
        return signed


@pytest.fixture
def scene(cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path) -> Scene:
    skill = {"one": 0.9, "two": 0.1}
    pack = collect_campaign(tracking, experiment_name, scenarios=2, prompts=2, skill=skill)
    scene = Scene(cli, tracking, experiment_name, pack.name, tmp_path)
    scene.judge()
    return scene


def is_kept(board: Any) -> bool:
    return SIGN in board["remarks"]


def test_a_board_is_made_once_and_says_what_a_fresh_one_says_in_every_outlet(scene: Scene) -> None:
    board = scene.board()
    where = ("compare", "--experiment", scene.name)
    shown = [scene.cli(*where, *how) for how in ((), ("--json",), ("--csv",), ("--markdown",))]
    fresh = [scene.cli(*where, "--fresh", *how) for how in ((), ("--json",), ("--csv",), ("--markdown",))]
    assert shown == fresh
    assert scene.sign_kept() == 1
    assert is_kept(scene.board())
    assert scene.board("--fresh") == board, "fresh is fresh"
    assert scene.board() == board, "and kept from then on"


def test_every_kind_of_board_is_kept_for_itself(scene: Scene) -> None:
    asked = [("--by", by, "--tier", tier) for by in ("arm", "model", "prompt") for tier in ("lazy", "auto")]
    boards = [scene.board(*how) for how in asked]
    assert [scene.board(*how) for how in asked] == boards
    assert [scene.board("--fresh", *how) for how in asked] == boards
    assert scene.sign_kept() == 6
    assert all(is_kept(scene.board(*how)) for how in asked)


def judge_more(scene: Scene) -> None:
    scene.judge("ben")


def close_judging(scene: Scene) -> None:
    scene.do("judge", "close", "--reason", "enough")


def reopen_judging(scene: Scene) -> None:
    scene.do("judge", "reopen", "--reason", "not enough")


def refuse_sitting(scene: Scene) -> None:
    scene.do("judge", "refuse", scene.token(), "--reason", "in a hurry")


def accept_sitting(scene: Scene) -> None:
    scene.do("judge", "accept", scene.token(), "--reason", "not at all")


def retire_prompt(scene: Scene) -> None:
    scene.retired = scene.content("prompt")
    scene.do("collect", "retire", "--prompt", scene.retired)


def retire_nothing(scene: Scene) -> None:
    scene.do("collect", "retire", "--prompt", scene.retired, "--undo")


def damage_verdict(scene: Scene) -> None:
    cell = next(run for run in scene.runs("cell") if any(tag.startswith("verdict:") for tag in run.tags))
    tag = next(tag for tag in cell.tags if tag.startswith("verdict:"))
    scene.mlflow.set_tag(cell.run_id, tag, cell.tags[tag].replace('"hash":"', '"hash":"x'))


def damage_cell(scene: Scene) -> None:
    scene.mlflow.set_tag(scene.runs("cell")[0].run_id, "tipbench.facts", "{}")


def delete_sitting(scene: Scene) -> None:
    scene.mlflow.delete_run(scene.runs("sitting")[0].run_id)


def log_metric(scene: Scene) -> None:
    scene.mlflow.log_metric(scene.runs("cell")[0].run_id, "latency_seconds", 99.0)


def name_champion(scene: Scene) -> None:
    scene.do("promote", "--initial", "one+v1", "--reason", "the first one")


CHANGES: tuple[Callable[[Scene], None], ...] = (
    judge_more,
    name_champion,
    close_judging,
    reopen_judging,
    refuse_sitting,
    accept_sitting,
    retire_prompt,
    retire_nothing,
    log_metric,
    damage_verdict,
    damage_cell,
    delete_sitting,
)


def test_after_every_change_the_board_is_made_again(scene: Scene) -> None:
    before = scene.board()
    for change in CHANGES:
        scene.sign_kept()
        assert is_kept(scene.board()), f"before {change.__name__}"
        change(scene)
        board = scene.board()
        assert not is_kept(board), change.__name__
        assert board == scene.board("--fresh"), change.__name__
        assert board != before, change.__name__
        before = board


def test_another_setting_of_the_gate_makes_another_board(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    name_champion(scene)
    scene.board()
    scene.sign_kept()
    monkeypatch.setenv("TIPBENCH_GATE_SCENARIOS", "40")
    board = scene.board()
    assert not is_kept(board)
    assert "40 are needed" in str(board["remarks"])


def test_another_champion_makes_another_board(scene: Scene) -> None:
    name_champion(scene)
    assert "the champion one+v1" in str(scene.board()["remarks"])
    scene.sign_kept()
    assert is_kept(scene.board())
    scene.do("promote", "--challenger", "two+v1", "--force", "--reason", "I like it better")
    board = scene.board()
    assert "the champion two+v1" in str(board["remarks"])
    assert board == scene.board("--fresh")
    scene.sign_kept()
    scene.cli.ok("champion", "rollback", "--pack", scene.pack, "--reason", "not really")
    assert "the champion one+v1" in str(scene.board()["remarks"])


def test_other_code_makes_its_own_board(
    scene: Scene, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    scene.board()
    scene.sign_kept()
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "other.py").write_text("")
    monkeypatch.setattr(kept, "PACKAGE", tmp_path / "code")
    kept.mark_code.cache_clear()
    assert not is_kept(scene.board())
    kept.mark_code.cache_clear()


def test_contents_that_are_mixed_are_refused_until_one_is_retired(scene: Scene) -> None:
    board = scene.board()
    scene.sign_kept()
    engine = skilled_engine({"one": 0.9})
    pack = read_bench(scene.tracking, scene.name, stamps=make_stamps()).pack
    options = Options(sampling=Sampling(), n_tips=5, diversity=True, seed=2)
    (model,) = engine.list_models()
    cells = [Cell(pack, model, pack.prompts[0], each, options) for each in pack.scenarios]
    retire = ("collect", "retire", "--options", scene.content("options"))
    scene.do(*retire)
    collect_with(lambda _: engine, cells, where=Where(scene.tracking, scene.name))
    scene.do(*retire, "--undo")
    first, refused = (scene.cli("compare", "--experiment", scene.name) for _ in range(2))
    assert first == refused
    assert refused.code == 1
    assert "mixes contents under one name" in refused.err
    resolve = refused.err.strip().rpartition("tipbench ")[2]
    scene.cli.ok(*shlex.split(resolve))
    assert scene.board() == scene.board("--fresh") == board


def test_a_kept_board_that_cannot_be_read_is_made_again(scene: Scene) -> None:
    board = scene.board()
    for path in (scene.cli.home / "cache").glob("*.db"):
        with closing(sqlite3.connect(path)) as database, database:
            assert database.execute("UPDATE made SET body = '{' WHERE name LIKE 'board of %'").rowcount == 1
    assert scene.board() == board


@dataclass
class Marks:
    """The marks of an experiment that is read through its cache, however small it is."""

    rest: Rest
    experiment: Experiment
    cache: RunCache

    def open(self, *, fresh: bool = False) -> Reading:
        return open_reading(self.rest, self.experiment, cache=self.cache, fresh=fresh, small=0)


def test_the_mark_of_the_runs_changes_when_a_run_does_and_only_then(
    tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    experiment = tracking.ensure_experiment(experiment_name)
    marks = Marks(Rest(tracking.url), experiment, RunCache(tmp_path / "cache.db"))
    first, second = (tracking.deliver(make_write(experiment, artifacts={})) for _ in range(2))
    client = MlflowClient(tracking_uri=tracking.url)
    steps: tuple[Callable[[], object], ...] = (
        lambda: tracking.deliver(make_write(experiment, artifacts={})),
        lambda: tracking.deliver(make_write(experiment, run_id=first, artifacts={}, tags={"t": "x"})),
        lambda: client.delete_run(second),
        lambda: client.restore_run(second),
        lambda: tracking.claim(first, "word:1", "said"),
    )
    seen: list[str] = []
    for step in steps:
        mark = marks.open().mark
        assert [marks.open().mark, marks.open(fresh=True).mark, marks.open().mark] == [mark] * 3
        marks.open().keep_made("thing", "beside", "made")
        assert marks.open().find_made("thing", "beside") == "made"
        assert marks.open().find_made("thing", "something else") is None
        step()
        changed = marks.open()
        assert changed.mark not in {mark, *seen}
        assert changed.find_made("thing", "beside") is None
        seen.append(mark)
    marks.rest.close()


def test_what_is_made_of_runs_that_changed_meanwhile_is_kept_as_made_of_those(
    tracking: Tracking, experiment_name: str, tmp_path: Path
) -> None:
    experiment = tracking.ensure_experiment(experiment_name)
    marks = Marks(Rest(tracking.url), experiment, RunCache(tmp_path / "cache.db"))
    tracking.deliver(make_write(experiment, artifacts={}))
    early = marks.open()
    tracking.deliver(make_write(experiment, artifacts={}))
    late = marks.open()
    assert len(early.runs) == 2, "somebody else brought the cache up to date"
    early.keep_made("count", None, str(len(early.runs)))
    assert late.find_made("count", None) == "2"
    marks.rest.close()
