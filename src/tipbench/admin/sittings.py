"""The judging desk: sittings in a browser or over the API. Whoever has one open is blind."""

from collections.abc import Mapping
from dataclasses import dataclass

from tipbench.admin.connection import MlflowConnection
from tipbench.admin.users import User, note
from tipbench.bench.sittings import LIVE_LEASE_MS, Answer
from tipbench.errors import TipbenchError
from tipbench.jobs.records import Database, NotThere
from tipbench.jobs.webhooks import WebhookQueue
from tipbench.judging.request import SittingRequest
from tipbench.judging.service import MakeAnswers
from tipbench.judging.sheet import LiveSitting


class StillBlind(TipbenchError):
    """Somebody who judges wants to see who wrote what."""

    def __init__(self, experiment: str) -> None:
        super().__init__(
            f"you have an open sitting in {experiment!r}: whoever judges does not see arms",
            hint="Finish or close your sitting first.",
        )


@dataclass(frozen=True)
class PanelSittings:
    """Every call reads the store: any worker of the server can take it."""

    mlflow: MlflowConnection
    database: Database
    outbox: WebhookQueue

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

    def check_sees_arms(self, user: User, experiment: str) -> None:
        """Lets pass who may see arms.

        Raises:
            StillBlind: an item of theirs is open.
        """
        with self.database.read() as view:
            row = view.execute(
                "SELECT 1 FROM blind WHERE user = ? AND experiment = ? AND expires_ms > ?",
                (user.name, experiment, self.outbox.now_ms()),
            ).fetchone()
        if row is not None:
            raise StillBlind(experiment)

    def _remember(self, sitting: LiveSitting, *, new: bool) -> None:
        """Who is blind now; and the audit's lines of begin and end."""
        now = self.outbox.now_ms()
        key = (sitting.judged_by, sitting.experiment)
        with self.database.change() as change:
            if sitting.state == "open":
                change.execute(
                    "INSERT OR REPLACE INTO blind VALUES (?, ?, ?, ?)",
                    (*key, sitting.token, now + LIVE_LEASE_MS),
                )
            else:
                change.execute("DELETE FROM blind WHERE user = ? AND experiment = ?", key)
            if new or sitting.state != "open":
                what = "sitting.open" if sitting.state == "open" else f"sitting.{sitting.state}"
                detail = {"experiment": sitting.experiment}
                note(change, at_ms=now, who=key[0], what=what, subject=sitting.token, detail=detail)


def _check_owner(sitting: LiveSitting, user: User) -> LiveSitting:
    if sitting.judged_by != user.name:
        raise NotThere(f"you have no sitting {sitting.token!r}", hint="Open one of your own.")
    return sitting
