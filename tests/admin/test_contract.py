"""What the API promises whoever writes a client: its description, pages, keys, arrays, choices."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import quote

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import pack_name_of
from tipbench.admin.failures import HTTP_CODES, STATUSES, Code
from tipbench.pack import builtin_pack

Part = dict[str, Any]


@pytest.fixture(scope="module")
def described(site: Site) -> Part:
    return site.client.get("/api/openapi.json", headers=site.as_("viewer")).json()


def operations(described: Part) -> Iterator[tuple[str, Part]]:
    for place, methods in described["paths"].items():
        for operation in methods.values():
            yield place, operation


def reach(described: Part, *parts: object) -> set[str]:
    """The schemas that these parts refer to, whichever way."""
    found: set[str] = set()
    for name in re.findall(r"'#/components/schemas/(\w+)'", str(parts)):
        todo = [name]
        while todo:
            each = todo.pop()
            if each not in found:
                found.add(each)
                todo += re.findall(r"schemas/(\w+)'", str(described["components"]["schemas"][each]))
    return found


def requests(described: Part) -> set[str]:
    return reach(described, *(each.get("requestBody") for _, each in operations(described)))


def fields_of_clients(described: Part) -> Iterator[tuple[str, Part, Part]]:
    """Everything that a client sets: its name, what is said of it, and its schema."""
    for _, operation in operations(described):
        for each in operation.get("parameters", []):
            yield f"{operation['operationId']} {each['name']}", each, each["schema"]
    for name in sorted(requests(described)):
        for field, schema in described["components"]["schemas"][name]["properties"].items():
            yield f"{name}.{field}", schema, schema


def test_the_description_is_valid_openapi_3_1(described: Part) -> None:
    assert described["openapi"].startswith("3.1.")
    assert [error.message for error in OpenAPIV31SpecValidator(described).iter_errors()] == []
    assert described["servers"] == [{"url": "/"}]


def test_operations_are_called_as_clients_call_their_functions(described: Part) -> None:
    names = [operation["operationId"] for _, operation in operations(described)]
    assert len(names) == len(set(names)) >= 45
    assert [name for name in names if not re.fullmatch(r"[a-z]+(_[a-z]+){0,3}", name)] == []
    assert {"start_run", "list_runs", "read_leaderboard", "read_gate", "list_models"} <= set(names)


def test_the_description_says_who_may_ask(described: Part, site: Site) -> None:
    schemes = described["components"]["securitySchemes"]
    assert schemes["token"] == schemes["token"] | {"type": "http", "scheme": "bearer"}
    assert (schemes["session"]["in"], schemes["session"]["name"]) == ("cookie", "tipbench_session")
    assert described["security"] == [{"token": []}, {"session": []}]
    asks = {
        operation["operationId"]: operation.get("security", described["security"])
        for _, operation in operations(described)
    }
    assert asks["tell_health"] == []
    sessions = {name for name, security in asks.items() if security == [{"session": []}]}
    assert sessions == {
        *("make_token", "create_user", "change_user", "set_password", "change_own_password"),
    }
    refused = site.client.post("/api/bench/tokens", json={}, headers=site.as_("admin"))
    assert refused.status_code == 403, "as it is described"


def test_requests_are_closed_and_answers_may_grow(described: Part) -> None:
    schemas, asked = described["components"]["schemas"], requests(described)
    told = reach(described, *(each["responses"] for _, each in operations(described)))
    assert asked.isdisjoint(told)
    assert len(asked) >= 15
    assert [name for name in asked if schemas[name]["additionalProperties"] is not False] == []
    assert [name for name in told if schemas[name].get("additionalProperties") is False] == []


def test_what_a_client_sets_is_explained_with_an_example_that_fits(described: Part) -> None:
    found = list(fields_of_clients(described))
    assert len(found) >= 130
    assert [name for name, said, _ in found if not said.get("description")] == []
    assert [name for name, _, schema in found if not schema.get("examples")] == []
    for name, _, schema in found:
        check = Draft202012Validator(schema | {"components": described["components"]})
        for example in schema["examples"]:
            assert check.is_valid(example), (name, example)  # pyright: ignore[reportUnknownMemberType]


def test_codes_of_refusals_are_an_enum_and_all_of_them_are_used(described: Part) -> None:
    codes = described["components"]["schemas"]["Failure"]["properties"]["code"]["enum"]
    assert sorted(codes) == sorted(get_args(Code))
    assert set(codes) == {code for *_, code in STATUSES} | {
        *HTTP_CODES.values(),
        "refused",
        "invalid",
        "host",
    }


def test_every_time_is_iso_8601_with_its_zone(described: Part, site: Site) -> None:
    schemas = described["components"]["schemas"]
    fields = [(name, field) for name, each in schemas.items() for field in each.get("properties", {})]
    assert [each for each in fields if each[1].endswith("_ms")] == []
    times = {
        f"{name}.{field}" for name, field in fields if "date-time" in str(schemas[name]["properties"][field])
    }
    assert len(times) >= 14
    assert {"JobView.created_at", "Token.expires_at", "CellLine.collected_at", "AuditEntry.at"} <= times
    me = site.client.get("/api/bench/me", headers=site.as_("viewer")).json()
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", me["created_at"])


def test_every_list_says_how_many_there_are_and_where_the_next_page_begins(described: Part) -> None:
    lists = {
        operation["operationId"]: operation["responses"]["200"]["content"]["application/json"]["schema"][
            "$ref"
        ]
        for _, operation in operations(described)
        if any(each["name"] == "skip" for each in operation.get("parameters", []))
    }
    assert set(lists) == {
        *("list_experiments", "list_runs", "list_jobs", "list_models", "list_packs", "list_prompts"),
        *("read_history", "list_users", "list_tokens", "list_audit"),
    }
    for name, answer in lists.items():
        schema = described["components"]["schemas"][answer.rpartition("/")[2]]
        assert {"total", "skip", "next"} <= set(schema["required"]), name


def read_all(site: Site, place: str, key: str, limit: int) -> tuple[list[object], int]:
    """What all pages hold, and how many they are said to be."""
    found: list[object] = []
    skip: int | None = 0
    total = -1
    while skip is not None:
        asked: dict[str, str | int] = {"limit": limit, "skip": skip}
        page = site.client.get(place, params=asked, headers=site.as_("admin")).json()
        assert page["skip"] == skip
        found += page[key]
        skip, total = page["next"], page["total"]
    return found, total


def test_pages_lead_from_one_to_the_next_and_end(fresh_site: Site, judged: str) -> None:
    site = fresh_site
    headers = {role: site.as_(role) for role in ("admin", "judge", "viewer")}
    for seed in (1, 2, 3):
        site.client.post("/api/bench/simulate", json={"seed": seed}, headers=headers["admin"])
    for place, key, limit, expected in (
        (f"runs/{quote(judged, safe='')}", "cells", 5, 12),
        ("jobs", "jobs", 2, 3),
        ("users", "users", 1, 3),
        ("tokens", "tokens", 3, 3),
        ("audit", "lines", 4, 9),
        ("prompts", "prompts", 2, len(builtin_pack().prompts)),
        ("packs", "packs", 1, 1),
        ("models", "models", 1, 0),
    ):
        found, total = read_all(site, f"/api/bench/{place}", key, limit)
        assert (len(found), total) == (expected, expected), place
        whole = site.client.get(f"/api/bench/{place}", headers=headers["admin"]).json()
        assert whole[key] == found, place
    queued = site.client.get("/api/bench/jobs", params={"state": "done"}, headers=headers["viewer"]).json()
    assert (queued["total"], queued["next"]) == (0, None)


def test_what_is_started_says_where_it_is_and_lists_of_names_may_be_arrays(fresh_site: Site) -> None:
    site, headers = fresh_site, fresh_site.as_("admin")
    for kind, arrays, texts in (
        (
            "run",
            {"models": ["smollm2", "other"], "prompts": ["v1"]},
            {"models": "smollm2,other", "prompts": "v1"},
        ),
        ("simulate", {"policies": ["linucb", "random"]}, {"policies": "linucb,random"}),
    ):
        answers = [
            site.client.post(f"/api/bench/{kind}", json=body, headers=headers | {"Idempotency-Key": kind})
            for body in (arrays, texts)
        ]
        assert [answer.status_code for answer in answers] == [202, 202]
        assert answers[0].json() == answers[1].json(), "it is the same order"
        there = site.client.get(answers[0].headers["Location"], headers=headers)
        assert there.json()["id"] == answers[0].json()["id"]
    for wrong in ([], ["a,b"], [" "], [1], ["/etc/x.gguf"], {"a": 1}):
        refused = site.client.post("/api/bench/run", json={"models": wrong}, headers=headers)
        assert (refused.status_code, list(refused.json()["error"]["fields"])) == (422, ["models"]), wrong


def test_a_body_that_is_no_json_is_called_so(site: Site) -> None:
    headers = site.as_("admin") | {"Content-Type": "application/json"}
    broken = site.client.post("/api/bench/run", content='{"models": ', headers=headers).json()["error"]
    assert broken["fields"]["body"].startswith("This is not JSON: ")
    form = site.client.post("/api/bench/run", data={"models": "a"}, headers=site.as_("admin")).json()["error"]
    assert "application/json" in form["fields"]["body"]


def test_a_token_that_is_asked_for_again_is_the_same_with_a_new_secret(fresh_site: Site) -> None:
    site, client = fresh_site, fresh_site.client
    assert (
        client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE).status_code
        == 303
    )
    keyed = HERE | {"Idempotency-Key": "ci"}
    first, second = (
        client.post("/api/bench/tokens", json={"label": "ci"}, headers=keyed).json() for _ in range(2)
    )
    assert first["token"] == second["token"]
    other = client.post("/api/bench/tokens", json={"label": "else"}, headers=keyed)
    assert (other.status_code, other.json()["error"]["code"]) == (409, "conflict")
    client.cookies.clear()
    works = [
        client.get("/api/bench/me", headers={"Authorization": f"Bearer {made['secret']}"}).status_code
        for made in (first, second)
    ]
    assert works == [401, 200], "whoever lost the first answer has the only secret"
    assert len(site.parts.credentials.list_tokens()) == 1
    stored = b"".join(path.read_bytes() for path in site.parts.settings.home.glob("admin.db*"))
    assert not any(made["secret"].encode() in stored for made in (first, second))
    site.parts.credentials.revoke_token(first["token"]["id"], by=site.parts.accounts.get("the-admin"))
    client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    gone = client.post("/api/bench/tokens", json={"label": "ci"}, headers=keyed)
    assert (gone.status_code, gone.json()["error"]["hint"]) == (409, "Use a new key.")


def test_promotions_are_made_once_for_one_key_and_the_gate_is_read_without_a_look(
    fresh_site: Site, judged: str
) -> None:
    site, admin = fresh_site, fresh_site.as_("admin")
    name, pack = quote(judged, safe=""), pack_name_of(judged)
    arms = site.parts.mlflow.open().open(judged).arms[:2]

    def send(place: str, key: str, **body: str) -> Part:
        answer = site.client.post(f"/api/bench/{place}", json=body, headers=admin | {"Idempotency-Key": key})
        return answer.json() | {"status": answer.status_code}

    before = site.client.get(f"/api/bench/gate/{name}", headers=site.as_("viewer"))
    assert (before.status_code, before.json()["champion"]) == (200, "")
    assert send("rollback", "back", pack=pack)["status"] == 400, "nobody was champion; that is not kept"
    first = [
        send(f"promote/{name}", "first", how="initial", arm=arms[0], reason="the first one") for _ in range(2)
    ]
    assert first[0] == first[1]
    assert send(f"promote/{name}", "first", how="force", arm=arms[1], reason="so")["status"] == 409
    assert send(f"promote/{name}", "next", how="force", arm=arms[1], reason="so")["outcome"] == "promoted"
    back = [send("rollback", "back", pack=pack, reason="no") for _ in range(3)]
    assert [each["champion"]["arm"] for each in back] == [arms[0]] * 3
    history = site.client.get("/api/bench/history", params={"pack": pack}, headers=admin).json()
    assert [line["how"] for line in history["promotions"]] == ["rollback", "forced", "initial"]
    page = site.client.get("/api/bench/history", params={"pack": pack, "limit": 2}, headers=admin).json()
    assert (page["promotions"], page["total"], page["next"]) == (history["promotions"][:2], 3, 2)
    with site.parts.jobs.database.change() as change:
        change.execute("UPDATE repeats SET answer = NULL WHERE key = 'back'")
    died = send("rollback", "back", pack=pack, reason="no")
    assert (died["status"], died["error"]["code"]) == (409, "conflict"), "nobody knows whether it was done"
    preview = site.client.get(f"/api/bench/gate/{name}", headers=site.as_("viewer")).json()
    assert (preview["champion"], preview["report"]["look"]) == (arms[0], None)
    assert [rule["name"] for rule in preview["report"]["rules"] if not rule["passed"]]


def test_judges_are_told_with_their_drift_and_how_far_they_agree(site: Site, judged: str) -> None:
    place = f"/api/bench/judging/judges/{quote(judged, safe='')}"
    told = site.client.get(place, headers=site.as_("viewer")).json()
    (sitting,) = (each for each in told["sittings"] if each["line"]["judged_by"] == "anna")
    assert sitting["line"]["drift"]["anchors"] > 0
    assert re.fullmatch(r"\d{4}-.*\+00:00", sitting["closed_at"])
    assert {"pairs", "disagreements", "noise"} <= set(told)


def test_what_a_run_can_be_made_of_is_told_to_whoever_holds_no_items(
    fresh_site: Site, judged: str, models_folder: Path
) -> None:
    site, pack = fresh_site, builtin_pack()
    (site.parts.settings.home / "models").symlink_to(models_folder)
    judge = site.as_("judge")
    models = site.client.get("/api/bench/models", headers=judge).json()
    (smollm2,) = (each for each in models["models"] if each["name"] == "smollm2")
    assert (smollm2["engine"], smollm2["admitted"], smollm2["refusal"]) == ("llamacpp", True, "")
    assert smollm2["parameters"] > 10**8
    (line,) = site.client.get("/api/bench/packs", headers=judge).json()["packs"]
    assert (line["name"], line["in_use"], line["anchors"]) == ("tip", True, len(pack.anchors))
    assert {each["name"]: each["scenarios"] for each in line["sets"]} == {"core": 8, "wide": 48}
    detail = site.client.get("/api/bench/packs/tip", headers=judge)
    assert {each["name"] for each in detail.json()["scales"]} == {scale.name for scale in pack.rubric.scales}
    assert not any(anchor.text in detail.text for anchor in pack.anchors)
    prompts = site.client.get("/api/bench/prompts", headers=judge).json()["prompts"]
    assert {each["name"]: each["text"] for each in prompts} == {each.name: each.text for each in pack.prompts}
    unknown = site.client.get("/api/bench/prompts", params={"pack": "none"}, headers=judge)
    assert (unknown.status_code, unknown.json()["error"]["hint"]) == (404, "Available: 'tip'.")
    opened = site.client.post(f"/api/bench/judging/open/{quote(judged, safe='')}", json={}, headers=judge)
    assert opened.json()["state"] == "open"
    for place in ("models", "packs", "packs/tip", "prompts", f"gate/{quote(judged, safe='')}"):
        blind = site.client.get(f"/api/bench/{place}", headers=judge)
        assert (blind.status_code, blind.json()["error"]["code"]) == (403, "blind"), place
