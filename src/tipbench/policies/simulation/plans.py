"""The plan of a simulation: its world is fixed before anybody has seen it, and its first simulation counts.

A plan is a run with write-once params. It names the plans before it, so which one is in force follows from
what they say of each other and from nobody's clock. Deleting a run in MLflow takes nothing back.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from pydantic import ValidationError

from tipbench.clock import Stamps
from tipbench.errors import TrackingError, UsageError
from tipbench.policies.simulation.report import (
    LEAST_USERS_TO_DECIDE,
    REPORT,
    SIMULATION,
    SimulatedEvidence,
    SimulationReport,
)
from tipbench.policies.simulation.run import PoolTip
from tipbench.records import Record, content_hash
from tipbench.tracking import Run, Tracking
from tipbench.tracking.runs import blank_write

KIND = "simulation-plan"
FIRST = "first_simulation"
"""The param of a plan that its first simulation claims."""


class SimulationPlan(Record):
    """The world in which two policies will meet. `tips` is the hash of the pool that they choose from."""

    candidate: str
    active: str
    seed: int
    profile_effect: float
    users: int
    rounds: int
    tips: str
    after: str = ""
    """The plan of the same policies before it; of two declared at once both, with a blank between."""

    @property
    def policies(self) -> tuple[str, str]:
        """Who meets, the one in use first."""
        return self.active, self.candidate


@dataclass(frozen=True)
class StoredPlan:
    """A plan as MLflow has it."""

    run: Run
    plan: SimulationPlan

    def check_pool(self, pool: Sequence[PoolTip]) -> None:
        """Refuses other tips than the plan's.

        Raises:
            UsageError: they are others.
        """
        if hash_pool(pool) != self.plan.tips:
            raise UsageError(
                f"plan {self.run.run_id} was declared with other tips",
                hint="Give the same file with --tips, or declare another plan.",
            )


def hash_pool(pool: Sequence[PoolTip]) -> str:
    """What tells two pools apart."""
    return content_hash([[tip.id, tip.kind, tip.quality] for tip in pool])


def declare_plan(tracking: Tracking, plan: SimulationPlan, *, experiment: str, stamps: Stamps) -> str:
    """Stores the plan; gives its run id.

    Raises:
        UsageError: it cannot decide, or its world was simulated already.
    """
    if plan.users < LEAST_USERS_TO_DECIDE:
        raise UsageError(
            f"{plan.users} users decide nothing", hint=f"The gate needs {LEAST_USERS_TO_DECIDE} or more."
        )
    where = tracking.ensure_experiment(experiment)
    runs = _read_complete(tracking, where.id)
    seen = next((run for run in _simulations(runs, plan.policies) if _is_of(run, plan)), None)
    if seen is not None:
        raise UsageError(
            f"seed {plan.seed} with profile effect {plan.profile_effect:g} was simulated already: run "
            f"{seen.run_id}",
            hint="A plan comes before what it is about. Leave --seed out: one is drawn.",
        )
    earlier = " ".join(stored.run.run_id for stored in _latest(_plans(runs, plan.policies)))
    values = {name: str(value) for name, value in plan.model_copy(update={"after": earlier}) if value != ""}
    return tracking.deliver(
        blank_write(where, stamps).model_copy(
            update={
                "run_name": f"plan · {plan.candidate} for {plan.active}"[:200],
                "tags_at_create": {"tipbench.kind": KIND, "tipbench.state": "open"},
                "params": values,
                "tags": {"tipbench.state": "complete"},
                "end_time": stamps.now_ms(),
            }
        )
    )


def read_plan(tracking: Tracking, run_id: str, *, experiment: str) -> StoredPlan:
    """The plan that is this run.

    Raises:
        UsageError: the experiment has no such plan, or it was deleted: then nothing can be its first one.
    """
    runs = _read_complete(tracking, tracking.ensure_experiment(experiment).id, view="ACTIVE_ONLY")
    found = next((stored for stored in _plans(runs) if stored.run.run_id == run_id), None)
    if found is None:
        raise UsageError(
            f"experiment {experiment!r} has no plan {run_id!r}",
            hint="Declare one: tipbench policies plan. Which one is in force says: tipbench policies gate.",
        )
    return found


def claim_first(tracking: Tracking, plan: StoredPlan, simulation: str) -> bool:
    """Whether this simulation is the plan's first one."""
    return tracking.claim(plan.run.run_id, FIRST, simulation) == simulation


def read_simulated(tracking: Tracking, *, experiment: str, policies: tuple[str, str]) -> SimulatedEvidence:
    """What was planned and simulated of the policies (the active one, the candidate).

    Raises:
        TrackingError: the report that counts was edited.
    """
    runs = _read_complete(tracking, tracking.ensure_experiment(experiment).id)
    simulations = _simulations(runs, policies)
    plans = _plans(runs, policies)
    if not plans:
        return SimulatedEvidence(simulations=len(simulations))
    stored = min(_latest(plans), key=lambda each: each.run.run_id)
    of_plan = [run for run in simulations if run.params.get("plan") == stored.run.run_id]
    first = stored.run.params.get(FIRST, "")
    if not first and of_plan:
        # Whoever simulated was killed before it could say so.
        first = tracking.claim(stored.run.run_id, FIRST, min(run.run_id for run in of_plan))
    return SimulatedEvidence(
        plan=stored.run.run_id,
        plans=len(plans),
        run=first,
        report=_read_report(tracking, first) if first else None,
        of_plan=len(of_plan),
        simulations=len(simulations),
    )


def _read_complete(tracking: Tracking, experiment_id: str, *, view: str = "ALL") -> list[Run]:
    """Deleted runs too: what was seen was seen."""
    found = tracking.search_runs([experiment_id], view=view)
    return [run for run in found if run.tags.get("tipbench.state") == "complete"]


def _simulations(runs: Sequence[Run], policies: tuple[str, str]) -> list[Run]:
    return [
        run
        for run in runs
        if run.tags.get("tipbench.kind") == SIMULATION
        and set(policies) <= set(run.params.get("policies", "").split(", "))
    ]


def _is_of(run: Run, plan: SimulationPlan) -> bool:
    return (run.params.get("seed"), run.params.get("profile_effect")) == (
        str(plan.seed),
        repr(plan.profile_effect),
    )


def _plans(runs: Sequence[Run], policies: tuple[str, str] | None = None) -> list[StoredPlan]:
    found: list[StoredPlan] = []
    for run in runs:
        if run.tags.get("tipbench.kind") != KIND:
            continue
        try:
            given = {name: run.params[name] for name in SimulationPlan.model_fields if name in run.params}
            plan = SimulationPlan.model_validate(given)
        except ValidationError:
            continue  # Damaged: it counts for nothing.
        if policies in {None, plan.policies}:
            found.append(StoredPlan(run, plan))
    return found


def _latest(plans: Sequence[StoredPlan]) -> list[StoredPlan]:
    """Those that no other one names as the one before; several only if they were declared at once."""
    earlier = {name for stored in plans for name in stored.plan.after.split()}
    return [stored for stored in plans if stored.run.run_id not in earlier]


def _read_report(tracking: Tracking, run_id: str) -> SimulationReport:
    try:
        return SimulationReport.model_validate_json(tracking.read_artifact(tracking.read_run(run_id), REPORT))
    except ValidationError as error:
        raise TrackingError(
            f"the report of simulation {run_id} is broken",
            hint="It was edited in MLflow. Declare a new plan: tipbench policies plan.",
        ) from error
