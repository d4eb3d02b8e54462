"""The signal log: rotating, whole lines, readable by others."""

from pathlib import Path
from typing import Any

import duckdb
import pandas  # pyright: ignore[reportMissingTypeStubs]
import pytest

from tests.policies.stores import no_file_above
from tests.serving.serving_app import ASK, PROFILE, open_client
from tipbench.policies.serving.signals import Signal, SignalLog, read_signals

DUCKDB_QUERY = """
    select serve.policy, count(*) as serves, avg(reward.reward) as mean, sum(1 / serve.propensity) as weights
    from read_json('{files}', format = 'nd', ignore_errors = true, sample_size = -1) as serve
    join read_json('{files}', format = 'nd', ignore_errors = true, sample_size = -1) as reward
      on reward.decision = serve.decision and reward.kind = 'reward'
    where serve.kind = 'serve'
    group by serve.policy
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Ten rewarded decisions, and a line that a crash tore."""
    folder = tmp_path_factory.mktemp("signals")
    with open_client(folder) as client:
        for number in range(10):
            asked = ASK | {"user": f"u{number}"} | ({"profile_features": PROFILE} if number % 2 else {})
            scored = client.post("/score/random/v1", json=asked).json()
            reward = {"user": f"u{number}", "decision": scored["decision"], "reward": number / 10}
            client.post("/reward/random/v1", json=reward)
    with max((folder / "signals").glob("*.jsonl")).open("a") as file:
        file.write('{"tipbench_schema": 1, "at_ms": 12')
    return folder / "signals"


def test_duckdb_reads_it(folder: Path) -> None:
    rows = duckdb.connect().execute(DUCKDB_QUERY.format(files=folder / "*.jsonl")).fetchall()
    assert [(row[0], row[1], round(row[2], 6), row[3]) for row in rows] == [("random", 10, 0.45, 20.0)]


def test_pandas_reads_its_whole_lines(folder: Path) -> None:
    text = max(folder.glob("*.jsonl")).read_text()
    path = folder / "whole.json"
    path.write_text(text[: text.rindex("\n") + 1])
    frame: Any = pandas.read_json(path, lines=True)
    assert frame["kind"].value_counts().to_dict() == {"serve": 10, "reward": 10}
    path.unlink()


def test_we_read_it_in_order_and_pass_a_torn_line_over(folder: Path) -> None:
    signals = list(read_signals(folder))
    assert [signal.kind for signal in signals] == ["serve", "reward"] * 10
    assert signals[0].situation is not None
    assert [tip.id for tip in signals[0].situation.tips] == ["t1", "t2"]


def make_signal(number: int) -> Signal:
    return Signal(
        at_ms=number, kind="reward", signal="reward:random", user="u", policy="random", decision=f"0-{number}"
    )


def test_a_full_file_is_followed_by_another(tmp_path: Path) -> None:
    log = SignalLog(tmp_path, begun_ms=1, rotate_bytes=2_000)
    for number in range(50):
        log.write(make_signal(number))
    log.close()
    later = SignalLog(tmp_path, begun_ms=10)
    later.write(make_signal(50))
    later.close()
    sizes = [path.stat().st_size for path in tmp_path.glob("*.jsonl")]
    assert len(sizes) > 4
    assert max(sizes) <= 2_000
    assert [signal.at_ms for signal in read_signals(tmp_path)] == list(range(51))


def test_on_a_full_disk_signals_are_lost_and_counted_and_lines_stay_whole(tmp_path: Path) -> None:
    log = SignalLog(tmp_path, begun_ms=1)
    log.write(make_signal(1))
    with no_file_above(max(tmp_path.glob("*.jsonl")).stat().st_size + 50):
        log.write(make_signal(2))
    log.write(make_signal(3))
    log.close()
    assert (log.lost, [signal.at_ms for signal in read_signals(tmp_path)]) == (1, [1, 3])


def test_a_reward_that_another_process_logged_comes_after_its_serve(tmp_path: Path) -> None:
    for begun, number in ((2, 5), (1, 7)):
        log = SignalLog(tmp_path, begun_ms=begun)
        log.write(make_signal(number))
        log.write(make_signal(number + 10))
        log.close()
    assert [signal.at_ms for signal in read_signals(tmp_path)] == [5, 7, 15, 17]
