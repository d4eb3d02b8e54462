"""`tipbench serve users`, `tipbench jobs` and `tipbench serve` as commands."""

import io
import sys

import pytest

from tests.conftest import Cli
from tipbench.admin.deps import make_parts
from tipbench.clock import make_stamps
from tipbench.jobs.records import Step
from tipbench.jobs.store import NewJob
from tipbench.settings import Settings


def type_in(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(sys, "stdin", io.StringIO(text))


def test_the_first_admin_is_made_on_the_command_line(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    type_in(monkeypatch, "a long password\n")
    cli.ok("serve", "users", "create", "ada", "--password-stdin")
    parts = make_parts(Settings(home=cli.home), make_stamps())
    found = parts.accounts.check_password("ada", "a long password")
    assert found is not None
    assert found.role == "admin"
    type_in(monkeypatch, "a long password\n")
    again = cli("serve", "users", "create", "ada", "--password-stdin")
    assert (again.code, "already" in again.err) == (2, True)
    type_in(monkeypatch, "short\n")
    assert cli("serve", "users", "create", "ben", "--password-stdin").code == 2
    assert "ada" in cli.ok("serve", "users", "list").out
    secret = cli.ok("serve", "tokens", "create", "ada", "--days", "1").out.strip()
    user = parts.credentials.token_user(secret, writes=True)
    assert user is not None
    assert user.name == "ada"
    type_in(monkeypatch, "another password\n")
    cli.ok("serve", "users", "set-password", "ada", "--password-stdin")
    assert parts.accounts.check_password("ada", "a long password") is None
    parts.close()


@pytest.mark.parametrize("command", ["create", "set-password"])
def test_without_a_terminal_nobody_is_asked_for_a_password(
    cli: Cli, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    if command == "set-password":
        type_in(monkeypatch, "a long password\n")
        cli.ok("serve", "users", "create", "ada", "--password-stdin")
    type_in(monkeypatch, "another password\nanother password\n")
    refused = cli("serve", "users", command, "ada")
    assert (refused.code, "no terminal: use --password-stdin" in refused.err) == (2, True), refused.err
    assert "Warning" not in refused.err


def test_jobs_are_listed_shown_and_cancelled_on_the_command_line(cli: Cli) -> None:
    parts = make_parts(Settings(home=cli.home), make_stamps())
    steps = (Step(name="check", arguments=("jobs", "list")),)
    done, queued = (
        parts.jobs.add(NewJob("collect", "e", "ada", steps, make_stamps().new_id())) for _ in range(2)
    )
    cli.ok("jobs", "work", done.id)
    listed = {job["id"]: job["state"] for job in cli.ok("jobs", "list", "--json").json()}
    assert listed == {done.id: "done", queued.id: "queued"}
    assert "$ tipbench jobs list" in cli.ok("jobs", "log", done.id).out
    cli.ok("jobs", "cancel", queued.id)
    assert "cancelled" in cli.ok("jobs", "list").out
    assert cli("jobs", "cancel", "none").code == 2
    parts.close()


def test_serving_beyond_this_machine_needs_a_flag_and_says_what_to_put_in_front(cli: Cli) -> None:
    refused = cli("serve", "--host", "0.0.0.0")
    assert refused.code == 2
    assert "--expose" in refused.err
    assert "TLS" in refused.err
    for bad in ("bench.example", "https://bench.example/panel", "https://["):
        assert cli("serve", "--public-url", bad).code == 2
    for bad in ("*", "proxy.example", "10.0.0.1/8"):
        refused = cli("serve", "--trusted-proxy", bad)
        assert (refused.code, "neither an address nor a network" in refused.err) == (2, True)
