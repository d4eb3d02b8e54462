"""Builds a real Ollama server out of the Go module proxy: `python tests/engines/build_ollama.py`.

No package registry has the server itself. Version 0.24.0 is the last one whose inference code lies in the
same Go module, so a Go compiler with gcc and g++ is all it takes (about ten minutes of processor time).
With TIPBENCH_TEST_OLLAMA_NEWER=1 a server is built whose inference is another program, `llama-server`; the
tests have a stand-in for that (`llama_server.py`), so its HTTP and scheduler can be tested.
The standard library is enough for this script; it prints the path of the server.
"""

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

VERSION = "0.24.0"
NEWER_VERSION = "0.32.15"
MODULE = "github.com/ollama/ollama"
HEADERS_PACKAGE = "llama-cpp-python"
HEADERS_VERSION = "0.3.36"
HEADERS_SHA256 = "832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e"
HEADERS_PLACE = "/vendor/llama.cpp/vendor/"
HEADERS_FOLDERS = ("nlohmann", "stb", "miniaudio")
"""Module archives leave out every folder named `vendor`; these headers of it are needed to compile."""
PROCESSOR_FLAGS = {"avx": "-mavx", "avx2": "-mavx2", "fma": "-mfma", "f16c": "-mf16c", "bmi2": "-mbmi2"}


def is_newer() -> bool:
    """Whether the newer server is meant."""
    return bool(os.environ.get("TIPBENCH_TEST_OLLAMA_NEWER"))


def store_folder() -> Path:
    """Where the models are, the same for both servers: only the older one can import them by itself."""
    given = os.environ.get("TIPBENCH_TEST_OLLAMA")
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return (Path(given) if given else caches / "tipbench-tests" / "ollama") / "models"


def ollama_folder() -> Path:
    """Where the server and what belongs to it are kept; TIPBENCH_TEST_OLLAMA names another place."""
    folder = store_folder().parent
    return folder.with_name(f"{folder.name}-newer") if is_newer() else folder


def find_ollama() -> Path | None:
    """The server, if it was built."""
    binary = ollama_folder() / "bin" / "ollama"
    return binary if binary.is_file() else None


def build_ollama() -> Path:
    """The server, built unless it is there."""
    built = find_ollama()
    if built:
        return built
    folder = _prepare_folder()
    if is_newer():
        _write_stand_in(folder)
        _install(NEWER_VERSION, folder)
        return folder / "bin" / "ollama"
    # Always the same place: the compiler's cache knows it, so a build that was stopped goes on where it was.
    headers = folder / "headers"
    with tempfile.TemporaryDirectory(dir=folder, prefix="build-") as scratch:
        _fetch_headers(Path(scratch), headers)
        optimised = " ".join(["-O3", *_processor_flags()])
        _install(
            VERSION,
            folder,
            CGO_CPPFLAGS=f"-I{headers}",
            CGO_CFLAGS=optimised,
            CGO_CXXFLAGS=optimised,
        )
    return folder / "bin" / "ollama"


def _write_stand_in(folder: Path) -> None:
    """A `llama-server` where the newer server looks for it."""
    engine = folder / "lib" / "ollama" / "llama-server"
    engine.parent.mkdir(parents=True, exist_ok=True)
    packages = next(path for path in sys.path if path.endswith("site-packages"))
    stand_in = Path(__file__).with_name("llama_server.py")
    # Under its own name, by which it is known in the list of processes.
    engine.write_text(
        f"#!/bin/bash\nexport PYTHONPATH={shlex.quote(packages)}\n"
        f'exec -a llama-server {shlex.quote(sys.executable)} {shlex.quote(str(stand_in))} "$@"\n',
        encoding="utf-8",
    )
    engine.chmod(0o755)


def _prepare_folder() -> Path:
    missing = [tool for tool in ("go", "gcc", "g++") if shutil.which(tool) is None]
    if missing:
        sys.exit(
            f"not found: {', '.join(missing)}. Ollama is built with Go 1.26 or newer, gcc and g++.\n"
            "Install them, or put an Ollama server of your own at "
            f"{ollama_folder() / 'bin' / 'ollama'} (version {VERSION} or newer)."
        )
    folder = ollama_folder()
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def _fetch_headers(scratch: Path, headers: Path) -> None:
    """Puts the missing headers into their folder, out of the source archive of a package of the registry."""
    only = ["--no-deps", "--no-binary", HEADERS_PACKAGE, "--disable-pip-version-check", "--quiet"]
    wanted = f"{HEADERS_PACKAGE}=={HEADERS_VERSION}"
    # The installer looks into the archive's metadata and compiles nothing.
    subprocess.run(
        [sys.executable, "-m", "pip", "download", *only, "--dest", str(scratch), wanted], check=True
    )
    archive = scratch / f"{HEADERS_PACKAGE.replace('-', '_')}-{HEADERS_VERSION}.tar.gz"
    digest = hashlib.sha256(archive.read_bytes()).hexdigest()
    if digest != HEADERS_SHA256:
        sys.exit(f"{archive.name} has SHA-256 {digest}, pinned is {HEADERS_SHA256}")
    with tarfile.open(archive) as source:
        for member in source:
            place, _, inner = member.name.partition(HEADERS_PLACE)
            if inner.split("/")[0] in HEADERS_FOLDERS and member.isfile() and "/" not in place:
                target = headers / inner
                target.parent.mkdir(parents=True, exist_ok=True)
                content = source.extractfile(member)
                target.write_bytes(content.read() if content else b"")


def _install(version: str, folder: Path, **variables: str) -> None:
    print(f"building Ollama {version}: about ten minutes of processor time", flush=True)
    named = f"-ldflags=-s -w -X={MODULE}/version.Version={version}"
    with tempfile.TemporaryDirectory(dir=folder, prefix="bin-") as place:
        environment = {**os.environ, "CGO_ENABLED": "1", "GOBIN": place, **variables}
        command = ["go", "install", named, f"{MODULE}@v{version}"]
        code = subprocess.run(command, env=environment, check=False).returncode
        if code != 0:
            sys.exit(f"`go install` of Ollama {version} ended with {code}: see above")
        (folder / "bin").mkdir(exist_ok=True)
        (Path(place) / "ollama").replace(folder / "bin" / "ollama")


def _processor_flags() -> list[str]:
    """What this processor can do: without it the server answers five times slower."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        return []
    known = next((line for line in lines if line.startswith("flags")), "").split()
    return [option for flag, option in PROCESSOR_FLAGS.items() if flag in known]


if __name__ == "__main__":
    print(build_ollama())
