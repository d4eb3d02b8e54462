"""`tipbench policies` from the command line: what its options change."""

import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest

from tests.conftest import Cli
from tests.policies.stores import RedisServer, run_redis
from tests.promotion.campaign import Campaign
from tests.serving.serving_app import ASK, TIPS, TOKEN, open_client
from tests.support.ports import free_port
from tests.support.waiting import eventually
from tipbench.policies.events import Situation
from tipbench.policies.policy import choose_tip, draw_for, list_policies
from tipbench.policies.serving.signals import read_signals
from tipbench.policies.serving.tips import StoredTip, read_tips, write_tips
from tipbench.tracking import Tracking

HOST, SEED = "127.0.0.2", 5
"""An address of this machine that is not the default's."""


@pytest.fixture(scope="module")
def redis_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    yield from run_redis(tmp_path_factory.mktemp("r"))


@contextmanager
def serve(*options: str) -> Generator[httpx2.Client]:
    """The command as a process; gives what asks it."""
    port = free_port()
    command = [
        *(sys.executable, "-m", "tipbench", "policies", "serve", "--host", HOST, "--port", str(port)),
        *("--expose", "--seed", str(SEED), *options),
    ]
    environ = os.environ | {"TIPBENCH_POLICIES_TOKEN": TOKEN}
    with (
        subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL) as process,
        httpx2.Client(
            base_url=f"http://{HOST}:{port}", headers={"Authorization": f"Bearer {TOKEN}"}, trust_env=False
        ) as client,
    ):

        def answers() -> bool:
            assert process.poll() is None, "it ended by itself"
            try:
                return client.get("/health").status_code == 200
            except httpx2.HTTPError:
                return False

        try:
            eventually(answers, "the policies answer")
            yield client
        finally:
            process.terminate()


def post(client: httpx2.Client, path: str, body: object) -> Any:
    answer = client.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def test_the_server_listens_decides_shadows_and_draws_as_its_options_say(cli: Cli, tmp_path: Path) -> None:
    own = tmp_path / "own.jsonl"
    write_tips(own, [StoredTip(id="only", text="Breathe.", kind="break", quality=1.0)])
    situation = Situation.model_validate({key: value for key, value in ASK.items() if key != "user"})
    policy = list_policies()["random"]
    shadowed = ("--active", "linucb", "--shadows", "egreedy-v2-shadow", "--tips", str(own))
    with serve(*shadowed) as client:
        got = post(client, "/recommend", {"user": "ann", "hour": 9.5, "weekend": False})
        assert (got["policy"], got["tip"], got["text"]) == ("linucb", "only", "Breathe.")
        for number in range(20):
            scored = post(client, "/score/random/v1", ASK | {"user": f"u{number}"})
            drawn = choose_tip(policy, situation, {}, draw=draw_for(SEED, scored["decision"]))
            assert scored["tip"] == TIPS[drawn.index]["id"]
        post(client, "/score/egreedy/v1", ASK)
    shadows = [s.signal for s in read_signals(cli.home / "policies" / "signals") if s.kind == "shadow"]
    assert set(shadows) == {"shadow:egreedy-v2-shadow"}


def test_several_processes_answer_as_one_on_a_store_that_allows_it(
    cli: Cli, redis_server: RedisServer, tmp_path: Path
) -> None:
    refused = cli("policies", "serve", "--workers", "2")
    assert (refused.code, "--store redis://" in refused.err) == (2, True), refused.err
    own = tmp_path / "own.jsonl"
    write_tips(own, [StoredTip(id="only", text="Breathe.", kind="break", quality=1.0)])
    signals, users = cli.home / "policies" / "signals", [f"w{number}" for number in range(40)]
    options = ("--workers", "2", "--store", redis_server.url, "--active", "linucb", "--tips", str(own))
    with serve(*options) as client:

        def score(user: str) -> Any:
            # Each on a connection of its own: whichever process takes it.
            headers = client.headers | {"Connection": "close"}
            answer = client.post("/score/egreedy/v1", json=ASK | {"user": user}, headers=headers)
            assert answer.status_code == 200, answer.text
            return answer.json()

        def both_wrote() -> bool:
            decided.update({user: score(user)["decision"] for user in users})
            return len({signal for signal in signals.iterdir() if signal.stat().st_size}) == 2

        decided: dict[str, str] = {}
        eventually(both_wrote, "both processes have scored")
        for user, decision in decided.items():
            reward = {"user": user, "decision": decision, "reward": 1.0}
            assert not post(client, "/reward/egreedy/v1", reward)["repeated"]
            assert post(client, "/reward/egreedy/v1", reward)["repeated"]
        tip = post(client, "/recommend", {"user": "ann", "hour": 9.5, "weekend": False})
        assert (tip["policy"], tip["text"]) == ("linucb", "Breathe.")
        told = client.get("/metrics").text
    served = sum(signal.kind == "serve" for signal in read_signals(signals))
    scored = (
        f'tipbench_policy_requests_total{{route="/score/{{family}}/{{version}}",status="200"}} {served - 1}.0'
    )
    assert scored in told, told
    assert "tipbench_policy_problems 0.0" in told


@pytest.mark.parametrize(
    ("given", "says"), [(("--shadows", "nobody"), "no shadow 'nobody'"), (("--active", "nobody"), "'nobody'")]
)
def test_a_policy_that_is_none_is_refused_before_anything_is_served(
    cli: Cli, given: tuple[str, str], says: str
) -> None:
    refused = cli("policies", "serve", *given)
    assert (refused.code, says in refused.err) == (2, True), refused.err


def test_an_address_that_others_can_reach_is_served_only_when_it_is_meant(cli: Cli) -> None:
    refused = cli("policies", "serve", "--host", "0.0.0.0")
    assert (refused.code, "needs --expose" in refused.err) == (2, True), refused.err
    assert not (cli.home / "policies").exists()


def test_another_store_is_verified_where_it_is_named(cli: Cli) -> None:
    assert "0 states, 0 differ" in cli.ok("policies", "verify", "--store", "files").out
    nobody = cli("policies", "verify", "--store", "redis://127.0.0.1:9")
    assert (nobody.code, "Redis" in nobody.err) == (1, True), nobody.err


def test_another_signal_log_is_evaluated_where_it_is_named(cli: Cli, experiment_name: str) -> None:
    with open_client(cli.home / "policies") as client:
        for number in range(30):
            scored = client.post("/score/random/v1", json=ASK | {"user": f"u{number % 5}"}).json()
            reward = {"user": f"u{number % 5}", "decision": scored["decision"], "reward": number % 2}
            client.post("/reward/random/v1", json=reward)
    moved = cli.home / "elsewhere"
    shutil.move(cli.home / "policies" / "signals", moved)
    without = cli("policies", "evaluate", "--policy", "egreedy-v2")
    assert (without.code, "no rewarded decision" in without.err) == (2, True), without.err
    found = cli.ok("policies", "evaluate", "--policy", "egreedy-v2", "--signals", str(moved), "--json").json()
    assert found[0]["decisions"] == 30
    (cli.home / "other" / "policies").mkdir(parents=True)
    shutil.copytree(moved, cli.home / "other" / "policies" / "signals")
    there = cli.ok("policies", "evaluate", "--policy", "egreedy-v2", "--home", str(cli.home / "other"))
    assert "30 rewarded decisions" in there.out

    where = ("--experiment", experiment_name, "--json")
    small = ("--active", "linucb", "--users", "20", "--rounds", "10", "--experiment", experiment_name)
    declared = cli.ok("policies", "plan", "--candidate", "egreedy-v2", *small).out
    cli.ok(*shlex.split(declared.splitlines()[-1])[1:])
    alone = cli("policies", "gate", *where, "--candidate", "egreedy-v2", "--active", "linucb").json()
    assert (alone["candidate"], alone["active"]) == ("egreedy-v2", "linucb")
    assert alone["simulation"], "both of them were in the simulation"
    logged = cli("policies", "gate", *where, "--active", "linucb", "--signals", str(moved)).json()
    reasons = [next(r["reason"] for r in told["rules"] if "log" in r["name"]) for told in (alone, logged)]
    assert reasons[0] != reasons[1]


def test_the_kind_of_a_tip_is_the_value_of_its_scenario_that_is_named(
    cli: Cli, tracking: Tracking, tmp_path: Path
) -> None:
    campaign = Campaign(tracking, cli.home, {"good": 12.0}).collect()
    out = tmp_path / "tips.jsonl"
    where = ("--arm", "good+v1", "--experiment", campaign.experiment, "--out", str(out))
    cli.ok("policies", "tips", *where, "--kind-of", "persona")
    personas = {str(scenario.values["persona"])[:64] for scenario in campaign.pack.scenarios}
    assert {tip.kind for tip in read_tips(out)} == personas
    cli.ok("policies", "tips", *where, "--kind-of", "no-such-value")
    assert {tip.kind for tip in read_tips(out)} == {"tip"}
