"""The gate of policies: an offline win with an interval above zero, and no logged data against it."""

from typing import Literal

from tipbench.records import Record
from tipbench.serving.evaluating import Evaluation
from tipbench.simulation.report import SimulationReport

LEAST_USERS = 20
LEAST_EFFECTIVE = 100.0
"""Decisions that the log must be worth before it has a say."""
Outcome = Literal["promote", "no", "undecided"]
EXIT_CODES: dict[Outcome, int] = {"promote": 0, "no": 3, "undecided": 4}


class Rule(Record):
    """One rule: whether it holds, and the numbers it looked at. None: it has no say yet."""

    name: str
    holds: bool | None
    reason: str


class GateReport(Record):
    """May the candidate become the active policy? `simulation` is the run that was looked at."""

    candidate: str
    active: str
    outcome: Outcome
    simulation: str
    rules: tuple[Rule, ...]

    @property
    def exit_code(self) -> int:
        """0 promote, 3 no, 4 not decided yet."""
        return EXIT_CODES[self.outcome]


def examine(
    candidate: str,
    active: str,
    *,
    simulation: tuple[str, SimulationReport] | None,
    logged: Evaluation | None,
) -> GateReport:
    """What the gate says, every rule with its numbers."""
    rules = (_look_at_simulation(candidate, active, simulation), _look_at_log(logged))
    if any(rule.holds is False for rule in rules):
        outcome: Outcome = "no"
    else:
        outcome = "promote" if rules[0].holds else "undecided"
    return GateReport(
        candidate=candidate,
        active=active,
        outcome=outcome,
        simulation=simulation[0] if simulation else "",
        rules=rules,
    )


def _look_at_simulation(candidate: str, active: str, found: tuple[str, SimulationReport] | None) -> Rule:
    name = "wins the simulation"
    result = found[1].find(candidate) if found else None
    if found is None or result is None or active not in result.leads:
        return Rule(name=name, holds=None, reason=f"no simulation of {candidate} and {active} yet")
    report, lead = found[1], result.leads[active]
    numbers = (
        f"{lead.value:+.4f} rewards per tip [{lead.low:+.4f}, {lead.high:+.4f}], {report.users} users, "
        f"{report.rounds} rounds, profile effect {report.profile_effect:g}, run {found[0]}"
    )
    if report.users < LEAST_USERS:
        return Rule(name=name, holds=None, reason=f"{numbers}; at least {LEAST_USERS} users are needed")
    return Rule(name=name, holds=lead.low > 0, reason=numbers)


def _look_at_log(logged: Evaluation | None) -> Rule:
    name = "logged data do not contradict"
    if logged is None:
        return Rule(name=name, holds=None, reason="nothing was logged yet")
    numbers = (
        f"{logged.lead.value:+.4f} rewards per tip [{logged.lead.low:+.4f}, {logged.lead.high:+.4f}] over "
        f"what was served, {logged.decisions} decisions of {logged.users} users, worth {logged.effective:.0f}"
    )
    if logged.effective < LEAST_EFFECTIVE:
        return Rule(name=name, holds=None, reason=f"{numbers}: too few to have a say")
    return Rule(name=name, holds=logged.lead.high >= 0, reason=numbers)
