"""`tipbench serve`: the panel and the API."""

import os
from collections.abc import Callable
from contextlib import ExitStack
from urllib.parse import urlsplit

import click

from tipbench.cli.extras import check_extra
from tipbench.cli.session import check_room, make_console, mlflow_options
from tipbench.errors import UsageError
from tipbench.settings import Settings, read_settings

LOOPBACK = {"127.0.0.1", "localhost", "::1"}
FRONT = (
    "Put a reverse proxy with TLS in front of it, which alone can reach this port, and name the address "
    "that people type: --public-url https://bench.example"
)


DEMO_ALONE = "Leave --expose and --mlflow-url away, or --demo."


@click.command(name="serve")
@click.option("--host", default="127.0.0.1", show_default=True, help="Where to listen.")
@click.option("--port", type=click.IntRange(1, 65535), default=8765, show_default=True)
@click.option(
    "--workers", type=click.IntRange(1, 64), default=1, show_default=True, help="Processes that answer."
)
@click.option("--expose", is_flag=True, help="Listen beyond this machine. Needs TLS in front.")
@click.option(
    "--demo", is_flag=True, help="A ready-made experiment to click through; nothing of yours is touched."
)
@click.option("--public-url", help="The address that people type, if a proxy stands in front.")
@mlflow_options
def command(
    *,
    host: str,
    port: int,
    workers: int,
    expose: bool,
    demo: bool,
    public_url: str | None,
    **flags: object,
) -> None:
    """The bench from a browser and from other programs. First: tipbench admin create-user NAME."""
    check_extra("admin", "argon2", "fastapi", "python_multipart", "uvicorn")
    import uvicorn

    from tipbench.admin.app import HOSTS, PUBLIC_URL

    if host not in LOOPBACK and not expose:
        raise UsageError(f"{host} can be reached from elsewhere: that needs --expose", hint=FRONT)
    settings = read_settings(flags)
    check_room(settings)
    say = make_console()
    with ExitStack() as stack:
        if demo:
            if expose or flags.get("mlflow_url"):
                raise UsageError("--demo stays on this machine, with an MLflow of its own", hint=DEMO_ALONE)
            _say_demo(stack, settings, say.print)
        else:
            _hand_over(settings, flags)
            _say_first_user(settings, say.print)
        os.environ[PUBLIC_URL] = _check_public(public_url)
        os.environ[HOSTS] = host if host not in {"0.0.0.0", "::"} else ""  # noqa: S104
        jobs = "the demo ends with it" if demo else "jobs go on"
        place = f"http://{f'[{host}]' if ':' in host else host}:{port}/"
        say.print(f"{place}  (Ctrl-C ends it, {jobs})", markup=False)
        if expose:
            say.print(f"· beyond this machine. {FRONT}", markup=False)
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


def _say_demo(stack: ExitStack, settings: Settings, say: Callable[..., None]) -> None:
    from tipbench.cli.serve_demo import USER, open_demo

    say("Demo: invented models, tips and verdicts, in a data folder of its own. Nothing of yours is touched.")
    password = stack.enter_context(open_demo(settings, lambda line: say(f"· {line}", markup=False)))
    say(f"Sign in as {USER} with the password {password}", markup=False)


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
    from tipbench.admin.deps import make_parts
    from tipbench.clock import make_stamps

    parts = make_parts(settings, make_stamps())
    if not parts.accounts.list_users():
        say("· nobody can sign in yet: tipbench admin create-user NAME")
    if parts.airflow is not None:
        say(f"· runs go to Airflow at {settings.airflow_url}, all other jobs run here", markup=False)
    parts.close()
