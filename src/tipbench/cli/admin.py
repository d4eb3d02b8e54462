"""`tipbench admin`: users of the panel and the API."""

import getpass
import sys
from typing import TYPE_CHECKING

import click
from rich.table import Table

from tipbench.cli.extras import check_extra
from tipbench.cli.session import check_room, make_console
from tipbench.clock import make_stamps
from tipbench.jobs.store import open_jobs
from tipbench.settings import read_settings

if TYPE_CHECKING:
    from tipbench.admin.users import Accounts, Credentials, Role

home_option = click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")
password_option = click.option(
    "--password-stdin", is_flag=True, help="Read the password from standard input."
)


@click.group(name="admin")
def command() -> None:
    """Users of `tipbench serve`, their passwords and tokens."""


@command.command(name="create-user")
@click.argument("name")
@click.option("--role", type=click.Choice(["admin", "judge", "viewer"]), default="admin", show_default=True)
@password_option
@home_option
def create_user(*, name: str, role: "Role", password_stdin: bool, **flags: object) -> None:
    """Let NAME in. The first one should be an admin."""
    accounts, _ = _open(flags)
    accounts.create(name, role, _read_password(from_stdin=password_stdin), by=_who())
    click.echo(f"{name} is {role}. Sign in where `tipbench serve` says.")


@command.command(name="set-password")
@click.argument("name")
@password_option
@home_option
def set_password(*, name: str, password_stdin: bool, **flags: object) -> None:
    """Another password for NAME; every session of theirs ends."""
    accounts, _ = _open(flags)
    accounts.get(name)
    accounts.set_password(name, _read_password(from_stdin=password_stdin), by=_who())
    click.echo(f"{name} has a new password.")


@command.command(name="users")
@home_option
def list_users(**flags: object) -> None:
    """Everybody who may sign in."""
    accounts, _ = _open(flags)
    table = Table("user", "role", "")
    for user in accounts.list_users():
        table.add_row(user.name, user.role, "shut out" if user.disabled else "")
    make_console().print(table)


@command.command(name="create-token")
@click.argument("name")
@click.option("--label", default="", help="What it is for.")
@click.option(
    "--days", type=click.IntRange(1, 366), default=90, show_default=True, help="How long it is good."
)
@home_option
def create_token(*, name: str, label: str, days: int, **flags: object) -> None:
    """A token for a program of NAME's. It is printed this once, alone on standard output."""
    _, credentials = _open(flags)
    token, secret = credentials.make_token(name, label=label, days=days, by=_who())
    click.echo(secret)
    click.echo(f"token {token.id} of {name}, good for {days} days; it is not shown again", err=True)


def _open(flags: dict[str, object]) -> "tuple[Accounts, Credentials]":
    check_extra("admin", "argon2")
    from tipbench.admin.users import TABLES, Accounts, Credentials

    settings = read_settings(flags)
    check_room(settings)
    stamps = make_stamps()
    database = open_jobs(settings, stamps, more_tables=TABLES).database
    accounts = Accounts(database, stamps)
    return accounts, Credentials(database, accounts, stamps)


def _read_password(*, from_stdin: bool) -> str:
    if from_stdin:
        return sys.stdin.readline().rstrip("\r\n")
    return str(click.prompt("Password", hide_input=True, confirmation_prompt=True))


def _who() -> str:
    return f"{getpass.getuser()} (command line)"
