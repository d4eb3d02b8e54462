"""Who may do what: every route with every role, sessions, tokens, cross-site requests, throttling."""

from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.routing import APIRoute

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import routes_of
from tipbench.admin.access import MAX_BODY
from tipbench.admin.app import API, PAGES
from tipbench.admin.users import (
    MAX_FAILURES,
    MAX_PASSWORD,
    RANK,
    TABLES,
    Accounts,
    Credentials,
    TooManyAttempts,
)
from tipbench.clock import make_stamps
from tipbench.jobs.store import open_jobs
from tipbench.settings import Settings

ROLES = ("nobody", "viewer", "judge", "admin")


def role_of(route: APIRoute) -> str:
    """The role that a route asks for."""
    found = [role for each in route.dependant.dependencies if (role := getattr(each.call, "role", None))]
    assert len(found) == 1, f"{route.path} must have one guard"
    return found[0]


def test_without_an_admin_only_verdicts_and_tokens_of_ones_own_are_changed() -> None:
    changing = [
        (route, method)
        for route, method, url in routes_of((*API, *PAGES))
        if method != "GET" and "/sign-" not in url
    ]
    assert {
        f"{method} {route.path}": role for route, method in changing if (role := role_of(route)) != "admin"
    } == {
        "POST /api/bench/judging/open/{experiment:name}": "judge",
        "POST /api/bench/judging/submit/{sitting}/{experiment:name}": "judge",
        "POST /api/bench/judging/close/{sitting}/{experiment:name}": "judge",
        "POST /judge/{experiment:name}": "judge",
        "POST /api/bench/tokens": "viewer",
        "DELETE /api/bench/tokens/{token}": "viewer",
        "POST /people/tokens": "viewer",
        "POST /people/tokens/{token}/revoke": "viewer",
    }


def test_every_route_lets_its_roles_in_and_nobody_else(site: Site) -> None:
    headers = {role: site.as_(role) for role in ROLES}
    routes = routes_of(API)
    assert len(routes) >= 25
    for route, method, url in routes:
        for role in ROLES:
            status = site.client.request(method, url, headers=headers[role]).status_code
            if role == "nobody":
                assert status == 401, (method, url)
            elif RANK[role] < RANK[role_of(route)]:  # pyright: ignore[reportArgumentType]
                assert status == 403, (method, url, role)
            else:
                assert status not in {401, 403}, (method, url, role)
                assert status < 500, (method, url, role)


def test_every_page_lets_its_roles_in_and_nobody_else(site: Site) -> None:
    routes = [each for each in routes_of(PAGES) if "/sign-" not in each[2]]
    assert len(routes) >= 20
    for role in ROLES:
        if role == "nobody":
            site.client.cookies.clear()
        else:
            assert sign_in(site, name=f"the-{role}") == 303
        for route, method, url in routes:
            status = site.client.request(method, url, headers=HERE).status_code
            if role == "nobody":
                assert status == 303, (method, url)
            elif RANK[role] < RANK[role_of(route)]:  # pyright: ignore[reportArgumentType]
                assert status == 403, (method, url, role)
            else:
                assert status not in {401, 403}, (method, url, role)
                assert status < 500, (method, url, role)


def sign_in(site: Site, name: str = "the-admin", password: str = PASSWORD) -> int:
    site.client.cookies.clear()
    answer = site.client.post("/sign-in", data={"name": name, "password": password}, headers=HERE)
    return answer.status_code


def test_a_session_cookie_is_out_of_reach_of_scripts_and_dies_with_the_sign_out(fresh_site: Site) -> None:
    site = fresh_site
    answer = site.client.post("/sign-in", data={"name": "the-admin", "password": PASSWORD}, headers=HERE)
    assert answer.status_code == 303
    cookie = answer.headers["set-cookie"].lower()
    assert "httponly" in cookie
    assert "samesite=lax" in cookie
    assert site.client.get("/api/bench/me").json()["name"] == "the-admin"
    kept = dict(site.client.cookies)
    site.client.post("/sign-out", headers=HERE)
    site.client.cookies.clear()
    site.client.cookies.update(kept)
    assert site.client.get("/api/bench/me").status_code == 401, "a copied cookie is dead too"


def test_a_new_password_ends_every_session_of_the_user(fresh_site: Site) -> None:
    site = fresh_site
    assert sign_in(site, name="the-judge") == 303
    assert site.client.get("/api/bench/me").json()["name"] == "the-judge"
    site.parts.accounts.set_password("the-judge", "another long password", by="test")
    assert site.client.get("/api/bench/me").status_code == 401
    assert sign_in(site, name="the-judge", password="another long password") == 303


def test_the_longest_password_lets_its_owner_in_and_its_beginning_does_not(fresh_site: Site) -> None:
    longest = "a sentence is good. " * (MAX_PASSWORD // 20)
    assert len(longest) == MAX_PASSWORD
    fresh_site.parts.accounts.set_password("the-judge", longest, by="test")
    assert sign_in(fresh_site, name="the-judge", password=longest) == 303
    assert sign_in(fresh_site, name="the-judge", password=longest[:-1]) == 401


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Origin": "https://evil.example"}, 403),
        ({}, 403),
        ({"Origin": "http://localhost"}, 201),
        (HERE, 201),
    ],
)
def test_requests_from_other_sites_change_nothing(
    fresh_site: Site, headers: dict[str, str], status: int
) -> None:
    assert sign_in(fresh_site) == 303
    answer = fresh_site.client.post("/api/bench/tokens", json={}, headers=headers)
    assert answer.status_code == status


def test_sign_in_is_throttled_per_user(fresh_site: Site) -> None:
    assert [sign_in(fresh_site, password="wrong") for _ in range(5)] == [401] * 5
    assert sign_in(fresh_site) == 429, "even the right password has to wait now"
    assert sign_in(fresh_site, name="the-judge") == 303


def test_sign_in_is_throttled_per_address_whatever_the_names(tmp_path: Path) -> None:
    stamps = replace(make_stamps(), now_ms=lambda: 1_700_000_000_000)
    database = open_jobs(Settings(home=tmp_path), stamps, more_tables=TABLES).database
    credentials = Credentials(database, Accounts(database, stamps), stamps)
    for number in range(4 * MAX_FAILURES):
        assert credentials.sign_in(f"name{number}", "password123", address="10.0.0.1") is None
    with pytest.raises(TooManyAttempts):
        credentials.sign_in("somebody-else", "password123", address="10.0.0.1")
    assert credentials.sign_in("somebody-else", "password123", address="10.0.0.2") is None


def test_tokens_are_shown_once_stored_hashed_and_revocable(fresh_site: Site) -> None:
    site, headers = fresh_site, fresh_site.as_("viewer")
    made = site.client.post("/api/bench/tokens", json={"label": "ci", "days": 1}, headers=headers).json()
    mine = {"Authorization": f"Bearer {made['secret']}"}
    assert site.client.get("/api/bench/me", headers=mine).json()["name"] == "the-viewer"
    listed = site.client.get("/api/bench/tokens", headers=mine).text
    assert made["secret"] not in listed
    stored = b"".join(path.read_bytes() for path in site.parts.settings.home.glob("admin.db*"))
    assert made["secret"].encode() not in stored
    assert PASSWORD.encode() not in stored
    other = site.client.delete(f"/api/bench/tokens/{made['token']['id']}", headers=site.as_("judge"))
    assert other.status_code == 404, "others' tokens are none of a judge's business"
    assert site.client.delete(f"/api/bench/tokens/{made['token']['id']}", headers=mine).status_code == 204
    assert site.client.get("/api/bench/me", headers=mine).status_code == 401
    for_admin = {"user": "the-admin"}
    assert site.client.post("/api/bench/tokens", json=for_admin, headers=headers).status_code == 400


def test_a_token_ends_when_it_said_so(fresh_site: Site) -> None:
    headers = fresh_site.as_("viewer")
    with fresh_site.parts.jobs.database.change() as change:
        change.execute("UPDATE tokens SET expires_ms = 1")
    assert fresh_site.client.get("/api/bench/me", headers=headers).status_code == 401


def test_who_is_shut_out_is_out_at_once(fresh_site: Site) -> None:
    site, judge = fresh_site, fresh_site.as_("judge")
    order = {"role": "judge", "disabled": True}
    changed = site.client.post("/api/bench/users/the-judge", json=order, headers=site.as_("admin"))
    assert changed.json()["disabled"] is True
    assert site.client.get("/api/bench/me", headers=judge).status_code == 401
    assert sign_in(site, name="the-judge") == 401


def test_the_last_admin_stays(fresh_site: Site) -> None:
    order = {"role": "viewer", "disabled": False}
    refused = fresh_site.client.post(
        "/api/bench/users/the-admin", json=order, headers=fresh_site.as_("admin")
    )
    assert refused.status_code == 400
    assert fresh_site.parts.accounts.get("the-admin").role == "admin"


def test_every_change_is_in_the_audit_and_no_secret_is(fresh_site: Site) -> None:
    site, headers = fresh_site, fresh_site.as_("admin")
    new = {"name": "cleo", "role": "viewer", "password": "a very long secret"}
    assert site.client.post("/api/bench/users", json=new, headers=headers).status_code == 201
    assert sign_in(site, name="cleo", password="not hers at all") == 401
    audit = site.client.get("/api/bench/audit", headers=headers)
    whats = [line["what"] for line in audit.json()["lines"]]
    assert whats[:2] == ["sign-in.failed", "user.create"]
    assert "a very long secret" not in audit.text


@pytest.mark.parametrize(
    "host",
    ["localhost.evil.example", "evil.localhost", "127.0.0.1.evil.example", "localhostile:80"],
)
def test_a_name_that_only_holds_one_of_ours_is_refused(site: Site, host: str) -> None:
    assert site.client.get("/api/bench/me", headers={"Host": host}).status_code == 421


def test_strange_hosts_and_big_bodies_are_refused(site: Site) -> None:
    answer = site.client.get("/api/bench/me", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    big = site.client.post("/api/bench/run", content=b"x" * (MAX_BODY + 1), headers=site.as_("admin"))
    assert big.status_code == 413
    for answered in (answer, big):
        assert "script-src 'self'" in answered.headers["content-security-policy"]


def test_a_page_runs_no_script_but_the_panels_own_files(site: Site) -> None:
    policy = site.client.get("/sign-in").headers["content-security-policy"]
    sources = {name: given for name, *given in map(str.split, policy.split(";"))}
    assert sources["default-src"] == ["'none'"]
    assert sources["script-src"] == ["'self'"]
    # Either of the two would be asked before `script-src`.
    assert not sources.keys() & {"script-src-elem", "script-src-attr"}
