"""What a simulation found: means, leads and curves, each with its interval over users."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from tipbench.clock import Stamps
from tipbench.errors import UsageError
from tipbench.policies.features import Matrix, Vector
from tipbench.policies.off_policy import LEVEL, mean_with_interval
from tipbench.policies.serving.evaluation import Evaluation
from tipbench.policies.simulation.run import PlayedRounds
from tipbench.records import Record
from tipbench.stats.quantiles import t_quantile
from tipbench.tracking import Tracking
from tipbench.tracking.runs import blank_write

POINTS = 20
LEAST_USERS = 8


class RegretInterval(Record):
    """A mean over users with its 95 % interval."""

    value: float
    low: float
    high: float


class Curve(Record):
    """Up to which round, and what it came to by then."""

    rounds: tuple[int, ...]
    values: tuple[RegretInterval, ...]


class PolicyResult(Record):
    """One policy: `reward` and `late_reward` per tip (all rounds, the last quarter), `regret` per user."""

    policy: str
    reward: RegretInterval
    late_reward: RegretInterval
    regret: RegretInterval
    leads: dict[str, RegretInterval]
    """Over every other policy, per tip, user by user."""
    rewards: Curve
    regrets: Curve


class SimulationReport(Record):
    """One simulation: the world it happened in, and every policy."""

    seed: int
    profile_effect: float
    users: int
    rounds: int
    tips: int
    policies: tuple[PolicyResult, ...]

    def find(self, policy: str) -> PolicyResult | None:
        """The result of one policy."""
        return next((each for each in self.policies if each.policy == policy), None)


def make_report(
    played: Sequence[PlayedRounds], *, seed: int, profile_effect: float, tips: int
) -> SimulationReport:
    """The report of a simulation.

    Raises:
        UsageError: there are too few users for an interval.
    """
    users, rounds = played[0].rewards.shape
    if users < LEAST_USERS:
        raise UsageError(
            f"{users} users are too few for an interval", hint=f"Simulate {LEAST_USERS} or more."
        )
    return SimulationReport(
        seed=seed,
        profile_effect=profile_effect,
        users=users,
        rounds=rounds,
        tips=tips,
        policies=tuple(_summarise(each, played) for each in played),
    )


def _summarise(one: PlayedRounds, all_played: Sequence[PlayedRounds]) -> PolicyResult:
    rounds = one.rewards.shape[1]
    steps: Vector = np.arange(1, rounds + 1, dtype=np.float64)
    return PolicyResult(
        policy=one.policy,
        reward=_interval(one.rewards.mean(axis=1)),
        late_reward=_interval(one.rewards[:, -max(1, rounds // 4) :].mean(axis=1)),
        regret=_interval(one.regrets.sum(axis=1)),
        leads={
            other.policy: _interval(one.rewards.mean(axis=1) - other.rewards.mean(axis=1))
            for other in all_played
            if other is not one
        },
        rewards=_curve(np.cumsum(one.rewards, axis=1) / steps),
        regrets=_curve(np.cumsum(one.regrets, axis=1)),
    )


def _curve(values: Matrix) -> Curve:
    rounds = values.shape[1]
    points = sorted({max(1, round(rounds * (point + 1) / POINTS)) for point in range(POINTS)})
    return Curve(rounds=tuple(points), values=tuple(_interval(values[:, point - 1]) for point in points))


def _interval(terms: Vector) -> RegretInterval:
    value, low, high = mean_with_interval(terms)
    return RegretInterval(value=value, low=low, high=high)


# The gate of policies: an offline win with an interval above zero, and no logged data against it.


LEAST_USERS_TO_DECIDE = 20
LEVEL_OUTSIDE = 0.05
"""What a first plan's interval leaves outside; each later plan of the same policies half as much."""
LEAST_EFFECTIVE = 100.0
"""Decisions that the log must be worth before it has a say."""
Outcome = Literal["promote", "no", "undecided"]
EXIT_CODES: dict[Outcome, int] = {"promote": 0, "no": 3, "undecided": 4}


class SimulationRule(Record):
    """One rule: whether it holds, and the numbers it looked at. None: it has no say yet."""

    name: str
    holds: bool | None
    reason: str


class SimulationGateReport(Record):
    """May the candidate become the active policy? `simulation` is the run that was looked at, the first one
    of `plan`; `simulations` counts all that were run of both policies, `plans` all that were declared."""

    candidate: str
    active: str
    outcome: Outcome
    simulation: str
    rules: tuple[SimulationRule, ...]
    plan: str = ""
    plans: int = 0
    simulations: int = 0

    @property
    def exit_code(self) -> int:
        """0 promote, 3 no, 4 not decided yet."""
        return EXIT_CODES[self.outcome]


@dataclass(frozen=True)
class SimulatedEvidence:
    """What was planned and simulated of two policies. `run` and `report` are those of the first simulation of
    the plan in force; `of_plan` counts all of that plan, `simulations` all there are, planned or not."""

    plan: str = ""
    plans: int = 0
    run: str = ""
    report: SimulationReport | None = None
    of_plan: int = 0
    simulations: int = 0


def examine(
    candidate: str,
    active: str,
    *,
    simulated: SimulatedEvidence,
    logged: Evaluation | None,
) -> SimulationGateReport:
    """What the gate says, every rule with its numbers."""
    rules = (_look_at_simulation(candidate, active, simulated), _look_at_log(logged))
    if any(rule.holds is False for rule in rules):
        outcome: Outcome = "no"
    else:
        outcome = "promote" if rules[0].holds else "undecided"
    return SimulationGateReport(
        candidate=candidate,
        active=active,
        outcome=outcome,
        simulation=simulated.run,
        rules=rules,
        plan=simulated.plan,
        plans=simulated.plans,
        simulations=simulated.simulations,
    )


def _look_at_simulation(candidate: str, active: str, simulated: SimulatedEvidence) -> SimulationRule:
    name = "wins the simulation"
    report = simulated.report
    result = report.find(candidate) if report else None
    if report is None or result is None or active not in result.leads:
        return SimulationRule(name=name, holds=None, reason=_say_missing(candidate, active, simulated))
    level = LEVEL_OUTSIDE / 2 ** (simulated.plans - 1)
    lead = _widen(result.leads[active], users=report.users, outside=level)
    numbers = (
        f"{lead.value:+.4f} rewards per tip [{lead.low:+.4f}, {lead.high:+.4f}] at {1 - level:.5g}, "
        f"{report.users} users, {report.rounds} rounds, profile effect {report.profile_effect:g}, "
        f"seed {report.seed}, run {simulated.run}: the first of {simulated.of_plan} of plan {simulated.plan} "
        f"({simulated.plans} declared, {simulated.simulations} simulations run in all)"
    )
    if report.users < LEAST_USERS_TO_DECIDE:
        return SimulationRule(
            name=name, holds=None, reason=f"{numbers}; at least {LEAST_USERS_TO_DECIDE} users are needed"
        )
    return SimulationRule(name=name, holds=lead.low > 0, reason=numbers)


def _say_missing(candidate: str, active: str, simulated: SimulatedEvidence) -> str:
    if simulated.plan:
        return f"not simulated yet: tipbench policies simulate --plan {simulated.plan}"
    ran = f"; {simulated.simulations} simulations without one do not count" if simulated.simulations else ""
    return (
        f"no simulation of {candidate} and {active} is planned{ran}: tipbench policies plan --candidate "
        f"{candidate} --active {active}"
    )


def _widen(lead: RegretInterval, *, users: int, outside: float) -> RegretInterval:
    """The interval at another level: whoever may plan again may be lucky again."""
    reach = (lead.high - lead.low) / 2
    reach *= float(t_quantile(1 - outside / 2, users - 1) / t_quantile(LEVEL, users - 1))
    return RegretInterval(value=lead.value, low=lead.value - reach, high=lead.value + reach)


def _look_at_log(logged: Evaluation | None) -> SimulationRule:
    name = "logged data do not contradict"
    if logged is None:
        return SimulationRule(name=name, holds=None, reason="nothing was logged yet")
    numbers = (
        f"{logged.lead.value:+.4f} rewards per tip [{logged.lead.low:+.4f}, {logged.lead.high:+.4f}] over "
        f"what was served, {logged.decisions} decisions of {logged.users} users, worth {logged.effective:.0f}"
    )
    if logged.effective < LEAST_EFFECTIVE:
        return SimulationRule(name=name, holds=None, reason=f"{numbers}: too few to have a say")
    return SimulationRule(name=name, holds=logged.lead.high >= 0, reason=numbers)


# Simulations and gates as MLflow runs: what was found, and in which world.


EXPERIMENT = "tipbench-policies"
SIMULATION, GATE = "simulation", "policy-gate"
REPORT, PLOT = "report.json", "regret.svg"


def store_simulation(
    tracking: Tracking,
    report: SimulationReport,
    *,
    plot: str,
    experiment: str,
    stamps: Stamps,
    plan: str = "",
) -> str:
    """One run with the report, its drawing and the numbers people filter by; gives its id.

    `plan` is the run of the plan that it was made for.
    """
    write = blank_write(tracking.ensure_experiment(experiment), stamps)
    names = ", ".join(each.policy for each in report.policies)
    metrics = {f"{each.policy}.reward": each.reward.value for each in report.policies}
    metrics |= {f"{each.policy}.regret": each.regret.value for each in report.policies}
    return tracking.deliver(
        write.model_copy(
            update={
                "run_name": f"simulation · {names}"[:200],
                "tags_at_create": {"tipbench.kind": SIMULATION, "tipbench.state": "open"},
                "artifacts": {REPORT: report.model_dump_json(indent=1), PLOT: plot},
                "params": {
                    "policies": names,
                    "users": str(report.users),
                    "rounds": str(report.rounds),
                    "seed": str(report.seed),
                    "profile_effect": repr(report.profile_effect),
                }
                | ({"plan": plan} if plan else {}),
                "metrics": metrics,
                "tags": {"tipbench.state": "complete"},
                "end_time": stamps.now_ms(),
            }
        )
    )


def store_gate(tracking: Tracking, report: SimulationGateReport, *, experiment: str, stamps: Stamps) -> str:
    """One run with the verdict of the gate and its reasons; gives its id."""
    write = blank_write(tracking.ensure_experiment(experiment), stamps)
    return tracking.deliver(
        write.model_copy(
            update={
                "run_name": f"gate · {report.candidate} for {report.active}"[:200],
                "tags_at_create": {"tipbench.kind": GATE, "tipbench.state": "open"},
                "artifacts": {REPORT: report.model_dump_json(indent=1)},
                "params": {"candidate": report.candidate, "active": report.active},
                "tags": {"tipbench.state": "complete", "tipbench.outcome": report.outcome},
                "end_time": stamps.now_ms(),
            }
        )
    )
