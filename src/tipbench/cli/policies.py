"""`tipbench policies`: serve, tips, verify, evaluate, gate."""

from pathlib import Path

import click

from tipbench.cli.extras import check_extra
from tipbench.cli.policies_evaluate import evaluate_command
from tipbench.cli.policies_gate import gate_command
from tipbench.cli.policies_tips import tips_command
from tipbench.cli.session import check_room, make_console
from tipbench.clock import make_stamps
from tipbench.settings import read_settings, split_list


@click.group(name="policies")
def command() -> None:
    """Which tip a user sees, and what is learned from what the user does."""


@command.command()
@click.option("--host", default="127.0.0.1", show_default=True)
@click.option("--port", type=click.IntRange(0, 65535), default=8321, show_default=True)
@click.option("--store", "policies_store", help="'files', or a Redis server: redis://… [default: files].")
@click.option("--active", "policies_active", help="The policy behind /recommend [default: egreedy-v1].")
@click.option("--shadows", "policies_shadows", help="Shadows to switch on, as egreedy-v2-shadow.")
@click.option(
    "--tips",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="Tips for requests that bring none [default: tips.jsonl of the data folder, if there is one].",
)
@click.option("--seed", type=int, help="Of everything left to chance [default: 0].")
@click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")
def serve(*, host: str, port: int, tips: Path | None, **flags: object) -> None:
    """Serve score, reward, stats, recommend and reset over HTTP, until stopped."""
    check_extra("serve", "fastapi", "prometheus_client", "uvicorn")
    import uvicorn

    from tipbench.policies.serving.app import ServingOptions, create_app, open_serving, read_token
    from tipbench.policies.serving.tips import read_tips

    settings = read_settings(flags)
    check_room(settings)
    folder, say = settings.policies_folder, make_console()
    path = tips or (folder / "tips.jsonl" if (folder / "tips.jsonl").exists() else None)
    shadows = settings.policies_shadows
    options = ServingOptions(
        store=settings.policies_store,
        token=settings.policies_token or read_token(folder),
        active=settings.policies_active,
        shadows=split_list(shadows, what="shadows") if shadows else (),
        tips=read_tips(path) if path else (),
        seed=settings.seed,
    )
    serving = open_serving(folder, options, stamps=make_stamps())
    for problem in serving.service.store.problems:
        say.print(f"· {problem}", markup=False)
    where = "TIPBENCH_POLICIES_TOKEN" if settings.policies_token else str(folder / "token")
    say.print(
        f"policies at http://{host}:{port}, active {serving.active.name()}, token in {where}", markup=False
    )
    uvicorn.run(create_app(serving), host=host, port=port, log_level="warning", access_log=False)


@command.command()
@click.option("--store", "policies_store", help="'files', or a Redis server: redis://… [default: files].")
@click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")
@click.pass_context
def verify(ctx: click.Context, **flags: object) -> None:
    """Compare every state with a replay of the log. Exit code 3: they differ."""
    check_extra("serve", "fastapi", "prometheus_client")
    from tipbench.policies.serving.app import open_store
    from tipbench.policies.stores.file import find_differences

    settings = read_settings(flags)
    check_room(settings)
    store = open_store(settings.policies_folder, settings.policies_store)
    try:
        count, differing = find_differences(store)
        for problem in store.problems:
            click.echo(f"· {problem}")
    finally:
        store.close()
    say = make_console()
    for user, policy in differing:
        say.print(f"{policy} of {user!r} differs from the log", markup=False)
    say.print(f"{count} states, {len(differing)} differ from the log")
    ctx.exit(3 if differing else 0)


command.add_command(tips_command)
command.add_command(evaluate_command)
command.add_command(gate_command)
