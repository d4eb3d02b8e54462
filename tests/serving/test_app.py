"""Score, reward, stats, recommend and reset over HTTP."""

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from tests.policies.stores import no_file_above
from tests.serving.serving_app import ASK, POLICY_PATHS, PROFILE, TIPS, open_client
from tests.support.rights import open_to_others
from tipbench.errors import TipbenchError
from tipbench.policies.events import ProfileFeatures
from tipbench.policies.serving.app import read_token
from tipbench.policies.serving.signals import read_signals
from tipbench.policies.serving.tips import ActiveFile, ActivePolicy, StoredTip, read_tips, write_tips

CHAMPIONS = (
    StoredTip(id="c1", text="Sign the school form before breakfast.", kind="morning", quality=0.9),
    StoredTip(id="c2", text="Pay the electricity bill now.", kind="evening", quality=0.4),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("policies")


@pytest.fixture(scope="module")
def client(folder: Path) -> Iterator[TestClient]:
    with open_client(folder, tips=CHAMPIONS) as opened:
        yield opened


def log_bytes(folder: Path) -> bytes:
    return b"".join(path.read_bytes() for path in sorted((folder / "state").glob("log-*.jsonl")))


@pytest.mark.parametrize("path", POLICY_PATHS)
def test_every_policy_scores_learns_and_tells(client: TestClient, path: str) -> None:
    user = f"learner {path}"
    scored = client.post(f"/score/{path}", json=ASK | {"user": user, "profile_features": PROFILE}).json()
    assert scored["tip"] in {"t1", "t2"}
    assert 0 < scored["propensity"] <= 1
    assert scored["reward_at"] == f"/reward/{path}"
    reward = {"user": user, "decision": scored["decision"], "reward": 0.5, "profile_features": PROFILE}
    answers = [client.post(f"/reward/{path}", json=reward).json() for _ in range(2)]
    assert [answer["repeated"] for answer in answers] == [False, True]
    stats = client.get(f"/stats/{path}", params={"user": user}).json()
    assert (stats["decisions"], stats["rewards"], stats["mean_reward"]) == (1, 1, 0.5)
    learned = stats["kinds"][scored["kind"]]
    features = {"egreedy/v1": 7, "egreedy/v2": 12, "linucb/v1": 7, "random/v1": 0}
    assert len(learned["weights"]) == features[path]


@pytest.mark.parametrize("path", POLICY_PATHS)
def test_a_profile_of_null_is_one_of_which_nothing_is_known(
    client: TestClient, folder: Path, path: str
) -> None:
    user = f"unknown {path}"
    asked = client.post(f"/score/{path}", json=ASK | {"user": user, "profile_features": None})
    assert asked.status_code == 200, asked.text
    reward = {"user": user, "decision": asked.json()["decision"], "reward": 1, "profile_features": None}
    assert client.post(f"/reward/{path}", json=reward).status_code == 200
    assert client.post("/recommend", json=ASK | {"profile_features": None}).status_code == 200
    (served,) = [s for s in read_signals(folder / "signals") if s.user == user and s.kind == "serve"]
    assert served.situation is not None
    assert served.situation.profile_features == ProfileFeatures()


@pytest.mark.parametrize("family", ["egreedy", "linucb", "random"])
def test_a_family_without_a_version_is_its_first_one(client: TestClient, family: str) -> None:
    user = f"brief {family}"
    scored = client.post(f"/score/{family}", json=ASK | {"user": user}).json()
    assert scored["reward_at"] == f"/reward/{family}/v1"
    reward = {"user": user, "decision": scored["decision"], "reward": 1}
    assert client.post(f"/reward/{family}", json=reward).json()["policy"] == scored["policy"]
    stats = [client.get(f"/stats/{path}", params={"user": user}).json() for path in (family, f"{family}/v1")]
    assert (stats[0], stats[0]["rewards"]) == (stats[1], 1)
    assert client.post("/score/nobody", json=ASK).status_code == 404


def test_a_reset_clears_every_policy_and_late_rewards_are_told_so(client: TestClient) -> None:
    decisions = {
        path: client.post(f"/score/{path}", json=ASK | {"user": "bob"}).json()["decision"]
        for path in POLICY_PATHS
    }
    assert client.post("/reset", json={"user": "bob"}).json() == {"user": "bob", "epoch": 1}
    for path, decision in decisions.items():
        answer = client.post(f"/reward/{path}", json={"user": "bob", "decision": decision, "reward": 1})
        assert answer.status_code == 410
        assert "was reset" in answer.json()["error"]
        assert client.get(f"/stats/{path}", params={"user": "bob"}).json()["decisions"] == 0


def test_recommend_takes_the_tips_of_the_request(client: TestClient) -> None:
    answer = client.post("/recommend", json=ASK).json()
    assert (answer["policy"], answer["tip"] in {"t1", "t2"}, answer["text"]) == ("egreedy-v1", True, "")


def test_recommend_offers_the_champions_tips_and_their_reward_is_learned(client: TestClient) -> None:
    asked: dict[str, Any] = {"user": "cara", "hour": 7, "weekend": True}
    asked["tasks"] = [{"text": "sign the school trip form", "urgency": 0.9}]
    answer = client.post("/recommend", json=asked).json()
    assert answer["text"] == {tip.id: tip.text for tip in CHAMPIONS}[answer["tip"]]
    reward = {"user": "cara", "decision": answer["decision"], "reward": 1}
    assert client.post(answer["reward_at"], json=reward).json()["repeated"] is False


def test_a_promoted_policy_answers_the_next_recommendation(tmp_path: Path) -> None:
    with open_client(tmp_path) as client:
        assert client.post("/recommend", json=ASK).json()["policy"] == "egreedy-v1"
        active = ActivePolicy(policy="egreedy-v2", since_ms=1, evidence="run")
        ActiveFile(tmp_path, default="egreedy-v1").write(active)
        assert client.post("/recommend", json=ASK).json()["policy"] == "egreedy-v2"
        without = {"user": "ann", "hour": 1, "weekend": True}
        refused = client.post("/recommend", json=without)
        assert (refused.status_code, "--tips" in refused.json()["hint"]) == (422, True)


def test_the_recency_of_a_kind_is_known_to_the_server(client: TestClient, folder: Path) -> None:
    for _ in range(3):
        client.post("/score/egreedy/v1", json=ASK | {"user": "dora", "tips": TIPS[:1]})
    shown = [
        signal.situation.tips[0].hours_since_kind
        for signal in read_signals(folder / "signals")
        if signal.user == "dora" and signal.situation
    ]
    assert shown[0] is None
    assert all(hours is not None and 0 <= hours < 0.1 for hours in shown[1:])


@pytest.mark.parametrize("path", ["/score/egreedy/v1", "/reward/egreedy/v1", "/recommend", "/reset"])
@pytest.mark.parametrize(
    "token",
    ["", "Bearer", "Bearer wrong", "Basic a-token-for-tests", "Bearer A-Token-For-Tests", "Bearer é"],
)
def test_without_the_token_nothing_is_answered(client: TestClient, path: str, token: str) -> None:
    answer = client.post(path, json=ASK, headers={b"Authorization": token.encode()})
    assert (answer.status_code, answer.json()["error"]) == (401, "no valid token")


def test_health_needs_no_token_and_metrics_do(client: TestClient) -> None:
    assert client.get("/health", headers={"Authorization": ""}).json() == {"status": "ok", "problems": 0}
    assert client.get("/metrics", headers={"Authorization": ""}).status_code == 401
    text = client.get("/metrics").text
    assert 'tipbench_policy_requests_total{route="/health",status="200"} 1.0' in text
    assert "tipbench_policy_seconds_bucket" in text
    assert "tipbench_policy_shadow_dropped 0.0" in text


def test_what_can_be_asked_is_told_to_those_with_the_token(client: TestClient) -> None:
    assert client.get("/openapi.json", headers={"Authorization": ""}).status_code == 401
    assert "/score/{family}/{version}" in client.get("/openapi.json").json()["paths"]


def test_no_get_changes_what_is_stored(tmp_path: Path) -> None:
    def dump() -> dict[str, bytes]:
        return {str(path): path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}

    with open_client(tmp_path) as client:
        client.post("/score/egreedy/v1", json=ASK)
        before = dump()
        described = client.get("/openapi.json").json()["paths"]
        readers = [path for path, methods in described.items() if "get" in methods]
        assert {"/health", "/metrics", "/stats/{family}/{version}"} <= set(readers)
        for path in readers:
            place = path.replace("{family}", "egreedy").replace("{version}", "v1")
            for user in ("ann", "a stranger"):
                assert client.get(place, params={"user": user}).status_code == 200, path
        assert dump() == before


def changed(**changes: object) -> bytes:
    return json.dumps(ASK | changes).encode()


BAD_SCORES: dict[str, tuple[bytes, int]] = {
    "not json": (b"{", 422),
    "nothing": (b"", 422),
    "a list": (b"[]", 422),
    "nan": (changed(hour=0.0).replace(b"0.0", b"NaN", 1), 422),
    "infinite": (changed(hour=0.0).replace(b"0.0", b"1e999", 1), 422),
    "hour 24": (changed(hour=24), 422),
    "weekend as word": (changed(weekend="no"), 422),
    "no tips": (changed(tips=[]), 422),
    "the same tip twice": (changed(tips=[TIPS[0], TIPS[0]]), 422),
    "51 tips": (changed(tips=[TIPS[0] | {"id": f"t{n}"} for n in range(51)]), 422),
    "wrong dimension": (changed(x=[1.0, 2.0]), 422),
    "profile beyond its scale": (changed(profile_features={"completion_rate": 1.5}), 422),
    "unknown profile feature": (changed(profile_features={"age": 3}), 422),
    "user empty": (changed(user=""), 422),
    "user too long": (changed(user="x" * 129), 422),
    "user with a NUL": (changed(user="a\0b"), 422),
    "user with half a character": (b'{"user":"\\ud800","hour":1,"weekend":false,"tips":[]}', 422),
    "deep": (b"[" * 100_000, 422),
    "huge": (changed(user="x" * 300_000), 413),
}


@pytest.mark.parametrize("name", BAD_SCORES)
def test_bad_requests_are_refused_clearly_and_leave_nothing_behind(
    client: TestClient, folder: Path, name: str
) -> None:
    body, status = BAD_SCORES[name]
    before = log_bytes(folder)
    for path in ("/score/egreedy/v2", "/recommend"):
        if name in {"wrong dimension", "no tips"} and path == "/recommend":
            continue
        answer = client.post(path, content=body, headers={"Content-Type": "application/json"})
        assert answer.status_code in {status, 400}, answer.text
        assert set(answer.json()) == {"error", "hint"}
        assert answer.json()["error"]
    assert log_bytes(folder) == before


def test_a_huge_body_without_a_length_is_refused_too(client: TestClient) -> None:
    answer = client.post("/score/egreedy/v1", content=(b"x" * 10_000 for _ in range(100)))
    assert answer.status_code == 413


@pytest.mark.parametrize("path", ["egreedy/v9", "EGREEDY/v1", "..%2fegreedy/v1", "egreedy/v1%00"])
def test_unknown_policies_are_named(client: TestClient, folder: Path, path: str) -> None:
    before = log_bytes(folder)
    for verb in ("score", "reward"):
        body = ASK if verb == "score" else {"user": "ann", "decision": "0-a", "reward": 1}
        assert client.post(f"/{verb}/{path}", json=body).status_code == 404
    assert client.get(f"/stats/{path}", params={"user": "ann"}).status_code == 404
    assert log_bytes(folder) == before


def test_rewards_for_the_decisions_of_others_are_refused(client: TestClient, folder: Path) -> None:
    decision = client.post("/score/egreedy/v1", json=ASK | {"user": "eve"}).json()["decision"]
    before = log_bytes(folder)

    def reward(path: str = "egreedy/v1", **changes: object) -> int:
        body = {"user": "eve", "decision": decision, "reward": 1} | changes
        return client.post(f"/reward/{path}", json=body).status_code

    others = [reward(user="Eve"), reward(user="ann"), reward(user="eve "), reward("egreedy/v2")]
    assert others == [404] * 4
    made_up = [reward(decision=name) for name in ("0-made", "made up", f"1{decision}", f"{decision}:reward")]
    assert made_up == [404] * 4
    assert [reward(reward=value) for value in (2, -1.5, "1", None, True)] == [422] * 5
    assert log_bytes(folder) == before
    assert (reward(), reward(), reward(reward=0)) == (200, 200, 409)


def test_more_kinds_than_a_state_keeps_are_refused(client: TestClient) -> None:
    def ask(first: int) -> int:
        tips = [{"id": f"t{n}", "kind": f"kind {n}"} for n in range(first, first + 50)]
        return client.post("/score/random/v1", json=ASK | {"user": "many", "tips": tips}).status_code

    assert {ask(0) for _ in range(40)} == {200}
    assert ask(50) == 422
    assert ask(0) == 200


def test_a_store_that_takes_nothing_is_no_server_error_without_words(tmp_path: Path) -> None:
    with open_client(tmp_path) as client:
        client.post("/score/egreedy/v1", json=ASK)
        with no_file_above(len(log_bytes(tmp_path)) + 50):
            answer = client.post("/score/egreedy/v1", json=ASK)
        assert (answer.status_code, "cannot be written" in answer.json()["error"]) == (503, True)
        assert client.get("/health").status_code == 503


def test_files_of_tips_are_checked_line_by_line(tmp_path: Path) -> None:
    from tipbench.errors import UsageError

    path = tmp_path / "tips.jsonl"
    write_tips(path, CHAMPIONS)
    assert read_tips(path) == CHAMPIONS
    path.write_text(path.read_text() + '{"id": "c3", "text": "x", "kind": "y", "quality": 2}\n')
    with pytest.raises(UsageError, match="line 3: quality"):
        read_tips(path)
    write_tips(path, [CHAMPIONS[0], CHAMPIONS[0]])
    with pytest.raises(UsageError, match="line 2: a second tip 'c1'"):
        read_tips(path)


def test_a_token_is_made_once_and_whole_or_not_at_all(tmp_path: Path) -> None:
    with no_file_above(10), pytest.raises(OSError, match="File too large"):
        read_token(tmp_path)
    assert not (tmp_path / "token").exists()
    with ThreadPoolExecutor(8) as pool:
        tokens = set(pool.map(read_token, [tmp_path] * 8))
    assert tokens == {(tmp_path / "token").read_text().strip()}
    assert open_to_others(tmp_path) == []


@pytest.mark.parametrize("text", ["", "\n", "short", "with a blank, long enough", "größer als sechzehn"])
def test_a_file_that_holds_no_token_is_named(tmp_path: Path, text: str) -> None:
    (tmp_path / "token").write_text(text, encoding="utf-8")
    with pytest.raises(TipbenchError, match="holds no token") as caught:
        read_token(tmp_path)
    assert "Remove the file" in caught.value.hint
