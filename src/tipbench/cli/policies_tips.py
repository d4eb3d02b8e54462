"""`tipbench policies tips`: the champion's tips with their judged quality, for serving and simulating."""

from pathlib import Path

import click

from tipbench.bench.cells import StoredCell, read_candidates
from tipbench.bench.evidence import Evidence, read_evidence
from tipbench.cli.session import Session, mlflow_options, open_session
from tipbench.errors import NoChampion, UsageError
from tipbench.policies.serving.tips import StoredTip, write_tips
from tipbench.records import Rubric

KIND_VALUE = "time_slot"


@click.command(name="tips")
@click.option("--arm", help="The arm, as MODEL+PROMPT [default: the champion's].")
@click.option("--experiment", "where", help="Its experiment [default: the one the champion is from].")
@click.option(
    "--kind-of",
    default=KIND_VALUE,
    show_default=True,
    help="The scenario's value that names the kind.",
)
@click.option(
    "--out", type=click.Path(dir_okay=False, path_type=Path), help="[default: tips.jsonl of the data folder]"
)
@click.option("--pack", help="Whose champion [default: tip].")
@mlflow_options
def tips_command(
    *, arm: str | None, where: str | None, kind_of: str, out: Path | None, **flags: object
) -> None:
    """Write the tips of an arm to a file, each with its judged quality between 0 and 1."""
    with open_session(flags) as session:
        arm, where = (arm, where) if arm and where else _find_champion(session, arm, where)
        tips = _read_tips(session, arm, where, kind_of=kind_of)
        path = out or session.settings.policies_folder / "tips.jsonl"
        write_tips(path, tips)
        judged = sum(tip.quality is not None for tip in tips)
        session.say.print(f"{len(tips)} tips of {arm}, {judged} of them judged → {path}", markup=False)


def _find_champion(session: Session, arm: str | None, where: str | None) -> tuple[str, str]:
    from tipbench.cli.champion import pack_name
    from tipbench.promotion.promote import describe
    from tipbench.promotion.succession import settle

    if arm:
        return arm, session.settings.experiment
    name = pack_name(session.settings)
    found = settle(session.tracking, name, stamps=session.stamps)
    if found is None:
        raise NoChampion(name)
    report = describe(found)
    return report.arm, where or report.experiment


def _read_tips(session: Session, arm: str, where: str, *, kind_of: str) -> list[StoredTip]:
    from tipbench.bench.packs import read_pack_files
    from tipbench.pack import parse_pack

    tracking = session.tracking
    runs = tracking.read_runs(tracking.find_experiment(where))
    evidence = read_evidence(runs)
    cells = [cell for cell in evidence.cells if cell.facts.arm == arm]
    if not cells:
        arms = ", ".join(dict.fromkeys(cell.facts.arm for cell in evidence.cells))
        raise UsageError(f"experiment {where!r} has no arm {arm!r}", hint=f"It has: {arms or 'none'}")
    pack = parse_pack(read_pack_files(runs, cells[-1].facts.pack_hash, tracking=tracking))
    kinds = {scenario.id: scenario.values.get(kind_of, "tip") for scenario in pack.scenarios}
    tips: list[StoredTip] = []
    for cell in cells:
        kind = kinds.get(cell.facts.scenario, "tip")
        text = tracking.read_artifact(cell.run, "candidates.json")
        tips += [
            StoredTip(
                id=f"{cell.facts.key}-{candidate.slot}",
                text=candidate.text,
                kind=kind[:64] if isinstance(kind, str) and kind else "tip",
                quality=_judged_quality(evidence, cell, candidate.slot, pack.rubric),
                scenario=cell.facts.scenario,
            )
            for candidate in read_candidates(text)
            if candidate.answered
        ]
    return tips


def _judged_quality(evidence: Evidence, cell: StoredCell, slot: int, rubric: Rubric) -> float | None:
    """The composite as a share of the way from the lowest to the highest; people before machines."""
    for by_cell in (evidence.lazy_by_cell(), evidence.auto_by_cell()):
        given = by_cell.get(cell.run.run_id, {}).get(slot)
        if given is not None and not given.verdict.failed:
            composite = rubric.composite(given.verdict.scores, given.verdict.flags)
            return (composite - rubric.lowest) / (rubric.highest - rubric.lowest)
    return None
