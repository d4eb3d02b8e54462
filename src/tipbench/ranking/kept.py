"""Finished boards, kept beside the runs that they were made of: found again while nothing has changed."""

from dataclasses import dataclass
from functools import cache
from importlib.metadata import version
from pathlib import Path

from pydantic import ValidationError

from tipbench.bench.champions import Champion, find_champion
from tipbench.ranking.records import BoardTier, By, Report
from tipbench.records import Record, content_hash
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking
from tipbench.tracking.search import Reading

PACKAGE = Path(__file__).parents[1]


class _KeptBoard(Record):
    """A board, the pack whose champion it tells of, and the mark of who that was."""

    pack: str
    champion: str
    report: Report


@dataclass(frozen=True)
class KeptBoards:
    """The boards of one experiment as it was read.

    A board is made of the runs, of packs (by their hash, which is in the runs), of the champion in force, of
    the settings of the gate, and of our own code. No clock is in it.
    """

    tracking: Tracking
    reading: Reading
    experiment: str
    gate: GateSettings

    def find(self, by: By, tier: BoardTier) -> Report | None:
        """The board that would be made now, if it was kept."""
        text = self.reading.find_made(_name(by, tier), self._beside)
        if text is None:
            return None
        try:
            kept = _KeptBoard.model_validate_json(text)
        except ValidationError:
            return None
        # Only a board of arms tells of a champion.
        champion = find_champion(self.tracking, kept.pack) if by == "arm" else Champion()
        return kept.report if kept.champion == champion.mark else None

    def keep(self, report: Report, tier: BoardTier, *, pack: str, champion: Champion) -> None:
        """Keeps a board that was made of just this."""
        kept = _KeptBoard(pack=pack, champion=champion.mark, report=report)
        self.reading.keep_made(_name(report.by, tier), self._beside, kept.model_dump_json())

    @property
    def _beside(self) -> list[object]:
        return [mark_code(), self.experiment, self.gate.model_dump(mode="json")]


def _name(by: str, tier: str) -> str:
    return f"board of {by}s, {tier}"


@cache
def mark_code() -> str:
    """Another one for every other version of this package, also while somebody works on it."""
    files = ((path, path.stat()) for path in PACKAGE.rglob("*.py"))
    found = sorted((str(path.relative_to(PACKAGE)), stat.st_mtime_ns, stat.st_size) for path, stat in files)
    return content_hash([version("tipbench"), found])
