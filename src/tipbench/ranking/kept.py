"""Finished boards, kept beside the runs that they were made of."""

from dataclasses import dataclass

from tipbench.bench.champions import Champion, find_champion
from tipbench.bench.kept import find_kept, keep
from tipbench.ranking.records import BoardTier, By, Report
from tipbench.records import Record
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking
from tipbench.tracking.search import Reading


class _KeptBoard(Record):
    """A board, the pack whose champion it tells of, and the mark of who that was."""

    pack: str
    champion: str
    report: Report


@dataclass(frozen=True)
class KeptBoards:
    """The boards of one experiment as it was read.

    Beside the runs a board is made of the champion in force and the settings of the gate. No clock is in it.
    """

    tracking: Tracking
    reading: Reading
    experiment: str
    gate: GateSettings

    def find(self, by: By, tier: BoardTier) -> Report | None:
        """The board that would be made now, if it was kept."""
        kept = find_kept(self.reading, _name(by, tier), _KeptBoard, beside=self._beside)
        if kept is None:
            return None
        # Only a board of arms tells of a champion.
        champion = find_champion(self.tracking, kept.pack) if by == "arm" else Champion()
        return kept.report if kept.champion == champion.mark else None

    def keep(self, report: Report, tier: BoardTier, *, pack: str, champion: Champion) -> None:
        """Keeps a board that was made of just this."""
        kept = _KeptBoard(pack=pack, champion=champion.mark, report=report)
        keep(self.reading, _name(report.by, tier), kept, beside=self._beside)

    @property
    def _beside(self) -> list[object]:
        return [self.experiment, self.gate.model_dump(mode="json")]


def _name(by: str, tier: str) -> str:
    return f"board of {by}s, {tier}"
