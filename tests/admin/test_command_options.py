"""Options of `tipbench serve`, `admin` and `jobs`, each seen by its effect."""

import io
import os
import subprocess
import sys
from pathlib import Path

import httpx2
import pytest

from tests.conftest import Cli
from tests.support.ports import free_port
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.admin.deps import make_parts
from tipbench.admin.users import read_audit
from tipbench.clock import make_stamps
from tipbench.jobs.records import Step
from tipbench.jobs.store import NewJob
from tipbench.settings import Settings


def test_a_user_gets_the_role_and_a_token_the_label_it_was_given(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, role in (("ada", "admin"), ("ben", "viewer")):
        monkeypatch.setattr(sys, "stdin", io.StringIO("a long password\n"))
        told = cli.ok("serve", "users", "create", name, "--role", role, "--password-stdin")
        assert f"{name} is {role}" in told.out
    cli.ok("serve", "tokens", "create", "ben", "--label", "for the nightly report", "--read-only")
    parts = make_parts(Settings(home=cli.home), make_stamps())
    assert {user.name: user.role for user in parts.accounts.list_users()} == {"ada": "admin", "ben": "viewer"}
    (token,) = parts.credentials.list_tokens()
    assert (token.user, token.label, token.read_only) == ("ben", "for the nightly report", True)
    parts.close()


def test_only_so_many_jobs_are_listed_the_newest_first(cli: Cli) -> None:
    parts = make_parts(Settings(home=cli.home), make_stamps())
    steps = (Step(name="check", arguments=("jobs", "list")),)
    ids = [
        parts.jobs.add(NewJob("collect", f"e{n}", "ada", steps, make_stamps().new_id())).id for n in range(3)
    ]
    parts.close()
    for limit in (1, 2, 3):
        listed = cli.ok("jobs", "list", "--limit", str(limit), "--json").json()
        assert [job["id"] for job in listed] == ids[::-1][:limit]


def test_the_demo_stays_on_this_machine(cli: Cli) -> None:
    """Refused before anything is made."""
    for refused in (
        cli("serve", "--demo", "--expose"),
        cli("serve", "--demo", "--mlflow-url", "http://127.0.0.1:9"),
    ):
        assert (refused.code, "--demo stays on this machine" in refused.err) == (2, True), refused.err
    assert not (cli.home / "serve-demo").exists()


def make_token(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sys, "stdin", io.StringIO("a long password\n"))
    cli.ok("serve", "users", "create", "ada", "--password-stdin")
    return cli.ok("serve", "tokens", "create", "ada").out.strip()


def test_exposed_it_listens_on_every_address_and_says_what_belongs_in_front(
    cli: Cli, mlflow_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    port, token = free_port(), make_token(cli, monkeypatch)
    # The server and the data folder of the flags: the environment names others.
    elsewhere = {"MLFLOW_TRACKING_URI": "http://127.0.0.1:9", "TIPBENCH_HOME": str(tmp_path / "elsewhere")}
    command = [
        *(sys.executable, "-m", "tipbench", "serve", "--host", "0.0.0.0", "--expose", "--port", str(port)),
        *("--mlflow-url", mlflow_url, "--home", str(cli.home), "--trusted-proxy", "127.0.0.1"),
    ]
    with subprocess.Popen(command, env=os.environ | elsewhere, stdout=subprocess.PIPE, text=True) as process:
        try:

            def answers() -> bool:
                assert process.poll() is None, "it ended by itself"
                try:
                    # On 127.0.0.1, the default, nobody would answer here. What is said to a strange
                    # name is the subject of other tests.
                    return bool(
                        httpx2.get(f"http://127.0.0.2:{port}/", timeout=60, trust_env=False).status_code
                    )
                except httpx2.HTTPError:
                    return False

            eventually(answers, "the panel answers")
            listed = httpx2.get(
                f"http://127.0.0.1:{port}/api/bench/experiments",
                headers={"Authorization": f"Bearer {token}"},
                timeout=PATIENCE_SECONDS,
                trust_env=False,
            )
            assert listed.status_code == 200, listed.text
            httpx2.post(
                f"http://127.0.0.1:{port}/sign-in",
                data={"name": "ada", "password": "wrong"},
                headers={"X-Forwarded-For": "192.0.2.7", "Sec-Fetch-Site": "same-origin"},
                timeout=PATIENCE_SECONDS,
                trust_env=False,
            )
        finally:
            process.terminate()
        assert process.stdout is not None
        printed = process.stdout.read()
    assert f"http://0.0.0.0:{port}/" in printed
    parts = make_parts(Settings(home=cli.home), make_stamps())
    with parts.jobs.database.read() as view:
        newest = read_audit(view, limit=1)[0]
    parts.close()
    assert (newest.what, newest.subject) == ("sign-in.failed", "192.0.2.7"), "who asked the proxy"
    assert "beyond this machine. Put a reverse proxy with TLS in front of it" in printed
