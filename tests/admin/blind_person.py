"""One person of the panel who opens sittings over every door and looks at everything: what they were told."""

import re
from collections.abc import Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fastapi.routing import APIRoute
from fastapi.testclient import TestClient
from httpx2 import Response

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import collect_small, pack_name_of, routes_of
from tests.ranking.campaign import SKILL, judge_automatically, judge_lazily, open_judging
from tests.support.copying import TABLES, own_server
from tests.support.sheets import REFERENCES, fill
from tipbench.admin.access import cookie_name
from tipbench.admin.app import API, PAGES, make_app
from tipbench.admin.deps import make_parts
from tipbench.bench.sittings import EXPIRES_TAG, StoredSitting
from tipbench.clock import Stamps, make_stamps
from tipbench.errors import JudgedEnough, UsageError
from tipbench.jobs.records import Step
from tipbench.jobs.store import NewJob
from tipbench.judging.mcp import JudgeTools
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.judging.sheet import SheetItem
from tipbench.settings import Settings
from tipbench.workbench import Workbench, open_workbench

MODELS = tuple(SKILL)
DOORS = ("panel", "api", "mcp", "file")
WISHES: dict[str, dict[str, int]] = {
    "block": {},
    "second": {"second_opinion": 50},
    "spot": {"disagreements": 3},
}
WHOEVER = ("/api/bench/champion", "/api/bench/history", "/api/bench/audit", "/audit")
"""They name the champion's arm, which everybody may know who holds no items: they are no look."""
HOME = "/"
"""It names the champion, too, and the winner where nothing is left to judge."""


@dataclass
class Ahead:
    """A clock that is moved on: what is believed for a second is asked for again after each step."""

    ms: int = 0

    def stamps(self) -> Stamps:
        real = make_stamps()
        return Stamps(now_ms=lambda: real.now_ms() + self.ms, new_id=real.new_id)


@dataclass(frozen=True)
class Stage:
    """Two experiments that hold the same answers, one partly judged, with a champion and a job's log."""

    site: Site
    clock: Ahead
    bench: Workbench
    experiments: tuple[str, str]
    job: str
    cookies: dict[str, str]
    folder: Path
    champion: str

    @property
    def judging(self) -> Judging:
        return self.bench.judging

    @cached_property
    def others(self) -> set[str]:
        """The sittings that were there before anybody of the panel judged."""
        return {token for name in self.experiments for token in self.sittings(name)}

    @cached_property
    def outlets(self) -> list[str]:
        """Every GET route there is, for both experiments; a new one is among them by itself."""
        routes = [route for route, method, _ in routes_of((*API, *PAGES)) if method == "GET"]
        return sorted({self._fill(route, name) for route in routes for name in self.experiments})

    def sittings(self, experiment: str) -> dict[str, StoredSitting]:
        """By their token, as the store has them."""
        return {each.facts.token: each for each in self.judging.open(experiment).evidence.sittings}

    def decided(self) -> set[str]:
        """Those in which nothing is left to judge."""
        return {name for name in self.experiments if not self.judging.open(name).evidence.unjudged_slots()}

    def _fill(self, route: APIRoute, experiment: str) -> str:
        run = self.judging.open(experiment).evidence.cells[0].run.run_id
        words = {
            "experiment:name": experiment, "run": run, "job": self.job, "sitting": "none",
            "pack": pack_name_of(self.experiments[0]),
        }  # fmt: skip
        path = re.sub(r"\{([^}]+)\}", lambda found: quote(words[found[1]], safe=""), route.path)
        return f"{path}?pack={words['pack']}" if path in WHOEVER else path

    def forget_everything(self) -> None:
        """As if nobody but those before had judged or looked: the rows go, so that searches stay small."""
        ids = [self.judging.open(name).experiment.id for name in self.experiments]
        with own_server().database() as database:
            rows = database.execute(
                "SELECT run_uuid FROM runs JOIN tags USING (run_uuid) WHERE experiment_id IN (?, ?) "
                "AND key = 'tipbench.for' AND value NOT IN ('otto', 'scripted:judge')",
                ids,
            ).fetchall()
            for table in (*TABLES, "runs"):
                database.executemany(f"DELETE FROM {table} WHERE run_uuid = ?", rows)
        with self.site.parts.jobs.database.change() as change:
            change.execute("DELETE FROM looks")
        for name in self.experiments:
            self.site.parts.boards.forget(name)
        self.wait()

    def wait(self) -> None:
        """More than the second for which the panel believes who holds items: it follows MLflow's clock,
        which nobody moves on, so what it believes goes."""
        self.clock.ms += 2_000
        self.site.parts.sittings.recent.sittings = None
        self.site.parts.sittings.recent.looks.clear()


@contextmanager
def open_stage(folder: Path, mlflow_url: str, name: str) -> Generator[Stage]:
    names, clock = (name, f"{name}-again"), Ahead()
    # The form of a run shows the models of the settings: others than those that are judged.
    settings = Settings(home=folder / "home", mlflow_url=mlflow_url, models="smollm2")
    with open_workbench(settings) as opened:
        judging = open_judging(opened.tracking, folder)
        for each in names:
            collect_small(opened.tracking, each, scenarios=1)
        judge_automatically(judging, name, folder=folder)
        judge_lazily(judging, name, folder=folder, judged_by="otto", blocks=2)
        arm = judging.open(name).arms[0]
        opened.promoting("otto").name_first(arm, experiment=name, reason="somebody has to be")
        parts = make_parts(settings, clock.stamps())
        bench = Workbench(settings, opened.tracking, clock.stamps())
        job = parts.jobs.add(
            NewJob("pipeline", name, "the-admin", (Step(name="compare", arguments=("compare",)),), "job1")
        )
        parts.jobs.log_of(job.id).parent.mkdir(parents=True, exist_ok=True)
        parts.jobs.log_of(job.id).write_text(f"{arm} leads\n", encoding="utf-8")
        parts.jobs.cancel(job.id)
        with TestClient(
            make_app(parts, dispatch=False), base_url="http://localhost", follow_redirects=False
        ) as client:
            site = Site(parts, client)
            cookies = {role: _sign_in(site, role) for role in ("admin", "judge")}
            stage = Stage(site, clock, bench, names, job.id, cookies, folder, champion=arm)
            assert (len(stage.others), len(stage.outlets) > 30) == (2, True)
            yield stage


def _sign_in(site: Site, role: str) -> str:
    site.parts.accounts.create(f"the-{role}", role, PASSWORD, by="test")  # pyright: ignore[reportArgumentType]
    site.client.cookies.clear()
    site.client.post("/sign-in", data={"name": f"the-{role}", "password": PASSWORD}, headers=HERE)
    name = cookie_name(site.parts)
    value = site.client.cookies[name]
    site.client.cookies.clear()
    return f"{name}={value}"


@dataclass
class Held:
    """A sitting that was opened: over which door, of what."""

    token: str
    experiment: str
    door: str
    sheet: Path | None = None


@dataclass
class Person:
    """What they do, and what they know."""

    stage: Stage
    role: str
    held: list[Held] = field(default_factory=list[Held])
    looked: bool = False
    steps: int = 0
    trail: list[str] = field(default_factory=list[str])
    """Where arms were named."""
    visited: bool = False
    """Whether anything was looked at."""

    @property
    def name(self) -> str:
        return f"the-{self.role}"

    def get(self, place: str) -> Response:
        return self.stage.site.client.get(place, headers={"Cookie": self.stage.cookies[self.role]})

    def post(self, place: str, **given: Any) -> Response:
        headers = {"Cookie": self.stage.cookies[self.role], **HERE}
        return self.stage.site.client.post(place, headers=headers, **given)

    def look_around(self, start: int, *, places: int) -> None:
        """At so many outlets from there on."""
        self.stage.wait()
        outlets = self.stage.outlets
        for place in (outlets * 2)[start % len(outlets) :][:places]:
            self.look(place)

    def look(self, place: str) -> None:
        """No outlet names an arm while items are held; what was seen before is remembered."""
        answer = self.get(place)
        self.visited = True
        assert answer.status_code < 500, (place, answer.text)
        if not any(model in answer.text for model in MODELS):
            return
        self.trail.append(place)
        still_open = [held.token for held in self.held if self.is_open(held)]
        assert not still_open, f"{place} names an arm to {self.name}, who holds {still_open}"
        if place == HOME:
            assert self.role != "judge", "home names an arm to a judge"
            others = answer.text.replace("<wbr>", "").replace(self.stage.champion, "")
            assert self.stage.decided() or not any(model in others for model in MODELS), "home names arms"
        elif not place.startswith(WHOEVER):
            named = {
                name for name in self.stage.experiments if quote(name, safe="") == place.rpartition("/")[2]
            }
            is_open = self.role != "judge" or (named or {*self.stage.experiments}) & self.stage.decided()
            assert is_open, f"{place} names an arm of unjudged candidates to a judge"
            self.looked = True

    def is_open(self, held: Held) -> bool:
        found = self.stage.sittings(held.experiment)[held.token]
        return found.is_open(self.stage.bench.stamps.now_ms())

    def open(self, door: str, kind: str, experiment: str) -> None:
        """A sitting over that door; one that is new is marked if arms were seen before.

        Also after a look at a page that may name arms and named none just then, never without a look.
        """
        self.stage.wait()
        sheet = self._open(door, kind, experiment)
        self._take(experiment, door, sheet)

    def _take(self, experiment: str, door: str, sheet: Path | None) -> None:
        known = {*self.stage.others, *(held.token for held in self.held)}
        for token, sitting in self.stage.sittings(experiment).items():
            if token not in known:
                told = (door, experiment, sitting.unblinded, self.trail, sitting.facts)
                marked = sitting.unblinded is not None
                assert marked if self.looked else self.visited or not marked, told
                self.held.append(Held(token, experiment, door, sheet))

    def _open(self, door: str, kind: str, experiment: str) -> Path | None:
        at = quote(experiment, safe="")
        if door == "panel":
            self.post(f"/judge/{at}", data={"open": "1", "blocks": "1"})
        elif door == "api":
            opened = self.post(f"/api/bench/judging/open/{at}", json=WISHES[kind])
            assert opened.status_code in {200, 400}, opened.text
        elif door == "mcp":
            with suppress(UsageError):
                self._tools(experiment).open_sitting(**WISHES[kind])  # pyright: ignore[reportArgumentType]
        else:
            return self._hand_out(kind, experiment)
        return None

    def _hand_out(self, kind: str, experiment: str) -> Path:
        self.steps += 1
        path = self.stage.folder / f"{make_stamps().new_id()}-{self.steps}.json"
        request = SittingRequest(
            self._spelled("file"),
            blocks=1 if kind == "block" else None,
            second_share=0.5 if kind == "second" else None,
            spots=3 if kind == "spot" else None,
        )
        # There may be nothing to check, or nothing that would help.
        with suppress(UsageError, JudgedEnough):
            self.stage.judging.hand_out(path, request, experiment=experiment)
        return path

    def _spelled(self, door: str) -> str:
        return {"mcp": f" {self.name.upper()} ", "file": self.name.title()}.get(door, self.name)

    def _tools(self, experiment: str) -> JudgeTools:
        @contextmanager
        def hand_over() -> Generator[Judging]:
            yield self.stage.judging

        return JudgeTools(hand_over, judged_by=self._spelled("mcp"), experiment=experiment)

    def submit(self, held: Held, *, everything: bool) -> None:
        """One answer, or all: the sitting closes with the last."""
        if held.sheet is not None:
            fill(held.sheet, items=None if everything else 1)
            self.stage.judging.take_in(held.sheet, experiment=None, judged_by=None, close=False)
            # What gave way to a sitting at the desk becomes a second one.
            self._take(held.experiment, held.door, held.sheet)
            return
        sitting = self.stage.judging.look(held.token, experiment=held.experiment)
        waiting = sitting.waiting if everything else sitting.waiting[:1]
        verdicts: list[object] = [
            {
                "item": each.id,
                "scores": REFERENCES.get(each.text) or dict.fromkeys(each.scores, 3),
                "reason": "so",
            }
            for each in waiting
        ]
        if not verdicts or sitting.state != "open":
            return
        if held.door == "mcp":
            self._tools(held.experiment).submit_verdicts(held.token, verdicts)
        else:
            at = quote(held.experiment, safe="")
            stored = self.post(f"/api/bench/judging/submit/{held.token}/{at}", json={"verdicts": verdicts})
            assert stored.status_code == 200, stored.text

    def close(self, held: Held) -> None:
        """As its judge does at that door."""
        at = quote(held.experiment, safe="")
        if held.sheet is not None:
            self.stage.judging.take_in(held.sheet, experiment=None, judged_by=None, close=True)
            self._take(held.experiment, held.door, held.sheet)
        elif held.door == "mcp":
            self._tools(held.experiment).close_sitting(held.token)
        elif held.door == "panel":
            self.post(f"/judge/{at}", data={"sitting": held.token, "close": "1"})
        else:
            self.post(f"/api/bench/judging/close/{held.token}/{at}")

    def release(self, held: Held) -> None:
        """Somebody takes it back."""
        self.stage.judging.release(held.token, experiment=held.experiment)

    def expire(self, held: Held) -> None:
        """Its time runs out."""
        found = self.stage.sittings(held.experiment)[held.token]
        bench = self.stage.judging.open(held.experiment)
        late = {"run_id": found.run.run_id, "tags": {EXPIRES_TAG: "1"}}
        self.stage.bench.tracking.deliver(bench.blank().model_copy(update=late))


def scores_of(item: SheetItem) -> dict[str, int]:
    return REFERENCES.get(item.text) or dict.fromkeys(item.scores, 3)
