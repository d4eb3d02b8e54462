"""schemathesis over the API: whatever is sent, nothing breaks and every answer is documented."""

import json
import os
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from random import Random

import pytest

from tests.admin.conftest import PASSWORD
from tests.promotion.campaign import Campaign
from tests.support.copying import ServerData
from tests.support.garbling import GARBLINGS, GarbledStore, fill_store, garble
from tests.support.schemas import Attack, describe, serve
from tipbench.admin.app import make_app
from tipbench.admin.deps import make_parts
from tipbench.clock import make_stamps
from tipbench.settings import Settings
from tipbench.tracking import open_tracking

EACH = int(os.environ.get("TIPBENCH_TEST_SCHEMA_EACH", "15"))
"""Requests made up for each operation and role."""
ROUTES = ("--include-path-regex", "^/api", "--exclude-path-regex", "stream")


def attack_panel(folder: Path, mlflow_url: str, experiment: str) -> int:
    """As every role; jobs are queued and never run."""
    parts = make_parts(Settings(home=folder / "home", mlflow_url=mlflow_url), make_stamps())
    app = make_app(parts, dispatch=False)
    # Names are made up, and none is there; the admin's are, so that there is something to break.
    known = folder / "known.toml"
    known.write_text(f'[parameters]\n"path.experiment" = {json.dumps(experiment)}\n')
    described, cases = describe(app, folder / "openapi.json"), 0
    with serve(app) as url:
        for role in ("admin", "judge", "viewer", "nobody"):
            secret = ""
            if role != "nobody":
                parts.accounts.create(f"the-{role}", role, PASSWORD, by="test")
                _, secret = parts.credentials.make_token(f"the-{role}", label="", days=1, by="test")
            attack = Attack(url, described, EACH, secret, known if role == "admin" else None)
            cases += attack.run(only=ROUTES)
            print(f"{cases} cases after {role}")
    return cases


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_nothing_that_is_sent_breaks_the_api(mlflow_url: str, tmp_path: Path, judged: str) -> None:
    assert attack_panel(tmp_path, mlflow_url, judged) >= 2_000


@contextmanager
def garble_each_kind(store: GarbledStore, rng: Random) -> Generator[int]:
    """One value of every kind of run is garbled; gives how many."""
    with ExitStack() as stack:
        kinds = {
            value.of: [each for each in store.values() if each.of == value.of] for value in store.values()
        }
        for values in kinds.values():
            value = rng.choice(values)
            ways = [garble(value, how) for how in GARBLINGS]
            _, text = rng.choice([way for way in ways if way[0]])
            stack.enter_context(store.garbled(value, text))
        yield len(kinds)


@pytest.mark.slow
@pytest.mark.timeout(6 * 3600)
def test_nothing_that_is_sent_breaks_the_api_over_a_garbled_store(
    mlflow_url: str, server_data: ServerData, tmp_path: Path
) -> None:
    with open_tracking(Settings(home=tmp_path / "made", mlflow_url=mlflow_url)) as tracking:
        campaign = Campaign(tracking, tmp_path, {"old": 8.5, "good": 13.0, "poor": 4.0})
        fill_store(campaign, tmp_path)
        store = GarbledStore(server_data, campaign).read()
        with garble_each_kind(store, Random(18)) as kinds:
            assert kinds >= 15
            assert attack_panel(tmp_path, mlflow_url, campaign.experiment) >= 2_000
