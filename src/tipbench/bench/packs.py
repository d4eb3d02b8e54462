"""Packs in MLflow: one run per content hash, all files as artifacts. Later phases read them only here."""

import json
from collections.abc import Iterable, Mapping, Sequence

from pydantic import TypeAdapter, ValidationError

from tipbench.bench.damage import Damage, find_readable, find_unreadable, read_text
from tipbench.errors import TrackingError
from tipbench.records import SCHEMA, Pack, content_hash
from tipbench.tracking.runs import Experiment, Run, Write
from tipbench.tracking.tracking import Tracking

FILES = "pack-files.json"
_names = TypeAdapter(list[str])


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
        for run in find_readable(runs, "pack")
        if run.tags["tipbench.state"] == "complete" and run.tags.get("tipbench.pack") == pack_hash
    ]
    return min(found, key=lambda run: run.run_id, default=None)


def read_stored_pack(experiment: Experiment, pack_hash: str, *, tracking: Tracking) -> Mapping[str, str]:
    """The texts of a pack that the experiment stores, without reading anything else of it.

    Raises:
        TrackingError: the pack is not in this experiment.
    """
    runs = tracking.search_runs([experiment.id], f"tags.`tipbench.pack` = '{pack_hash}'")
    return read_pack_files(runs, pack_hash, tracking=tracking)


def read_pack_files(runs: Sequence[Run], pack_hash: str, *, tracking: Tracking) -> Mapping[str, str]:
    """The texts of the pack that these runs of an experiment store. A machine fetches them once.

    Raises:
        TrackingError: the pack is not in this experiment, or was edited there.
    """
    run = find_pack_run(runs, pack_hash)
    if run is None:
        raise TrackingError(
            f"the pack {pack_hash} is not stored in this experiment{_tell_others(runs)}",
            hint="Its run was deleted or edited: put it right in MLflow, or collect again.",
        )
    files = tracking.text_cache.read(pack_hash)
    if files is None:
        files = {name: read_text(tracking, run, f"pack/{name}") for name in _read_names(tracking, run)}
        if content_hash(files) != pack_hash:
            raise TrackingError(
                f"the artifacts 'pack/…' of run {run.run_id} were edited: they are not the pack {pack_hash}",
                hint="Put them back as they were: a changed rubric or anchor would change every score.",
            )
        tracking.text_cache.keep(pack_hash, files)
    return files


def _read_names(tracking: Tracking, run: Run) -> list[str]:
    try:
        return _names.validate_json(read_text(tracking, run, FILES))
    except ValidationError as error:
        raise Damage(run, FILES, "it is no list of names") from error


def _tell_others(runs: Sequence[Run]) -> str:
    """Which run it may have been: another pack's, or one that cannot be read."""
    packs = [f"run {run.run_id} has {run.tags.get('tipbench.pack')!r}" for run in find_readable(runs, "pack")]
    damaged = [f"damaged: {each.told}" for each in find_unreadable(runs)]
    return "".join(f"; {each[:300]}" for each in [*packs, *damaged][:5])
