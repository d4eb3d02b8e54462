"""`tipbench policies`: which tip for whom. Serve policies, simulate and evaluate them, make one active."""

import json
import os
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import click

from tipbench.cli.session import (
    FilePath,
    Function,
    Session,
    check_extra,
    check_host,
    check_room,
    find_pack_name,
    given_options,
    home_option,
    mlflow_options,
    open_session,
    run_app,
    write_whole,
)
from tipbench.errors import NoChampion, UsageError

if TYPE_CHECKING:
    from tipbench.bench.cells import StoredCell
    from tipbench.bench.evidence import Evidence
    from tipbench.policies.serving.evaluation import Evaluation
    from tipbench.policies.serving.tips import StoredTip
    from tipbench.policies.simulation.plans import SimulationPlan, StoredPlan
    from tipbench.policies.simulation.report import RegretInterval, SimulationReport
    from tipbench.policies.simulation.run import PoolTip
    from tipbench.records import Rubric
    from tipbench.settings import Settings

FRONT = "Put a reverse proxy with TLS in front of it, which alone can reach this port: it sends the token on."
KIND_VALUE = "time_slot"
BARS = "▁▂▃▄▅▆▇█"
FIXED_BY_PLAN = {"names", "users", "rounds", "profile_effect", "seed"}
ExistingFile = click.Path(exists=True, dir_okay=False, path_type=Path)
ExistingFolder = click.Path(exists=True, file_okay=False, path_type=Path)


@click.group(name="policies", context_settings={"show_default": True})
def command() -> None:
    """Which tip a user sees, and what is learned from what the user does."""


@command.command()
@click.option("--host", default="127.0.0.1", help="Where to listen.")
@click.option("--port", type=click.IntRange(0, 65535), default=8321, help="The port; 0: any free one.")
@click.option("--expose", is_flag=True, help="Listen beyond this machine. Needs TLS in front.")
@click.option("--store", "policies_store", help="'files', or a Redis server: redis://… [default: files].")
@click.option("--active", "policies_active", help="The policy behind /recommend [default: egreedy-v1].")
@click.option("--shadows", "policies_shadows", help="Shadows to switch on, as egreedy-v2-shadow.")
@click.option(
    "--tips",
    type=ExistingFile,
    help="Tips for requests that bring none [default: tips.jsonl of the data folder, if there is one].",
)
@click.option("--seed", type=int, help="Of everything left to chance [default: 0].")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=1,
    help="Processes that answer. More than one needs a store in Redis.",
)
@home_option
def serve(*, host: str, port: int, expose: bool, tips: Path | None, workers: int, **flags: object) -> None:
    """Serve score, reward, stats, recommend and reset over HTTP, until stopped."""
    check_extra("serve", "fastapi", "prometheus_client", "uvicorn")
    from tipbench.settings import read_settings

    check_host(host, expose=expose, hint=FRONT)
    settings = read_settings(flags)
    check_room(settings)
    if workers > 1 and settings.policies_store == "files":
        raise UsageError(
            f"--workers {workers}: states in files have one process that changes them",
            hint="Keep the states in Redis: --store redis://HOST:6379/0, or leave --workers out.",
        )
    with TemporaryDirectory(prefix="tipbench-metrics-") as metrics:
        if workers > 1:
            # Before its client is imported, here and in the workers.
            os.environ["PROMETHEUS_MULTIPROC_DIR"] = metrics
            # Workers read the settings themselves: flags reach them through the environment.
            given = {name: value for name, value in flags.items() if value is not None}
            os.environ |= {f"TIPBENCH_{name.upper()}": str(value) for name, value in given.items()}
        _serve_policies(settings, tips, host=host, port=port, workers=workers)


def _serve_policies(settings: "Settings", tips: Path | None, *, host: str, port: int, workers: int) -> None:
    import uvicorn

    from tipbench.policies.serving.app import WORKER_TIPS, create_app, serve_as_set
    from tipbench.show.console import make_console

    say, serving = make_console(), serve_as_set(settings, tips=tips)
    for problem in serving.service.store.problems:
        say.print(f"· {problem}", markup=False)
    token = "TIPBENCH_POLICIES_TOKEN" if settings.policies_token else str(settings.policies_folder / "token")
    say.print(
        f"policies at http://{host}:{port}, active {serving.active.name()}, token in {token}", markup=False
    )
    if workers == 1:
        uvicorn.run(create_app(serving), host=host, port=port, log_level="warning", access_log=False)
        return
    # What would keep a worker from starting was told by now; each opens the same by itself.
    serving.close()
    os.environ |= {"TIPBENCH_HOME": str(settings.home)} | (
        {WORKER_TIPS: str(tips.absolute())} if tips else {}
    )
    run_app(
        "tipbench.policies.serving.app:make_worker_app",
        workers=workers,
        host=host,
        port=port,
        access_log=False,
    )


@command.command()
@click.option("--store", "policies_store", help="'files', or a Redis server: redis://… [default: files].")
@home_option
@click.pass_context
def verify(ctx: click.Context, **flags: object) -> None:
    """Compare every state with a replay of the log. Exit code 3: they differ."""
    check_extra("serve", "fastapi", "prometheus_client")
    from tipbench.policies.serving.app import open_store
    from tipbench.policies.stores.file import find_differences
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

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


def runs_option(function: Function) -> Function:
    """Where simulations are stored."""
    what = "The MLflow experiment of the simulations."
    return click.option("--experiment", "runs_in", default="tipbench-policies", help=what)(function)


def world_options(function: Function) -> Function:
    """The simulated users, and what they are offered: of a simulation, and of the plan of one."""
    for option in (
        click.option("--tips", type=ExistingFile, help="Judged tips to offer."),
        click.option(
            "--profile-effect",
            type=click.FloatRange(0, 10),
            default=0.0,
            help="How much a user's profile decides which kind of tip works.",
        ),
        click.option("--rounds", type=click.IntRange(10, 100_000), default=300, help="Tips a user."),
        click.option("--users", type=click.IntRange(8, 100_000), default=40, help="Simulated users."),
    ):
        function = option(function)
    return function


@command.command()
@click.option(
    "--policies",
    "names",
    default="egreedy-v1,egreedy-v2,linucb,random",
    help="Which to compare, with commas.",
)
@world_options
@click.option("--seed", type=int, help="Of the users and everything that happens to them [default: 0].")
@click.option("--plan", "planned", metavar="RUN", help="Simulate this plan: what `policies plan` declared.")
@runs_option
@click.option("--plot", type=FilePath, help="Draw the regret: an SVG file.")
@click.option("--json", "as_json", is_flag=True, help="The whole report as JSON.")
@mlflow_options
@click.pass_context
def simulate(
    ctx: click.Context,
    *,
    names: str,
    users: int,
    rounds: int,
    profile_effect: float,
    tips: Path | None,
    planned: str | None,
    runs_in: str,
    plot: Path | None,
    as_json: bool,
    **flags: object,
) -> None:
    """Compare policies on simulated users, all on the same random numbers; the result is an MLflow run."""
    from tipbench.policies.simulation.plans import claim_first
    from tipbench.policies.simulation.report import store_simulation
    from tipbench.settings import split_list
    from tipbench.show.charts import draw_regret

    if planned is not None and (typed := FIXED_BY_PLAN & set(given := given_options(ctx))):
        options = ", ".join(sorted(given[name] for name in typed))
        raise UsageError(f"{options}: the plan fixes it", hint="Leave it out, or declare another plan.")
    with open_session(flags, for_machines=as_json) as session:
        plan = _read_plan(session, planned, runs_in) if planned else None
        given_names, seed = split_list(names, what="policies"), session.settings.seed
        wish = SimulationWish(given_names, seed, profile_effect, users, rounds)
        wanted = plan.plan if plan else wish
        pool = _read_pool(tips, seed=wanted.seed)
        if plan:
            plan.check_pool(pool)
        report = _play(session, wanted, pool)
        drawing = draw_regret(report)
        run = store_simulation(
            session.tracking,
            report,
            plot=drawing,
            experiment=runs_in,
            stamps=session.stamps,
            plan=planned or "",
        )
        counts = plan is not None and claim_first(session.tracking, plan, run)
        if plot is not None:
            write_whole(plot, drawing)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            _print_simulation(session, report, run)
            _say_whether_it_counts(session, planned=planned, counts=counts)


@dataclass(frozen=True)
class SimulationWish:
    """What a simulation without a plan is asked for."""

    policies: tuple[str, ...]
    seed: int
    profile_effect: float
    users: int
    rounds: int


def _read_plan(session: Session, run: str, experiment: str) -> "StoredPlan":
    from tipbench.policies.simulation.plans import read_plan

    return read_plan(session.tracking, run, experiment=experiment)


def _play(
    session: Session, wanted: "SimulationWish | SimulationPlan", pool: "Sequence[PoolTip]"
) -> "SimulationReport":
    from tipbench.policies.policy import find_policy, list_policies
    from tipbench.policies.simulation.report import make_report
    from tipbench.policies.simulation.run import World, make_users, play

    known = list_policies()
    world = World(profile_effect=wanted.profile_effect, seed=wanted.seed)
    played = play(
        [find_policy(known, name) for name in wanted.policies],
        make_users(world, pool, users=wanted.users, rounds=wanted.rounds),
        world,
        report=lambda line: session.say.print(f"· {line}", style="dim"),
    )
    return make_report(played, seed=wanted.seed, profile_effect=wanted.profile_effect, tips=len(pool))


def _say_whether_it_counts(session: Session, *, planned: str | None, counts: bool) -> None:
    if planned is None:
        said = "It was not planned, so the gate does not count it: tipbench policies plan --help"
    elif counts:
        said = "It is the first one of its plan: the gate counts it."
    else:
        said = "It is not the first one of its plan: the gate counts the first."
    session.say.print(said, markup=False)


@command.command(name="plan")
@click.option("--candidate", default="egreedy-v2", help="The policy that wants to be active.")
@click.option("--active", help="The policy to beat [default: the active one].")
@world_options
@click.option(
    "--seed", "own_seed", type=click.IntRange(0, 2**63 - 1), help="Of the users [default: one is drawn]."
)
@runs_option
@mlflow_options
def declare(
    *,
    candidate: str,
    active: str | None,
    users: int,
    rounds: int,
    profile_effect: float,
    tips: Path | None,
    own_seed: int | None,
    runs_in: str,
    **flags: object,
) -> None:
    """Fix the world of a simulation before anybody has seen it. The gate counts its first simulation."""
    from tipbench.policies.policy import find_policy, list_policies
    from tipbench.policies.serving.tips import ActiveFile
    from tipbench.policies.simulation.plans import SimulationPlan, declare_plan, hash_pool

    known = list_policies()
    wanted = find_policy(known, candidate).name
    with open_session(flags) as session:
        settings = session.settings
        in_use = ActiveFile(settings.policies_folder, default=settings.policies_active)
        rival = find_policy(known, active or in_use.name()).name
        if wanted == rival:
            raise UsageError(f"{wanted} is the active policy", hint="Name another one: --candidate NAME")
        seed = int(session.stamps.new_id()[:8], 16) if own_seed is None else own_seed
        plan = SimulationPlan(
            candidate=wanted,
            active=rival,
            seed=seed,
            profile_effect=profile_effect,
            users=users,
            rounds=rounds,
            tips=hash_pool(_read_pool(tips, seed=seed)),
        )
        run = declare_plan(session.tracking, plan, experiment=runs_in, stamps=session.stamps)
        session.say.print(f"{wanted} against {rival}, seed {seed}: declared. Next:", markup=False)
        more = f" --tips {shlex.quote(str(tips))}" if tips else ""
        more += f" --experiment {shlex.quote(runs_in)}" if runs_in != "tipbench-policies" else ""
        session.say.print(f"  tipbench policies simulate --plan {run}{more}", markup=False, soft_wrap=True)


def _read_pool(path: Path | None, *, seed: int) -> "Sequence[PoolTip]":
    from tipbench.policies.serving.tips import read_tips
    from tipbench.policies.simulation.run import PoolTip, make_pool

    if path is None:
        return make_pool(seed)
    tips = read_tips(path)
    judged = [tip.quality for tip in tips if tip.quality is not None]
    usual = sum(judged) / len(judged) if judged else 0.6
    return [PoolTip(tip.id, tip.kind, usual if tip.quality is None else tip.quality) for tip in tips]


def _print_simulation(session: Session, report: "SimulationReport", run: str) -> None:
    from rich.table import Table

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


def _show(interval: "RegretInterval", form: str) -> str:
    return f"{interval.value:{form}} [{interval.low:{form}}, {interval.high:{form}}]"


def _spark(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    reach = (high - low) or 1.0
    return "".join(BARS[int((value - low) / reach * (len(BARS) - 1))] for value in values)


@command.command()
@click.option("--policy", "names", multiple=True, help="Which policy; may be repeated [default: all].")
@click.option("--signals", type=ExistingFolder, help="The signal log [default: that of the data folder].")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@home_option
def evaluate(*, names: tuple[str, ...], signals: Path | None, as_json: bool, **flags: object) -> None:
    """What a policy would have earned on the logged decisions: IPS, SNIPS, doubly robust."""
    from rich.table import Table

    from tipbench.policies.policy import find_policy, list_policies
    from tipbench.policies.serving.evaluation import evaluate_policy
    from tipbench.policies.serving.signals import read_signals
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    policies = list_policies()
    folder = signals or read_settings(flags).policies_folder / "signals"
    found = [evaluate_policy(read_signals(folder), find_policy(policies, name)) for name in names or policies]
    if as_json:
        click.echo(json.dumps([each.model_dump() for each in found], indent=1))
        return
    say = make_console()
    first = found[0]
    logged = ", ".join(f"{count} by {name}" for name, count in first.logged.items())
    say.print(
        f"{first.decisions} rewarded decisions of {first.users} users ({logged}), {first.unrewarded} without"
    )
    say.print(f"they earned {first.mean_reward:.4f} each")
    table = Table("policy", *(each.method for each in first.estimates), "lead", "worth", "mean weight")
    for each in found:
        cells = [f"{e.value:.4f} [{e.low:.4f}, {e.high:.4f}]" for e in (*each.estimates, each.lead)]
        table.add_row(each.policy, *cells, f"{each.effective:.0f}", f"{each.mean_weight:.2f}")
    say.print(table)


@command.command()
@click.option(
    "--signals",
    type=ExistingFolder,
    multiple=True,
    help="Folder of a signal log; may be repeated, one for each server [default: that of the data folder].",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@home_option
def shadows(*, signals: tuple[Path, ...], as_json: bool, **flags: object) -> None:
    """What became of the shadows, day by day: served, dropped, failed, agreement with what was shown."""
    from rich.table import Table

    from tipbench.policies.serving.signals import count_shadows, read_signals
    from tipbench.settings import read_settings
    from tipbench.show.console import make_console

    folders = signals or (read_settings(flags).policies_folder / "signals",)
    days = count_shadows(read_signals(*folders))
    if as_json:
        click.echo(json.dumps([day.model_dump() | {"agreement": day.agreement} for day in days], indent=1))
        return
    say = make_console()
    if not days:
        say.print(f"no shadow left a signal in {', '.join(map(str, folders))}", markup=False)
        say.print("Switch one on: tipbench policies serve --shadows egreedy-v2-shadow", markup=False)
        return
    table = Table("day", "shadow", "beside", "served", "dropped", "failed", "agreement", "untaught")
    for day in days:
        share = "–" if day.agreement is None else f"{day.agreement:.0%} of {day.compared}"
        counts = [str(count) for count in (day.served, day.dropped, day.failed)]
        table.add_row(day.day, day.shadow, day.beside or "?", *counts, share, str(day.untaught))
    say.print(table)
    if any(day.untaught for day in days):
        say.print("untaught: all tips were alike to the shadow, so that chance agreed or did not.")


@command.command()
@click.option("--candidate", default="egreedy-v2", help="The policy that wants to be active.")
@click.option("--active", help="The policy to beat [default: the active one].")
@runs_option
@click.option("--signals", type=ExistingFolder, help="Signal log.")
@click.option("--promote", is_flag=True, help="Make the candidate active if the gate says so.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@mlflow_options
@click.pass_context
def gate(
    ctx: click.Context,
    *,
    candidate: str,
    active: str | None,
    runs_in: str,
    signals: Path | None,
    promote: bool,
    as_json: bool,
    **flags: object,
) -> None:
    """May a policy become active? Exit code 0: yes, 3: no, 4: not decided yet."""
    from tipbench.policies.policy import find_policy, list_policies
    from tipbench.policies.serving.tips import ActiveFile, ActivePolicy
    from tipbench.policies.simulation.plans import read_simulated
    from tipbench.policies.simulation.report import examine, store_gate

    policies = list_policies()
    wanted = find_policy(policies, candidate).name
    with open_session(flags, for_machines=as_json) as session:
        folder = session.settings.policies_folder
        in_use = ActiveFile(folder, default=session.settings.policies_active)
        rival = find_policy(policies, active or in_use.name()).name
        report = examine(
            wanted,
            rival,
            simulated=read_simulated(session.tracking, experiment=runs_in, policies=(rival, wanted)),
            logged=_evaluate_log(signals or folder / "signals", wanted),
        )
        run = store_gate(session.tracking, report, experiment=runs_in, stamps=session.stamps)
        if promote and report.outcome == "promote":
            in_use.write(ActivePolicy(policy=wanted, since_ms=session.stamps.now_ms(), evidence=run))
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            _print_gate(
                session, report.outcome, [(rule.name, rule.holds, rule.reason) for rule in report.rules]
            )
            if report.outcome == "promote":
                session.say.print(f"{wanted} is active now" if promote else "make it active with --promote")
    ctx.exit(report.exit_code)


def _evaluate_log(folder: Path, candidate: str) -> "Evaluation | None":
    from tipbench.policies.policy import list_policies
    from tipbench.policies.serving.evaluation import evaluate_policy
    from tipbench.policies.serving.signals import read_signals

    if not any(signal.kind == "reward" for signal in read_signals(folder)):
        return None
    return evaluate_policy(read_signals(folder), list_policies()[candidate])


def _print_gate(session: Session, outcome: str, rules: list[tuple[str, bool | None, str]]) -> None:
    words = {True: "yes", False: "no", None: "–"}
    for name, holds, reason in rules:
        session.say.print(f"{words[holds]:3} {name}: {reason}", markup=False)
    session.say.print(outcome, style="bold")


@command.command(name="tips")
@click.option("--arm", help="The arm, as MODEL+PROMPT [default: the champion's].")
@click.option("--experiment", "where", help="Its experiment [default: the one the champion is from].")
@click.option("--kind-of", default=KIND_VALUE, help="The scenario's value that names the kind.")
@click.option("--out", type=FilePath, help="The file to write [default: tips.jsonl of the data folder].")
@click.option("--pack", help="Whose champion [default: tip].")
@mlflow_options
def write_champions_tips(
    *, arm: str | None, where: str | None, kind_of: str, out: Path | None, **flags: object
) -> None:
    """Write the tips of an arm to a file, each with its judged quality between 0 and 1."""
    from tipbench.policies.serving.tips import write_tips

    with open_session(flags) as session:
        arm, where = (arm, where) if arm and where else _find_champion(session, arm, where)
        tips = _read_tips(session, arm, where, kind_of=kind_of)
        path = out or session.settings.policies_folder / "tips.jsonl"
        write_tips(path, tips, mode=0o666 if out else 0o600)
        judged = sum(tip.quality is not None for tip in tips)
        session.say.print(f"{len(tips)} tips of {arm}, {judged} of them judged → {path}", markup=False)


def _find_champion(session: Session, arm: str | None, where: str | None) -> tuple[str, str]:
    from tipbench.promotion.promote import describe
    from tipbench.promotion.succession import settle

    if arm:
        return arm, session.settings.experiment
    name = find_pack_name(session.settings)
    found = settle(session.tracking, name, stamps=session.stamps)
    if found is None:
        raise NoChampion(name)
    report = describe(found)
    return report.arm, where or report.experiment


def _read_tips(session: Session, arm: str, where: str, *, kind_of: str) -> "list[StoredTip]":
    from tipbench.policies.serving.tips import StoredTip

    bench = session.workbench.open(where)
    bench.check_cells()
    bench.check_arm(arm)
    evidence = bench.evidence
    cells = [cell for cell in evidence.cells if cell.facts.arm == arm]
    pack = bench.pack_of(cells[-1].facts.pack_hash)
    kinds = {scenario.id: scenario.values.get(kind_of, "tip") for scenario in pack.scenarios}
    tips: list[StoredTip] = []
    for cell in cells:
        kind = kinds.get(cell.facts.scenario, "tip")
        tips += [
            StoredTip(
                id=f"{cell.facts.key}-{candidate.slot}",
                text=candidate.text,
                kind=kind[:64] if isinstance(kind, str) and kind else "tip",
                quality=_judged_quality(evidence, cell, candidate.slot, pack.rubric),
                scenario=cell.facts.scenario,
            )
            for candidate in bench.candidates_of(cell)
            if candidate.answered
        ]
    return tips


def _judged_quality(evidence: "Evidence", cell: "StoredCell", slot: int, rubric: "Rubric") -> float | None:
    """The composite as a share of the way from the lowest to the highest; people before machines."""
    for by_cell in (evidence.lazy_by_cell(), evidence.auto_by_cell()):
        given = by_cell.get(cell.run.run_id, {}).get(slot)
        if given is not None and not given.verdict.failed:
            composite = rubric.composite(given.verdict.scores, given.verdict.flags)
            return (composite - rubric.lowest) / (rubric.highest - rubric.lowest)
    return None
