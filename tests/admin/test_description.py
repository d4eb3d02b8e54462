"""The API's description is a contract: valid OpenAPI 3.1, complete for whoever writes a client."""

import re
from collections.abc import Iterator
from typing import Any, get_args

import pytest
from jsonschema import Draft202012Validator
from openapi_spec_validator import OpenAPIV31SpecValidator

from tests.admin.conftest import Site
from tipbench.admin.failures import HTTP_CODES, STATUSES, Code

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
            assert [error.message for error in check.iter_errors(example)] == [], name


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
        for place, operation in operations(described)
        if any(each["name"] == "skip" for each in operation.get("parameters", []))
    }
    assert set(lists) == {
        *("list_experiments", "list_runs", "list_jobs", "list_models", "list_packs", "list_prompts"),
        *("read_history", "list_users", "list_tokens", "list_audit"),
    }
    for name, answer in lists.items():
        schema = described["components"]["schemas"][answer.rpartition("/")[2]]
        assert {"total", "skip", "next"} <= set(schema["required"]), name
