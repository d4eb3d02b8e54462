"""Simulated users, the report, the gate; all of it from the command line."""

import shlex
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Cli
from tests.serving.serving_app import ASK, open_client
from tipbench.policies.policy import list_policies
from tipbench.policies.serving.evaluation import Evaluation, StoredEstimate
from tipbench.policies.serving.tips import ActiveFile, StoredTip, write_tips
from tipbench.policies.simulation.report import SimulatedEvidence, SimulationReport, examine, make_report
from tipbench.policies.simulation.run import PlayedRounds, World, chances, make_pool, make_users, play
from tipbench.show.charts import draw_regret


def simulate(
    names: tuple[str, ...], *, effect: float, users: int, rounds: int, seed: int = 0
) -> list[PlayedRounds]:
    policies, world = list_policies(), World(profile_effect=effect, seed=seed)
    people = make_users(world, make_pool(seed), users=users, rounds=rounds)
    return play([policies[name] for name in names], people, world)


def test_the_same_seed_is_the_same_simulation_and_another_seed_another_one() -> None:
    one, again, other = (
        simulate(("egreedy-v2",), effect=1, users=3, rounds=20, seed=s)[0] for s in (1, 1, 2)
    )
    assert np.array_equal(one.rewards, again.rewards)
    assert np.array_equal(one.regrets, again.regrets)
    assert not np.array_equal(one.rewards, other.rewards)


def test_every_policy_meets_the_same_moments_and_moods() -> None:
    # Two policies that choose alike must earn alike: nothing else is left to chance.
    alone = simulate(("random",), effect=0, users=4, rounds=30)[0]
    among = simulate(("linucb", "random"), effect=0, users=4, rounds=30)[1]
    assert np.array_equal(alone.rewards, among.rewards)


def test_users_react_to_quality_fit_hour_and_fatigue() -> None:
    world = World()
    user = make_users(world, make_pool(0), users=1, rounds=1)[0]
    moment, worth = user.moments[0], world.profile_worth()
    kind = moment.situation.tips[0].kind

    def chance(**changes: object) -> float:
        tip = moment.situation.tips[0].model_copy(
            update={key: value for key, value in changes.items() if key in {"match", "urgency"}}
        )
        situation = moment.situation.model_copy(update={"tips": (tip,), "hour": changes.get("hour", 3.0)})
        quality = changes.get("quality", 0.5)
        assert isinstance(quality, float)
        asked = type(moment)(moment.at_ms, situation, (quality,), (0.5,))
        shown = {kind: moment.at_ms} if changes.get("tired") else {}
        return float(chances(world, user, asked, shown_ms=shown, worth=worth)[0])

    assert chance(quality=0.9) > chance(quality=0.1)
    assert chance(match=0.9) > chance(match=0.1)
    assert chance(tired=True) < chance()
    assert chance(hour=user.hour_shift[kind]) > chance(hour=(user.hour_shift[kind] + 12) % 24)


USERS = 20
"""The gate wants no fewer."""
ROUNDS = (90, pytest.param(250, marks=pytest.mark.slow))


def make_simulation(effect: float, *, rounds: int) -> SimulationReport:
    played = simulate(("egreedy-v1", "egreedy-v2"), effect=effect, users=USERS, rounds=rounds)
    return make_report(played, seed=0, profile_effect=effect, tips=60)


def counted(report: SimulationReport, *, plans: int = 1) -> SimulatedEvidence:
    """The first simulation of the last of so many plans."""
    return SimulatedEvidence("plan", plans, "run", report, of_plan=1, simulations=1)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_with_an_uninformative_profile_v2_does_not_win_and_the_gate_says_no(rounds: int) -> None:
    report = make_simulation(0.0, rounds=rounds)
    said = examine("egreedy-v2", "egreedy-v1", simulated=counted(report), logged=None)
    assert (said.outcome, said.exit_code) == ("no", 3)


@pytest.mark.parametrize("rounds", ROUNDS)
def test_with_a_planted_profile_effect_v2_wins_and_the_gate_says_yes(rounds: int) -> None:
    report = make_simulation(2.0, rounds=rounds)
    said = examine("egreedy-v2", "egreedy-v1", simulated=counted(report), logged=None)
    assert (said.outcome, said.exit_code) == ("promote", 0)
    against = examine("egreedy-v2", "egreedy-v1", simulated=counted(report), logged=make_log(-0.2, -0.1))
    assert (against.outcome, against.exit_code) == ("no", 3)
    unclear = examine("egreedy-v2", "egreedy-v1", simulated=counted(report), logged=make_log(-0.2, 0.1))
    assert unclear.outcome == "promote"
    thin = examine(
        "egreedy-v2", "egreedy-v1", simulated=counted(report), logged=make_log(-0.2, -0.1, effective=9)
    )
    assert thin.outcome == "promote"
    nothing = examine("egreedy-v2", "linucb", simulated=counted(report), logged=None)
    assert (nothing.outcome, nothing.exit_code) == ("undecided", 4)
    assert draw_regret(report).count("<polyline") == 2


def make_log(low: float, high: float, *, effective: float = 500.0) -> Evaluation:
    lead = StoredEstimate(method="lead", value=(low + high) / 2, low=low, high=high)
    return Evaluation(
        policy="egreedy-v2",
        logged={"egreedy-v1": 900},
        decisions=900,
        unrewarded=0,
        users=30,
        effective=effective,
        mean_weight=1.0,
        mean_reward=0.4,
        estimates=(),
        lead=lead,
    )


def test_from_the_command_line_simulate_gate_promote(cli: Cli, experiment_name: str, tmp_path: Path) -> None:
    where = ("--experiment", experiment_name)
    assert cli("policies", "gate", *where).code == 4
    plot = tmp_path / "regret.svg"
    small = ("--policies", "egreedy-v1,egreedy-v2", "--users", "20", "--rounds", "40", "--plot", str(plot))
    report = cli.ok("policies", "simulate", *small, *where, "--json").json()
    assert [each["policy"] for each in report["policies"]] == ["egreedy-v1", "egreedy-v2"]
    assert plot.read_text().startswith("<svg")
    unplanned = cli("policies", "gate", *where)
    assert (unplanned.code, "1 simulations without one do not count" in unplanned.out) == (4, True)
    declared = cli.ok("policies", "plan", "--users", "20", "--rounds", "40", *where).out
    cli.ok(*shlex.split(declared.splitlines()[-1])[1:])
    said = cli("policies", "gate", *where, "--promote", "--json")
    assert (said.code, said.json()["outcome"]) == (3, "no")
    assert ActiveFile(cli.home / "policies", default="egreedy-v1").name() == "egreedy-v1"
    said = cli("policies", "gate", "--candidate", "no-such", *where)
    assert (said.code, "Available: egreedy-v1" in said.err) == (2, True)


def test_evaluate_and_verify_read_what_was_served(cli: Cli) -> None:
    with open_client(cli.home / "policies") as client:
        for number in range(30):
            scored = client.post("/score/random/v1", json=ASK | {"user": f"u{number % 5}"}).json()
            reward = {"user": f"u{number % 5}", "decision": scored["decision"], "reward": number % 2}
            client.post("/reward/random/v1", json=reward)
    found = cli.ok("policies", "evaluate", "--policy", "egreedy-v2", "--json").json()
    assert (found[0]["decisions"], found[0]["mean_reward"]) == (30, 0.5)
    assert "30 rewarded decisions of 5 users" in cli.ok("policies", "evaluate").out
    assert "5 states, 0 differ from the log" in cli.ok("policies", "verify").out


def test_simulate_takes_judged_tips(cli: Cli, experiment_name: str, tmp_path: Path) -> None:
    path = tmp_path / "tips.jsonl"
    tips = [StoredTip(id=f"t{n}", text="x", kind=f"slot {n % 2}", quality=n / 10) for n in range(10)]
    write_tips(path, tips)
    small = ("--policies", "linucb,random", "--users", "8", "--rounds", "10", "--experiment", experiment_name)
    assert "10 tips" in cli.ok("policies", "simulate", *small, "--tips", str(path)).out
