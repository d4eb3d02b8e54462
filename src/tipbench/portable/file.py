"""The file of a portable experiment: everything that one holds, the same bytes wherever it lies.

It is a line that says what it is and hashes the rest, then xz over JSON lines: a head, and every run
with its texts, in such an order that runs name only runs before them. A run is named by the id it had where
it was first stored; MLflow gives ids of its own, so they are written anew on the way in and back on the way
out.

Nothing that a file says of itself is believed before its hash is found right, and no size even then.
"""

import hashlib
import json
import lzma
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import cast

from pydantic import Field, ValidationError

from tipbench.bench.damage import KIND_TAG
from tipbench.errors import NewerSchema, PortableError, TrackingRefused
from tipbench.records import SCHEMA, Record, content_hash
from tipbench.tracking.runs import FIRST_ID_TAG, LATEST_MS, SCHEMA_TAG, Experiment, Write, prepare_write

VERSION = 1
PRESET = 6
MOST_FILE = 512_000_000
MOST_LINE = 64_000_000
MOST_CONTENT = 8_000_000_000
"""Bytes of a file, of a run with all its texts, and of all runs: 50,000 cells are a tenth of it."""
MOST_MEMORY = 128_000_000
"""For unpacking; what we write needs 9 MB."""
CHUNK = 1 << 20
_FIRST_LINE = re.compile(rb"tipbench experiment ([0-9]{1,6}) sha256:([0-9a-f]{64})\n")
_LONGEST_FIRST_LINE = 120
_RUN_ID = r"[0-9a-f]{32}"
_ANY_ID = re.compile(rf"(?<![0-9a-f]){_RUN_ID}(?![0-9a-f])")
_SCHEMA = re.compile(r"[0-9]{1,4}")


class PortableHead(Record):
    """What the file holds; `experiment` is what it was called where it was first exported."""

    tipbench_schema: int
    experiment: str = Field(min_length=1, max_length=500)
    runs: int


class PortableRun(Record):
    """One run as MLflow has it. `ended_ms` is 0 where it is not finished; `files` are its texts by name."""

    id: str = Field(pattern=rf"^{_RUN_ID}$")
    name: str
    started_ms: int = Field(ge=0, le=LATEST_MS)
    ended_ms: int = Field(ge=0, le=LATEST_MS)
    tags: dict[str, str]
    params: dict[str, str]
    metrics: dict[str, float]
    files: dict[str, str]

    @property
    def kind(self) -> str:
        return self.tags.get(KIND_TAG, "")

    def named(self, ids: Mapping[str, str]) -> "PortableRun":
        """The same with other ids of runs in it; a hash of a text that changed by that follows it."""
        files = {name: _rename(text, ids) for name, text in self.files.items()}
        hashes = {
            content_hash(self.files[name]): content_hash(text)
            for name, text in files.items()
            if text != self.files[name]
        }
        tags = {key: hashes.get(value) or _rename(value, ids) for key, value in self.tags.items()}
        params = {key: _rename(value, ids) for key, value in self.params.items()}
        return self.model_copy(update={"tags": tags, "params": params, "files": files})


@dataclass(frozen=True)
class PortableFile:
    """A file that was checked from its first to its last byte."""

    path: Path
    digest: str
    head: PortableHead
    ids: frozenset[str]
    kinds: Counter[str]
    packed: bytes = field(repr=False)

    def runs(self) -> Iterator[PortableRun]:
        """All of them, one at a time."""
        for line in islice(_unpack(self.path, self.packed), 1, None):
            yield PortableRun.model_validate_json(line)


def pack_runs(head: PortableHead, runs: Iterable[PortableRun]) -> bytes:
    """The content of a file: the same runs always give the same bytes.

    Raises:
        PortableError: a run is too big, or cannot be stored as it is.
    """
    packing = lzma.LZMACompressor(lzma.FORMAT_XZ, preset=PRESET)
    packed = [packing.compress(_dump(head))]
    for run in runs:
        line = _dump(run)
        if len(line) > MOST_LINE:
            raise PortableError(f"run {run.id} has {len(line):,} bytes: a file takes {MOST_LINE:,} of one")
        _check_run(run)
        packed.append(packing.compress(line))
    content = b"".join([*packed, packing.flush()])
    digest = hashlib.sha256(content).hexdigest()
    return f"tipbench experiment {VERSION} sha256:{digest}\n".encode() + content


def open_portable(path: Path) -> PortableFile:
    """The file, after everything in it was read and found sound.

    Raises:
        PortableError: it is damaged, or not a file of ours; the message says what is wrong.
        NewerSchema: a newer tipbench made it.
    """
    digest, packed = _read_whole(path)
    lines = _unpack(path, packed)
    head = _read_head(path, next(lines, b""))
    ids: set[str] = set()
    kinds = Counter[str]()
    for line in lines:
        try:
            run = PortableRun.model_validate_json(line)
            _check_run(run)
        except (ValidationError, PortableError) as error:
            raise _refused(path, f"its line {len(ids) + 2} is not a run that can be stored") from error
        _check_schema(path, run.tags.get(SCHEMA_TAG, "1"))
        if run.id in ids:
            raise _refused(path, f"run {run.id} appears twice")
        ids.add(run.id)
        kinds[run.kind] += 1
    if len(ids) != head.runs:
        raise _refused(path, f"it says that it holds {head.runs} runs, and it holds {len(ids)}")
    return PortableFile(path, digest, head, frozenset(ids), kinds, packed)


def _read_whole(path: Path) -> tuple[str, bytes]:
    """The hash of what is packed in the file, and that."""
    try:
        with path.open("rb") as file:
            first = file.readline(_LONGEST_FIRST_LINE)
            packed = file.read(MOST_FILE + 1)
    except OSError as error:
        raise PortableError(
            f"{str(path)!r} cannot be read: {error.strerror}", hint="Check its name."
        ) from error
    found = _FIRST_LINE.fullmatch(first)
    if found is None:
        raise _refused(path, "it does not begin as one")
    if int(found[1]) > VERSION:
        raise NewerSchema(
            f"{str(path)!r} has version {int(found[1])} of this kind of file; this tipbench knows {VERSION}",
            hint="Import it with the tipbench that made it, or upgrade this one.",
        )
    if len(packed) > MOST_FILE:
        raise _refused(path, f"it has more than {MOST_FILE:,} bytes")
    digest = hashlib.sha256(packed).hexdigest()
    if digest != found[2].decode():
        raise _refused(path, "it was cut or altered: it is not what its checksum says")
    return digest, packed


def _unpack(path: Path, packed: bytes) -> Iterator[bytes]:
    """The lines, however much the file claims to hold: little is unpacked at once."""
    unpacking = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=MOST_MEMORY)
    rest, total, data = b"", 0, packed
    try:
        while not unpacking.eof:
            rest += unpacking.decompress(data, CHUNK)
            if unpacking.needs_input and not unpacking.eof and data == b"":
                raise _refused(path, "its end is missing")
            data = b""
            *lines, rest = rest.split(b"\n")
            yield from lines
            total += sum(map(len, lines))
            if len(rest) > MOST_LINE or total > MOST_CONTENT:
                raise _refused(path, "it would unpack to more than any experiment holds")
    except (lzma.LZMAError, MemoryError) as error:
        raise _refused(path, f"it cannot be unpacked ({error})") from error
    if rest or unpacking.unused_data:
        raise _refused(path, "something follows its end")


def _read_head(path: Path, line: bytes) -> PortableHead:
    try:
        known = cast(object, json.loads(line))
        if isinstance(known, dict):
            _check_schema(path, str(cast(dict[str, object], known).get("tipbench_schema")))
        return PortableHead.model_validate_json(line)
    except ValueError as error:
        raise _refused(path, "its first line does not say what it holds") from error


def _check_schema(path: Path, schema: str) -> None:
    # What is no number is damage of that run alone, and was stored so.
    if _SCHEMA.fullmatch(schema) and int(schema) > SCHEMA:
        raise NewerSchema(
            f"{str(path)!r} holds schema {schema}; this tipbench knows {SCHEMA}",
            hint="Import it with the tipbench that made it, or upgrade this one.",
        )


def _check_run(run: PortableRun) -> None:
    """Refuses what MLflow would refuse or cut: names that lead elsewhere, values that are too long."""
    try:
        prepare_write(make_write(run, Experiment(id="", name="the file", uid="", artifact_location="")))
    except TrackingRefused as error:
        raise PortableError(f"run {run.id} cannot be stored as it is: {error.message}") from error


def _dump(record: Record) -> bytes:
    content = record.model_dump()
    return json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _rename(text: str, ids: Mapping[str, str]) -> str:
    return _ANY_ID.sub(lambda found: ids.get(found[0], found[0]), text) if ids else text


def find_ids(texts: Iterable[str]) -> set[str]:
    return {found for text in texts for found in _ANY_ID.findall(text)}


def _refused(path: Path, why: str) -> PortableError:
    return PortableError(
        f"{str(path)!r} is damaged, or not an experiment that tipbench exported: {why}",
        hint="Nothing was stored. Copy the file here again, or export the experiment again.",
    )


def make_write(run: PortableRun, experiment: Experiment) -> Write:
    """The run with all its tags at once: nobody sees it yet. Its first id comes last, when all is there."""
    return Write(
        attempt=f"import-{run.id}",
        experiment=experiment.name,
        experiment_id=experiment.id,
        run_name=run.name,
        tags_at_create=run.tags,
        start_time=run.started_ms,
        artifacts=run.files,
        params=run.params,
        metrics=run.metrics,
        tags={FIRST_ID_TAG: run.id},
        end_time=run.ended_ms,
    )
