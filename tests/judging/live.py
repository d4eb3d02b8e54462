"""Sitting down and answering item by item, as the keyboard, the panel and MCP do."""

from pathlib import Path

from tests.support.experiments import shift_clock
from tests.support.sheets import REFERENCES
from tipbench.bench.sittings import Answer
from tipbench.clock import make_stamps
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import LiveSitting, SheetItem
from tipbench.tracking import Tracking

ANNA, BERT = SittingRequest("anna"), SittingRequest("bert")


def make_live(tracking: Tracking, home: Path, *, ahead_ms: int = 0) -> Judging:
    stamps = shift_clock(ahead_ms) if ahead_ms else make_stamps()
    return Judging(tracking, stamps, home / "locks")


def answer(item: SheetItem, score: int = 3) -> Answer:
    """Anchors get what they deserve, everything else the same score on every scale."""
    scores = REFERENCES.get(item.text, dict.fromkeys(item.scores, score))
    return Answer(scores=scores, flags=item.flags)


def opened(live: Judging, experiment: str, request: SittingRequest = ANNA) -> LiveSitting:
    """A sitting; there must be something to judge."""
    sitting = live.open_sitting(request, experiment=experiment)
    assert sitting is not None
    return sitting
