"""The judging desk: sittings in a browser or over the API. Whoever has one open, over any door, is blind."""

import shlex
import threading
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from tipbench.admin.connection import MlflowConnection
from tipbench.admin.users import User, note
from tipbench.bench.blindness import HeldItems, OpenSittings, hides, read_open_sittings
from tipbench.bench.evidence import read_evidence
from tipbench.bench.sittings import Answer, judge_key
from tipbench.errors import ExperimentNotFound, TipbenchError, TrackingUnavailable
from tipbench.jobs.records import Database, Job, NotThere
from tipbench.jobs.webhooks import WebhookQueue
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import MakeAnswers
from tipbench.judging.sheet import LiveSitting
from tipbench.tracking import Experiment

KEPT_MS = 1_000
"""So long it is believed who holds items, and a look is not written down again: pages are polled."""

SILENT_STEPS = {"collect", "export", "judge", "agent", "wait"}
"""They print the names of arms that somebody ordered, and neither a text nor a score beside them."""


class StillBlind(TipbenchError):
    """Somebody who judges wants to see who wrote what."""

    @classmethod
    def holding(cls, held: HeldItems) -> "StillBlind":
        return cls(
            f"you have an open sitting in {held.experiment.name!r}: whoever judges does not see arms",
            hint="Finish or close your sitting first. A lost sheet is taken back: tipbench judge release "
            f"{held.sitting} --experiment {shlex.quote(held.experiment.name)}",
        )

    @classmethod
    def as_judge(cls, experiment: str) -> "StillBlind":
        return cls(
            f"judges do not see arms of {experiment!r}: not everything in it is judged",
            hint="They are shown when nothing is left to judge, or when judging is closed.",
        )


@dataclass
class _Recent:
    """What was read and written a moment ago, by this process."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    read_ms: int = 0
    sittings: OpenSittings | None = None
    changes: int = 0
    """What was read before a change is not kept after it."""
    looks: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])


@dataclass(frozen=True)
class PanelSittings:
    """Every call reads the store: any worker of the server can take it."""

    mlflow: MlflowConnection
    database: Database
    outbox: WebhookQueue
    recent: _Recent = field(default_factory=_Recent, repr=False)

    def open(self, request: SittingRequest, *, experiment: str) -> LiveSitting | None:
        """This judge's open sitting, else a new one; None when nothing waits.

        Raises:
            JudgedEnough: more verdicts would change nothing.
            JudgingClosed: a person ended judging.
        """
        with self.mlflow.writing() as opened:
            sitting = opened.judging.open_sitting(request, experiment=experiment)
        if sitting is not None:
            self._remember(sitting, new=not sitting.answers)
        return sitting

    def look(self, token: str, *, experiment: str, user: User) -> LiveSitting:
        """The sitting as it is now.

        Raises:
            NotThere: it is another judge's.
        """
        return _check_owner(self.mlflow.open().judging.look(token, experiment=experiment), user)

    def submit(
        self,
        token: str,
        make_answers: MakeAnswers,
        *,
        experiment: str,
        user: User,
        keep_open: bool = False,
    ) -> LiveSitting:
        """Stores what is made of the sitting as it is now; it closes when every item has an answer, unless it
        is to be kept open.

        Raises:
            NotThere: it is another judge's.
            SheetError: an answer does not fit; nothing was stored.
            UsageError: the sitting is closed.
        """
        states: list[str] = []

        def make(found: LiveSitting) -> Mapping[str, Answer]:
            states.append(_check_owner(found, user).state)
            return make_answers(found)

        with self.mlflow.writing() as opened:
            sitting = opened.judging.submit(token, make, experiment=experiment, keep_open=keep_open)
        # What is sent again after the close, because the reply was lost, was remembered then.
        if states == ["open"]:
            self._remember(sitting, new=False)
        return sitting

    def close(self, token: str, *, experiment: str, user: User) -> LiveSitting:
        """Ends the sitting: complete blocks count if its anchors allow, the rest goes back.

        Raises:
            NotThere: it is another judge's.
        """
        with self.mlflow.writing() as opened:
            sitting = opened.judging.close(
                token, experiment=experiment, check=lambda found: _check_owner(found, user)
            )
        self._remember(sitting, new=False)
        return sitting

    def find_mine(self, *, experiment: str, user: User) -> LiveSitting | None:
        """The sitting that this judge has open here; only reads."""
        return self.mlflow.open().judging.find_mine(user.name, experiment=experiment)

    def held_by(self, user: User) -> list[HeldItems]:
        """The items this person holds, over whatever door, as of a moment ago."""
        return self._read_open().of(user.name)

    def holds_items(self, user: User) -> bool:
        """Whether this person holds items somewhere; while MLflow is away it is taken to be so."""
        try:
            return bool(self.held_by(user))
        except TrackingUnavailable:
            return True

    def why_hidden(self, user: User, experiment: str) -> StillBlind | None:
        """Why this person sees no arm of the experiment; None if they may."""
        found = self._find(experiment)
        if found is None:
            return None  # Nothing of ours is there: nobody can judge it.
        tracking = self.mlflow.open().tracking
        for held in self.held_by(user):
            if hides(held, found, tracking):
                return StillBlind.holding(held)
        if user.role == "judge" and read_evidence(tracking.read_runs(found)).unjudged_slots():
            return StillBlind.as_judge(experiment)
        return None

    def check_sees_arms(self, user: User, experiment: str, *, what: str = "") -> None:
        """Lets pass who may see arms; `what` they look at is written down for sittings they open later.

        Raises:
            StillBlind: an item of theirs is open, or they are to judge what is left.
        """
        hidden = self.why_hidden(user, experiment)
        if hidden is not None:
            raise hidden
        if what:
            self._note_look(user, experiment, what)

    def check_sees_log(self, user: User, job: Job) -> None:
        """Lets pass who may see what the job prints; that is a look once it goes beyond what was ordered.

        Raises:
            StillBlind: as above.
        """
        begun = {step.name for step in job.steps[: job.step + 1]}
        try:
            self.check_sees_arms(user, job.experiment, what="" if begun <= SILENT_STEPS else "/jobs/{job}")
        except TrackingUnavailable:
            # While MLflow is away nobody is handed anything, and an admin must see why the job fails.
            if not user.may("admin"):
                raise

    def hides_messages(self, user: User, jobs: Iterable[Job]) -> bool:
        """Whether this person is not told how these jobs ended: an arm may be named there."""
        return any(job.message for job in jobs) and (user.role == "judge" or self.holds_items(user))

    def is_decided_for(self, user: User, experiment: str) -> bool:
        """Whether this person may see its arms, and nothing of it is left to judge: what a page that sums up
        several experiments may say of it. That is a look all the same."""
        found = self._find(experiment)
        if found is None or self.why_hidden(user, experiment) is not None:
            return False
        return not read_evidence(self.mlflow.open().tracking.read_runs(found)).unjudged_slots()

    def check_holds_nothing(self, user: User) -> None:
        """Lets pass who may see what names arms of any experiment, as champions do.

        Raises:
            StillBlind: an item of theirs is open somewhere.
        """
        for held in self.held_by(user):
            raise StillBlind.holding(held)

    def _read_open(self) -> OpenSittings:
        recent, now = self.recent, self._now_ms()
        with recent.lock:
            if recent.sittings is not None and 0 <= now - recent.read_ms < KEPT_MS:
                return recent.sittings
            changes = recent.changes
            found = read_open_sittings(self.mlflow.open().tracking, now_ms=now)
            recent.sittings, recent.read_ms = found if recent.changes == changes else None, now
            return found

    def _now_ms(self) -> int:
        """By the server's clock, as leases and cells have it."""
        return self.mlflow.open().stamps.now_ms()

    def _find(self, experiment: str) -> Experiment | None:
        """By its own name rather than by that in an address: some databases do not tell capitals apart."""
        try:
            known = self._read_open().experiments.get(experiment)
            return known or self.mlflow.find(experiment)
        except ExperimentNotFound:
            return None

    def _note_look(self, user: User, experiment: str, what: str) -> None:
        found = self._find(experiment)
        if found is None:
            return
        key, now = (judge_key(user.name), found.uid), self._now_ms()
        if 0 <= now - self.recent.looks.get(key, -KEPT_MS) < KEPT_MS:
            return
        with self.database.change() as change:
            change.execute(
                "INSERT INTO looks VALUES (?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO UPDATE SET last_ms = excluded.last_ms, name = excluded.name",
                (*key, found.name, now, now + KEPT_MS, what),
            )
        self.recent.looks[key] = now

    def _remember(self, sitting: LiveSitting, *, new: bool) -> None:
        """The audit's lines of begin and end; and who is blind is read anew."""
        self.recent.changes += 1
        self.recent.sittings = None
        if not new and sitting.state == "open":
            return
        what = "sitting.open" if sitting.state == "open" else f"sitting.{sitting.state}"
        detail = {"experiment": sitting.experiment}
        with self.database.change() as change:
            now, who = self.outbox.now_ms(), sitting.judged_by
            note(change, at_ms=now, who=who, what=what, subject=sitting.token, detail=detail)


def _check_owner(sitting: LiveSitting, user: User) -> LiveSitting:
    if sitting.judged_by != user.name:
        raise NotThere(f"you have no sitting {sitting.token!r}", hint="Open one of your own.")
    return sitting
