"""What a runner of GitHub Actions is told: a page for the step's summary, and outputs for later steps."""

import uuid
from collections.abc import Mapping
from pathlib import Path

from tipbench.errors import TipbenchError, UsageError
from tipbench.inert import make_inert_line
from tipbench.promotion.rules import GateReport
from tipbench.ranking.records import Report
from tipbench.show.numbers import conclude

SUMMARY, OUTPUT = "GITHUB_STEP_SUMMARY", "GITHUB_OUTPUT"
ANSWERS = {0: "winner", 3: "tie", 4: "undecided"}


def gate_outputs(report: GateReport) -> dict[str, str]:
    """What later steps decide by; `answer` is promote, no or undecided."""
    missing = report.next_look.missing if report.next_look else 0
    return {
        "answer": report.answer,
        "exit-code": str(report.exit_code),
        "words": report.words,
        "champion": report.champion,
        "challenger": report.promoted or report.challenger or "",
        "missing": str(missing),
    }


def board_outputs(report: Report) -> dict[str, str]:
    """The same of a leaderboard; `answer` is winner, tie or undecided."""
    return {
        "answer": ANSWERS[report.exit_code],
        "exit-code": str(report.exit_code),
        "words": conclude(report),
        "winner": report.winner or "",
        "judged": str(report.judged),
        "waiting": str(report.waiting),
    }


def tell_runner(page: str, outputs: Mapping[str, str], environ: Mapping[str, str]) -> None:
    """Adds the page to the step's summary and the values to its outputs.

    Raises:
        UsageError: no runner started this.
        TipbenchError: its files cannot be written.
    """
    missing = [name for name in (SUMMARY, OUTPUT) if not environ.get(name)]
    if missing:
        raise UsageError(
            f"--github is for a step of GitHub Actions: {' and '.join(missing)} is not set",
            hint="Elsewhere: --markdown prints the page, --json the values.",
        )
    try:
        with Path(environ[SUMMARY]).open("a", encoding="utf-8") as file:
            file.write(page + "\n")
        with Path(environ[OUTPUT]).open("a", encoding="utf-8") as file:
            for name, value in outputs.items():
                # Names of models and prompts are in it: none of them ends a value and begins another one.
                end = f"end-{uuid.uuid4().hex}"
                file.write(f"{name}<<{end}\n{make_inert_line(value, limit=2_000)}\n{end}\n")
    except OSError as error:
        raise TipbenchError(f"the runner's files cannot be written: {error}") from error
