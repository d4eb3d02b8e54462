"""What a person should know about a board, a line for each thing."""

from collections.abc import Mapping

from tipbench.stats import Leaderboard
from tipbench.stats.levels import Place
from tipbench.tracking.evidence import Evidence


def make_remarks(
    evidence: Evidence, board: Leaderboard, *, levels: Mapping[Place, float], waiting_for_auto: int
) -> list[str]:
    """Everything that makes the board less than it seems."""
    return [
        *_board_remarks(board),
        *_evidence_remarks(evidence),
        *_level_remarks(levels),
        *_backlog_remarks(evidence, waiting_for_auto),
    ]


def _board_remarks(board: Leaderboard) -> list[str]:
    remarks: list[str] = []
    if board.estimate and len(board.scenarios) < 2:
        remarks.append(f"complete verdicts in {len(board.scenarios)} scenario: an interval needs at least 2")
    elif board.estimate and len(board.scenarios) < 4:
        remarks.append(f"only {len(board.scenarios)} scenarios are complete: scenarios are the sample size")
    if unsure := _not_apart(board):
        remarks.append(
            f"the winner is named one-sided, at 5 %: its two-sided 95 % interval to {unsure} still includes 0"
        )
    if board.variance == 0.0:
        remarks.append(
            "nothing varies, so the intervals have no width: that does not show the arms are equal"
        )
    if board.set_aside and board.estimate:
        remarks.append("set aside, not enough verdicts: " + ", ".join(sorted(map(str, board.set_aside))))
    return remarks


def _not_apart(board: Leaderboard) -> str:
    """The first arm that the winner's own interval does not tell apart from it; empty if there is none.

    Who is first is asked one-sided, over all arms at once; an interval has two sides.
    """
    others = [arm for arm in board.estimate if board.winner is not None and arm != board.winner]
    return next((str(arm) for arm in others if board.pairs[board.winner, arm].low <= 0), "")


def _evidence_remarks(evidence: Evidence) -> list[str]:
    remarks: list[str] = []
    if apart := _judged_apart(evidence):
        remarks.append(f"judged apart from the others, so a judge's mood leaks in: {', '.join(apart)}")
    if unpinned := sorted({cell.facts.model for cell in evidence.cells if not cell.facts.pinned}):
        remarks.append(f"unpinned, the server may change it under this name: {', '.join(unpinned)}")
    if evidence.doubles:
        remarks.append(
            f"{len(evidence.doubles)} verdicts are doubles: they count for agreement, not for the board"
        )
    if evidence.duplicates:
        remarks.append(f"{len(evidence.duplicates)} cells are stored twice under one key: one of each counts")
    return remarks


def _level_remarks(levels: Mapping[Place, float]) -> list[str]:
    scenarios = {scenario for scenario, _ in levels}
    if not scenarios:
        return []
    return [
        f"in {len(scenarios)} scenarios arms were judged in different sittings: their levels are evened out"
    ]


def _backlog_remarks(evidence: Evidence, waiting_for_auto: int) -> list[str]:
    remarks = [f"damaged verdicts, not counted: {where}" for where in evidence.damaged]
    if evidence.auto:
        judges = ", ".join(sorted({given.sitting.judged_by for given in evidence.auto}))
        remarks.append(f"{len(evidence.auto)} verdicts of automatic judges, used within cells only: {judges}")
    if waiting_for_auto:
        remarks.append(f"{waiting_for_auto} candidates wait for an automatic judge")
    open_sittings = [s for s in evidence.sittings if s.state == "open" and s.submissions]
    if open_sittings:
        remarks.append(
            f"{len(open_sittings)} sittings hold answers but are not closed: they do not count yet"
        )
    return remarks


def _judged_apart(evidence: Evidence) -> list[str]:
    """Arms that share no block with most others, also not over a third one: they were judged alone."""
    groups: list[set[str]] = []
    blocks: dict[tuple[str, int], set[str]] = {}
    again = (given for given in evidence.doubles if given.verdict.drawn == "block")
    for given in (*evidence.lazy, *again):
        place = (given.sitting.facts.token, given.verdict.block)
        blocks.setdefault(place, set()).add(given.cell.facts.arm)
    for together in blocks.values():
        met = [group for group in groups if group & together]
        groups = [group for group in groups if not group & together] + [together.union(*met)]
    largest = max(groups, key=len, default=set[str]())
    return sorted(arm for group in groups if group is not largest for arm in group)
