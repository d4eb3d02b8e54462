"""`tipbench serve`: the panel and the API, their users and tokens."""

import json
import os
import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import (
    check_extra,
    check_host,
    check_room,
    find_user,
    has_subcommand,
    home_option,
    mlflow_options,
    run_app,
)
from tipbench.errors import UsageError

if TYPE_CHECKING:
    from tipbench.admin.users import Accounts, Credentials, Role
    from tipbench.settings import Settings

FRONT = (
    "Put a reverse proxy with TLS in front of it, which alone can reach this port, and name the address "
    "that people type: --public-url https://bench.example"
)
DEMO_ALONE = "Leave --expose and --mlflow-url out, or --demo."
password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input."
)


@click.group(name="serve", invoke_without_command=True)
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(1, 65535), default=8765, show_default=True, help="The port.")
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that answer."
)
@click.option("--expose", is_flag=True, help="Listen beyond this machine. Needs TLS in front.")
@click.option(
    "--demo", is_flag=True, help="A recorded campaign to click through; nothing of yours is touched."
)
@click.option("--public-url", help="The address that people type, if a proxy stands in front.")
@click.option(
    "--trusted-proxy",
    multiple=True,
    help="The proxy's address or network: only it is believed for whom it asks (X-Forwarded-For).",
)
@mlflow_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    host: str,
    port: int,
    workers: int,
    expose: bool,
    demo: bool,
    public_url: str | None,
    trusted_proxy: tuple[str, ...],
    **flags: object,
) -> None:
    """The bench from a browser and from other programs. First: tipbench serve users create NAME."""
    if has_subcommand(ctx):
        return
    check_extra("admin", "argon2", "fastapi", "python_multipart", "uvicorn")
    from tipbench.admin.app import HOSTS, PROXIES, PUBLIC_URL
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    if demo and (expose or flags.get("mlflow_url")):
        raise UsageError("--demo stays on this machine, with an MLflow of its own", hint=DEMO_ALONE)
    check_host(host, expose=expose, hint=FRONT)
    settings = read_settings(flags)
    check_room(settings)
    say = make_console()
    with ExitStack() as stack:
        if demo:
            _say_demo(stack, settings, say.print)
        else:
            _hand_over(settings, flags)
            _say_first_user(settings, say.print)
        known = host if host not in {"0.0.0.0", "::"} else ""  # noqa: S104
        proxies = ",".join(map(_check_proxy, trusted_proxy))
        os.environ |= {PUBLIC_URL: _check_public(public_url), HOSTS: known, PROXIES: proxies}
        after = "the demo ends with it" if demo else "jobs go on"
        say.print(f"{_address(host, port)}  (Ctrl-C ends it, {after})", markup=False)
        if expose:
            say.print(f"· beyond this machine. {FRONT}", markup=False)
        run_app(
            "tipbench.admin.app:make_worker_app",
            workers=workers,
            host=host,
            port=port,
            server_header=False,
            proxy_headers=False,
            http="tipbench.admin.protocol:TimedHttp",
            timeout_graceful_shutdown=5,
        )


def _address(host: str, port: int) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port}/"


def _say_demo(stack: ExitStack, settings: "Settings", say: Callable[..., None]) -> None:
    from tipbench.admin.demo import USER, open_demo

    say("Demo, in a data folder of its own. Nothing of yours is touched.")
    demo = stack.enter_context(open_demo(settings, lambda line: say(f"· {line}", markup=False)))
    say(f"It shows {demo.shows}.", markup=False)
    say(f"Sign in as {USER} with the password {demo.password}", markup=False)


def _hand_over(settings: "Settings", flags: dict[str, object]) -> None:
    """Workers and jobs read the settings themselves: flags reach them through the environment."""
    os.environ["TIPBENCH_HOME"] = str(settings.home)
    if flags.get("mlflow_url"):
        os.environ["TIPBENCH_MLFLOW_URL"] = str(settings.mlflow_url)


def _check_public(url: str | None) -> str:
    if url is None:
        return ""
    from tipbench.web import normalise_url, origin_of

    normal = normalise_url(url, setting="--public-url")
    if normal != origin_of(normal):
        raise UsageError(f"--public-url {url!r} is not an address such as https://bench.example")
    return normal


def _check_proxy(address: str) -> str:
    import ipaddress

    try:
        return str(ipaddress.ip_network(address) if "/" in address else ipaddress.ip_address(address))
    except ValueError as error:
        raise UsageError(
            f"--trusted-proxy {address!r} is neither an address nor a network",
            hint="Give it in numbers, as in 10.0.0.7 or 10.0.0.0/24.",
        ) from error


def _say_first_user(settings: "Settings", say: Callable[..., None]) -> None:
    from tipbench.admin.deps import make_parts
    from tipbench.clock import make_stamps

    parts = make_parts(settings, make_stamps())
    if not parts.accounts.list_users():
        say("· nobody can sign in yet: tipbench serve users create NAME")
    if parts.airflow is not None:
        say(f"· runs go to Airflow at {settings.airflow_url}, all other jobs run here", markup=False)
    parts.close()


@command.group()
def users() -> None:
    """Who may sign in, and with which password."""


@users.command(name="create")
@click.argument("name")
@click.option(
    "--role",
    type=click.Choice(["admin", "judge", "viewer"]),
    default="admin",
    show_default=True,
    help="admin may do everything, a judge judges, a viewer reads.",
)
@password_option
@home_option
def create_user(*, name: str, role: "Role", password_stdin: bool, **flags: object) -> None:
    """Let NAME in. The first one should be an admin."""
    accounts, _ = _open_accounts(flags)
    accounts.create(name, role, _read_password(from_stdin=password_stdin), by=_who())
    click.echo(f"{name} is {role}. Sign in where `tipbench serve` says.")


@users.command(name="set-password")
@click.argument("name")
@password_option
@home_option
def set_password(*, name: str, password_stdin: bool, **flags: object) -> None:
    """Another password for NAME; every session of theirs ends, their tokens are revoked."""
    accounts, _ = _open_accounts(flags)
    accounts.get(name)
    accounts.set_password(name, _read_password(from_stdin=password_stdin), by=_who())
    click.echo(f"{name} has a new password.")


@users.command(name="list")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@home_option
def list_users(*, as_json: bool, **flags: object) -> None:
    """Everybody who may sign in."""
    from rich.table import Table

    from tipbench.show.console import make_console

    accounts, _ = _open_accounts(flags)
    if as_json:
        listed = [{"name": u.name, "role": u.role, "disabled": u.disabled} for u in accounts.list_users()]
        click.echo(json.dumps(listed, indent=1))
        return
    table = Table("user", "role", "")
    for user in accounts.list_users():
        table.add_row(user.name, user.role, "shut out" if user.disabled else "")
    make_console().print(table)


@command.group()
def tokens() -> None:
    """Tokens with which programs act as a user."""


@tokens.command(name="create")
@click.argument("name")
@click.option("--label", default="", help="What it is for.")
@click.option(
    "--days", type=click.IntRange(1, 366), default=90, show_default=True, help="How long it is good."
)
@click.option("--read-only", is_flag=True, help="It may look at everything and change nothing.")
@home_option
def create_token(*, name: str, label: str, days: int, read_only: bool, **flags: object) -> None:
    """A token for a program of NAME's. It is printed this once, alone on standard output."""
    _, credentials = _open_accounts(flags)
    token, secret = credentials.make_token(name, label=label, days=days, by=_who(), read_only=read_only)
    click.echo(secret)
    click.echo(f"token {token.id} of {name}, good for {days} days; it is not shown again", err=True)


def _open_accounts(flags: dict[str, object]) -> "tuple[Accounts, Credentials]":
    check_extra("admin", "argon2")
    from tipbench.admin.users import TABLES, Accounts, Credentials
    from tipbench.clock import make_stamps
    from tipbench.jobs.store import open_jobs
    from tipbench.settings import read_settings

    settings = read_settings(flags)
    check_room(settings)
    stamps = make_stamps()
    database = open_jobs(settings, stamps, more_tables=TABLES).database
    accounts = Accounts(database, stamps)
    return accounts, Credentials(database, accounts, stamps)


def _read_password(*, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    if not sys.stdin.isatty():
        raise UsageError("no terminal: use --password-stdin", hint="As in: … --password-stdin < FILE")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


def _who() -> str:
    return f"{find_user()} (command line)"
