"""What every store promises."""

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from uuid import uuid4

import pytest

from tests.policies.stores import (
    RedisServer,
    decided,
    open_files,
    open_memory,
    open_redis,
    rewarded,
)
from tipbench.policies.events import DecisionGone, RewardConflict, UnknownDecision
from tipbench.policies.states import KEPT_DECISIONS
from tipbench.policies.stores.file import same_bits
from tipbench.policies.stores.store import Store

KINDS = ("memory", "files", "redis")


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, files: Path) -> Iterator[Store]:
    """A store of every kind."""
    openings: dict[str, Callable[[], Store]] = {
        "memory": open_memory,
        "files": lambda: open_files(files),
        "redis": lambda: open_redis(request.getfixturevalue("redis_server")),
    }
    opened = openings[request.param]()
    yield opened
    opened.close()


@pytest.fixture
def user() -> str:
    """Nobody else's: the Redis server is shared."""
    return f"Ann {{{uuid4().hex}}} ÄÖ%"


def test_a_reward_is_learned_with_the_features_of_its_decision(store: Store, user: str) -> None:
    decision = decided("a1", user=user, x=(1.0, 0.5))
    store.decide(decision)
    assert store.reward(rewarded(decision, 0.75))
    learned = store.read(user, "egreedy-v1")
    model = learned.models["focus"]
    assert model.gram.tolist() == [[2.0, 0.5], [0.5, 1.25]]
    assert model.moment.tolist() == [0.75, 0.375]
    assert (model.count, model.total, learned.decisions, dict(learned.shown)) == (
        1,
        0.75,
        1,
        {"focus": 1_000},
    )


def test_a_repeated_reward_counts_once(store: Store, user: str) -> None:
    decision = decided("a1", user=user)
    store.decide(decision)
    assert [store.reward(rewarded(decision)) for _ in range(3)] == [True, False, False]
    assert store.read(user, "egreedy-v1").models["focus"].count == 1


def test_a_decision_takes_no_second_reward(store: Store, user: str) -> None:
    decision = decided("a1", user=user)
    store.decide(decision)
    store.reward(rewarded(decision, 1.0))
    before = store.read(user, "egreedy-v1")
    with pytest.raises(RewardConflict, match="has reward 1 already"):
        store.reward(rewarded(decision, 0.0))
    assert same_bits(store.read(user, "egreedy-v1"), before)


def test_rewards_for_unknown_decisions_are_refused(store: Store, user: str) -> None:
    decision = decided("a1", user=user)
    with pytest.raises(UnknownDecision):
        store.reward(rewarded(decision))
    store.decide(decision)
    with pytest.raises(UnknownDecision):
        store.reward(rewarded(decision, user=f"{user}2"))
    with pytest.raises(UnknownDecision):
        store.reward(rewarded(decision, policy="egreedy-v2"))
    assert not store.read(user, "egreedy-v1").models
    assert not store.read(f"{user}2", "egreedy-v1").models


def test_rewards_may_be_late_and_out_of_order(store: Store, user: str) -> None:
    decisions = [decided(f"a{n}", user=user, x=(1.0, n / 7)) for n in range(KEPT_DECISIONS)]
    for decision in decisions:
        store.decide(decision)
    for decision in reversed(decisions):
        store.reward(rewarded(decision, 0.5))
    assert store.read(user, "egreedy-v1").models["focus"].count == KEPT_DECISIONS


def test_the_oldest_decisions_are_let_go(store: Store, user: str) -> None:
    decisions = [decided(f"a{n}", user=user) for n in range(KEPT_DECISIONS + 1)]
    for decision in decisions:
        store.decide(decision)
    with pytest.raises(UnknownDecision):
        store.reward(rewarded(decisions[0]))
    assert store.reward(rewarded(decisions[1]))


def test_a_reset_forgets_every_policy_and_late_rewards_do_not_revive_it(store: Store, user: str) -> None:
    old = {name: decided("a1", user=user, policy=name) for name in ("egreedy-v1", "egreedy-v2", "linucb")}
    for decision in old.values():
        store.decide(decision)
    store.reward(rewarded(old["linucb"]))
    assert store.reset(user, at_ms=3_000) == 1
    for name, decision in old.items():
        with pytest.raises(DecisionGone):
            store.reward(rewarded(decision))
        learned = store.read(user, name)
        assert (learned.epoch, dict(learned.models), learned.decisions) == (1, {}, 0)
    new = decided("a1", user=user, epoch=1)
    store.decide(new)
    assert store.reward(rewarded(new))
    assert store.reset(user, at_ms=4_000) == 2


def test_a_decision_that_met_a_reset_cannot_be_rewarded(store: Store, user: str) -> None:
    late = decided("a1", user=user, epoch=0)
    store.reset(user, at_ms=500)
    store.decide(late)
    with pytest.raises(DecisionGone):
        store.reward(rewarded(late))
    assert store.read(user, "egreedy-v1").decisions == 0


def test_names_that_look_alike_are_different_users(store: Store, user: str) -> None:
    names = [f"{name}{user}" for name in ("Bob", "bob", "BOB", "bob/..", "../bob", "bob_egreedy_v1", "b%6fb")]
    for place, name in enumerate(names):
        decision = decided("a1", user=name, x=(float(place), 1.0))
        store.decide(decision)
        store.reward(rewarded(decision))
    for place, name in enumerate(names):
        assert store.read(name, "egreedy-v1").models["focus"].moment.tolist() == [float(place), 1.0]


def test_the_state_is_the_log_replayed_bit_for_bit(store: Store, user: str) -> None:
    for n in range(150):
        x = (1.0, (n * 0.37) % 1, ((n * 7919) % 13) / 13)
        decision = decided(f"b{n}", user=user, x=x, kind=f"kind {n % 3}", policy="egreedy-v2", at_ms=n)
        store.decide(decision)
        if n % 4:
            store.reward(rewarded(decision, (n % 10) / 9))
        if n == 60:
            store.reset(user, at_ms=n)
            break
    for n in range(200):
        decision = decided(f"c{n}", user=user, x=(1.0, 1 / (n + 3), 0.1 * n), policy="egreedy-v2", epoch=1)
        store.decide(decision)
        store.reward(rewarded(decision, 1 / (n + 1)))
    assert same_bits(store.read(user, "egreedy-v2"), store.replay()[user, "egreedy-v2"])


def test_many_threads_lose_nothing(store: Store, user: str) -> None:
    decisions = [decided(f"a{n}", user=user, x=(1.0,)) for n in range(100)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(store.decide, decisions))
        news = list(pool.map(store.reward, [rewarded(decision) for decision in decisions * 3]))
    assert sum(news) == 100
    assert store.read(user, "egreedy-v1").models["focus"].moment.tolist() == [100.0]
    assert same_bits(store.read(user, "egreedy-v1"), store.replay()[user, "egreedy-v1"])


def test_both_lasting_stores_come_to_the_same_bits(redis_server: RedisServer, files: Path, user: str) -> None:
    with_files, with_redis = open_files(files), open_redis(redis_server)
    for n in range(80):
        x = tuple(((n + 1) * (k + 1) * 0.618) % 1 - 0.3 for k in range(12))
        decision = decided(f"a{n}", user=user, x=x, kind=f"k{n % 4}", policy="egreedy-v2")
        for store in (with_files, with_redis):
            store.decide(decision)
            store.reward(rewarded(decision, (n * 0.77) % 1))
    assert same_bits(with_files.read(user, "egreedy-v2"), with_redis.read(user, "egreedy-v2"))
    with_files.close()
    with_redis.close()
