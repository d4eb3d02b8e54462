"""No GET changes anything: every route of the application, with all that is stored before and after."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import quote

import httpx2
import pytest
from fastapi import APIRouter, FastAPI
from fastapi.routing import APIRoute

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import collect_builtin, pack_name_of
from tests.support.copying import ServerData
from tipbench.bench.bench import Bench
from tipbench.bench.champions import ALIAS, entry_name
from tipbench.bench.sittings import EXPIRES_TAG
from tipbench.jobs.records import FILE_NAME, Database
from tipbench.judging.request import SittingRequest

KINDS = ("", "&by=model", "&tier=auto", "&by=prompt&tier=auto")
PRACTICE = "/practice/{experiment:name}"
BUILT_IN = {"/api/bench/packs/{pack}": "tip", "/api/bench/prompts": "tip"}
"""Packs of this server; the experiment's own is none of them."""
BOARDS = {"/e/{experiment:name}": KINDS, "/api/bench/leaderboard/{experiment:name}": KINDS}
UNWATCHED = ("sessions", "audit", "looks", "sqlite_sequence")
"""Tables of the panel's own that tell who looked, and when."""


@contextmanager
def kept(data: ServerData, home: Path) -> Generator[None]:
    """What MLflow, its registry, its artifacts and the panel's database hold is the same afterwards."""
    before = dump(data, home)
    yield
    after = dump(data, home)
    assert sorted(after - before) == []
    assert sorted(before - after) == []


def dump(data: ServerData, home: Path) -> set[str]:
    with data.database() as database:
        lines = set(database.iterdump())
    with Database(home / FILE_NAME, "").read() as view:
        watched = [
            line
            for line in view.iterdump()
            if not line.startswith(tuple(f'INSERT INTO "{name}"' for name in UNWATCHED))
        ]
    files = (path for path in data.artifacts.rglob("*") if path.is_file())
    return (
        lines | set(watched) | {f"{path} {path.stat().st_mtime_ns} {path.stat().st_size}" for path in files}
    )


def get_routes(site: Site) -> list[APIRoute]:
    app = site.client.app
    assert isinstance(app, FastAPI)
    routers = [getattr(each, "original_router", None) for each in app.routes]
    routes = [
        *app.routes,
        *(route for each in routers if isinstance(each, APIRouter) for route in each.routes),
    ]
    return [route for route in routes if isinstance(route, APIRoute) and "GET" in (route.methods or ())]


def address_of(route: APIRoute, values: dict[str, str]) -> str:
    """Where the route leads to something that is there; a parameter that is new has to get its value here."""
    own = values.get(route.path)
    place = re.sub(r"\{(\w+)(:\w+)?\}", lambda found: quote(own or values[found[1]], safe=""), route.path)
    names = [each.alias for each in route.dependant.query_params]
    asked = {name: own or values[name] for name in names if name in values}
    return f"{place}?{httpx2.QueryParams(asked)}"


@pytest.fixture
def values(fresh_site: Site, judged: str, mlflow_url: str) -> dict[str, str]:
    """An experiment with much that a reader could want to put right: the alias of its champion is gone, a
    sitting has run out; and a judge in the middle of another one."""
    site, name, pack = fresh_site, quote(judged, safe=""), pack_name_of(judged)
    admin, mlflow = site.as_("admin"), site.parts.mlflow.open()
    mlflow.judging.open_sitting(SittingRequest("kim", blocks=1), experiment=judged)
    mine = site.client.post(f"/api/bench/judging/open/{name}", json={"next": 1}, headers=site.as_("judge"))
    (cell, *_) = site.client.get(f"/api/bench/runs/{name}", headers=admin).json()["cells"]
    first = {"how": "initial", "arm": cell["arm"], "reason": "the first one"}
    assert site.client.post(f"/api/bench/promote/{name}", json=first, headers=admin).status_code == 200
    tell(mlflow_url, "DELETE", "registered-models/alias", {"name": entry_name(pack), "alias": ALIAS})
    bench = mlflow.find(judged)
    assert isinstance(bench, Bench)
    (old,) = [each.run.run_id for each in bench.evidence.sittings if each.judged_by == "kim"]
    tell(mlflow_url, "POST", "runs/set-tag", {"run_id": old, "key": EXPIRES_TAG, "value": "1"})
    # Practice wants anchors to spare, which only the built-in pack has.
    collect_builtin(mlflow.tracking, f"{judged}-to-practise")
    mlflow.judging.practise("the-judge", experiment=f"{judged}-to-practise")
    job = site.client.post("/api/bench/simulate", json={}, headers=admin).json()["id"]
    site.parts.jobs.cancel(job)
    return {
        "experiment": judged,
        PRACTICE: f"{judged}-to-practise",
        "run": cell["run"],
        "pack": pack,
        **BUILT_IN,
        "sitting": mine.json()["sitting"],
        "job": job,
    }


def tell(mlflow_url: str, method: str, place: str, body: dict[str, str]) -> None:
    url = f"{mlflow_url}/api/2.0/mlflow/{place}"
    httpx2.request(method, url, json=body, timeout=60).raise_for_status()


def test_no_get_changes_what_is_stored(
    fresh_site: Site, values: dict[str, str], server_data: ServerData
) -> None:
    site, statuses = fresh_site, dict[str, set[int]]()
    routes = get_routes(site)
    assert len(routes) >= 30
    for role in ("admin", "judge", "viewer"):
        site.client.cookies.clear()
        site.client.post("/sign-in", data={"name": f"the-{role}", "password": PASSWORD}, headers=HERE)
        with kept(server_data, site.parts.settings.home):
            for route in routes:
                for more in BOARDS.get(route.path, ("",)):
                    answer = site.client.get(address_of(route, values) + more)
                    assert answer.status_code < 500, route.path
                    statuses.setdefault(route.path, set()).add(answer.status_code)
    assert [path for path, seen in statuses.items() if 200 not in seen] == [], "nobody was shown these"
