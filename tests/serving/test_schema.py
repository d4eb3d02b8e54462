"""schemathesis over the policies API: whatever is sent, over whatever log, nothing breaks."""

import os
from pathlib import Path

import pytest

from tests.serving.serving_app import ASK, POLICY_PATHS, STAMPS, TOKEN, open_client
from tests.support.schemas import Attack, describe, serve
from tipbench.policies.serving.app import ServingOptions, create_app, open_serving

EACH = int(os.environ.get("TIPBENCH_TEST_SCHEMA_EACH", "40"))
"""Requests made up for each operation."""
GARBLED = ("", "[true]", "\u202e\U0001f600", "9" * 5_000)


def fill_log(folder: Path, *, garbled: bool) -> None:
    """Some decisions and rewards; of the garbled log every third line is cut or another text."""
    with open_client(folder) as client:
        for number in range(24):
            path = POLICY_PATHS[number % len(POLICY_PATHS)]
            scored = client.post(f"/score/{path}", json=ASK).json()
            reward = {"user": "ann", "decision": scored["decision"], "reward": 0.5}
            assert client.post(f"/reward/{path}", json=reward).status_code == 200
    if garbled:
        for log in (folder / "state").glob("log-*.jsonl"):
            lines = log.read_text(encoding="utf-8").splitlines()
            for at in range(1, len(lines), 3):
                lines[at] = (*GARBLED, lines[at][: len(lines[at]) // 2])[at // 3 % (len(GARBLED) + 1)]
            log.write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
@pytest.mark.parametrize("garbled", [False, True], ids=["healthy", "garbled"])
def test_nothing_that_is_sent_breaks_the_policies_api(tmp_path: Path, garbled: bool) -> None:
    fill_log(tmp_path, garbled=garbled)
    options = ServingOptions(store="files", token=TOKEN, active="egreedy-v1")
    serving = open_serving(tmp_path, options, stamps=STAMPS)
    assert (len(serving.service.store.problems) > 0) == garbled
    app = create_app(serving)
    described, known = describe(app, tmp_path / "openapi.json"), tmp_path / "known.toml"
    # Policies that are there; made-up ones never are.
    known.write_text('[parameters]\n"path.family" = "egreedy"\n"path.version" = "v1"\n')
    whoever = [(TOKEN, known), (TOKEN, None), ("", None)]
    with serve(app) as url:
        cases = sum(Attack(url, described, EACH, token, names).run() for token, names in whoever)
    print(f"{cases} cases")
    assert cases >= 500
