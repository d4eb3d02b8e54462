"""From collected cells to the gate's answer: runs until lazy verdicts are needed, and goes on from there."""

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from tipbench.collect import plan_collect
from tipbench.errors import NoChampion
from tipbench.grid import Cell
from tipbench.improve.desk import Desk, Stop
from tipbench.judging.handout import Request
from tipbench.promotion.gate import Asked
from tipbench.promotion.gate_report import GateReport
from tipbench.promotion.promote import Outcome, Promoting
from tipbench.ranking.compare import compare_experiment

ITEMS_AT_ONCE = 40
"""How much is handed out at a time where no gate says how much it needs."""


@dataclass(frozen=True)
class Hands:
    """What needs an engine: generating the cells of an experiment, and letting a model judge them."""

    collect: Callable[[Sequence[Cell], str], None]
    judge_auto: Callable[[str], None]


@dataclass(frozen=True)
class Deciding:
    """Experiments on their way to a decision."""

    promoting: Promoting
    desk: Desk
    hands: Hands

    def bench(self, cells: Sequence[Cell], experiment: str) -> tuple[str, ...]:
        """Generates what is missing, lets the model judge, takes in filled sheets; says what it took."""
        tracking = self.promoting.gate.tracking
        stored = tracking.ensure_experiment(experiment)
        if plan_collect(cells, tracking=tracking, experiment=stored, reuse_from=None).missing:
            self.hands.collect(cells, experiment)
        self.hands.judge_auto(experiment)
        return self.desk.take_in(experiment)

    def decide(self, asked: Asked, *, promote: bool) -> Stop:
        """What the gate says, with the promotion if it is wanted; or what it waits for."""
        try:
            outcome = self._ask(asked, promote=promote)
        except NoChampion:
            return self._decide_first(asked)
        report = outcome.gate
        if outcome.outcome != "refused" or report is None or report.answer != "undecided":
            return Stop(outcome.exit_code, _say_next(outcome, asked), outcome=outcome)
        look = report.next_look
        if look is None or not look.missing:
            return Stop(4, _say_missing_tier(report), go_on=(), outcome=outcome)
        if look.remark:
            return Stop(3, (f"{report.champion} stays champion: {look.remark}.",), outcome=outcome)
        stop = self.desk.ask(asked.experiment, Request(self.desk.judged_by, items=look.missing))
        return replace(stop, outcome=outcome)

    def _ask(self, asked: Asked, *, promote: bool) -> Outcome:
        if promote:
            return self.promoting.promote(asked)
        return Outcome(outcome="refused", gate=self.promoting.gate.ask(asked))

    def _decide_first(self, asked: Asked) -> Stop:
        """Without a champion there is no gate: the leaderboard, and a person's word."""
        name = asked.experiment
        board = compare_experiment(self.promoting.gate.tracking, name, by="arm", fresh=True)
        if board.winner is None and board.waiting:
            stop = self.desk.ask(name, Request(self.desk.judged_by, items=ITEMS_AT_ONCE))
            return replace(stop, board=board)
        if board.winner is None or asked.challenger not in {None, board.winner}:
            return Stop(board.exit_code or 3, board=board)
        said = (
            "There is no champion yet, so there is no gate. A person names the first one:",
            f"  tipbench promote --experiment {shlex.quote(name)} --initial {shlex.quote(board.winner)} "
            "--reason …",
        )
        return Stop(0, said, board=board)


def _say_next(outcome: Outcome, asked: Asked) -> tuple[str, ...]:
    if outcome.outcome != "refused" or outcome.gate is None or outcome.gate.promoted is None:
        return ()
    challenger = f" --challenger {shlex.quote(asked.challenger)}" if asked.challenger else ""
    return (
        "To make it champion:",
        f"  tipbench promote --experiment {shlex.quote(asked.experiment)}{challenger}",
    )


def _say_missing_tier(report: GateReport) -> tuple[str, ...]:
    failed = ", ".join(rule.name for rule in report.rules if not rule.passed)
    return (f"Something else than lazy verdicts is missing: {failed or 'see above'}. Then go on:",)
