"""`tipbench judges`."""

from datetime import UTC, datetime
from pathlib import Path

import click
from rich.markup import escape
from rich.table import Table

from tipbench.cli.handing_out import delta_option
from tipbench.cli.judge import tell_disagreement
from tipbench.cli.session import Session, mlflow_options, open_session
from tipbench.errors import TipbenchError, UsageError
from tipbench.judging.draw import FlaggedPair
from tipbench.judging.judges import JudgePair, JudgeSitting, JudgesReport, NoiseLine
from tipbench.show.charts import draw_drift


@click.command(name="judges")
@click.option("--experiment", help="Only this experiment [default: all].")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
@click.option(
    "--plot", type=click.Path(dir_okay=False, path_type=Path), help="Draw the drift over time: an SVG file."
)
@delta_option
@mlflow_options
def command(*, experiment: str | None, as_json: bool, plot: Path | None, **flags: object) -> None:
    """Every sitting with its drift, and how far the judges agree."""
    with open_session(flags, for_machines=as_json) as session:
        names = [experiment] if experiment else [each.name for each in session.tracking.list_experiments()]

        def pass_over(name: str, error: TipbenchError) -> None:
            session.say.print(f"· {name} is left out: {error.message}", markup=False)

        report = session.workbench.judging.judges(
            names, delta=session.settings.delta, pass_over=None if experiment else pass_over
        )
        if plot is not None:
            _write_plot(plot, report)
        if as_json:
            click.echo(report.model_dump_json(indent=1))
        else:
            _print_report(session, report)


def _write_plot(path: Path, report: JudgesReport) -> None:
    drawing = draw_drift(report.sittings)
    if drawing is None:
        raise UsageError("no closed sitting with anchors yet: there is nothing to draw")
    try:
        path.write_text(drawing, encoding="utf-8")
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be written: {error.strerror}") from error


def _print_report(session: Session, report: JudgesReport) -> None:
    if not report.sittings:
        session.say.print("nobody has judged yet")
        return
    table = Table("closed", "experiment", "sitting", "judge", "state", "items")
    for name in ("offset", "slope"):
        table.add_column(name, no_wrap=True)
    table.add_column("remarks")
    for each in report.sittings:
        table.add_row(*map(escape, _row(each)))
    session.say.print(table)
    _print_agreement(session, report)


def _print_agreement(session: Session, report: JudgesReport) -> None:
    if report.pairs:
        table = Table("judges", "rubric", "both judged", "α", "α per scale", "bias", "flags (AC1)")
        for pair in report.pairs:
            table.add_row(*map(escape, _pair_row(pair)))
        session.say.print(table)
    for line in report.noise:
        session.say.print(_tell_noise(line), markup=False)
    for found in report.disagreements:
        session.say.print(f"{found.experiment}: {tell_disagreement(found)}", markup=False)
    if report.flagged:
        table = Table("flagged", "arm", "scenario", "candidate", "auto", "lazy", "judges")
        for flagged in report.flagged:
            table.add_row(*map(escape, _flagged_row(flagged)))
        session.say.print(table)


def _row(each: JudgeSitting) -> list[str]:
    line, drift = each.line, each.line.drift
    closed = datetime.fromtimestamp(each.closed_ms / 1000, tz=UTC).strftime("%Y-%m-%d %H:%M")
    measured = drift is not None and drift.anchors > 0
    return [
        closed if each.closed_ms else "",
        each.experiment,
        line.sitting,
        line.judged_by,
        line.state,
        str(line.items),
        f"{drift.offset:+.1f} ± {drift.se:.1f}" if drift and measured else "",
        f"{drift.slope:.2f}" if drift and drift.slope is not None else "",
        each.mark,
    ]


def _pair_row(pair: JudgePair) -> list[str]:
    alpha = "–"
    if pair.alpha is not None and pair.low is not None and pair.high is not None:
        rough = ", rough" if pair.rough else ""
        over = ", scales" if pair.over == "scales" else ""
        alpha = f"{pair.alpha:.2f} [{pair.low:.2f}, {pair.high:.2f}]{over}{rough}"
    scales = ", ".join(f"{name} {value:.2f}" for name, value in pair.scales.items())
    flags = ", ".join(f"{name} {value:.2f}" for name, value in pair.flags.items())
    met = (" / ".join(pair.judges), pair.rubric, str(pair.candidates))
    return [*met, alpha, scales, f"{pair.bias:+.2f}", flags]


def _tell_noise(line: NoiseLine) -> str:
    repeats = f"from {line.repeats} repeats" if line.repeats_fitted else f"the usual; {line.repeats} repeats"
    sittings = (
        f"from {line.sittings} sittings" if line.offsets_fitted else f"the usual; {line.sittings} sittings"
    )
    return (
        f"{line.experiment}: a judge against himself σ {line.repeat_sd:.2f} ({repeats}), "
        f"sittings against each other τ {line.offset_sd:.2f} ({sittings})"
    )


def _flagged_row(pair: FlaggedPair) -> list[str]:
    said = [f"{pair.auto:g}", f"{pair.lazy:g}", " / ".join(pair.judges)]
    return [f"{pair.gap:+.1f}", pair.arm, pair.scenario, str(pair.candidate), *said]
