"""Shadows score along, and nobody notices."""

from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from tests.conftest import Cli
from tests.serving.serving_app import ASK, STAMPS, TIPS, open_client
from tipbench.policies.events import Situation
from tipbench.policies.policy import list_policies
from tipbench.policies.serving.service import PolicyQuestion, Shadows
from tipbench.policies.serving.signals import Signal, SignalLog, count_shadows, read_signals
from tipbench.policies.states import Learned
from tipbench.policies.stores.store import MemoryStore

DAY_MS = 86_400_000
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
        shadows.offer(PolicyQuestion(user, "egreedy-v1", f"0-{number}", STAMPS.now_ms(), SITUATION))
    # Every offer has returned, and no shadow has been answered yet.
    store.go_on.set()
    shadows.close()
    assert (shadows.failed, shadows.scored + shadows.dropped) == (1, 999)
    assert shadows.dropped >= 988
    signals.close()
    (told,) = count_shadows(read_signals(tmp_path))
    assert (told.served, told.dropped, told.failed) == (shadows.scored, shadows.dropped, 1)
    assert (told.beside, told.agreement) == ("", None), "nobody wrote down what was answered"


def test_nobody_is_a_shadow_of_itself(tmp_path: Path) -> None:
    with open_client(tmp_path, shadows=["egreedy-v2-shadow"]) as client:
        asked = client.post("/score/egreedy/v2", json=ASK).json()["decision"]
        beside = client.post("/score/egreedy/v1", json=ASK).json()["decision"]
    shadows = [signal.decision for signal in read_signals(tmp_path / "signals") if signal.kind == "shadow"]
    assert (asked in shadows, shadows) == (False, [beside])


def test_the_command_tells_what_became_of_the_shadows_day_by_day(cli: Cli) -> None:
    policies = cli.home / "policies"
    with open_client(policies, shadows=["egreedy-v2-shadow"]) as client:
        # egreedy-v2 learns of its own requests that the first tip is liked, egreedy-v1 that the second is.
        for path, liked in (("egreedy/v2", "t1"), ("egreedy/v1", "t2")):
            for number in range(30):
                user = f"u{number % 3}"
                got = client.post(f"/score/{path}", json=ASK | {"user": user}).json()
                reward = {"user": user, "decision": got["decision"], "reward": int(got["tip"] == liked)}
                client.post(f"/reward/{path}", json=reward)
        for _ in range(5):
            client.post("/score/random/v1", json=ASK | {"user": "new"})
    signals = list(read_signals(policies / "signals"))
    choice = {(each.kind, each.decision): each.tip for each in signals}
    same = [
        tip == choice["serve", decision]
        for (kind, decision), tip in choice.items()
        if kind == "shadow"
        and f"serve:{'egreedy-v1'}" in {s.signal for s in signals if s.decision == decision}
    ]
    told = cli.ok("policies", "shadows", "--json").json()
    v1, random = sorted(told, key=lambda day: day["beside"])
    assert (v1["beside"], v1["served"], v1["compared"], v1["agreed"]) == ("egreedy-v1", 30, 30, sum(same))
    assert (v1["agreement"], v1["untaught"]) == (sum(same) / 30, 0)
    assert (random["beside"], random["served"], random["untaught"]) == ("random", 5, 5)
    assert v1["day"] == datetime.fromtimestamp(signals[0].at_ms / 1000, tz=UTC).date().isoformat()
    shown = cli.ok("policies", "shadows").out
    assert f"{sum(same) / 30:.0%} of 30" in shown
    assert "untaught: " in shown


def test_the_logs_of_several_servers_are_read_together(cli: Cli, tmp_path: Path) -> None:
    places = [cli.home / "here", tmp_path / "there"]
    for number, place in enumerate(places, start=1):
        log = SignalLog(place, begun_ms=1)
        for kind, signal in (("serve", "serve:egreedy-v1"), ("shadow", "shadow:egreedy-v2-shadow")):
            log.write(
                Signal.model_validate(
                    {
                        "at_ms": number * DAY_MS,
                        "kind": kind,
                        "signal": signal,
                        "user": "u",
                        "policy": "egreedy-v1",
                    }
                    | {"decision": f"0-{number}", "tip": "t1"}
                )
            )
        log.close()
    here, there = map(str, places)
    told = cli.ok("policies", "shadows", "--signals", here, "--signals", there, "--json").json()
    assert [(day["day"], day["served"], day["agreed"]) for day in told] == [
        ("1970-01-02", 1, 1),
        ("1970-01-03", 1, 1),
    ]
    assert cli.ok("policies", "shadows", "--json").json() == []
    (cli.home / "other").mkdir()
    nothing = cli.ok("policies", "shadows", "--home", str(cli.home / "other")).out
    assert "Switch one on: tipbench policies serve --shadows egreedy-v2-shadow" in nothing
