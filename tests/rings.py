"""The outer ring: everything that repeats what `make test` proves once, or needs programs of its own.

usage: python -m tests.rings [PART …]      runs all parts, or these, and writes each into docs/test-rings.md
       python -m tests.rings --age         says how old the results are

A part is a `make` target, so that each can be run alone; a part that fails does not stop the others.
"""

import re
import subprocess
import sys
import time
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "test-rings.md"
PARTS = {
    "test-slow": "all bars of the statistics, kills fifty-fold, other servers, the whole headline and demo",
    "test-faults": "every request × every fault, for every command that decides or stores, and the panel",
    "test-postgres": "collect and apply on MLflow with Postgres, one fault a request",
    "test-ollama": "the engine contract, residency and the headline on a real Ollama",
    "test-ollama-newer": "the same on a newer server",
    "test-airflow": "the DAG on a real Airflow, the newest and the oldest that will do",
    "test-matrix": "the wheel, its spine and its demo on the oldest and the newest MLflow and Python",
    "test-mutants": "seeded defects in the product: the inner ring finds them",
    "coverage": "branches of the package that the inner ring takes",
}
ROW = re.compile(r"^\| `make (?P<part>[\w-]+)` \|(?P<rest>.*)\|$", re.MULTILINE)
CLOSING = re.compile(r"=+ (?P<said>(?:\d+ \w+(?:, )?)+) in .*=+|^(?P<plain>(?!make:)\w+: .*)$", re.MULTILINE)


@dataclass(frozen=True)
class Result:
    """How a part ended."""

    said: str
    day: str
    commit: str
    minutes: float

    def row(self, part: str) -> str:
        cells = (f"`make {part}`", PARTS[part], self.said, self.day, self.commit, f"{self.minutes:.0f} min")
        return f"| {' | '.join(cells)} |"


def run_part(part: str) -> Result:
    """Runs it with its output on the terminal and in `build/rings/`."""
    log = ROOT / "build" / "rings" / f"{part}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    command = f"set -o pipefail; make --no-print-directory {part} 2>&1 | tee {log}"
    code = subprocess.run(["bash", "-c", command], cwd=ROOT, check=False).returncode
    minutes = (time.monotonic() - began) / 60
    found = [match["said"] or match["plain"] for match in CLOSING.finditer(log.read_text(encoding="utf-8"))]
    said = found[-1] if found else "nothing was run"
    return Result(
        said if code == 0 else f"**failed**: {said}", f"{datetime.now(UTC):%Y-%m-%d}", commit_now(), minutes
    )


def commit_now() -> str:
    """The commit that is tested; a `+` says that it was changed."""
    words = ("git", "describe", "--always", "--abbrev=8", "--exclude=*", "--dirty=+")
    return subprocess.run(words, cwd=ROOT, check=True, capture_output=True, text=True).stdout.strip()


def write_result(part: str, result: Result) -> None:
    """Puts the row into the page; the other rows stay."""
    text = PAGE.read_text(encoding="utf-8")
    rows = {match["part"]: match[0] for match in ROW.finditer(text)} | {part: result.row(part)}
    begin, end = (text.index(mark) for mark in ("<!-- rows -->", "<!-- end -->"))
    lines = [rows[name] for name in PARTS if name in rows]
    PAGE.write_text(text[:begin] + "\n".join(["<!-- rows -->", *lines, text[end:]]), encoding="utf-8")


def tell_age(today: datetime) -> str:
    """One line for the end of `make test`."""
    days = {
        match["part"]: match["rest"].split("|")[2].strip() for match in ROW.finditer(PAGE.read_text("utf-8"))
    }
    missing = [part for part in PARTS if part not in days]
    if missing:
        return f"outer ring: never run: {', '.join(missing)} (make test-all; docs/test-rings.md)"
    oldest = min(days, key=lambda part: days[part])
    age = (today - datetime.fromisoformat(days[oldest]).replace(tzinfo=UTC)).days
    return f"outer ring: oldest result {age} days, of make {oldest} (make test-all; docs/test-rings.md)"


def main(words: list[str]) -> None:
    if words == ["--age"]:
        print(tell_age(datetime.now(UTC)))
        return
    if unknown := set(words) - set(PARTS):
        sys.exit(f"there is no part {', '.join(sorted(unknown))}; there are {', '.join(PARTS)}")
    failed: list[str] = []
    for part in words or PARTS:
        result = run_part(part)
        write_result(part, result)
        failed += [part] if result.said.startswith("**") else []
    if failed:
        sys.exit(f"failed: {', '.join(failed)}; see docs/test-rings.md and build/rings/")


if __name__ == "__main__":
    main(sys.argv[1:])
