"""What a simulation found: means, leads and curves, each with its interval over users."""

from collections.abc import Sequence
from typing import Literal

import numpy as np
from pydantic import ValidationError

from tipbench.clock import Stamps
from tipbench.errors import TrackingError, UsageError
from tipbench.policies.features import Matrix, Vector
from tipbench.policies.off_policy import mean_with_interval
from tipbench.policies.serving.evaluation import Evaluation
from tipbench.policies.simulation.run import PlayedRounds
from tipbench.records import Record
from tipbench.tracking import Tracking
from tipbench.tracking.write import blank_write

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
    """May the candidate become the active policy? `simulation` is the run that was looked at."""

    candidate: str
    active: str
    outcome: Outcome
    simulation: str
    rules: tuple[SimulationRule, ...]

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
) -> SimulationGateReport:
    """What the gate says, every rule with its numbers."""
    rules = (_look_at_simulation(candidate, active, simulation), _look_at_log(logged))
    if any(rule.holds is False for rule in rules):
        outcome: Outcome = "no"
    else:
        outcome = "promote" if rules[0].holds else "undecided"
    return SimulationGateReport(
        candidate=candidate,
        active=active,
        outcome=outcome,
        simulation=simulation[0] if simulation else "",
        rules=rules,
    )


def _look_at_simulation(
    candidate: str, active: str, found: tuple[str, SimulationReport] | None
) -> SimulationRule:
    name = "wins the simulation"
    result = found[1].find(candidate) if found else None
    if found is None or result is None or active not in result.leads:
        return SimulationRule(name=name, holds=None, reason=f"no simulation of {candidate} and {active} yet")
    report, lead = found[1], result.leads[active]
    numbers = (
        f"{lead.value:+.4f} rewards per tip [{lead.low:+.4f}, {lead.high:+.4f}], {report.users} users, "
        f"{report.rounds} rounds, profile effect {report.profile_effect:g}, run {found[0]}"
    )
    if report.users < LEAST_USERS_TO_DECIDE:
        return SimulationRule(
            name=name, holds=None, reason=f"{numbers}; at least {LEAST_USERS_TO_DECIDE} users are needed"
        )
    return SimulationRule(name=name, holds=lead.low > 0, reason=numbers)


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
    tracking: Tracking, report: SimulationReport, *, plot: str, experiment: str, stamps: Stamps
) -> str:
    """One run with the report, its drawing and the numbers people filter by; gives its id."""
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
                },
                "metrics": metrics,
                "tags": {"tipbench.state": "complete"},
                "end_time": stamps.now_ms(),
            }
        )
    )


def find_simulation(
    tracking: Tracking, *, experiment: str, policies: tuple[str, str]
) -> tuple[str, SimulationReport] | None:
    """The newest simulation that both policies were in, with its run id.

    Raises:
        TrackingError: its report was edited.
    """
    runs = tracking.read_runs(tracking.ensure_experiment(experiment), fresh=True)
    for run in reversed(runs):
        tags = run.tags
        if tags.get("tipbench.kind") != SIMULATION or tags.get("tipbench.state") != "complete":
            continue
        if not set(policies) <= set(run.params.get("policies", "").split(", ")):
            continue
        try:
            return run.run_id, SimulationReport.model_validate_json(tracking.read_artifact(run, REPORT))
        except ValidationError as error:
            raise TrackingError(
                f"the report of simulation {run.run_id} is broken",
                hint="It was edited in MLflow. Delete that run there and simulate again.",
            ) from error
    return None


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
