"""`tipbench policies gate`."""

from pathlib import Path

import click

from tipbench.cli.session import Session, mlflow_options, open_session
from tipbench.policies.serving.evaluation import Evaluation, evaluate_policy


@click.command(name="gate")
@click.option(
    "--candidate", default="egreedy-v2", show_default=True, help="The policy that wants to be active."
)
@click.option("--active", help="The policy to beat [default: the active one].")
@click.option(
    "--experiment", "runs_in", default="tipbench-policies", show_default=True, help="Where simulations are."
)
@click.option("--signals", type=click.Path(exists=True, file_okay=False, path_type=Path), help="Signal log.")
@click.option("--promote", is_flag=True, help="Make the candidate active if the gate says so.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@mlflow_options
@click.pass_context
def gate_command(
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
    from tipbench.policies.simulation.report import examine, find_simulation, store_gate

    policies = list_policies()
    wanted = find_policy(policies, candidate).name
    with open_session(flags, for_machines=as_json) as session:
        folder = session.settings.policies_folder
        in_use = ActiveFile(folder, default=session.settings.policies_active)
        rival = find_policy(policies, active or in_use.name()).name
        report = examine(
            wanted,
            rival,
            simulation=find_simulation(session.tracking, experiment=runs_in, policies=(wanted, rival)),
            logged=_evaluate_log(signals or folder / "signals", wanted),
        )
        run = store_gate(session.tracking, report, experiment=runs_in, stamps=session.stamps)
        if promote and report.outcome == "promote":
            in_use.write(ActivePolicy(policy=wanted, since_ms=session.stamps.now_ms(), evidence=run))
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            _print(session, report.outcome, [(rule.name, rule.holds, rule.reason) for rule in report.rules])
            if report.outcome == "promote":
                session.say.print(f"{wanted} is active now" if promote else "make it active with --promote")
    ctx.exit(report.exit_code)


def _evaluate_log(folder: Path, candidate: str) -> Evaluation | None:
    from tipbench.policies.policy import list_policies
    from tipbench.policies.serving.signals import read_signals

    if not any(signal.kind == "reward" for signal in read_signals(folder)):
        return None
    return evaluate_policy(read_signals(folder), list_policies()[candidate])


def _print(session: Session, outcome: str, rules: list[tuple[str, bool | None, str]]) -> None:
    words = {True: "yes", False: "no", None: "–"}
    for name, holds, reason in rules:
        session.say.print(f"{words[holds]:3} {name}: {reason}", markup=False)
    session.say.print(outcome, style="bold")
