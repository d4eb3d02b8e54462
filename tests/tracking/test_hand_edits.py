"""Whatever is edited by hand in MLflow: `compare` and `judge status` say what they say with --fresh."""

import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from benchmarks.big_experiment import collect_big, judge_big, make_cells, make_pack

from tests.conftest import Cli
from tests.support.official import MlflowClient
from tipbench.clock import make_stamps
from tipbench.judging.service import Judging
from tipbench.tracking import Experiment, Run, Tracking


@pytest.fixture
def judged(tracking: Tracking, experiment: Experiment, tmp_path: Path) -> str:
    """Sixteen real cells, half of the scenarios judged."""
    collect_big(tracking, cells=make_cells(make_pack(4, prompts=2), models=2), experiment=experiment.name)
    judging = Judging(tracking, make_stamps(), tmp_path / "locks")
    judge_big(judging, blocks=2, folder=tmp_path, experiment=experiment.name)
    return experiment.name


def verdict_tag(run: Run) -> str:
    return next(name for name in run.tags if name.startswith("verdict:"))


def edit_verdict(client: MlflowClient, cell: Run, _: Run) -> None:
    client.set_tag(
        cell.run_id, verdict_tag(cell), cell.tags[verdict_tag(cell)].replace('"hash":"', '"hash":"x')
    )


def delete_verdict(client: MlflowClient, cell: Run, _: Run) -> None:
    client.delete_tag(cell.run_id, verdict_tag(cell))


def retire_by_hand(client: MlflowClient, cell: Run, _: Run) -> None:
    client.set_tag(cell.run_id, "tipbench.retired", "yes")


def reopen_cell(client: MlflowClient, cell: Run, _: Run) -> None:
    client.set_tag(cell.run_id, "tipbench.state", "open")


def log_metric(client: MlflowClient, cell: Run, _: Run) -> None:
    client.log_metric(cell.run_id, "latency_seconds", 99.0)


def reopen_sitting(client: MlflowClient, _: Run, sitting: Run) -> None:
    client.set_tag(sitting.run_id, "tipbench.state", "open")


def delete_sitting(client: MlflowClient, _: Run, sitting: Run) -> None:
    client.delete_run(sitting.run_id)


def restore_sitting(client: MlflowClient, _: Run, sitting: Run) -> None:
    client.restore_run(sitting.run_id)


def delete_cell(client: MlflowClient, cell: Run, _: Run) -> None:
    client.delete_run(cell.run_id)


def make_old(client: MlflowClient, runs: Sequence[Run]) -> None:
    """As if everything had been written an hour ago: no read asks for it again."""
    for run in runs:
        touched = run.metrics["touched"]
        client.log_metric(run.run_id, "touched", touched - 3_600_000, timestamp=int(touched) + 1)


EDITS = (
    edit_verdict,
    delete_verdict,
    log_metric,
    delete_sitting,
    restore_sitting,
    retire_by_hand,
    reopen_cell,
    delete_cell,
    reopen_sitting,
)


def test_after_every_edit_by_hand_compare_and_status_say_what_they_say_fresh(
    cli: Cli, judged: str, tracking: Tracking
) -> None:
    runs = tracking.read_runs(tracking.find_experiment(judged))
    sitting = next(run for run in runs if run.tags["tipbench.kind"] == "sitting")
    cells = [run for run in runs if any(name.startswith("verdict:") for name in run.tags)]
    client = MlflowClient(tracking_uri=tracking.url)
    make_old(client, runs)
    board = cli("compare", "--experiment", judged, "--json").json()
    for edit in EDITS:
        edit(client, cells[EDITS.index(edit) % len(cells)], sitting)
        compared = cli("compare", "--experiment", judged, "--json").json()
        status = cli("judge", "status", "--experiment", judged, "--json").json()
        assert compared == cli("compare", "--fresh", "--experiment", judged, "--json").json(), edit.__name__
        assert status == cli("judge", "status", "--fresh", "--experiment", judged, "--json").json()
        assert compared != board, f"{edit.__name__} must show"
        board = compared


def test_a_cell_without_its_facts_is_named_and_the_others_are_compared(
    cli: Cli, tracking: Tracking, experiment: Experiment
) -> None:
    collect_big(tracking, cells=make_cells(make_pack(1, prompts=1), models=2), experiment=experiment.name)
    cell = next(run for run in tracking.read_runs(experiment) if "tipbench.key" in run.tags)
    client = MlflowClient(tracking_uri=tracking.url)
    client.set_tag(cell.run_id, "tipbench.facts", "{}")
    damaged = cli("compare", "--experiment", experiment.name, "--json").json()
    assert f"damaged, not counted: cell {cell.run_id}, 'tipbench.facts'" in damaged["remarks"][0]
    client.delete_run(cell.run_id)
    without = cli("compare", "--experiment", experiment.name, "--json")
    assert (without.code, len(without.json()["standings"])) == (4, 1), "nothing is judged, one arm is left"
    assert without.json()["standings"] == damaged["standings"]


ODD = {"submission:note": "read me", "submission:": "", "tipbench.drift": "{", "tipbench.closed_ms": "soon"}


@pytest.mark.parametrize(("tag", "text"), ODD.items(), ids=ODD)
def test_one_odd_tag_on_one_sitting_stops_no_command_and_is_named(
    cli: Cli, judged: str, tracking: Tracking, tag: str, text: str
) -> None:
    runs = tracking.read_runs(tracking.find_experiment(judged))
    sitting = next(run for run in runs if run.tags["tipbench.kind"] == "sitting")
    MlflowClient(tracking_uri=tracking.url).set_tag(sitting.run_id, tag, text)
    named = f"sitting {sitting.run_id}, {tag!r}"
    assert named in str(cli("compare", "--experiment", judged, "--json").json()["remarks"])
    assert named in str(cli("judge", "status", "--experiment", judged, "--json").json()["damaged"])
    assert named in cli.ok("judge", "judges", "--experiment", judged).out
    assert named in cli.ok("mlflow", "repair", "--dry-run", "--experiment", judged).out


def edit_artifact(tracking: Tracking, run: Run, file: str, old: str, new: str) -> None:
    text = tracking.read_artifact(run, file)
    assert old in text
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / Path(file).name
        path.write_text(text.replace(old, new), encoding="utf-8")
        put = MlflowClient(tracking.url).log_artifact  # pyright: ignore[reportUnknownMemberType, reportUnknownVariableType]
        put(run.run_id, str(path), str(Path(file).parent).strip("."))


PAIRS = ("export", "{}", "pairs.jsonl", "--pairs", "--min-margin", "0.01")
BOARD = ("compare", "--experiment", "{}")


@pytest.mark.parametrize(
    ("kind", "file", "old", "new", "command"),
    [
        ("pack", "pack/pack.toml", "[", "# edited\n[", BOARD),
        ("pack", "pack/rubric.md", "e", "ee", BOARD),
        ("cell", "texts.json", '"text": "', '"text": "edited ', PAIRS),
        ("sitting", "key.json", '"slot":0', '"slot":1', (*BOARD, "--html", "page.html")),
    ],
    ids=["pack", "rubric", "candidates", "key"],
)
def test_an_edited_artifact_is_named_and_nothing_is_computed_from_it(
    cli: Cli,
    judged: str,
    tracking: Tracking,
    kind: str,
    file: str,
    old: str,
    new: str,
    command: tuple[str, ...],
) -> None:
    words = [word.format(judged) for word in command]
    assert cli(*words).code != 1
    for run in tracking.read_runs(tracking.find_experiment(judged), fresh=True):
        if run.tags["tipbench.kind"] == kind:
            edit_artifact(tracking, run, file, old, new)
    # A machine that read the pack before keeps it by its hash, and goes on with it.
    shutil.rmtree(cli.home / "cache")
    refused = cli(*words)
    assert refused.code == 1, refused.out + refused.err
    assert "edited" in refused.err
    assert file.partition("/")[0] in refused.err
