"""Five candidates of one cell, submitted at once through two processes."""

import multiprocessing
from pathlib import Path

from benchmarks.big_experiment import ScriptedModel, collect_big, make_cells, make_pack

from tests.conftest import Cli
from tests.support.sheets import REFERENCES
from tipbench.bench.evidence import read_evidence
from tipbench.bench.sittings import Answer
from tipbench.clock import make_stamps
from tipbench.grid import Cell
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import SheetItem
from tipbench.settings import Settings
from tipbench.tracking import Tracking, open_tracking

SLOTS = 5


def full_cell() -> Cell:
    """A cell whose scripted answer fills all slots."""
    for cell in make_cells(make_pack(8, prompts=1), models=1):
        answer = ScriptedModel().generate(cell.question, sampling=cell.options.sampling, seed=cell.seed)
        if len(answer.text.splitlines()) == SLOTS:
            return cell
    raise AssertionError("the scripted engine fills no cell")


def make_live(tracking: Tracking, home: Path) -> Judging:
    return Judging(tracking, make_stamps(), home / "locks")


def answer(item: SheetItem) -> Answer:
    scores = REFERENCES.get(item.text, dict.fromkeys(item.scores, 3))
    return Answer(scores=scores, flags=item.flags)


def submit(home: Path, url: str, experiment: str, token: str, items: list[str], gate: object) -> None:
    with open_tracking(Settings(home=home, mlflow_url=url)) as tracking:
        live = make_live(tracking, home)
        waiting = {item.id: item for item in live.look(token, experiment=experiment).waiting}
        gate.wait()  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]
        for item_id in items:
            live.submit(token, {item_id: answer(waiting[item_id])}, experiment=experiment)


def test_five_candidates_of_one_cell_through_two_processes_are_five_verdicts(
    cli: Cli, mlflow_url: str, experiment_name: str
) -> None:
    with open_tracking(Settings(home=cli.home, mlflow_url=mlflow_url)) as tracking:
        collect_big(tracking, cells=[full_cell()], experiment=experiment_name)
        live = make_live(tracking, cli.home)
        sitting = live.open_sitting(SittingRequest("anna"), experiment=experiment_name)
        assert sitting is not None
        candidates = [item.id for item in sitting.waiting if item.text not in REFERENCES]
        anchors = {item.id: answer(item) for item in sitting.waiting if item.text in REFERENCES}
        assert len(candidates) == SLOTS
        live.submit(sitting.token, anchors, experiment=experiment_name)
        spawn = multiprocessing.get_context("spawn")
        gate = spawn.Barrier(2)
        workers = [
            spawn.Process(
                target=submit, args=(cli.home, mlflow_url, experiment_name, sitting.token, part, gate)
            )
            for part in (candidates[:3], candidates[3:])
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
            assert worker.exitcode == 0
        assert live.look(sitting.token, experiment=experiment_name).state == "accepted"
        runs = tracking.read_runs(tracking.find_experiment(experiment_name), fresh=True)
        evidence = read_evidence(runs)
    assert sorted(given.verdict.slot for given in evidence.lazy) == list(range(SLOTS))
    assert evidence.doubles == ()
