"""Where judging stands is kept; what is shown is what a fresh reading would say, whatever changed."""

import json
import sqlite3
import subprocess
import sys
import threading
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tests.ranking.campaign import collect_campaign, judge_lazily, open_judging
from tests.support.official import MlflowClient
from tests.tracking.writing import make_write
from tipbench.bench import sittings
from tipbench.bench.bench import open_bench
from tipbench.bench.sittings import EXPIRES_TAG
from tipbench.bench.views import refresh_views
from tipbench.clock import make_stamps
from tipbench.judging.kept import NAME
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.stats.agreement import ROUGH_BELOW
from tipbench.tracking import Run, Tracking

SIGN = 987_654
"""So many candidates were never judged here."""


@dataclass
class Scene:
    """A small judged experiment, and what changes it."""

    cli: Cli
    tracking: Tracking
    name: str
    folder: Path

    @property
    def judging(self) -> Judging:
        return open_judging(self.tracking, self.folder)

    @property
    def mlflow(self) -> MlflowClient:
        return MlflowClient(tracking_uri=self.tracking.url)

    def status(self, *more: str) -> Any:
        return self.cli.ok("judge", "status", "--experiment", self.name, "--json", *more).json()

    def runs(self, kind: str) -> list[Run]:
        found = self.tracking.read_runs(self.tracking.find_experiment(self.name), fresh=True)
        return [run for run in found if run.tags.get("tipbench.kind") == kind]

    def do(self, *words: str) -> None:
        self.cli.ok(*words, "--experiment", self.name)

    def change_kept(self, **other: object) -> int:
        """Writes something else into what is kept; gives how often it was there."""
        changed = 0
        for path in (self.cli.home / "cache").glob("*.db"):
            with closing(sqlite3.connect(path)) as database, database:
                query = "SELECT body FROM made WHERE name = ?"
                for (body,) in database.execute(query, (NAME,)).fetchall():
                    text = json.loads(body)
                    text["status"]["judged"] = SIGN
                    change = "UPDATE made SET body = ? WHERE name = ?"
                    database.execute(change, (json.dumps(text | other), NAME))
                    changed += 1
        return changed


@pytest.fixture
def scene(cli: Cli, tracking: Tracking, experiment_name: str, tmp_path: Path) -> Scene:
    collect_campaign(tracking, experiment_name, scenarios=2, prompts=2, skill={"one": 0.9, "two": 0.1})
    scene = Scene(cli, tracking, experiment_name, tmp_path)
    judge_lazily(scene.judging, experiment_name, folder=tmp_path, judged_by="anna", blocks=2)
    return scene


def is_kept(status: Any) -> bool:
    return status["judged"] == SIGN


def judge_more(scene: Scene) -> None:
    judge_lazily(scene.judging, scene.name, folder=scene.folder, judged_by="ben", blocks=2)


def hand_out(scene: Scene) -> None:
    request = SittingRequest("carla", blocks=1)
    assert scene.judging.hand_out(scene.folder / "out.json", request, experiment=scene.name)


def refuse_sitting(scene: Scene) -> None:
    scene.do("judge", "refuse", scene.runs("sitting")[0].tags["tipbench.sitting"], "--reason", "in a hurry")


def close_judging(scene: Scene) -> None:
    scene.do("judge", "close", "--reason", "enough")


def reopen_judging(scene: Scene) -> None:
    scene.do("judge", "reopen", "--reason", "not enough")


def damage_verdict(scene: Scene) -> None:
    cell = next(run for run in scene.runs("cell") if any(tag.startswith("verdict:") for tag in run.tags))
    tag = next(tag for tag in cell.tags if tag.startswith("verdict:"))
    scene.mlflow.set_tag(cell.run_id, tag, cell.tags[tag].replace('"hash":"', '"hash":"x'))


def delete_cell(scene: Scene) -> None:
    scene.mlflow.delete_run(scene.runs("cell")[0].run_id)


def damage_sitting(scene: Scene) -> None:
    scene.mlflow.set_tag(scene.runs("sitting")[0].run_id, "tipbench.facts", "{}")


CHANGES = (
    judge_more,
    hand_out,
    refuse_sitting,
    close_judging,
    reopen_judging,
    damage_verdict,
    delete_cell,
    damage_sitting,
)


def test_after_every_change_it_is_made_again(scene: Scene) -> None:
    before = scene.status()
    assert scene.status() == before == scene.status("--fresh")
    for change in CHANGES:
        assert scene.change_kept() == 1
        assert is_kept(scene.status()), f"before {change.__name__}"
        change(scene)
        now = scene.status()
        assert not is_kept(now), change.__name__
        assert now == scene.status("--fresh"), change.__name__
        assert now != before, change.__name__
        before = now


def test_fresh_is_fresh_and_kept_from_then_on(scene: Scene) -> None:
    status = scene.status()
    scene.change_kept()
    assert scene.status("--fresh") == status
    assert scene.status() == status


def test_a_delta_that_was_set_makes_another_one(scene: Scene) -> None:
    scene.status()
    scene.change_kept()
    assert not is_kept(scene.status("--delta", "2.5"))
    scene.change_kept()
    assert is_kept(scene.status("--delta", "2.5"))
    assert not is_kept(scene.status())


def test_a_sitting_that_runs_out_changes_what_is_shown_and_no_run(scene: Scene) -> None:
    hand_out(scene)
    (run,) = [run for run in scene.runs("sitting") if run.tags["tipbench.state"] == "open"]
    now_ms = 2_000_000_000_000
    scene.mlflow.set_tag(run.run_id, EXPIRES_TAG, str(now_ms))

    def state_at(ms: int) -> str:
        judging = replace(scene.judging, stamps=replace(make_stamps(), now_ms=lambda: ms))
        found = judging.status(experiment=scene.name)
        assert found == judging.status(experiment=scene.name, fresh=True)
        return found.sittings[-1].state

    assert [state_at(now_ms + by) for by in (-1, 0, -1, 1, -60_000)] == [
        *("open", "expired", "open", "expired", "open")
    ]


def test_what_is_kept_and_cannot_be_read_is_made_again(scene: Scene) -> None:
    status = scene.status()
    for change in ({"from_ms": "soon"}, {"more": 1}):
        assert scene.change_kept(**change) == 1
        assert scene.status() == status


def test_a_look_that_has_decided_is_asked_for_every_time(scene: Scene) -> None:
    look = {"tipbench.kind": "look", "tipbench.plan": "plan", "tipbench.answer": "no"}
    experiment = scene.tracking.find_experiment(scene.name)
    tags = {**look, "tipbench.state": "complete"}
    scene.tracking.deliver(make_write(experiment, artifacts={}, tags=tags))
    status = scene.status()
    assert scene.change_kept() == 0
    assert scene.status() == status


def test_two_processes_that_keep_it_at_once_both_say_the_truth(scene: Scene) -> None:
    said: list[Any] = []
    threads = [threading.Thread(target=lambda: said.append(scene.status())) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert said == [scene.status("--fresh")] * 2


def test_a_cache_of_an_earlier_version_is_thrown_away_silently(scene: Scene) -> None:
    status = scene.status()
    scene.change_kept()
    for path in (scene.cli.home / "cache").glob("*.db"):
        with closing(sqlite3.connect(path)) as database:
            database.executescript("DROP TABLE made; PRAGMA user_version = 4")
    outcome = scene.cli.ok("judge", "status", "--experiment", scene.name, "--json")
    assert outcome.json() == status
    assert "cache" not in outcome.err


# Views that are right are not made again, as long as nothing is new but open sittings.


def views_kept(scene: Scene) -> str | None:
    for path in (scene.cli.home / "cache").glob("*.db"):
        with closing(sqlite3.connect(path)) as database:
            for (key,) in database.execute("SELECT key FROM made WHERE name = 'views'"):
                return str(key)
    return None


def test_an_open_sitting_leaves_views_as_they_are_and_everything_else_does_not(scene: Scene) -> None:
    def refresh() -> str | None:
        bench = open_bench(scene.tracking, scene.name, stamps=make_stamps(), fresh=True)
        refresh_views(bench)
        refresh_views(bench.again(fresh=True))
        return views_kept(scene)

    before = refresh()
    hand_out(scene)
    assert refresh() == before
    seen = {before}
    for change in (judge_more, refuse_sitting, close_judging, reopen_judging, damage_verdict, delete_cell):
        change(scene)
        now = refresh()
        assert now not in seen, change.__name__
        seen.add(now)


def test_a_view_that_was_edited_by_hand_is_put_right_by_the_next_hand_out(scene: Scene) -> None:
    hand_out(scene)
    cell = next(run for run in scene.runs("cell") if "judged_by" in run.tags)
    scene.mlflow.set_tag(cell.run_id, "judged_by", "nobody")
    scene.judging.tidy(scene.name)
    (again,) = [run for run in scene.runs("cell") if run.run_id == cell.run_id]
    assert again.tags["judged_by"] == cell.tags["judged_by"]


HEAVY = """
import sys
from tipbench.cli import group
try:
    group.main(sys.argv[1:], standalone_mode=False)
finally:
    print(*(name for name in ("numpy", "fastapi", "tipbench.bench.evidence") if name in sys.modules))
"""


@pytest.mark.parametrize("words", [("compare",), ("judge", "status")])
def test_what_is_kept_is_shown_without_the_statistics(scene: Scene, words: tuple[str, ...]) -> None:
    where = ("--experiment", scene.name, "--mlflow-url", scene.tracking.url, "--home", str(scene.cli.home))
    command = [sys.executable, "-c", HEAVY, *words, *where]
    first, second = (subprocess.run(command, capture_output=True, text=True, check=False) for _ in range(2))
    assert "numpy" in first.stdout.splitlines()[-1]
    assert second.stdout.splitlines()[-1] == "", "nothing heavy is loaded"
    assert second.stdout.splitlines()[:-1] == first.stdout.splitlines()[:-1]


def test_what_is_rough_is_the_same_number_where_the_statistics_are_not_loaded() -> None:
    assert sittings.ROUGH_BELOW == ROUGH_BELOW
