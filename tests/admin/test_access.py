"""Who may do what: every route with every role, sessions, tokens, cross-site requests, throttling."""

import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from fastapi.testclient import TestClient

from tests.admin.conftest import HERE, PASSWORD, Site
from tests.admin.making import routes_of
from tipbench.admin.access import MAX_BODY, MAX_STREAMS, needs_session
from tipbench.admin.app import API, PAGES, make_app
from tipbench.admin.deps import make_parts
from tipbench.admin.users import (
    DAY_MS,
    MAX_FAILURES,
    MAX_PASSWORD,
    MAX_TOKENS,
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


def test_without_an_admin_only_verdicts_and_what_is_ones_own_are_changed() -> None:
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
        "POST /practice/{experiment:name}": "judge",
        "POST /api/bench/tokens": "viewer",
        "DELETE /api/bench/tokens/{token}": "viewer",
        "POST /api/bench/me/password": "viewer",
        "POST /people/password": "viewer",
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
            elif needs_session(route) or RANK[role] < RANK[role_of(route)]:  # pyright: ignore[reportArgumentType]
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


def sign_in(
    site: Site, name: str = "the-admin", password: str = PASSWORD, cookies: dict[str, str] | None = None
) -> int:
    site.client.cookies.clear()
    sent = {"Cookie": "; ".join(f"{cookie}={value}" for cookie, value in (cookies or {}).items())}
    headers = HERE | sent if cookies else HERE
    answer = site.client.post("/sign-in", data={"name": name, "password": password}, headers=headers)
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


def test_right_passwords_are_not_counted(fresh_site: Site) -> None:
    names = ("the-admin", "the-judge", "the-viewer")
    assert [sign_in(fresh_site, name=names[n % 3]) for n in range(4 * MAX_FAILURES + 2)] == [303] * 22
    assert sign_in(fresh_site, password="wrong") == 401


def test_a_right_password_from_a_known_browser_passes_while_strangers_guess(fresh_site: Site) -> None:
    site = fresh_site
    assert sign_in(site) == 303
    known = {name: value for name, value in site.client.cookies.items() if "known" in name}
    for _ in range(MAX_FAILURES):
        assert sign_in(site, password="wrong") == 401
    assert sign_in(site) == 429
    assert sign_in(site, cookies=known, name="the-judge") == 303, "nobody guessed at this name"
    assert sign_in(site, cookies=known) == 303
    again = {name: value for name, value in site.client.cookies.items() if "known" in name}
    assert again != known
    assert sign_in(site, cookies=known) == 429, "each is good until the next sign-in"
    stored = b"".join(path.read_bytes() for path in site.parts.settings.home.glob("admin.db*"))
    assert not any(value.encode() in stored for value in (known | again).values())


def test_guesses_from_a_known_browser_have_a_count_of_their_own(fresh_site: Site) -> None:
    assert sign_in(fresh_site) == 303
    known = dict(fresh_site.client.cookies.items())
    for _ in range(MAX_FAILURES):
        assert sign_in(fresh_site, cookies=known, password="wrong") == 401
    assert sign_in(fresh_site, cookies=known) == 429
    assert sign_in(fresh_site) == 303, "elsewhere the user may sign in"


def test_only_a_trusted_proxy_is_believed_for_whom_it_asks(mlflow_url: str, tmp_path: Path) -> None:
    settings = Settings(home=tmp_path, mlflow_url=mlflow_url)
    for proxies, expected in ((frozenset[str](), 429), (frozenset({"testclient"}), 401)):
        parts = make_parts(settings, make_stamps())
        with TestClient(
            make_app(parts, dispatch=False, proxies=proxies), base_url="http://localhost"
        ) as client:

            def guess(number: int, address: str, client: TestClient = client) -> int:
                said = {"name": f"name{number}", "password": "wrong"}
                # A client may write anything before what the proxy adds.
                forwarded = {"X-Forwarded-For": f"9.9.9.9, {address}"}
                return client.post("/sign-in", data=said, headers=HERE | forwarded).status_code

            statuses = [guess(number, "10.0.0.1") for number in range(4 * MAX_FAILURES)]
            assert statuses == [401] * 20
            assert guess(21, "10.0.0.2") == expected
            assert guess(22, "10.0.0.1") == 429
        with parts.jobs.database.change() as change:
            change.execute("DELETE FROM failures")


def test_sign_in_is_throttled_per_address_whatever_the_names(tmp_path: Path) -> None:
    stamps = replace(make_stamps(), now_ms=lambda: 1_700_000_000_000)
    database = open_jobs(Settings(home=tmp_path), stamps, more_tables=TABLES).database
    credentials = Credentials(database, Accounts(database, stamps), stamps)
    for number in range(4 * MAX_FAILURES):
        assert credentials.sign_in(f"name{number}", "password123", address="10.0.0.1") is None
    with pytest.raises(TooManyAttempts):
        credentials.sign_in("somebody-else", "password123", address="10.0.0.1")
    assert credentials.sign_in("somebody-else", "password123", address="10.0.0.2") is None


def make_token(site: Site, name: str, **wanted: object) -> tuple[str, dict[str, str]]:
    """Its id, and the header it makes: somebody signs in, makes it and signs out."""
    assert sign_in(site, name=name) == 303
    made = site.client.post("/api/bench/tokens", json=wanted, headers=HERE).json()
    site.client.cookies.clear()
    return made["token"]["id"], {"Authorization": f"Bearer {made['secret']}"}


def test_tokens_are_shown_once_stored_hashed_and_revocable(fresh_site: Site) -> None:
    site = fresh_site
    token, mine = make_token(site, "the-viewer", label="ci", days=1)
    assert site.client.get("/api/bench/me", headers=mine).json()["name"] == "the-viewer"
    secret = mine["Authorization"].removeprefix("Bearer ")
    assert secret not in site.client.get("/api/bench/tokens", headers=mine).text
    stored = b"".join(path.read_bytes() for path in site.parts.settings.home.glob("admin.db*"))
    assert secret.encode() not in stored
    assert PASSWORD.encode() not in stored
    other = site.client.delete(f"/api/bench/tokens/{token}", headers=site.as_("judge"))
    assert other.status_code == 404, "others' tokens are none of a judge's business"
    assert site.client.delete(f"/api/bench/tokens/{token}", headers=mine).status_code == 204
    assert site.client.get("/api/bench/me", headers=mine).status_code == 401
    assert sign_in(site, name="the-viewer") == 303
    for_admin = {"user": "the-admin"}
    assert site.client.post("/api/bench/tokens", json=for_admin, headers=HERE).status_code == 400


def test_no_token_makes_what_lets_somebody_in(fresh_site: Site) -> None:
    site, admin = fresh_site, fresh_site.as_("admin")
    user = {"name": "eve", "role": "admin", "password": "a very long secret"}
    password = {"password": "a very long secret"}
    for place, body in (
        ("tokens", {}),
        ("users", user),
        ("users/the-viewer", {"role": "admin"}),
        ("users/the-judge/password", password),
        ("me/password", password | {"old": PASSWORD}),
    ):
        answer = site.client.post(f"/api/bench/{place}", json=body, headers=admin)
        assert (place, answer.status_code) == (place, 403)
        assert "signed-in session" in answer.json()["error"]["message"]
    assert [token.label for token in site.parts.credentials.list_tokens()] == ["test"]
    assert len(site.parts.accounts.list_users()) == 3


def test_a_token_that_may_only_read_changes_nothing(fresh_site: Site) -> None:
    site = fresh_site
    token, reading = make_token(site, "the-admin", read_only=True)
    assert site.client.get("/api/bench/users", headers=reading).status_code == 200
    shown = site.client.get("/api/bench/tokens", headers=reading).json()["tokens"]
    assert [each["read_only"] for each in shown if each["id"] == token] == [True]
    for route, method, url in routes_of(API):
        if method != "GET":
            answer = site.client.request(method, url, json={}, headers=reading)
            assert (route.path, answer.status_code) == (route.path, 403)
    assert site.client.delete(f"/api/bench/tokens/{token}", headers=reading).status_code == 403
    assert site.client.post("/api/bench/simulate", json={}, headers=site.as_("admin")).status_code == 202


def test_nobody_has_more_tokens_than_the_limit(fresh_site: Site) -> None:
    site = fresh_site
    assert sign_in(site, name="the-viewer") == 303
    made = [site.client.post("/api/bench/tokens", json={}, headers=HERE) for _ in range(MAX_TOKENS + 1)]
    assert [each.status_code for each in made] == [201] * MAX_TOKENS + [429]
    page = site.client.post("/people/tokens", data={"days": "1"}, headers=HERE)
    assert page.status_code == 422
    assert "Revoke one that is not used." in page.text
    token = made[0].json()["token"]["id"]
    assert site.client.delete(f"/api/bench/tokens/{token}", headers=HERE).status_code == 204
    assert site.client.post("/api/bench/tokens", json={}, headers=HERE).status_code == 201
    assert make_token(site, "the-judge")[0]


def test_tokens_end_with_the_password(fresh_site: Site) -> None:
    site = fresh_site
    _, mine = make_token(site, "the-judge")
    _, others = make_token(site, "the-viewer")
    assert sign_in(site) == 303
    wanted = {"password": "another long password"}
    changed = site.client.post("/api/bench/users/the-judge/password", json=wanted, headers=HERE)
    assert changed.status_code == 204
    site.client.cookies.clear()
    assert site.client.get("/api/bench/me", headers=mine).status_code == 401
    assert site.client.get("/api/bench/me", headers=others).status_code == 200


@pytest.mark.parametrize("place", ["/api/bench/me/password", "/people/password"])
def test_users_change_their_own_password_and_their_other_sessions_end(fresh_site: Site, place: str) -> None:
    site, new = fresh_site, "my own long password"

    def change(old: str, password: str) -> int:
        said = {"old": old, "password": password}
        if place.startswith("/api"):
            return site.client.post(place, json=said, headers=HERE).status_code
        return site.client.post(place, data=said, headers=HERE).status_code

    done, wrong, short = (204, 400, 422) if place.startswith("/api") else (303, 422, 422)
    _, token = make_token(site, "the-judge")
    assert sign_in(site, name="the-judge") == 303
    elsewhere = dict(site.client.cookies.items())
    assert sign_in(site, name="the-judge") == 303
    assert change("not the old one", new) == wrong
    assert change(PASSWORD, "short") == short
    assert change(PASSWORD, new) == done
    assert site.client.get("/api/bench/me").status_code == 200, "here the session goes on"
    here = dict(site.client.cookies.items())
    site.client.cookies.clear()
    assert site.client.get("/api/bench/me", headers=token).status_code == 401
    site.client.cookies.update(elsewhere)
    assert site.client.get("/api/bench/me").status_code == 401
    assert sign_in(site, name="the-judge") == 401
    assert sign_in(site, name="the-judge", password=new) == 303
    site.client.cookies.clear()
    site.client.cookies.update(here)
    for _ in range(MAX_FAILURES - 1):  # one wrong guess is counted already
        assert change("a guess", "yet another password") == wrong
    assert change(new, "yet another password") in {422, 429}, (
        "whoever found a session open cannot try them all"
    )


def test_a_token_ends_when_it_said_so(fresh_site: Site) -> None:
    headers = fresh_site.as_("viewer")
    with fresh_site.parts.jobs.database.change() as change:
        change.execute("UPDATE tokens SET expires_ms = 1")
    assert fresh_site.client.get("/api/bench/me", headers=headers).status_code == 401


def test_who_is_shut_out_is_out_at_once(fresh_site: Site) -> None:
    site, judge = fresh_site, fresh_site.as_("judge")
    order = {"role": "judge", "disabled": True}
    assert sign_in(site) == 303
    changed = site.client.post("/api/bench/users/the-judge", json=order, headers=HERE)
    assert changed.json()["disabled"] is True
    site.client.cookies.clear()
    assert site.client.get("/api/bench/me", headers=judge).status_code == 401
    assert sign_in(site, name="the-judge") == 401


def test_the_last_admin_stays(fresh_site: Site) -> None:
    order = {"role": "viewer", "disabled": False}
    assert sign_in(fresh_site) == 303
    refused = fresh_site.client.post("/api/bench/users/the-admin", json=order, headers=HERE)
    assert refused.status_code == 400
    assert fresh_site.parts.accounts.get("the-admin").role == "admin"


def test_every_change_is_in_the_audit_and_no_secret_is(fresh_site: Site) -> None:
    site, headers = fresh_site, fresh_site.as_("admin")
    new = {"name": "cleo", "role": "viewer", "password": "a very long secret"}
    assert sign_in(site) == 303
    assert site.client.post("/api/bench/users", json=new, headers=HERE).status_code == 201
    assert sign_in(site, name="cleo", password="not hers at all") == 401
    audit = site.client.get("/api/bench/audit", headers=headers)
    whats = [line["what"] for line in audit.json()["lines"]]
    assert whats[:2] == ["sign-in.failed", "user.create"]
    assert "a very long secret" not in audit.text


@pytest.mark.parametrize("host", ["[", "[::1", "[zz]", "]", "localhost]"])
def test_what_is_no_name_at_all_is_refused(site: Site, host: str) -> None:
    answer = site.client.get("/api/bench/me", headers={"Host": host})
    assert (answer.status_code, answer.json()["error"]["code"]) == (421, "host")


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


def test_an_origin_that_is_no_address_is_another_site(fresh_site: Site) -> None:
    assert sign_in(fresh_site) == 303
    answer = fresh_site.client.post("/api/bench/tokens", json={}, headers={"Origin": "http://["})
    assert answer.status_code == 403


@pytest.mark.parametrize(("url", "there"), [("https://bench.example", True), ("", False)])
def test_browsers_are_told_to_stay_with_tls_where_people_use_it(
    mlflow_url: str, tmp_path: Path, url: str, there: bool
) -> None:
    settings = Settings(home=tmp_path, mlflow_url=mlflow_url)
    parts = make_parts(settings, make_stamps(), public_origin=url)
    with TestClient(make_app(parts, dispatch=False), base_url="http://localhost") as client:
        told = client.get("/sign-in").headers.get("strict-transport-security")
    assert told == ("max-age=31536000" if there else None)


def test_what_the_api_can_do_is_told_to_those_who_may_ask(site: Site) -> None:
    site.client.cookies.clear()
    assert site.client.get("/api/openapi.json").status_code == 401
    assert site.client.get("/openapi.json").status_code == 404
    assert "/api/bench/me" in site.client.get("/api/openapi.json", headers=site.as_("viewer")).json()["paths"]


def test_nobody_follows_more_logs_than_the_limit(fresh_site: Site) -> None:
    site, viewer = fresh_site, fresh_site.as_("viewer")
    job = site.client.post("/api/bench/simulate", json={}, headers=site.as_("admin")).json()["id"]
    site.parts.jobs.cancel(job)
    place = f"/api/bench/jobs/{job}/stream"
    site.parts.streams["the-viewer"] = MAX_STREAMS - 1
    for _ in range(2):
        assert "event: end" in site.client.get(place, headers=viewer).text, "each gives its place back"
    site.parts.streams["the-viewer"] = MAX_STREAMS
    assert site.client.get(place, headers=viewer).status_code == 429
    assert site.client.get(place, headers=site.as_("judge")).status_code == 200


def test_what_is_over_for_long_is_forgotten_when_somebody_signs_in(fresh_site: Site) -> None:
    site = fresh_site
    assert sign_in(site, password="wrong") == 401
    assert sign_in(site) == 303
    make_token(site, "the-judge")
    month, year = 31 * DAY_MS, 367 * DAY_MS
    with site.parts.jobs.database.change() as change:
        change.execute("UPDATE audit SET at_ms = at_ms - ?", (month,))
        change.execute("UPDATE tokens SET expires_ms = expires_ms - ?", (2 * year,))
        change.execute("UPDATE browsers SET expires_ms = 1")
    assert sign_in(site) == 303
    with site.parts.jobs.database.read() as view:
        whats = {row["what"] for row in view.execute("SELECT what FROM audit")}
        left = [view.execute(f"SELECT COUNT(*) FROM {name}").fetchone()[0] for name in ("tokens", "browsers")]
    assert "sign-in.failed" not in whats
    assert {"user.create", "token.create", "sign-in"} <= whats
    assert left == [0, 1]
    with site.parts.jobs.database.change() as change:
        change.execute("UPDATE audit SET at_ms = at_ms - ?", (year,))
    assert sign_in(site) == 303
    with site.parts.jobs.database.read() as view:
        assert [row["what"] for row in view.execute("SELECT what FROM audit")] == ["sign-in"]


def test_a_database_of_before_it_had_a_number_is_brought_up_to_date(tmp_path: Path) -> None:
    old = Path(__file__).with_name("admin-0.sql").read_text(encoding="utf-8")
    with closing(sqlite3.connect(tmp_path / "admin.db")) as connection:
        connection.executescript(old)
    settings, stamps = Settings(home=tmp_path), make_stamps()
    for tables in ("", TABLES, TABLES):
        store = open_jobs(settings, stamps, more_tables=tables)
    accounts = Accounts(store.database, stamps)
    credentials = Credentials(store.database, accounts, stamps)
    assert [user.name for user in accounts.list_users()] == ["ada"]
    assert [token.read_only for token in credentials.list_tokens()] == [False]
    found = credentials.token_user("tb_of-an-older-tipbench", writes=True)
    assert found is not None
    assert found.name == "ada"
    assert credentials.sign_in("ada", PASSWORD, address="") is not None
    states = {job.id: job.state for job in store.list_jobs()}
    assert states == {"job-that-waits": "waiting", "job-nobody-would-end": "cancelled"}
