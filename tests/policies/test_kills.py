"""kill -9 under load: nothing that was acknowledged is lost, nothing counts twice, states are the log."""

import random
import shutil
import time
from pathlib import Path

import pytest

from tests.policies.killing import Load, Server, check_rewards
from tests.policies.stores import RedisServer, open_files, open_redis
from tests.support.waiting import eventually
from tipbench.policies.events import Rewarded
from tipbench.policies.stores.file import Log, find_differences
from tipbench.policies.stores.redis import RedisStore

USERS = 12


def rewards_in_files(state: Path) -> list[tuple[str, str]]:
    log = Log(state)
    events = [line.event for line in log.read()]
    log.close()
    return [(event.user, event.decision) for event in events if isinstance(event, Rewarded)]


def rewards_in_redis(store: RedisStore) -> list[tuple[str, str]]:
    events = [event for n in range(USERS) for event in store.read_log(f"user {n}")]
    return [(event.user, event.decision) for event in events if isinstance(event, Rewarded)]


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_files_survive_kills_under_load(tmp_path: Path, kills: int) -> None:
    generator = random.Random(kills)
    server = Server(tmp_path)
    state = tmp_path / "policies" / "state"
    acknowledged: list[tuple[str, str]] = []
    in_flight: list[tuple[str, str]] = []
    for kill in range(kills):
        server.small_segments = kill % 4 < 3
        server.start()
        load = Load(server.port, USERS, seed=kill)
        load.start(4)
        eventually(lambda load=load: len(load.acknowledged) >= 40)
        time.sleep(generator.uniform(0.2, 1.5))
        server.kill()
        load.end()
        assert load.unexpected == []
        acknowledged += load.acknowledged
        in_flight += load.in_flight
        check_rewards(rewards_in_files(state), acknowledged, in_flight)
        shutil.copytree(state, tmp_path / "copy")
        store = open_files(tmp_path / "copy")
        assert find_differences(store)[1] == []
        store.close()
        shutil.rmtree(tmp_path / "copy")
        if kill % 2:
            # Every other time the next server begins with snapshots.
            open_files(state).close()
    assert acknowledged
    assert len(list(state.glob("log-*.jsonl"))) > kills
    print(f"{kills} kills: {len(set(acknowledged))} acknowledged, {len(set(in_flight))} in flight")


@pytest.mark.parametrize("kills", [2, pytest.param(50, marks=[pytest.mark.slow, pytest.mark.timeout(3600)])])
def test_redis_survives_kills_of_itself_and_of_servers_under_load(
    tmp_path: Path, redis_server: RedisServer, kills: int
) -> None:
    generator = random.Random(kills)
    redis = RedisServer(tmp_path / "redis")
    redis.folder.mkdir()
    redis.start()
    servers = [Server(tmp_path / name, store=redis.url) for name in ("one", "two")]
    for server in servers:
        server.start()
    acknowledged: list[tuple[str, str]] = []
    in_flight: list[tuple[str, str]] = []
    for kill in range(kills):
        loads = [Load(server.port, USERS, seed=100 * kill + n) for n, server in enumerate(servers)]
        for load in loads:
            load.start(2)
        time.sleep(generator.uniform(0.2, 1.5))
        # Redis itself and the servers in turn.
        victim = redis if kill % 2 == 0 else servers[kill // 2 % 2]
        victim.kill()
        victim.start()
        for load in loads:
            load.end()
            assert load.unexpected == []
            acknowledged += load.acknowledged
            in_flight += load.in_flight
        store = open_redis(redis)
        assert isinstance(store, RedisStore)
        check_rewards(rewards_in_redis(store), acknowledged, in_flight)
        assert find_differences(store)[1] == []
        assert store.problems == []
        store.close()
    for server in servers:
        server.kill()
    redis.kill()
    assert acknowledged
    print(f"{kills} kills: {len(set(acknowledged))} acknowledged, {len(set(in_flight))} in flight")
