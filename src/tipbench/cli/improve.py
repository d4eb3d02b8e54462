"""`tipbench improve`."""

from collections.abc import Callable
from pathlib import Path

import click

from tipbench.bench.champions import ChampionArm
from tipbench.cli.ab import FilePath, bench_options, open_deciding, show_stop
from tipbench.cli.session import Session, check_room, make_console, start_session
from tipbench.cli.writing import write_whole
from tipbench.engines import Engines, open_engines
from tipbench.errors import UsageError
from tipbench.grid import open_pack
from tipbench.improve.brief import Brief, ModelProposer, read_proposals
from tipbench.improve.run import Improving, Stop, ask_for_export, say_exported
from tipbench.improve.state import Order, make_options, name_base, split_scenarios
from tipbench.promotion.succession import settle
from tipbench.records import Pack, Prompt
from tipbench.settings import read_settings


@click.command(name="improve")
@click.option("--rounds", type=click.IntRange(1, 20), default=1, show_default=True, help="How many rounds.")
@click.option("--export", type=FilePath, metavar="BRIEF", help="Write the brief for a coding agent here.")
@click.option("--apply", type=FilePath, metavar="FILE", help="Take the versions in that answer the brief.")
@click.option("--proposer", metavar="MODEL", help="Let this model write the versions.")
@click.option(
    "--versions", type=click.IntRange(1, 8), default=2, show_default=True, help="Of --proposer, each round."
)
@click.option("--prompt", help="What to improve when there is no champion; with --model.")
@click.option("--model", help="Whom to ask when there is no champion.")
@click.option(
    "--scenarios", default="wide", show_default=True, help="The set to train on, less its held-out."
)
@bench_options
@click.pass_context
def command(
    ctx: click.Context,
    *,
    rounds: int,
    export: Path | None,
    apply: Path | None,
    proposer: str | None,
    versions: int,
    prompt: str | None,
    model: str | None,
    sheet: Path,
    **flags: object,
) -> None:
    """Better versions of the champion's prompt, from its worst verdicts; the best is confirmed for the gate.

    Runs until it needs verdicts or versions: exit code 4, with the command that goes on. Then 0: the gate
    lets the winner pass (promote it), 3: nothing better was found.
    """
    if sum(way is not None for way in (export, apply, proposer)) > 1:
        raise UsageError("improve takes one of --export, --apply and --proposer at a time")
    settings = read_settings(flags)
    check_room(settings)
    say = make_console()

    def report(line: str) -> None:
        say.print(line, markup=False)

    with open_engines(settings, report=report) as engines, start_session(settings, say=say) as session:
        improving = Improving(
            _make_order(session, engines, prompt=prompt, model=model),
            rounds,
            open_deciding(session, engines, sheet=sheet),
            _exporter(export),
            _find_proposer(engines, proposer, versions),
        )
        if apply is not None:
            names = improving.take_versions(read_proposals(apply))
            report(f"versions: {', '.join(names)}")
        stop = improving.advance()
        show_stop(ctx, session, stop)
    ctx.exit(stop.exit_code)


def _make_order(session: Session, engines: Engines, *, prompt: str | None, model: str | None) -> Order:
    settings = session.settings
    pack = open_pack(settings.pack)
    training, confirming = split_scenarios(pack, settings.scenarios, cap=settings.n_scenarios)
    found = settle(session.tracking, pack.name, stamps=session.stamps)
    champion = None if found is None else found.arm
    name, base = _find_base(pack, champion, prompt=prompt, model=model)
    weights = engines.admit(name)
    if champion is not None and weights.digest != champion.model_digest:
        raise UsageError(
            f"{name!r} are other weights here than the champion {champion.name} was made of",
            hint="Get the weights it was promoted with, or promote what you have now.",
        )
    options = make_options(settings, pack) if champion is None else champion.options
    return Order(settings.experiment, pack, weights, base, options, training, confirming)


def _find_base(
    pack: Pack, champion: ChampionArm | None, *, prompt: str | None, model: str | None
) -> tuple[str, Prompt]:
    """The model and the prompt to begin with.

    Raises:
        UsageError: they are not known, or a champion stands there instead.
    """
    if champion is not None:
        if prompt or model:
            raise UsageError(
                f"{champion.name} is champion of {pack.name!r}: its prompt is what is improved",
                hint="Leave --prompt and --model away.",
            )
        return champion.model, name_base(pack, champion)
    known = {each.name: each for each in pack.prompts}
    if prompt is None or model is None or prompt not in known:
        raise UsageError(
            f"the pack {pack.name!r} has no champion yet",
            hint=f"Say what to improve: --model NAME --prompt {'|'.join(known)}",
        )
    return model, known[prompt]


def _find_proposer(engines: Engines, name: str | None, versions: int) -> ModelProposer | None:
    if name is None:
        return None
    model = engines.admit(name)
    return ModelProposer(model, engines.engine_of(model), versions)


def _exporter(path: Path | None) -> Callable[[Brief], Stop]:
    def export(brief: Brief) -> Stop:
        if path is None:
            return ask_for_export(brief)
        write_whole(path, brief.text)
        return say_exported(brief, str(path))

    return export
