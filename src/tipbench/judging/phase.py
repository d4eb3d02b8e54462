"""Judge, as one phase: hand a sheet out, take it in, end judging. Reads the store, writes the store."""

from dataclasses import dataclass
from pathlib import Path

from tipbench.errors import SheetError, UsageError
from tipbench.judging.apply import (
    Applied,
    apply_sections,
    check_sheet,
    close_all,
    close_expired,
    load_sheet,
    refresh_views,
)
from tipbench.judging.backlog import Backlog, read_backlog
from tipbench.judging.closing import Registrar
from tipbench.judging.export import Handout, check_target, export_sheet, finish_interrupted
from tipbench.judging.handout import Request
from tipbench.judging.status import Status, read_status
from tipbench.tracking import Tracking
from tipbench.tracking.locks import hold_lock
from tipbench.tracking.sittings import EndOfJudging, end_of_judging_write
from tipbench.tracking.stamps import Stamps


@dataclass(frozen=True)
class Taken:
    """What became of an applied sheet."""

    experiment: str
    sections: tuple[Applied, ...]
    status: Status


@dataclass(frozen=True)
class Judging:
    """The judge phase on one server. The lock keeps two commands of this host apart; between hosts the
    reading rule keeps the result right."""

    tracking: Tracking
    stamps: Stamps
    locks: Path

    def hand_out(self, path: Path, request: Request, *, experiment: str) -> Handout | None:
        """The sheet written to the file; None when nothing waits.

        Raises:
            UsageError: the file exists, or judging of the experiment was closed.
        """
        check_target(path)
        registrar = self._registrar(experiment)
        with hold_lock(self._lock(registrar)):
            backlog = self._tidy_backlog(registrar)
            if backlog.evidence.judging_closed:
                raise UsageError(
                    f"judging of {experiment!r} was closed: {backlog.evidence.close_reason}",
                    hint=f"Open it again: tipbench judge reopen --experiment {experiment!r} --reason …",
                )
            interrupted = finish_interrupted(path, backlog.evidence, experiment=registrar.experiment)
            return interrupted or export_sheet(path, request, backlog=backlog, registrar=registrar)

    def take_in(self, path: Path, *, experiment: str | None, judged_by: str | None, close: bool) -> Taken:
        """Checks the whole sheet, stores its answers, closes what is complete, brings the views up to date.

        Raises:
            SheetError: names every problem by item; nothing was stored.
        """
        sheet = load_sheet(path, experiment=experiment)
        registrar = self._registrar(sheet.experiment)
        if registrar.experiment.uid != sheet.experiment_uid:
            raise SheetError(
                f"{str(path)!r} is a sheet of another experiment that was also called {sheet.experiment!r}",
                hint="Is this the MLflow server it was exported from?",
            )
        with hold_lock(self._lock(registrar)):
            self.tracking.deliver_left_over()
            backlog = self._read(registrar, fresh=True)
            filled = check_sheet(path, sheet, backlog=backlog, judged_by=judged_by)
            sections = tuple(apply_sections(filled, runs=backlog.runs, registrar=registrar, close=close))
            backlog = self._read(registrar, fresh=True)
            if close_expired(backlog, registrar):
                backlog = self._read(registrar, fresh=True)
            refresh_views(backlog, registrar)
        status = read_status(backlog.evidence, experiment=sheet.experiment, now_ms=backlog.now_ms)
        return Taken(sheet.experiment, sections, status)

    def end(self, reason: str, *, experiment: str) -> None:
        """Ends judging: open sittings are closed, what is not judged stays so."""
        registrar = self._registrar(experiment)
        with hold_lock(self._lock(registrar)):
            backlog = self._tidy_backlog(registrar)
            close_all(backlog.evidence.sittings, backlog, registrar)
            self._store_end(EndOfJudging(closed=True, reason=reason), registrar)

    def reopen(self, reason: str, *, experiment: str) -> None:
        """Opens judging again: what is not judged waits."""
        registrar = self._registrar(experiment)
        with hold_lock(self._lock(registrar)):
            self.tracking.deliver_left_over()
            self._store_end(EndOfJudging(closed=False, reason=reason), registrar)

    def release(self, token: str, *, experiment: str) -> str:
        """Takes a sitting back from its judge: complete blocks count, the rest waits again. Gives its state.

        Raises:
            UsageError: there is no such sitting.
        """
        registrar = self._registrar(experiment)
        with hold_lock(self._lock(registrar)):
            backlog = self._tidy_backlog(registrar)
            found = [sitting for sitting in backlog.evidence.sittings if sitting.facts.token == token]
            if not found:
                raise UsageError(
                    f"experiment {experiment!r} has no sitting {token!r}",
                    hint=f"List them: tipbench judge status --experiment {experiment!r}",
                )
            close_all(found, backlog, registrar)
            backlog = self._read(registrar, fresh=True)
            refresh_views(backlog, registrar)
        return next(s.state for s in backlog.evidence.sittings if s.facts.token == token)

    def status(self, *, experiment: str, fresh: bool = False) -> Status:
        """Where judging stands; only reads."""
        backlog = self._read(self._registrar(experiment), fresh=fresh)
        return read_status(backlog.evidence, experiment=experiment, now_ms=backlog.now_ms)

    def _store_end(self, end: EndOfJudging, registrar: Registrar) -> None:
        blank = self.stamps.blank(registrar.experiment)
        self.tracking.deliver(end_of_judging_write(end, write=blank))
        refresh_views(self._read(registrar, fresh=True), registrar)

    def _registrar(self, experiment: str) -> Registrar:
        return Registrar(self.tracking, self.tracking.find_experiment(experiment), self.stamps)

    def _read(self, registrar: Registrar, *, fresh: bool) -> Backlog:
        return read_backlog(self.tracking, registrar.experiment, now_ms=self.stamps.now_ms(), fresh=fresh)

    def _tidy_backlog(self, registrar: Registrar) -> Backlog:
        """What the store holds, after everything that ran out was closed."""
        self.tracking.deliver_left_over()
        backlog = self._read(registrar, fresh=False)
        if close_expired(backlog, registrar):
            backlog = self._read(registrar, fresh=True)
            refresh_views(backlog, registrar)
        return backlog

    def _lock(self, registrar: Registrar) -> Path:
        return self.locks / f"judge-{registrar.experiment.uid}.lock"
