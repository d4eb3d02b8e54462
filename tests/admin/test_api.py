"""The API on a real MLflow."""

import re
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import pytest

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import collect_small, pack_name_of, routes_of
from tests.conftest import Cli
from tests.ranking.campaign import judge_automatically, open_judging
from tests.support.experiments import compare_experiment, shift_clock
from tests.support.sheets import REFERENCES
from tipbench.admin.app import API
from tipbench.bench.champions import ALIAS, entry_name
from tipbench.champion import open_champion_on, parse_champion
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import Judging
from tipbench.ranking.records import AUTOMATIC
from tipbench.settings import Settings
from tipbench.tracking import open_tracking
from tipbench.tracking.registry import PromptTemplate


def at(place: str, name: str) -> str:
    return f"/api/bench/{place}/{quote(name, safe='')}"


def test_the_leaderboard_is_what_compare_prints(site: Site, judged: str, cli: Cli) -> None:
    printed = cli("compare", "--experiment", judged, "--json").out
    answer = site.client.get(at("leaderboard", judged), headers=site.as_("viewer"))
    assert answer.status_code == 200
    assert answer.text == printed
    report = compare_experiment(site.parts.mlflow.open().tracking, judged, by="model")
    by_model = site.client.get(at("leaderboard", judged) + "?by=model", headers=site.as_("viewer"))
    assert by_model.text == report.model_dump_json(indent=1) + "\n"


def test_rows_are_streamed_as_the_command_writes_them(site: Site, judged: str, cli: Cli) -> None:
    for shape, media in (("csv", "text/csv"), ("jsonl", "application/x-ndjson")):
        cli.ok("export", judged, f"rows.{shape}")
        answer = site.client.get(at("rows", judged) + f"?shape={shape}", headers=site.as_("viewer"))
        assert (answer.status_code, answer.headers["content-type"].split(";")[0]) == (200, media)
        assert answer.content == Path(f"rows.{shape}").read_bytes()
        assert quote(judged, safe="") in answer.headers["content-disposition"]
    assert (
        site.client.get(at("rows", judged) + "?shape=parquet", headers=site.as_("viewer")).status_code == 422
    )
    assert site.client.get(at("rows", "nothing"), headers=site.as_("viewer")).status_code == 404
    site.client.post("/sign-in", data={"name": "the-viewer", "password": PASSWORD}, headers=HERE)
    page = site.client.get(f"/e/{quote(judged, safe='')}").text
    links = re.findall(r'href="(/api/bench/rows/[^"]+)" download', page)
    shown = [site.client.get(link) for link in links]
    site.client.cookies.clear()
    assert [each.status_code for each in shown] == [200, 200]
    assert [each.text.split(",")[0].split(":")[0] for each in shown] == ["experiment", '{"experiment"']


@pytest.fixture(scope="module")
def automatic(mlflow_url: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """Judged by a model alone, but for a sitting that somebody opened yesterday and left."""
    home = tmp_path_factory.mktemp("automatic")
    name = f"auto/{uuid4().hex[:8]}"
    with open_tracking(Settings(home=home, mlflow_url=mlflow_url)) as tracking:
        collect_small(tracking, name)
        judge_automatically(open_judging(tracking, home), name, folder=home)
        yesterday = Judging(tracking, shift_clock(-24 * 3600 * 1000), home / "locks")
        assert yesterday.open_sitting(SittingRequest("anna", blocks=1), experiment=name) is not None
    return name


def test_the_auto_tier_s_own_board_is_marked_over_the_api_and_in_the_panel(
    site: Site, automatic: str, cli: Cli
) -> None:
    printed = cli("compare", "--experiment", automatic, "--tier", "auto", "--json")
    answer = site.client.get(at("leaderboard", automatic) + "?tier=auto", headers=site.as_("viewer"))
    assert (answer.status_code, answer.text) == (200, printed.out)
    assert answer.json()["mark"] == AUTOMATIC
    best = answer.json()["standings"][0]
    assert (best["place"], f"{best['model']}+{best['prompt']}") == (1, best["name"])
    lazy = site.client.get(at("leaderboard", automatic), headers=site.as_("viewer")).json()
    assert (lazy["mark"], lazy["winner"], lazy["standings"][0]["place"]) == ("", None, None)
    unknown = site.client.get(at("leaderboard", automatic) + "?tier=best", headers=site.as_("viewer"))
    assert unknown.status_code == 422
    site.client.post("/sign-in", data={"name": "the-viewer", "password": PASSWORD}, headers=HERE)
    address = f"/e/{quote(automatic, safe='')}"
    board, plain = (site.client.get(f"{address}?tier={tier}").text for tier in ("auto", "lazy"))
    site.client.cookies.clear()
    assert AUTOMATIC in board
    assert 'data-testid="standings"' in board
    assert f"?arm={quote(best['name'], safe='')}&amp;tier=auto" in board
    assert AUTOMATIC not in plain
    site.client.post("/sign-in", data={"name": "the-viewer", "password": PASSWORD}, headers=HERE)
    arm = site.client.get(
        f"/arm/{quote(automatic, safe='')}", params={"arm": best["name"], "tier": "auto"}
    ).text
    site.client.cookies.clear()
    assert AUTOMATIC in arm
    assert f"<dd>{best['composite']:.2f}</dd>" in arm
    assert "Best tips" in arm, "by the verdicts of that tier"
    assert 'href="?by=arm&amp;tier=auto"' in plain


def test_what_did_not_change_is_not_sent_again(site: Site, judged: str) -> None:
    headers = site.as_("viewer")
    for url in (
        at("leaderboard", judged),
        at("runs", judged),
        "/api/bench/jobs",
        at("judging/status", judged),
    ):
        mark = site.client.get(url, headers=headers).headers["etag"]
        again = site.client.get(url, headers=headers | {"If-None-Match": mark})
        assert (again.status_code, again.content) == (304, b""), url


def test_experiments_are_listed_with_counts_and_a_link(site: Site, judged: str) -> None:
    answer = site.client.get(
        "/api/bench/experiments", params={"contains": judged}, headers=site.as_("viewer")
    )
    (line,) = answer.json()["experiments"]
    assert line["name"] == judged
    assert (line["cells"], line["judged"] > 0, line["pending"] > 0) == (12, True, True)
    assert line["mlflow"].startswith(site.parts.settings.mlflow_url or "?")


def test_runs_are_paged_and_filtered(site: Site, judged: str) -> None:
    headers = site.as_("viewer")
    page = site.client.get(at("runs", judged), params={"limit": 5, "skip": 8}, headers=headers).json()
    assert (page["total"], len(page["cells"])) == (12, 4)
    one = page["cells"][0]
    alike = site.client.get(at("runs", judged), params={"arm": one["arm"]}, headers=headers).json()
    assert alike["total"] == 2
    done = site.client.get(at("runs", judged), params={"judged": "yes"}, headers=headers).json()
    todo = site.client.get(at("runs", judged), params={"judged": "no"}, headers=headers).json()
    assert done["total"] + todo["total"] == 12
    assert all(cell["composite"] is not None for cell in done["cells"])
    refused = site.client.get(at("runs", judged), params={"colour": "red"}, headers=headers)
    assert refused.status_code == 422
    assert "colour" in refused.json()["error"]["fields"]


def test_a_cell_shows_its_candidates_and_who_said_what(site: Site, judged: str) -> None:
    headers = site.as_("viewer")
    cells = site.client.get(at("runs", judged), params={"judged": "yes"}, headers=headers).json()["cells"]
    detail = site.client.get(at(f"cell/{cells[0]['run']}", judged), headers=headers).json()
    said = [verdict for candidate in detail["candidates"] for verdict in candidate["verdicts"]]
    assert {verdict["judged_by"] for verdict in said} == {"anna"}
    assert all(verdict["reason"] for verdict in said)
    assert detail["raw"]
    assert site.client.get(at("cell/nothing", judged), headers=headers).status_code == 404


def test_an_unknown_experiment_is_not_found_in_the_one_error_shape(site: Site) -> None:
    for place in ("runs", "leaderboard", "judging/status"):
        answer = site.client.get(at(place, "there/is none"), headers=site.as_("admin"))
        assert answer.status_code == 404
        assert set(answer.json()["error"]) == {"code", "message", "hint", "fields"}
    assert set(site.client.get("/api/nothing").json()["error"]) == {"code", "message", "hint", "fields"}


def test_every_refusal_says_what_to_do_next(site: Site) -> None:
    ask, viewer = site.client, site.as_("viewer")
    refused = {
        401: ask.get(at("runs", "any")),
        403: ask.post("/api/bench/run", json={}, headers=viewer),
        404: ask.get("/api/nothing", headers=viewer),
        405: ask.delete(at("runs", "any"), headers=viewer),
        422: ask.get(at("runs", "any"), params={"limit": "many"}, headers=viewer),
    }
    assert {status: answer.status_code for status, answer in refused.items()} == {
        each: each for each in refused
    }
    assert [status for status, answer in refused.items() if not answer.json()["error"]["hint"]] == []


def test_one_sitting_over_the_api_is_blind_and_counts(fresh_site: Site, judged: str) -> None:
    site, headers = fresh_site, fresh_site.as_("judge")
    opened = site.client.post(at("judging/open", judged), json={"next": 6}, headers=headers).json()
    assert opened["state"] == "open", opened
    token = opened["sitting"]
    for place in ("leaderboard", "runs"):
        refused = site.client.get(at(place, judged), headers=headers)
        assert (refused.status_code, refused.json()["error"]["code"]) == (403, "blind")
    taken = site.client.get(at(f"judging/take/{token}", judged), params={"n": 500}, headers=headers)
    for name in ("qwen2.5:0.5b", "smollm2:360m", "llama3.2:1b", "v2-mentor"):
        assert name not in taken.text
    items = taken.json()["items"]
    bad = {"verdicts": [{"item": items[0]["item"], "scores": {"relevance": 9}}]}
    refused = site.client.post(at(f"judging/submit/{token}", judged), json=bad, headers=headers)
    assert refused.status_code == 400
    assert items[0]["item"] in refused.json()["error"]["message"]
    other = site.as_("admin")
    assert site.client.get(at(f"judging/take/{token}", judged), headers=other).status_code == 404
    verdicts = [
        {
            "item": item["item"],
            "scores": REFERENCES.get(item["text"]) or dict.fromkeys(taken.json()["scales"], 3),
        }
        for item in items
    ]
    body = {"verdicts": verdicts}
    verdicts[0]["flags"] = {"overlong": not items[0]["flags"]["overlong"]}
    done = site.client.post(at(f"judging/submit/{token}", judged), json=body, headers=headers).json()
    assert (done["state"], done["remaining"]) == ("accepted", 0)
    assert done["stored"]["scores"] == {each["item"]: each["scores"] for each in verdicts}
    assert done["stored"]["overruled"] == {items[0]["item"]: verdicts[0]["flags"]}
    assert {item["scenario"] for item in items} == set(taken.json()["scenarios"])
    again = site.client.post(at(f"judging/submit/{token}", judged), json=body, headers=headers)
    assert again.status_code == 200, "the reply was lost and it is sent again"
    assert site.client.get(at("leaderboard", judged), headers=site.as_("viewer")).status_code == 200
    word = {"accept": False, "reason": "I was tired"}
    line = site.client.post(
        at(f"judging/decide/{token}", judged), json=word, headers=site.as_("admin")
    ).json()
    assert line["state"] == "refused"


def test_judging_is_closed_and_opened_again_with_a_reason(fresh_site: Site, judged: str) -> None:
    site, headers = fresh_site, fresh_site.as_("admin")
    closed = site.client.post(
        at("judging/end", judged), json={"closed": True, "reason": "enough"}, headers=headers
    )
    assert closed.json()["close_reason"] == "enough"
    refused = site.client.post(at("judging/open", judged), json={}, headers=site.as_("judge"))
    assert refused.status_code == 400
    opened = site.client.post(
        at("judging/end", judged), json={"closed": False, "reason": "go on"}, headers=headers
    )
    assert opened.json()["close_reason"] is None


@pytest.mark.parametrize(
    ("order", "field"),
    [
        ({"n_tips": 51}, "n_tips"),
        ({"temperature": 2.1}, "temperature"),
        ({"modles": "smollm2"}, "modles"),
        ({"models": ""}, "models"),
        ({"models": "/etc/x.gguf"}, "models"),
        ({"judge_kind": "cat"}, "judge_kind"),
        ({"seed": -1}, "seed"),
        ({"max_model_b": 0}, "max_model_b"),
    ],
)
def test_a_run_has_the_keys_and_limits_of_collect(site: Site, order: dict[str, object], field: str) -> None:
    answer = site.client.post("/api/bench/run", json=order, headers=site.as_("admin"))
    assert answer.status_code == 422
    assert list(answer.json()["error"]["fields"]) == [field]


def test_a_run_is_queued_once_for_one_key_and_can_be_cancelled(fresh_site: Site) -> None:
    site = fresh_site
    headers = site.as_("admin") | {"Idempotency-Key": "monday"}
    order = {"models": "smollm2", "experiment": "a/b", "n_tips": 3}
    first = site.client.post("/api/bench/run", json=order, headers=headers)
    assert first.status_code == 202
    job = first.json()
    assert (job["kind"], job["state"]) == ("pipeline", "queued")
    assert job["steps"] == ["collect", "export", "judge", "wait", "compare"]
    assert site.client.post("/api/bench/run", json=order, headers=headers).json()["id"] == job["id"]
    other = site.client.post("/api/bench/run", json=order | {"n_tips": 4}, headers=headers)
    assert other.status_code == 409
    cancelled = site.client.post(f"/api/bench/jobs/{job['id']}/cancel", headers=site.as_("admin")).json()
    assert cancelled["state"] == "cancelled"
    assert site.client.get("/api/bench/jobs/none", headers=headers).status_code == 404
    log = site.client.get(f"/api/bench/jobs/{job['id']}/log", headers=headers).json()
    assert log == {"text": "", "start": 0, "end": 0, "ended": True}
    stream = site.client.get(f"/api/bench/jobs/{job['id']}/stream", headers=headers)
    assert "event: end" in stream.text


def test_the_auto_judge_is_a_job_if_one_is_set(site: Site, fresh_site: Site, judged: str) -> None:
    refused = site.client.post(at("judge", judged), headers=site.as_("admin"))
    assert refused.status_code == 409
    assert "judge_model" in refused.json()["error"]["hint"]
    taken = fresh_site.client.post(at("judge", judged), headers=fresh_site.as_("admin"))
    assert taken.status_code == 202
    steps = fresh_site.parts.jobs.get(taken.json()["id"]).steps
    assert steps[0].arguments == ("judge", "--auto", f"--experiment={judged}")


def check_the_champions_file(site: Site, pack: str, headers: dict[str, str]) -> None:
    """An application gets what the command saves, once; and whoever reads changes nothing in the registry."""
    tracking = site.parts.mlflow.open().tracking
    place = f"/api/bench/champion/{pack}"
    answer = site.client.get(place, headers=headers)
    stored = parse_champion(answer.text, where=place)
    assert stored == open_champion_on(tracking, pack).stored
    again = site.client.get(place, headers=headers | {"If-None-Match": answer.headers["ETag"]})
    assert (again.status_code, again.content) == (304, b"")
    documented = site.client.get("/api/openapi.json", headers=headers).json()["paths"]
    assert all(
        "304" in documented[f"/api/bench/champion{end}"]["get"]["responses"] for end in ("", "/{pack}")
    )
    assert site.client.get("/api/bench/champion/no%20pack", headers=headers).status_code == 422
    assert site.client.get("/api/bench/champion/none-there", headers=headers).status_code == 400
    assert stored.version is not None
    other = tracking.registry.ensure_version(
        entry_name(pack), PromptTemplate("of somebody else"), mark=("somebody", "else"), tags={}
    )
    tracking.registry.point_alias(entry_name(pack), ALIAS, other)
    report = site.client.get("/api/bench/champion", params={"pack": pack}, headers=headers).json()
    assert report["version"] == stored.version
    assert "to put it right: tipbench champion" in report["remarks"][0]
    assert site.client.get(place, headers=headers).text == answer.text
    entry = tracking.registry.find_entry(entry_name(pack))
    assert entry is not None
    assert entry.aliases[ALIAS] == other, "nobody moved it back"
    tracking.registry.point_alias(entry_name(pack), ALIAS, stored.version)


def test_champion_gate_and_history(fresh_site: Site, judged: str) -> None:
    site, headers = fresh_site, fresh_site.as_("admin")
    board = site.client.get(at("leaderboard", judged), headers=headers).json()
    arm = board["standings"][0]["name"]
    nothing = site.client.post(at("promote", judged), json={"how": "initial", "arm": arm}, headers=headers)
    assert nothing.status_code == 400, "a reason is needed"
    pack = {"pack": pack_name_of(judged)}
    assert site.client.get("/api/bench/champion", params=pack, headers=headers).status_code == 400
    order = {"how": "initial", "arm": arm, "reason": "the first"}
    made = site.client.post(at("promote", judged), json=order, headers=headers)
    assert made.json()["champion"]["arm"] == arm
    champion = site.client.get("/api/bench/champion", params=pack, headers=headers)
    assert champion.json()["arm"] == arm
    check_the_champions_file(site, pack["pack"], headers)
    history = site.client.get("/api/bench/history", params=pack, headers=headers).json()["promotions"]
    assert [(line["arm"], line["in_force"], line["by"]) for line in history] == [(arm, True, "the-admin")]
    gate = site.client.post(at("gate", judged), json={}, headers=headers)
    # It holds two scenarios, and the gate needs four: known before anybody judges, so no look is spent.
    assert (gate.json()["answer"], gate.json()["look"]) == ("no", None), gate.text
    assert [rule["name"] for rule in gate.json()["rules"] if not rule["passed"]] == ["scenarios"]
    refused = site.client.post("/api/bench/rollback", json=pack, headers=headers)
    assert refused.status_code == 400, "there is none before it"


def test_openapi_documents_every_route(site: Site) -> None:
    paths = site.client.get("/api/openapi.json", headers=site.as_("viewer")).json()["paths"]
    documented = {(path, method.upper()) for path, methods in paths.items() for method in methods}
    routes = {(re.sub(r":\w+\}", "}", route.path), method) for route, method, _ in routes_of(API)}
    assert len(routes) >= 25
    assert documented == routes | {("/health", "GET")}, "the one that needs no token"
