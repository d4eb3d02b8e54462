"""Seeded defects: each breaks a promise of the product, and a test of the inner ring must find it.

usage: python -m tests.mutants [ID …] [-- PYTEST ARGUMENTS]

The defects in `mutants.toml` were made by somebody who had not read the tests. Each is put into a copy of
`src`, and the test that is known to find it (`found_by`) is run on that copy; with arguments for pytest those
tests are run instead. A defect whose text is no longer in `src` is stale: move it with its code.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import tomllib
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
LIST = Path(__file__).with_suffix(".toml")
HANGS_SECONDS = 300
"""A test that takes so long has failed: a defect that hangs is found, too."""
LIMIT_SECONDS = 420
"""The same for a test that cannot be interrupted."""


@dataclass(frozen=True)
class Mutant:
    """One defect. `file` is where its text was when it was made; the text alone decides."""

    id: str
    promise: str
    defect: str
    file: str
    find: str
    replace: str
    found_by: str = ""
    escapes: str = ""
    """Why no test of the inner ring can find it, where that is so."""

    def seed(self, source: Path) -> bool:
        """Puts the defect into this copy of `src`; False if its text is not there exactly once."""
        holding = [path for path in source.rglob("*.py") if self.find in path.read_text(encoding="utf-8")]
        named = [path for path in holding if path == source.parent / self.file]
        (path,) = named if len(named) == 1 else holding if len(holding) == 1 else (None,)
        if path is None or (text := path.read_text(encoding="utf-8")).count(self.find) != 1:
            return False
        path.write_text(text.replace(self.find, self.replace), encoding="utf-8")
        return True


def read_mutants() -> list[Mutant]:
    return [Mutant(**fields) for fields in tomllib.loads(LIST.read_text(encoding="utf-8"))["mutant"]]


def try_mutant(mutant: Mutant, arguments: list[str]) -> str:
    """`found`, `escaped` or `stale`."""
    with tempfile.TemporaryDirectory(prefix="tipbench-mutant-") as folder:
        source = Path(folder) / "src"
        shutil.copytree(ROOT / "src", source, ignore=shutil.ignore_patterns("__pycache__"))
        if not mutant.seed(source):
            return "stale"
        command = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:cacheprovider"]
        command += ["--timeout", str(HANGS_SECONDS)]
        try:
            ended = subprocess.run(
                [*command, *arguments],
                cwd=ROOT,
                env=os.environ | {"PYTHONPATH": str(source)},
                capture_output=True,
                text=True,
                timeout=LIMIT_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired:
            print("    HANGS")
            return "found"
    # 1 is a failed test; whatever else is a mistake in how it was run.
    assert ended.returncode in {0, 1}, ended.stdout + ended.stderr
    for line in ended.stdout.splitlines():
        if line.startswith(("FAILED", "ERROR")):
            print(f"    {line.split(' - ')[0]}")
    return "found" if ended.returncode else "escaped"


def main(words: list[str]) -> None:
    cut = words.index("--") if "--" in words else len(words)
    chosen, arguments = set(words[:cut]), words[cut + 1 :]
    count = {"found": 0, "escaped": 0, "stale": 0}
    for mutant in read_mutants():
        if (chosen and mutant.id not in chosen) or (mutant.escapes and not arguments):
            continue
        outcome = try_mutant(mutant, arguments or [mutant.found_by])
        count[outcome] += 1
        print(f"{mutant.id} {outcome}: {mutant.defect}", flush=True)
    print(f"mutants: {', '.join(f'{number} {word}' for word, number in count.items())}")
    sys.exit(1 if count["escaped"] or count["stale"] else 0)


if __name__ == "__main__":
    main(sys.argv[1:])
