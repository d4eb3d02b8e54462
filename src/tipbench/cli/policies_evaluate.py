"""`tipbench policies evaluate`."""

from pathlib import Path

import click
from rich.table import Table

from tipbench.cli.session import make_console
from tipbench.settings import read_settings


@click.command(name="evaluate")
@click.option("--policy", "names", multiple=True, help="Which policy; may be repeated [default: all].")
@click.option(
    "--signals",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    help="Folder of the signal log [default: that of the data folder].",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option("--home", help="Data folder [default: $TIPBENCH_HOME].")
def evaluate_command(*, names: tuple[str, ...], signals: Path | None, as_json: bool, **flags: object) -> None:
    """What a policy would have earned on the logged decisions: IPS, SNIPS, doubly robust."""
    import json

    from tipbench.policies.policy import find_policy, list_policies
    from tipbench.policies.serving.evaluation import evaluate_policy
    from tipbench.policies.serving.signals import read_signals

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
