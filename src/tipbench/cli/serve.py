"""`tipbench serve`: the panel and the API."""

import os
from collections.abc import Callable
from urllib.parse import urlsplit

import click

from tipbench.cli.admin import explain_missing
from tipbench.cli.session import check_room, make_console, mlflow_options
from tipbench.errors import UsageError
from tipbench.settings import Settings, read_settings

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
FRONT = (
    "Put a reverse proxy with TLS in front of it, which alone can reach this port, and name the address "
    "that people type: --public-url https://bench.example"
)


@click.command(name="serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(1, 65535), default=8765, show_default=True)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that answer."
)
@click.option("--expose", is_flag=True, help="Listen beyond this machine. Needs TLS in front.")
@click.option("--public-url", help="The address that people type, if a proxy stands in front.")
@mlflow_options
def command(
    *, host: str, port: int, workers: int, expose: bool, public_url: str | None, **flags: object
) -> None:
    """The bench from a browser and from other programs. First: tipbench admin create-user NAME."""
    try:
        import uvicorn

        from tipbench.admin.app import HOSTS, PUBLIC_URL
    except ModuleNotFoundError as error:
        raise explain_missing(error) or error from error
    if host not in LOOPBACK and not expose:
        raise UsageError(f"{host} can be reached from elsewhere: that needs --expose", hint=FRONT)
    settings = read_settings(flags)
    check_room(settings)
    _hand_over(settings, flags)
    os.environ[PUBLIC_URL] = _check_public(public_url)
    os.environ[HOSTS] = host if host not in {"0.0.0.0", "::"} else ""  # noqa: S104
    say = make_console()
    say.print(
        f"http://{f'[{host}]' if ':' in host else host}:{port}/  (Ctrl-C ends it, jobs go on)", markup=False
    )
    if expose:
        say.print(f"· beyond this machine. {FRONT}", markup=False)
    _say_first_user(settings, say.print)
    uvicorn.run(
        "tipbench.admin.app:make_worker_app",
        factory=True,
        host=host,
        port=port,
        workers=workers,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=5,
    )


def _hand_over(settings: Settings, flags: dict[str, object]) -> None:
    """Workers and jobs read the settings themselves: flags reach them through the environment."""
    os.environ["TIPBENCH_HOME"] = str(settings.home)
    if flags.get("mlflow_url"):
        os.environ["TIPBENCH_MLFLOW_URL"] = str(settings.mlflow_url)


def _check_public(url: str | None) -> str:
    if url is None:
        return ""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.path.strip("/"):
        raise UsageError(f"--public-url {url!r} is not an address such as https://bench.example")
    return f"{parts.scheme}://{parts.netloc}"


def _say_first_user(settings: Settings, say: Callable[..., None]) -> None:
    from tipbench.admin.parts import make_parts
    from tipbench.cli.session import make_stamps

    parts = make_parts(settings, make_stamps())
    if not parts.accounts.list_users():
        say("· nobody can sign in yet: tipbench admin create-user NAME")
    parts.close()
