"""Prints how much of the code a test run went through, and names the files that it hardly looked at."""

import json
import sys
from pathlib import Path
from typing import Any

LEAST = 85.0
"""Per cent of statements and branches."""


def main(report: str) -> None:
    found: Any = json.loads(Path(report).read_text(encoding="utf-8"))
    shares = {name: file["summary"]["percent_covered"] for name, file in found["files"].items()}
    for name, share in sorted(shares.items(), key=lambda pair: pair[1]):
        if share < LEAST:
            print(f"{share:5.1f} %  {name}")
    few = sum(share < LEAST for share in shares.values())
    total = found["totals"]["percent_covered"]
    print(
        f"coverage: {total:.1f} % of statements and branches; {few} of {len(shares)} files under {LEAST:g} %"
    )


if __name__ == "__main__":
    main(sys.argv[1])
