"""Simulations and gates as MLflow runs: what was found, and in which world."""

from pydantic import ValidationError

from tipbench.errors import TrackingError
from tipbench.simulation.gate import GateReport
from tipbench.simulation.plot import draw_regret
from tipbench.simulation.report import SimulationReport
from tipbench.tracking import Tracking
from tipbench.tracking.stamps import Stamps

EXPERIMENT = "tipbench-policies"
SIMULATION, GATE = "simulation", "policy-gate"
REPORT, PLOT = "report.json", "regret.svg"


def store_simulation(tracking: Tracking, report: SimulationReport, *, experiment: str, stamps: Stamps) -> str:
    """One run with the report, the plot and the numbers people filter by; gives its id."""
    write = stamps.blank(tracking.ensure_experiment(experiment))
    names = ", ".join(each.policy for each in report.policies)
    metrics = {f"{each.policy}.reward": each.reward.value for each in report.policies}
    metrics |= {f"{each.policy}.regret": each.regret.value for each in report.policies}
    return tracking.deliver(
        write.model_copy(
            update={
                "run_name": f"simulation · {names}"[:200],
                "tags_at_create": {"tipbench.kind": SIMULATION, "tipbench.state": "open"},
                "artifacts": {REPORT: report.model_dump_json(indent=1), PLOT: draw_regret(report)},
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


def store_gate(tracking: Tracking, report: GateReport, *, experiment: str, stamps: Stamps) -> str:
    """One run with the verdict of the gate and its reasons; gives its id."""
    write = stamps.blank(tracking.ensure_experiment(experiment))
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
