"""States in Redis, for several processes on several machines. How safe they are is Redis' appendfsync."""

import struct
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

import numpy as np
from redis import Redis
from redis.exceptions import (
    ConnectionError,  # noqa: A004 - Redis' own
    OutOfMemoryError,
    ReadOnlyError,
    ResponseError,
    TimeoutError,  # noqa: A004
)

from tipbench.errors import UsageError
from tipbench.policies.events import Decided, Rewarded, StoreUnavailable, WasReset, event_adapter
from tipbench.policies.states import (
    KEPT_DECISIONS,
    RIDGE,
    KindModel,
    Learned,
    UserState,
    apply_event,
    conflicting_reward,
    gone_decision,
    unknown_decision,
)

# The updates of the Redis store: each one script, so that it happens as a whole or not at all.
# Numbers are packed doubles and sums are made in the order of the Python code: both give the same bits.


DECIDE = """
-- KEYS: epoch, policies, kept, order, shown, decisions, log
-- ARGV: epoch, id, kept value, kind, at_ms, most kept, policy, log line
if (redis.call('GET', KEYS[1]) or '0') ~= ARGV[1] then return 'reset' end
if redis.call('HEXISTS', KEYS[3], ARGV[2]) == 1 then return 'repeated' end
redis.call('SADD', KEYS[2], ARGV[7])
redis.call('HSET', KEYS[3], ARGV[2], ARGV[3])
redis.call('RPUSH', KEYS[4], ARGV[2])
while redis.call('LLEN', KEYS[4]) > tonumber(ARGV[6]) do
    local oldest = redis.call('LPOP', KEYS[4])
    redis.call('HDEL', KEYS[3], oldest, oldest .. ':reward')
end
redis.call('HSET', KEYS[5], ARGV[4], ARGV[5])
redis.call('INCR', KEYS[6])
redis.call('RPUSH', KEYS[7], ARGV[8])
return 'done'
"""

REWARD = """
-- KEYS: epoch, kept, models, log
-- ARGV: epoch, decision, reward, ridge, log line
if tonumber(redis.call('GET', KEYS[1]) or '0') > tonumber(ARGV[1]) then return {'gone'} end
local kept = redis.call('HGET', KEYS[2], ARGV[2])
if not kept then return {'unknown'} end
local before = redis.call('HGET', KEYS[2], ARGV[2] .. ':reward')
if before then return {'rewarded', before} end
local reward = tonumber(ARGV[3])
local dimension = struct.unpack('<I4', kept)
local doubles = string.rep('d', dimension)
local x = {struct.unpack('<' .. doubles, string.sub(kept, 5))}
local kind = string.sub(kept, 5 + 8 * dimension)
local packed = redis.call('HGET', KEYS[3], kind)
local count, total, sums = 0, 0, {}
if packed then
    count, total = struct.unpack('<dd', packed)
    sums = {struct.unpack('<' .. string.rep('d', dimension * dimension + dimension), string.sub(packed, 17))}
else
    for i = 1, dimension * dimension + dimension do sums[i] = 0 end
    for i = 1, dimension do sums[(i - 1) * dimension + i] = tonumber(ARGV[4]) end
end
local parts = {struct.pack('<dd', count + 1, total + reward)}
for i = 1, dimension do
    for j = 1, dimension do
        parts[#parts + 1] = struct.pack('<d', sums[(i - 1) * dimension + j] + x[i] * x[j])
    end
end
for i = 1, dimension do
    parts[#parts + 1] = struct.pack('<d', sums[dimension * dimension + i] + reward * x[i])
end
redis.call('HSET', KEYS[3], kind, table.concat(parts))
redis.call('HSET', KEYS[2], ARGV[2] .. ':reward', ARGV[3])
redis.call('RPUSH', KEYS[4], ARGV[5])
return {'done'}
"""

RESET = """
-- KEYS: epoch, policies, log, then every key of every policy of the user
-- ARGV: the log line without its epoch, in two halves
local epoch = redis.call('INCR', KEYS[1])
for i = 4, #KEYS do redis.call('DEL', KEYS[i]) end
redis.call('DEL', KEYS[2])
redis.call('RPUSH', KEYS[3], ARGV[1] .. epoch .. ARGV[2])
return epoch
"""


PREFIX = "tipbench"
PARTS = ("kept", "order", "shown", "decisions", "models")
"""What is kept per user and policy."""
Result = TypeVar("Result")


class RedisStore:
    """One Redis server; states and log of a user are changed by one script at a time."""

    def __init__(self, url: str, *, policies: Iterable[str]) -> None:
        try:
            client: Any = Redis
            self._redis = client.from_url(url, socket_timeout=10, socket_connect_timeout=5)
        except ValueError as error:
            raise UsageError(
                f"no address of a Redis server: {url!r}", hint="As in redis://host:6379/0"
            ) from error
        self._policies = tuple(policies)
        self._decide = self._redis.register_script(DECIDE)
        self._reward = self._redis.register_script(REWARD)
        self._reset = self._redis.register_script(RESET)
        self.problems = self._look_at_durability()

    def read(self, user: str, policy: str) -> Learned:
        """What the policy has learned of the user so far."""
        with self._redis.pipeline(transaction=True) as pipe:
            pipe.get(_key(user, "epoch"))
            pipe.hgetall(_key(user, policy, "models"))
            pipe.hgetall(_key(user, policy, "shown"))
            pipe.get(_key(user, policy, "decisions"))
            epoch, models, shown, decisions = _ask(pipe.execute)
        return Learned(
            int(epoch or 0),
            {kind.decode(): _unpack_model(packed) for kind, packed in models.items()},
            {kind.decode(): int(at_ms) for kind, at_ms in shown.items()},
            int(decisions or 0),
        )

    def decide(self, event: Decided) -> None:
        """Keeps a decision, so that it can be rewarded."""
        names = ("kept", "order", "shown", "decisions")
        keys = [
            _key(event.user, "epoch"),
            _key(event.user, "policies"),
            *(_key(event.user, event.policy, name) for name in names),
            _key(event.user, "log"),
        ]
        kept = struct.pack(f"<I{len(event.x)}d", len(event.x), *event.x) + event.tip_kind.encode()
        line = event.model_dump_json()
        args = [event.epoch, event.id, kept, event.tip_kind, event.at_ms, KEPT_DECISIONS, event.policy, line]
        _ask(lambda: self._decide(keys=keys, args=args))

    def reward(self, event: Rewarded) -> bool:
        """Learns a reward; False if it was learned before."""
        keys = [
            _key(event.user, "epoch"),
            _key(event.user, event.policy, "kept"),
            _key(event.user, event.policy, "models"),
            _key(event.user, "log"),
        ]
        args = [event.epoch, event.decision, repr(event.reward), repr(RIDGE), event.model_dump_json()]
        answer, *before = _ask(lambda: self._reward(keys=keys, args=args))
        if answer == b"gone":
            raise gone_decision(event)
        if answer == b"unknown":
            raise unknown_decision(event)
        if before and float(before[0]) != event.reward:
            raise conflicting_reward(event, float(before[0]))
        return not before

    def reset(self, user: str, *, at_ms: int) -> int:
        """Forgets the user in every policy; gives the number of the epoch that begins."""
        known = [each.decode() for each in _ask(lambda: self._redis.smembers(_key(user, "policies")))]
        policies = dict.fromkeys([*self._policies, *known])
        keys = [
            *(_key(user, name) for name in ("epoch", "policies", "log")),
            *(_key(user, policy, part) for policy in policies for part in PARTS),
        ]
        before, behind = WasReset(at_ms=at_ms, user=user, epoch=0).model_dump_json().rsplit('"epoch":0', 1)
        return int(_ask(lambda: self._reset(keys=keys, args=[before + '"epoch":', behind])))

    def replay(self) -> Mapping[tuple[str, str], Learned]:
        """What the logs say of every user and policy, computed again."""
        states: dict[tuple[str, str], UserState] = {}
        for key in _ask(lambda: list(self._redis.scan_iter(match=f"{PREFIX}:*:log"))):
            events = self._read_log(key)
            epochs = [event.epoch for event in events if isinstance(event, WasReset)]
            empty = UserState(Learned(epoch=max(epochs, default=0)))
            for position, event in enumerate(events, start=1):
                if not isinstance(event, WasReset):
                    place = (event.user, event.policy)
                    states[place] = apply_event(states.get(place, empty), event, position)
        return {place: state.learned for place, state in states.items()}

    def read_log(self, user: str) -> list[Decided | Rewarded | WasReset]:
        """What happened to a user."""
        return self._read_log(_key(user, "log").encode())

    def check(self) -> None:
        """Looks whether Redis answers."""
        _ask(self._redis.ping)

    def close(self) -> None:
        """Ends the connections."""
        self._redis.close()

    def _read_log(self, key: bytes) -> list[Decided | Rewarded | WasReset]:
        lines = _ask(lambda: self._redis.lrange(key, 0, -1))
        return [event_adapter.validate_json(line) for line in lines]

    def _look_at_durability(self) -> list[str]:
        try:
            config = _ask(lambda: self._redis.config_get("append*"))
        except ResponseError:
            return ["Redis does not tell its appendfsync: what it acknowledges may not be on disk"]
        if (config.get("appendonly"), config.get("appendfsync")) == ("yes", "always"):
            return []
        return ["Redis runs without appendonly yes, appendfsync always: a crash of Redis may lose rewards"]


def _key(user: str, *parts: str) -> str:
    # Braces within the name would move the hash tag.
    tag = user.replace("%", "%25").replace("{", "%7B").replace("}", "%7D")
    return ":".join([f"{PREFIX}:{{{tag}}}", *parts])


def _unpack_model(packed: bytes) -> KindModel:
    numbers = np.frombuffer(packed, dtype="<f8").astype(np.float64)
    count, total, sums = int(numbers[0]), float(numbers[1]), numbers[2:]
    # n² + n sums belong to n features.
    dimension = int(np.sqrt(len(sums)))
    gram = sums[: dimension * dimension].reshape(dimension, dimension)
    return KindModel(gram, sums[dimension * dimension :], count, total)


def _ask(call: Callable[[], Result]) -> Result:
    """The answer of Redis; its silence is ours."""
    try:
        return call()
    except (ConnectionError, TimeoutError, ReadOnlyError, OutOfMemoryError) as error:
        raise StoreUnavailable(
            f"Redis took nothing: {error}", hint="Is it running, and is its address right?"
        ) from error
