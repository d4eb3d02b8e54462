"""`tipbench simulate`."""

from collections.abc import Sequence
from pathlib import Path

import click
from rich.table import Table

from tipbench.cli.session import Session, mlflow_options, open_session
from tipbench.errors import TipbenchError
from tipbench.policies.simulation.report import Interval, SimulationReport
from tipbench.policies.simulation.world import PoolTip
from tipbench.settings import split_list

BARS = "▁▂▃▄▅▆▇█"


@click.command(name="simulate")
@click.option("--policies", "names", default="egreedy-v1,egreedy-v2,linucb,random", show_default=True)
@click.option("--users", type=click.IntRange(8, 100_000), default=40, show_default=True)
@click.option("--rounds", type=click.IntRange(10, 100_000), default=300, show_default=True)
@click.option(
    "--profile-effect",
    type=click.FloatRange(0, 10),
    default=0.0,
    show_default=True,
    help="How much a user's profile decides which kind of tip works.",
)
@click.option(
    "--tips", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="Judged tips to offer."
)
@click.option("--seed", type=int, help="Of the users and everything that happens to them [default: 0].")
@click.option("--experiment", "runs_in", default="tipbench-policies", show_default=True)
@click.option("--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the regret: an SVG file.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON.")
@mlflow_options
def command(
    *,
    names: str,
    users: int,
    rounds: int,
    profile_effect: float,
    tips: Path | None,
    runs_in: str,
    plot: Path | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Compare policies on simulated users, all on the same random numbers; the result is an MLflow run."""
    from tipbench.policies.policy import find_policy, list_policies
    from tipbench.policies.simulation.report import make_report, store_simulation
    from tipbench.policies.simulation.run import play
    from tipbench.policies.simulation.world import World, make_pool, make_users
    from tipbench.show.charts import draw_regret

    known = list_policies()
    policies = [find_policy(known, name) for name in split_list(names, what="policies")]
    with open_session(flags, for_machines=as_json) as session:
        seed = session.settings.seed
        world = World(profile_effect=profile_effect, seed=seed)
        pool = _read_pool(tips) if tips else make_pool(seed)
        people = make_users(world, pool, users=users, rounds=rounds)
        played = play(
            policies, people, world, report=lambda line: session.say.print(f"· {line}", style="dim")
        )
        report = make_report(played, seed=seed, profile_effect=profile_effect, tips=len(pool))
        drawing = draw_regret(report)
        run = store_simulation(
            session.tracking, report, plot=drawing, experiment=runs_in, stamps=session.stamps
        )
        if plot is not None:
            _write(plot, drawing)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            _print(session, report, run)


def _read_pool(path: Path) -> list[PoolTip]:
    from tipbench.policies.serving.tips import read_tips

    tips = read_tips(path)
    judged = [tip.quality for tip in tips if tip.quality is not None]
    usual = sum(judged) / len(judged) if judged else 0.6
    return [PoolTip(tip.id, tip.kind, usual if tip.quality is None else tip.quality) for tip in tips]


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _print(session: Session, report: SimulationReport, run: str) -> None:
    first = report.policies[0].policy
    table = Table(
        "policy", "reward per tip", "in the last quarter", "regret per user", f"lead over {first}", "reward"
    )
    for each in report.policies:
        lead = each.leads.get(first)
        table.add_row(
            each.policy,
            _show(each.reward, ".3f"),
            _show(each.late_reward, ".3f"),
            _show(each.regret, ".1f"),
            _show(lead, "+.4f") if lead else "",
            _spark([point.value for point in each.rewards.values]),
        )
    session.say.print(table)
    session.say.print(
        f"{report.users} users, {report.rounds} rounds, {report.tips} tips, profile effect "
        f"{report.profile_effect:g}, seed {report.seed} → run {run}"
    )


def _show(interval: Interval, form: str) -> str:
    return f"{interval.value:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def _spark(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    reach = (high - low) or 1.0
    return "".join(BARS[int((value - low) / reach * (len(BARS) - 1))] for value in values)
