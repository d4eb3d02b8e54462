"""A simulation counts for the gate if its world was fixed before anybody had seen it."""

import shlex
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.conftest import Cli
from tipbench.clock import make_stamps
from tipbench.policies.serving.tips import StoredTip, write_tips
from tipbench.policies.simulation.report import (
    Curve,
    PolicyResult,
    RegretInterval,
    SimulatedEvidence,
    SimulationReport,
    examine,
    store_simulation,
)
from tipbench.tracking import Tracking

SMALL = ("--users", "20", "--rounds", "10")


@dataclass(frozen=True)
class Campaign:
    """Commands about two policies in one experiment."""

    cli: Cli
    where: tuple[str, str]

    def plan(self, *more: str) -> list[str]:
        """Declares a plan; gives the command that it prints."""
        told = self.cli.ok("policies", "plan", *SMALL, *self.where, *more).out
        return shlex.split(told.splitlines()[-1])[1:]

    def simulate(self, *more: str) -> str:
        return self.cli.ok("policies", "simulate", *more, *self.where).out

    def gate(self) -> Any:
        return self.cli("policies", "gate", *self.where, "--json").json()


@pytest.fixture
def campaign(cli: Cli, experiment_name: str) -> Campaign:
    return Campaign(cli, ("--experiment", experiment_name))


def test_the_gate_counts_the_first_simulation_of_the_plan_and_tells_how_many_were_run(
    campaign: Campaign, tracking: Tracking
) -> None:
    lucky = ("--policies", "egreedy-v1,egreedy-v2", "--profile-effect", "5")
    assert "the gate does not count it" in campaign.simulate(*lucky, *SMALL)
    said = campaign.gate()
    assert (said["outcome"], said["simulation"], said["simulations"]) == ("undecided", "", 1)
    command = campaign.plan("--seed", "7")
    said = campaign.gate()
    assert (said["outcome"], said["plan"], said["plans"]) == ("undecided", command[-3], 1)
    assert "the gate counts it" in campaign.cli.ok(*command).out
    first = campaign.gate()
    assert (first["simulations"], first["rules"][0]["holds"]) == (2, False)
    # The same once more, and a luckier world: the first one of the plan stays what counts.
    assert "the gate counts the first" in campaign.cli.ok(*command).out
    campaign.simulate(*lucky, *SMALL, "--seed", "3")
    again = campaign.gate()
    assert (again["simulation"], again["simulations"]) == (first["simulation"], 4)
    assert "the first of 2 of plan" in again["rules"][0]["reason"]
    # Nor is it taken back by deleting it.
    tracking.delete_run(first["simulation"])
    assert campaign.gate()["simulation"] == first["simulation"]


def test_what_a_plan_fixes_cannot_be_given_again_and_what_was_seen_cannot_be_planned(
    campaign: Campaign, tracking: Tracking, tmp_path: Path
) -> None:
    command = campaign.plan()
    for option in (("--seed", "3"), ("--profile-effect", "2"), ("--users", "30"), ("--policies", "linucb")):
        refused = campaign.cli(*command, *option)
        assert (refused.code, f"{option[0]}: the plan fixes it" in refused.err) == (2, True), refused.err
    tips = tmp_path / "tips.jsonl"
    write_tips(tips, [StoredTip(id=f"t{n}", text="x", kind="a", quality=n / 10) for n in range(10)])
    other = campaign.cli(*command, "--tips", str(tips))
    assert (other.code, "declared with other tips" in other.err) == (2, True), other.err
    campaign.cli.ok(*campaign.plan("--tips", str(tips)))
    campaign.simulate("--policies", "egreedy-v1,egreedy-v2", "--seed", "3", "--profile-effect", "2", *SMALL)
    seen = campaign.cli("policies", "plan", *campaign.where, "--seed", "3", "--profile-effect", "2")
    assert (seen.code, "was simulated already" in seen.err) == (2, True), seen.err
    few = campaign.cli("policies", "plan", *campaign.where, "--users", "19")
    assert (few.code, "19 users decide nothing" in few.err) == (2, True), few.err
    same = campaign.cli("policies", "plan", *campaign.where, "--candidate", "egreedy-v1")
    assert (same.code, "egreedy-v1 is the active policy" in same.err) == (2, True), same.err
    unknown = campaign.cli("policies", "simulate", "--plan", "nobody", *campaign.where)
    assert (unknown.code, "has no plan 'nobody'" in unknown.err) == (2, True), unknown.err
    # Nothing can be claimed on a run that was deleted: said before anything is simulated.
    tracking.delete_run(command[-3])
    gone = campaign.cli(*command)
    assert (gone.code, "Declare one" in gone.err) == (2, True), gone.err


def test_a_later_plan_is_in_force_and_held_to_a_wider_interval(
    campaign: Campaign, tracking: Tracking
) -> None:
    first, second = campaign.plan("--seed", "1"), campaign.plan("--seed", "2", "--profile-effect", "1.5")
    campaign.cli.ok(*first)
    said = campaign.gate()
    assert (said["plan"], said["plans"], said["simulation"]) == (second[-3], 2, "")
    # Killed between storing the simulation and claiming to be the first: the gate counts it all the same.
    run = store_simulation(
        tracking,
        make_lead(0.05),
        plot="",
        experiment=campaign.where[1],
        stamps=make_stamps(),
        plan=second[-3],
    )
    said = campaign.gate()
    assert (said["simulation"], tracking.read_run(second[-3]).params["first_simulation"]) == (run, run)
    assert "at 0.975" in said["rules"][0]["reason"]
    assert "the gate counts the first" in campaign.cli.ok(*second).out


def make_lead(low: float) -> SimulationReport:
    """egreedy-v2 is ahead of egreedy-v1 by 0.1, and the 95 % interval begins there."""
    lead = RegretInterval(value=0.1, low=low, high=0.2 - low)
    curve = Curve(rounds=(), values=())
    results = [
        PolicyResult(
            policy=name, reward=lead, late_reward=lead, regret=lead, leads=leads, rewards=curve, regrets=curve
        )
        for name, leads in (("egreedy-v1", {}), ("egreedy-v2", {"egreedy-v1": lead}))
    ]
    return SimulationReport(seed=0, profile_effect=1, users=20, rounds=10, tips=3, policies=tuple(results))


@pytest.mark.parametrize(("plans", "outcome"), [(1, "promote"), (2, "no"), (5, "no")])
def test_luck_on_a_second_plan_is_not_enough(plans: int, outcome: str) -> None:
    found = SimulatedEvidence("plan", plans, "run", make_lead(0.005), of_plan=1, simulations=plans)
    said = examine("egreedy-v2", "egreedy-v1", simulated=found, logged=None)
    assert said.outcome == outcome, said.rules[0].reason
    clear = SimulatedEvidence("plan", plans, "run", make_lead(0.09), of_plan=1, simulations=plans)
    assert examine("egreedy-v2", "egreedy-v1", simulated=clear, logged=None).outcome == "promote"
