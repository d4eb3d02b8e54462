"""Sittings, judges and their agreement on a terminal."""

import shlex
from collections.abc import Set
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from tipbench.bench.sittings import LIVE_LEASE_MS, StoredDrift
from tipbench.inert import make_inert_line

if TYPE_CHECKING:
    from collections.abc import Sequence

    # What is drawn here is made by whoever asks; the others need not be loaded.
    from tipbench.judging.agent import AgentOutcome
    from tipbench.judging.auto.graders import JudgeModel
    from tipbench.judging.auto.run import AutoOutcome
    from tipbench.judging.keyboard.loop import LeftSitting
    from tipbench.judging.new_anchors import AnchorProposal
    from tipbench.judging.records import Disagreement, FlaggedPair, JudgeStatus, SittingLine, Status
    from tipbench.judging.sheet import LiveSitting, StoredAnswers
    from tipbench.judging.status import JudgePair, JudgeSitting, JudgesReport, NoiseLine

SHOWN_CHARACTERS = 70
ALARMS = {
    "offset": "allowing for the ends of the scale, your scores are off by about {offset:+.1f} points",
    "scale": "you use the scale differently: where the known scores rise by 1, yours rise by {slope:.1f}",
    "carelessness": "your scores are scattered far around the known ones",
}


def print_status(found: "Status", say: Console, *, asked_by: Set[str] = frozenset()) -> None:
    """Where judging stands; without numbers to whoever has a sitting open there."""
    if any(line.state == "open" and line.judged_by in asked_by for line in found.sittings):
        _print_judge_status(found.for_judges(), say)
        return
    auto = f", {found.waiting_for_auto} for the automatic judge" if found.waiting_for_auto else ""
    ended = f"; {found.ended}" if found.ended else ""
    say.print(
        f"{found.experiment}: judged {found.judged} of {found.candidates} candidates in {found.cells} cells, "
        f"{found.waiting} are left for people and agents{auto}{ended}",
        markup=False,
    )
    if found.disagreement is not None:
        say.print(tell_disagreement(found.disagreement), markup=False)
    print_damaged(found.damaged, say)
    if not found.sittings:
        return
    table = Table("sitting", "judge", "state", "drawn", "items", "blocks counted", "expires")
    for line in found.sittings:
        table.add_row(
            line.sitting,
            escape(make_inert_line(line.judged_by)),
            f"{line.state}, unblinded" if line.unblinded else line.state,
            line.drawn,
            str(line.handed),
            f"{line.blocks_counted} of {line.blocks}",
            line.expires if line.state == "open" else "",
        )
    say.print(table)
    for line in found.sittings:
        if line.only_agreement:
            say.print(f"{line.sitting} by {line.judged_by}: {tell_unblinded(line)}", markup=False)


def tell_stored(stored: "StoredAnswers") -> list[str]:
    """A line for every item: its scores, and what was overruled."""
    lines: list[str] = []
    for item, scores in stored.scores.items():
        if not lines:
            lines.append(f"stored: item {' '.join(scores)}")
        flags = [f"{flag} is {str(value).lower()}" for flag, value in stored.overruled.get(item, {}).items()]
        overruled = f"; overruled: {', '.join(flags)}" if flags else ""
        lines.append(f"{item} {' '.join(map(str, scores.values()))}{overruled}")
    return lines


def _print_judge_status(found: "JudgeStatus", say: Console) -> None:
    ended = f"; {found.ended}" if found.ended else ""
    say.print(
        f"{found.experiment}: about {tell_sittings(found.sittings_waiting)} to be judged, those that "
        "somebody "
        f"has included{ended}. More numbers are told when your sitting is closed.",
        markup=False,
    )
    table = Table("sitting", "judge", "state", "items", "expires")
    for line in found.sittings:
        expires = line.expires if line.state == "open" else ""
        judge = escape(make_inert_line(line.judged_by))
        table.add_row(line.sitting, judge, line.state, str(line.items), expires)
    say.print(table)


def tell_nothing_left(found: "Status") -> str:
    """Why nothing was handed out."""
    if found.waiting and any(line.state == "open" and line.drawn == "block" for line in found.sittings):
        return "Every unjudged item is already checked out to a judge."
    return "Nothing is left to hand out."


def tell_sittings(waiting: int) -> str:
    """So many sittings wait, in words."""
    return "1 sitting waits" if waiting == 1 else f"{waiting} sittings wait"


def tell_unblinded(line: "SittingLine") -> str:
    """What follows from having seen arms before."""
    return f"{line.unblinded}; counts for agreement only, unless a person accepts it"


def print_damaged(damaged: "Sequence[str]", say: Console) -> None:
    """What was edited in MLflow and cannot be read."""
    for each in damaged:
        say.print(f"damaged, not counted: {make_inert_line(each, limit=500)}", markup=False, soft_wrap=True)


def tell_disagreement(found: "Disagreement") -> str:
    """Δ, bias and how many pairs are beyond it, in a line."""
    spread = "" if found.bias_spread is None else f", between arms ± {found.bias_spread:.2f}"
    start = (
        f"automatic verdicts against those of people and agents, {found.pairs} pairs: "
        f"bias {found.bias:+.2f}{spread}"
    )
    if found.threshold is None:
        return f"{start}; too few pairs for Δ, so nothing is flagged"
    origin, of = (
        ("set", "the difference") if found.set_by_hand else ("from the data", "the difference less the bias")
    )
    return f"{start}, Δ {found.threshold:.2f} ({origin}) for {of}, {found.flagged} flagged"


def tell_left(left: "LeftSitting", line: "SittingLine") -> list[str]:
    """What became of a sitting at the keyboard, in plain words. Never which items were anchors."""
    sitting = left.sitting
    name = shlex.quote(sitting.experiment)
    total = len(sitting.section.items)
    match sitting.state:
        case "open":
            return [
                f"{left.stored} of {total} are stored. Come back within {LIVE_LEASE_MS // 60_000} minutes to "
                "go on; after that complete blocks count and the rest waits for the next judge:",
                f"  tipbench judge --experiment {name} --judged-by {shlex.quote(sitting.judged_by)} "
                "--interactive",
            ]
        case "accepted" if line.only_agreement:
            return [f"Handed in: {total} items. {tell_unblinded(line)}"]
        case "accepted":
            return [f"Handed in: {total} items, accepted. Thank you.", *_tell_more(sitting, name)]
        case "refused":
            first, *others = tell_refused(line, experiment=sitting.experiment)
            return [f"Handed in: {total} items, {first}", *others]
        case _:
            return [
                "You stopped before a full round. These scores do not count; the tips go back to the queue."
            ]


def _tell_more(sitting: "LiveSitting", name: str) -> list[str]:
    """What to do after a sitting: the next one, or the board."""
    left = sitting.section.sittings_left
    if left:
        return [f"{tell_sittings(left)}: the same command opens the next one"]
    return [f"  tipbench compare --experiment {name}"]


def tell_refused(line: "SittingLine", *, experiment: str) -> list[str]:
    """Why a sitting does not count, with the numbers, and who may let it. Never which items were anchors."""
    if line.decision is not None:
        why = f"refused by a person: {make_inert_line(line.decision.reason, limit=300)}."
    else:
        why = (
            "refused: too far from the checks, tips with known scores that were hidden among yours "
            f"({tell_drift(line.drift)})."
        )
    return [
        why,
        "Your answers are kept. They count only if a person accepts them:",
        f"  tipbench judge accept {line.sitting} --experiment {shlex.quote(experiment)} --reason …",
    ]


def tell_drift(drift: StoredDrift | None) -> str:
    """How far a judge was off, for that judge. Never how many checks there were."""
    if drift is None:
        return "no reason was stored"
    names = drift.alarms or ("offset",)
    reasons = [ALARMS[name].format(offset=drift.believed_offset, slope=drift.slope or 0.0) for name in names]
    slope = "" if drift.slope is None else f", slope {drift.slope:.2f}"
    return f"{'; '.join(reasons)}; mean difference {drift.offset:+.2f}{slope}"


def print_agent(outcome: "AgentOutcome | None", say: Console, *, experiment: str) -> None:
    """What became of judging by the agent, and what to do next."""
    name = shlex.quote(experiment)
    if outcome is None:
        say.print(f"nothing is left to judge in {experiment!r}: the agent was not started", markup=False)
        return
    left = f"{outcome.waiting} candidates are left" if outcome.waiting else "nothing is left to judge"
    say.print(f"the agent gave {outcome.judged} verdicts that count; {left}", markup=False)
    for line in outcome.refused:
        say.print(f"sitting {line.sitting} by {line.judged_by}:", markup=False)
        for text in tell_refused(line, experiment=experiment):
            say.print(f"  {text}", markup=False, soft_wrap=True)
    command = "judge status" if outcome.waiting else "compare"
    say.print(f"  tipbench {command} --experiment {name}", markup=False)


def print_judged(
    outcome: "AutoOutcome | None", say: Console, *, judge: "JudgeModel", experiment: str, anyway: bool
) -> None:
    """What became of automatic judging, and what to do next."""
    name = shlex.quote(experiment)
    if outcome is None:
        say.print(f"{judge.name} has judged every answered candidate: nothing is left for it", markup=False)
        return
    spent, grade = outcome.spent, outcome.grade
    say.print(f"{judge.name} against the anchors: {grade.shown}", markup=False)
    say.print(
        f"sitting {outcome.sitting} is {outcome.state}: judged {outcome.judged} of {outcome.candidates} "
        f"candidates in {spent.calls} calls, {spent.prompt_tokens} + {spent.output_tokens} tokens, "
        f"{spent.usd:.4f} USD, {spent.seconds / max(spent.calls, 1):.1f} s a call",
        markup=False,
    )
    for item, message in list(outcome.failures.items())[:5]:
        say.print(f"· item {item} has no verdict: {message}", markup=False)
    if not grade.informative:
        say.print("uninformative: it agrees with the references no more than by chance", markup=False)
        how = (
            "Its verdicts are stored but not used." if anyway else "No candidate was judged (--anyway does)."
        )
        say.print(f"{how} Ask a person or a coding agent:", markup=False)
        say.print(f"  tipbench judge --experiment {name} --export sheet.json", markup=False)
    else:
        say.print(f"  tipbench compare --experiment {name}", markup=False)


def print_judges(report: "JudgesReport", say: Console) -> None:
    """Every sitting with its drift, and how far the judges agree."""
    print_damaged(report.damaged, say)
    if not report.sittings:
        say.print("nobody has judged anything yet")
        return
    table = Table("closed", "experiment", "sitting", "judge", "state", "items")
    for name in ("offset", "slope"):
        table.add_column(name, no_wrap=True)
    table.add_column("remarks")
    for each in report.sittings:
        table.add_row(*map(escape, _row(each)))
    say.print(table)
    _print_agreement(report, say)


def _print_agreement(report: "JudgesReport", say: Console) -> None:
    if report.pairs:
        table = Table("judges", "rubric", "both judged", "α", "α per scale", "bias", "flags (AC1)")
        for pair in report.pairs:
            table.add_row(*map(escape, _pair_row(pair)))
        say.print(table)
    for line in report.noise:
        say.print(_tell_noise(line), markup=False)
    for found in report.disagreements:
        say.print(f"{found.experiment}: {tell_disagreement(found)}", markup=False)
    if report.flagged:
        columns = (
            "arm",
            "scenario",
            "candidate",
            "automatic",
            "judged",
            "difference",
            "less the bias",
            "judges",
        )
        table = Table(*columns, title="Flagged", title_justify="left")
        for flagged in report.flagged:
            table.add_row(*map(escape, _flagged_row(flagged)))
        say.print(table)


def _row(each: "JudgeSitting") -> list[str]:
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


def _pair_row(pair: "JudgePair") -> list[str]:
    alpha = "–"
    if pair.alpha is not None and pair.low is not None and pair.high is not None:
        rough = ", rough" if pair.rough else ""
        over = ", scales" if pair.over == "scales" else ""
        alpha = f"{pair.alpha:.2f} [{pair.low:.2f}, {pair.high:.2f}]{over}{rough}"
    scales = ", ".join(f"{name} {value:.2f}" for name, value in pair.scales.items())
    flags = ", ".join(f"{name} {value:.2f}" for name, value in pair.flags.items())
    met = (" / ".join(pair.judges), pair.rubric, str(pair.candidates))
    return [*met, alpha, scales, f"{pair.bias:+.2f}", flags]


def _tell_noise(line: "NoiseLine") -> str:
    sittings = f"from {line.sittings} sittings" if line.offsets_fitted else "assumed"
    kind = make_inert_line(line.kind, limit=80)
    return (
        f"{line.experiment}, {kind}: {make_inert_line(line.told, limit=120)}; drift counts with "
        f"σ {line.repeat_sd:.2f}, and τ {line.offset_sd:.2f} between sittings ({sittings})"
    )


def _flagged_row(pair: "FlaggedPair") -> list[str]:
    said = [f"{pair.auto:g}", f"{pair.lazy:g}", f"{pair.difference:+.1f}", f"{pair.gap:+.1f}"]
    return [pair.arm, pair.scenario, str(pair.candidate), *said, " / ".join(pair.judges)]


def print_proposal(proposal: "AnchorProposal", say: Console) -> None:
    """New anchors, without their references."""
    pack = proposal.pack
    if proposal.new:
        # Without the references: whoever reads them is no judge for these any more.
        table = Table("anchor", "scenario", "judges", "text")
        for each in proposal.new:
            anchor = each.anchor
            judges = make_inert_line(", ".join(each.judges))
            table.add_row(*map(escape, (anchor.id, anchor.scenario, judges, _shorten(anchor.text))))
        say.print(table)
    say.print(
        f"{len(proposal.new)} new anchors for {pack.name!r}, which has {len(pack.anchors)}", markup=False
    )
    for refused in proposal.refused:
        say.print(f"· not taken, {refused.why}: {_shorten(refused.text)}", markup=False)
    if not proposal.new and not proposal.refused:
        say.print(
            "A new anchor takes three different judges within a point of each other: ask for second opinions."
        )


def _shorten(text: str) -> str:
    line = make_inert_line(text)
    return line if len(line) <= SHOWN_CHARACTERS else f"{line[:SHOWN_CHARACTERS]}…"
