"""Shadows score along, and nobody notices."""

from pathlib import Path
from threading import Event

from tests.serving.serving_app import ASK, STAMPS, TIPS, open_client
from tipbench.policies.events import Situation
from tipbench.policies.policy import list_policies
from tipbench.policies.serving.service import PolicyQuestion, Shadows
from tipbench.policies.serving.signals import SignalLog, read_signals
from tipbench.policies.states import Learned
from tipbench.policies.stores.store import MemoryStore

SITUATION = Situation.model_validate({"hour": 1.0, "weekend": True, "tips": TIPS})


def test_a_shadow_leaves_signals_and_no_state(tmp_path: Path) -> None:
    with open_client(tmp_path, shadows=["egreedy-v2-shadow"]) as client:
        scored = [client.post("/score/egreedy/v1", json=ASK).json() for _ in range(5)]
        for each in scored:
            client.post(each["reward_at"], json={"user": "ann", "decision": each["decision"], "reward": 1})
        shadow = {"user": "ann", "decision": scored[0]["decision"], "reward": 1}
        assert client.post("/reward/egreedy/v2", json=shadow).status_code == 404
        stats = client.get("/stats/egreedy/v2", params={"user": "ann"}).json()
        assert (stats["decisions"], stats["rewards"]) == (0, 0)
    signals = list(read_signals(tmp_path / "signals"))
    shadows = [signal for signal in signals if signal.signal == "shadow:egreedy-v2-shadow"]
    assert [signal.decision for signal in shadows] == [each["decision"] for each in scored]
    assert all(signal.propensity and signal.reward is None for signal in shadows)
    assert sum(signal.kind == "reward" for signal in signals) == 5


def test_shadows_are_off_by_default(tmp_path: Path) -> None:
    with open_client(tmp_path) as client:
        client.post("/score/egreedy/v1", json=ASK)
    assert [signal.kind for signal in read_signals(tmp_path / "signals")] == ["serve"]


class SlowStore(MemoryStore):
    """Reads nothing until it is let."""

    def __init__(self) -> None:
        super().__init__()
        self.go_on = Event()

    def read(self, user: str, policy: str) -> Learned:
        self.go_on.wait()
        if user == "broken":
            raise OSError("no such luck")
        return super().read(user, policy)


def test_a_slow_or_failing_shadow_drops_and_counts_and_goes_on(tmp_path: Path) -> None:
    store, signals = SlowStore(), SignalLog(tmp_path, begun_ms=1)
    policies = {"egreedy-v2-shadow": list_policies()["egreedy-v2"]}
    shadows = Shadows(policies, store=store, signals=signals, seed=0, room=10)
    for number in range(1_000):
        user = "broken" if number == 0 else "ann"
        shadows.offer(PolicyQuestion(user, f"0-{number}", STAMPS.now_ms(), SITUATION))
    # Every offer has returned, and no shadow has been answered yet.
    store.go_on.set()
    shadows.close()
    assert (shadows.failed, shadows.scored + shadows.dropped) == (1, 999)
    assert shadows.dropped >= 988
