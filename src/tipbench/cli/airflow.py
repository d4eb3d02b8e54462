"""`tipbench airflow`."""

import click

from tipbench.cli.doctor import print_findings
from tipbench.clock import make_stamps
from tipbench.settings import read_settings


@click.group(name="airflow")
def command() -> None:
    """Airflow as what runs the phases: docs/airflow.md."""


@command.command()
@click.option("--airflow-url", help="Airflow's API server [default: airflow_url of the settings].")
@click.option("--seconds", default=120.0, show_default=True, help="How long a worker may take to answer.")
@click.option("--mlflow-url", help="MLflow server that a worker is to reach [default: that of the settings].")
@click.pass_context
def doctor(ctx: click.Context, *, seconds: float, **flags: object) -> None:
    """Check Airflow for the bench: its parts, the DAG, the pool, and MLflow as a worker sees it."""
    from tipbench.jobs.airflow.api import open_airflow
    from tipbench.jobs.airflow.doctor import Doctor

    settings = read_settings(flags)
    airflow = open_airflow(settings)
    try:
        examined = Doctor(airflow, settings.mlflow_url, make_stamps().new_id, seconds)
        findings = list(examined.examine())
    finally:
        airflow.close()
    print_findings(findings)
    ctx.exit(0 if all(finding.ok for finding in findings if finding.needed) else 1)
