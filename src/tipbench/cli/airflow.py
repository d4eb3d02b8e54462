"""`tipbench airflow`."""

from contextlib import closing

import click

from tipbench.cli.doctor import print_findings
from tipbench.settings import read_settings


@click.group(name="airflow")
def command() -> None:
    """Airflow as what runs the phases: docs/airflow.md."""


@command.command()
@click.option("--airflow-url", help="Airflow's API server [default: airflow_url of the settings].")
@click.pass_context
def doctor(ctx: click.Context, **flags: object) -> None:
    """Check that Airflow is set up for the bench: its parts, the DAG, the plugin, the pool."""
    from tipbench.jobs.airflow.api import open_airflow
    from tipbench.jobs.airflow.doctor import Doctor

    with closing(open_airflow(read_settings(flags))) as airflow:
        findings = list(Doctor(airflow).examine())
    print_findings(findings)
    ctx.exit(0 if all(finding.ok for finding in findings if finding.needed) else 1)
