"""What the page shows beyond the leaderboard, read from the store once."""

from collections.abc import Mapping
from dataclasses import dataclass

from tipbench.ranking.examples import Contrast
from tipbench.ranking.gate_reasons import GateReasons
from tipbench.ranking.judges import JudgedSitting, JudgePair
from tipbench.ranking.records import Report


@dataclass(frozen=True)
class Side:
    """What an arm is made of."""

    model: str
    prompt: str


@dataclass(frozen=True)
class Details:
    """`arms` is the leaderboard of arms, whatever the report ranks; `sides` says what they are made of."""

    arms: Report
    sides: Mapping[str, Side]
    sittings: tuple[JudgedSitting, ...]
    judges: tuple[JudgePair, ...]
    contrasts: tuple[Contrast, ...]
    gate: GateReasons
    made_ms: int
