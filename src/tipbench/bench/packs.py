"""Packs in MLflow: one run per content hash, all files as artifacts. Later phases read them only here."""

import json
from collections.abc import Iterable, Mapping

from tipbench.errors import TrackingError
from tipbench.records import SCHEMA, Pack, content_hash
from tipbench.tracking.runs import Experiment, Run, Write
from tipbench.tracking.tracking import Tracking

FILES = "pack-files.json"


def pack_write(pack: Pack, *, write: Write) -> Write:
    """The run that holds this pack."""
    return write.model_copy(
        update={
            "run_name": f"pack {pack.name} {pack.hash}",
            "tags_at_create": {
                "tipbench.kind": "pack",
                "tipbench.schema": str(SCHEMA),
                "tipbench.state": "open",
                "tipbench.pack": pack.hash,
            },
            "artifacts": {FILES: json.dumps(sorted(pack.files))}
            | {f"pack/{name}": text for name, text in pack.files.items()},
            "tags": {"tipbench.state": "complete"},
            "end_time": write.start_time,
        }
    )


def find_pack_run(runs: Iterable[Run], pack_hash: str) -> Run | None:
    """The run that holds the pack with this hash, if it is stored."""
    found = [
        run
        for run in runs
        if run.tags.get("tipbench.kind") == "pack"
        and run.tags.get("tipbench.state") == "complete"
        and run.tags.get("tipbench.pack") == pack_hash
    ]
    return min(found, key=lambda run: run.run_id, default=None)


def read_stored_pack(experiment: Experiment, pack_hash: str, *, tracking: Tracking) -> Mapping[str, str]:
    """The texts of a pack that the experiment stores, without reading anything else of it.

    Raises:
        TrackingError: the pack is not in this experiment.
    """
    runs = tracking.search_runs([experiment.id], f"tags.`tipbench.pack` = '{pack_hash}'")
    return read_pack_files(runs, pack_hash, tracking=tracking)


def read_pack_files(runs: Iterable[Run], pack_hash: str, *, tracking: Tracking) -> Mapping[str, str]:
    """The texts of the pack that these runs of an experiment store. A machine fetches them once.

    Raises:
        TrackingError: the pack is not in this experiment, or was edited there.
    """
    run = find_pack_run(runs, pack_hash)
    if run is None:
        raise TrackingError(
            f"the pack {pack_hash} is not stored in this experiment",
            hint="Its run was deleted: restore it in MLflow, or collect again.",
        )
    files = tracking.text_cache.read(pack_hash)
    if files is None:
        names: list[str] = json.loads(tracking.read_artifact(run, FILES))
        files = {name: tracking.read_artifact(run, f"pack/{name}") for name in names}
        if content_hash(files) != pack_hash:
            raise TrackingError(
                f"the artifacts 'pack/…' of run {run.run_id} were edited: they are not the pack {pack_hash}",
                hint="Put them back as they were: a changed rubric or anchor would change every score.",
            )
        tracking.text_cache.keep(pack_hash, files)
    return files
