"""The wheel on the versions that are promised: the oldest MLflow and Python, and the newest that install.

usage: python -m tests.matrix WHEEL [PYTHON/MLFLOW …]      as in 3.11/newest or 3.13/3.17.0

Each pair has an environment of its own in build/matrix/, made anew: the wheel with its extra `all`, from the
registry whatever it gives today, and what the tests need. There the spine is tested, and the demo done.
"""

import argparse
import os
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
FOLDER = ROOT / "build" / "matrix"
UV = Path(sys.executable).with_name("uv")
NEWEST = "newest"
PYTHONS = range(19, 11, -1)
"""Of Python 3: the newest is looked for from above."""
TOOLS = ("pytest", "pytest-timeout", "pytest-xdist", "hypothesis", "gguf")
TESTS = ("tests/test_spine.py", "tests/tracking/test_managed.py")
UPGRADE = ("--no-deps", "--upgrade", "mlflow")
ASK = """
import importlib.metadata, platform
print(platform.python_version(), *map(importlib.metadata.version, ("mlflow", "mlflow-skinny")))
"""
PASSED = re.compile(r"(\d+ passed.*?) in ")


@dataclass(frozen=True)
class Pair:
    """A Python and an MLflow."""

    python: str
    mlflow: str

    @property
    def name(self) -> str:
        return f"{self.python}/{self.mlflow}"

    @property
    def home(self) -> Path:
        return FOLDER / f"python-{self.python}-mlflow-{self.mlflow}"

    @property
    def interpreter(self) -> Path:
        return self.home / "venv" / "bin" / "python"


class NotHere(Exception):
    """These versions cannot be installed on this machine."""


def oldest_mlflow() -> str:
    """The first release that the package allows."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (floor,) = (line.partition(">=")[2] for line in extras["local"] if line.startswith("mlflow>="))
    return f"{floor}.0"


def find_pairs() -> Iterator[Pair]:
    """The oldest of both, and the newest: of Pythons what is on this machine, registries have none."""
    newest = next((version for version in (f"3.{n}" for n in PYTHONS) if _installs(version)), None)
    yield Pair("3.11", oldest_mlflow())
    yield Pair(newest or "3.11", NEWEST)


def find_python(version: str) -> Path | None:
    """One of that version: on the path, or kept by pyenv."""
    kept = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    found = [shutil.which(f"python{version}"), *kept.glob(f"{version}.*/bin/python")]
    return next((Path(each) for each in found if each and _runs(each)), None)


def _runs(python: str | Path) -> bool:
    # A shim of pyenv is there for versions that it does not give.
    return subprocess.run([python, "-c", ""], capture_output=True, check=False).returncode == 0


def _installs(version: str) -> bool:
    """Whether it is here, and everything has a wheel for it: resolved, not installed."""
    python = find_python(version)
    if python is None:
        return False
    wanted = ROOT / "requirements.txt"
    asked = [UV, "pip", "install", "--dry-run", "--only-binary", ":all:", "--python", python, "-r", wanted]
    # Nothing is installed; but uv refuses where a system's own Python is to be kept as it is.
    return (
        subprocess.run([*asked, "--break-system-packages"], capture_output=True, check=False).returncode == 0
    )


def install(pair: Pair, wheel: Path) -> None:
    """A new environment with the wheel, an extra's worth of MLflow, and what the tests need."""
    shutil.rmtree(pair.home, ignore_errors=True)
    pair.home.mkdir(parents=True)
    wanted = "mlflow" if pair.mlflow == NEWEST else f"mlflow=={pair.mlflow}"
    python = find_python(pair.python)
    if python is None:
        raise NotHere(f"no Python {pair.python} on this machine")
    make = [UV, "venv", "--quiet", "--python", python, pair.home / "venv"]
    fill = [
        UV,
        "pip",
        "install",
        "--quiet",
        "--python",
        pair.interpreter,
        f"tipbench[all] @ {wheel.as_uri()}",
    ]
    commands = [make, [*fill, wanted, *TOOLS]]
    if pair.mlflow == NEWEST:
        # A registry may lack the parts that the newest MLflow names: all of them are in its own wheel, too.
        commands.append([UV, "pip", "install", "--quiet", "--python", pair.interpreter, *UPGRADE])
    for command in commands:
        ended = subprocess.run(command, capture_output=True, text=True, check=False)
        if ended.returncode:
            raise NotHere(ended.stderr.strip()[-400:])


def try_out(pair: Pair) -> str:
    """What came of the tests and of the demo.

    Raises:
        subprocess.CalledProcessError: one of them failed; it has said why.
    """
    # Warnings of other people's newest releases are not what is asked here.
    tests = [pair.interpreter, "-m", "pytest", "-n", "0", "-q", "-W", "default", *TESTS]
    ended = subprocess.run(tests, cwd=ROOT, stdout=subprocess.PIPE, text=True, check=False)
    print(ended.stdout[-3000:], flush=True)
    ended.check_returncode()
    tipbench = pair.interpreter.with_name("tipbench")
    environ = {name: value for name, value in os.environ.items() if not name.startswith("TIPBENCH")}
    environ |= {"TIPBENCH_HOME": str(pair.home / "data"), "TIPBENCH_THREADS": "1"}
    environ |= {"TIPBENCH_ENGINE_LOCK": str(pair.home / "lock"), "PATH": f"{UV.parent}:{environ['PATH']}"}
    (pair.home / "empty").mkdir()
    try:
        subprocess.run([tipbench, "demo"], cwd=pair.home / "empty", env=environ, check=True)
    finally:
        subprocess.run([tipbench, "mlflow", "down"], env=environ, check=False)
    found = PASSED.search(ended.stdout)
    return f"{found[1] if found else 'no test'}, demo done"


def versions(pair: Pair) -> str:
    """What was installed in the end."""
    said = subprocess.run([pair.interpreter, "-c", ASK], capture_output=True, text=True, check=True).stdout
    python, mlflow, skinny = said.split()
    return f"Python {python}, MLflow {mlflow}{'' if mlflow == skinny else f' over mlflow-skinny {skinny}'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheel", type=Path)
    parser.add_argument("pairs", nargs="*")
    asked = parser.parse_args()
    pairs = [Pair(*text.split("/")) for text in asked.pairs] or list(find_pairs())
    told: list[str] = []
    failed = False
    for pair in pairs:
        try:
            install(pair, asked.wheel.resolve())
        except NotHere as error:
            print(f"{pair.name}: {error}", flush=True)
            told.append(f"{pair.name} cannot be installed here")
            failed = True
            continue
        try:
            came = try_out(pair)
        except subprocess.CalledProcessError as error:
            came, failed = f"**{Path(error.cmd[0]).name} failed**", True
        told.append(f"{versions(pair)}: {came}")
    print(f"matrix: {'; '.join(told)}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
