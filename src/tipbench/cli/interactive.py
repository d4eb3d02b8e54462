"""`tipbench judge --interactive`: a judge at this keyboard."""

import getpass
import shlex
import sys
from dataclasses import replace

from tipbench.bench.sittings import LIVE_LEASE_MS, StoredDrift
from tipbench.cli.session import Session
from tipbench.errors import JudgedEnough, UsageError
from tipbench.judging.handout import SittingRequest
from tipbench.judging.keyboard.loop import Left, judge_at_keyboard
from tipbench.judging.service import Judging, LiveJudging
from tipbench.judging.status import SittingLine
from tipbench.settings import Settings
from tipbench.show.screen import TerminalScreen

ALARMS = {
    "offset": "your scores are {offset:+.1f} points off the known ones on average",
    "scale": "you use the scale differently: your scores grow {slope:.1f} times as fast as the known ones",
    "carelessness": "your scores scatter far around the known ones",
}


def pick_judge(session: Session, judged_by: str | None) -> str:
    """Who sits here: as told or set, else the user of this machine."""
    standard = Settings.model_fields["judged_by"].default
    chosen = session.settings.judged_by
    return chosen if judged_by or chosen != standard else getpass.getuser()


def judge_here(session: Session, judging: Judging, request: SittingRequest) -> int:
    """Lets the judge work at the keyboard, then says what the sitting became. Gives the exit code.

    Raises:
        UsageError: this is not a terminal.
    """
    name = session.settings.experiment
    _check_terminal(session, name)
    live = LiveJudging(judging)
    try:
        sitting = live.open(replace(request, sits="human"), experiment=name)
    except JudgedEnough as enough:
        say_enough(session, enough)
        return 0
    if sitting is None:
        session.say.print("nothing waits for a lazy judge that is not with one already")
        session.say.print(f"  tipbench judge status --experiment {shlex.quote(name)}", markup=False)
        return 0
    left = judge_at_keyboard(live, sitting, screen=TerminalScreen(session.say))
    if left.exit_code:
        return left.exit_code
    lines = {line.sitting: line for line in judging.status(experiment=name).sittings}
    for text in _tell(left, lines[sitting.token]):
        session.say.print(text, markup=False)
    return 0


def say_enough(session: Session, enough: JudgedEnough) -> None:
    """That is no failure: nothing is handed out because nothing would come of it."""
    session.say.print(enough.message, markup=False)
    session.say.print(enough.hint, markup=False)


def _check_terminal(session: Session, experiment: str) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()) or session.say.is_dumb_terminal:
        raise UsageError(
            "judge --interactive needs a terminal it can draw on",
            hint=f"Judge by file: tipbench judge --experiment {shlex.quote(experiment)} --export sheet.json",
        )


def _tell(left: Left, line: SittingLine) -> list[str]:
    """What became of the sitting, in plain words. Never which items were anchors."""
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
        case "accepted":
            return [
                f"Handed in: {total} items, accepted. Thank you.",
                f"  tipbench compare --experiment {name}",
            ]
        case "refused":
            return [
                f"Handed in: {total} items, refused: too far from the anchors, tips with known scores that "
                f"were hidden among yours ({_why(line.drift)}).",
                "Your answers are kept. They count only if a person accepts them:",
                f"  tipbench sitting accept {sitting.token} --experiment {name} --reason …",
            ]
        case _:
            return ["The sitting was closed before a block was complete: nothing of it counts."]


def _why(drift: StoredDrift | None) -> str:
    if drift is None:
        return "no reason was stored"
    names = drift.alarms or ("offset",)
    return "; ".join(
        ALARMS[name].format(offset=drift.believed_offset, slope=drift.slope or 0.0) for name in names
    )
