"""What simulations of policies found: rewards over rounds, leads, and what the gate of policies said."""

from dataclasses import dataclass
from typing import Annotated, TypeVar

from fastapi import APIRouter, Query, Request, Response
from pydantic import ValidationError

from tipbench.admin.access import ExperimentName, PageSeeingViewer, Server
from tipbench.admin.panel import render
from tipbench.errors import TrackingRefused
from tipbench.jobs.records import NotThere
from tipbench.policies.simulation.report import (
    GATE,
    REPORT,
    SIMULATION,
    SimulationGateReport,
    SimulationReport,
)
from tipbench.records import Record, RequestRecord
from tipbench.show.charts import Axis, Bar, draw_axis, draw_strip, make_scale
from tipbench.show.traces import draw_rewards
from tipbench.tracking import Run, Tracking

pages = APIRouter(include_in_schema=False)

MOST = 50
COMPLETE = "tags.`tipbench.state` = 'complete'"


@dataclass(frozen=True)
class PolicyLine:
    """One policy with its lead over the best other one, drawn."""

    name: str
    reward: str
    late: str
    regret: str
    over: str
    lead: str
    strip: str
    certain: bool
    """Whether its interval does not reach 0."""


class SimulationQuery(RequestRecord):
    """Which one is shown; the newest, if none is named."""

    simulation: str | None = None


@pages.get("/simulations/{experiment:name}")
def show_simulations(
    request: Request,
    user: PageSeeingViewer,
    parts: Server,
    experiment: ExperimentName,
    asked: Annotated[SimulationQuery, Query()],
) -> Response:
    """One simulation, and a list of all. It names no arm and no tip."""
    tracking = parts.mlflow.open().tracking
    runs = tracking.search_runs([tracking.find_experiment(experiment).id], COMPLETE)[::-1]
    found = [run for run in runs if run.tags.get("tipbench.kind") == SIMULATION]
    chosen = next((run for run in found if asked.simulation in {None, run.run_id}), None)
    if chosen is None and asked.simulation is not None:
        raise NotThere(f"experiment {experiment!r} has no simulation {asked.simulation!r}")
    report = _read(tracking, chosen, SimulationReport) if chosen else None
    gates = [(run, _read(tracking, run, SimulationGateReport)) for run in runs if _is_gate(run)][:MOST]
    lines, axis = _tabulate(report) if report else ((), "")
    return render(
        request,
        "simulations.html",
        user=user,
        name=experiment,
        simulations=found[:MOST],
        chosen=chosen,
        report=report,
        rewards=draw_rewards(report) if report else None,
        lines=lines,
        axis=axis,
        gates=gates,
    )


def _is_gate(run: Run) -> bool:
    return run.tags.get("tipbench.kind") == GATE


R = TypeVar("R", bound=Record)


def _read(tracking: Tracking, run: Run, record: type[R]) -> R | None:
    """None where its file was edited or deleted in MLflow."""
    try:
        return record.model_validate_json(tracking.read_artifact(run, REPORT))
    except (TrackingRefused, ValidationError):
        return None


def _tabulate(report: SimulationReport) -> tuple[list[PolicyLine], str]:
    """Best first; each is compared with the best other one."""
    ordered = sorted(report.policies, key=lambda each: -each.reward.value)
    leads = [(each, next((other.policy for other in ordered if other is not each), "")) for each in ordered]
    bounds = [each.leads[over] for each, over in leads if over]
    scale: Axis | None = (
        make_scale([0.0, *(end for bound in bounds for end in (bound.low, bound.high))]) if bounds else None
    )
    lines = list[PolicyLine]()
    for each, over in leads:
        lead = each.leads.get(over)
        lines.append(
            PolicyLine(
                name=each.policy,
                reward=f"{each.reward.value:.3f}",
                late=f"{each.late_reward.value:.3f}",
                regret=f"{each.regret.value:.1f}",
                over=over,
                lead=f"{lead.value:+.3f} [{lead.low:+.3f}, {lead.high:+.3f}]".replace("-", "−")
                if lead
                else "",
                strip=draw_strip(Bar(lead.value, lead.low, lead.high), scale, label="")
                if lead and scale
                else "",
                certain=lead is not None and not lead.low <= 0 <= lead.high,
            )
        )
    return lines, draw_axis(scale) if scale else ""
