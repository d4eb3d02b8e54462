"""Judge, as one phase: hand a sheet out, take it in, end judging. Reads the store, writes the store."""

from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from tipbench.agreement import list_verdicts
from tipbench.errors import (
    NewerSchema,
    PackError,
    SheetError,
    TipbenchError,
    TrackingError,
    TrackingRefused,
    TrackingUnavailable,
    UsageError,
)
from tipbench.judging.apply import (
    Applied,
    apply_sections,
    check_sheet,
    close_all,
    close_expired,
    close_with_late,
    load_sheet,
    refresh_views,
)
from tipbench.judging.backlog import Backlog, read_backlog
from tipbench.judging.closing import Registrar
from tipbench.judging.ending import find_end
from tipbench.judging.export import Handout, check_target, export_sheet, finish_interrupted
from tipbench.judging.handout import Request
from tipbench.judging.judges import Bench, JudgesReport, read_judges
from tipbench.judging.spots import measure_disagreement
from tipbench.judging.status import Status, read_status
from tipbench.records import Pack
from tipbench.settings import GateSettings
from tipbench.tracking import Tracking
from tipbench.tracking.contents import check_contents
from tipbench.tracking.locks import hold_lock
from tipbench.tracking.looks import fix_plan, mark_doubtful
from tipbench.tracking.sittings import (
    Decision,
    EndOfJudging,
    StoredSitting,
    decision_write,
    end_of_judging_write,
)
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
    packs: dict[str, Pack] = field(default_factory=dict[str, Pack], repr=False)
    gate: GateSettings = field(default_factory=GateSettings)

    def hand_out(self, path: Path, request: Request, *, experiment: str) -> Handout | None:
        """The sheet written to the file; None when nothing waits.

        Raises:
            UsageError: the file exists, or judging of the experiment was closed.
        """
        check_target(path)
        with self.locked(experiment) as registrar:
            backlog = self.read_tidy(registrar)
            backlog.check_open(experiment)
            interrupted = finish_interrupted(path, backlog.evidence, experiment=registrar.experiment)
            if interrupted is not None:
                return interrupted
            request = self.fix_plan(request, backlog, registrar)
            return export_sheet(path, request, backlog=backlog, registrar=registrar)

    def fix_plan(self, request: Request, backlog: Backlog, registrar: Registrar) -> Request:
        """Fixes the gate's plan before candidates are handed out; what decides is asked against the champion.

        Raises:
            MixedContents: one name stands for several contents.
        """
        cells = backlog.evidence.cells
        if request.drawn != "block" or not cells:
            return request
        check_contents(cells, experiment=registrar.experiment.name)
        try:
            champion = fix_plan(
                self.tracking,
                registrar.experiment,
                evidence=backlog.evidence,
                pack=backlog.pack_of(cells[-1].facts.pack_hash),
                gate=self.gate,
                stamps=self.stamps,
            )
        except TrackingRefused:
            # Where the registry is closed to us there is no champion, and judging goes on without.
            return request
        if champion is None or request.items is None or request.champion or request.judge_kind:
            return request
        return replace(request, champion=champion)

    def take_in(self, path: Path, *, experiment: str | None, judged_by: str | None, close: bool) -> Taken:
        """Checks the whole sheet, stores its answers, closes what is complete, brings the views up to date.

        Raises:
            SheetError: names every problem by item; nothing was stored.
        """
        sheet = load_sheet(path, experiment=experiment)
        registrar = self.registrar(sheet.experiment)
        if registrar.experiment.uid != sheet.experiment_uid:
            raise SheetError(
                f"{str(path)!r} is a sheet of another experiment that was also called {sheet.experiment!r}",
                hint="Is this the MLflow server it was exported from?",
            )
        with self.locked(sheet.experiment) as registrar:
            self.tracking.deliver_left_over()
            backlog = self.read(registrar, fresh=True)
            filled = check_sheet(path, sheet, backlog=backlog, judged_by=judged_by)
            sections = tuple(apply_sections(filled, backlog=backlog, registrar=registrar, close=close))
            backlog = self.read(registrar, fresh=True)
            if close_expired(backlog, registrar):
                backlog = self.read(registrar, fresh=True)
            refresh_views(backlog, registrar)
        return Taken(sheet.experiment, sections, read_status(backlog, experiment=sheet.experiment))

    def end(self, reason: str, *, experiment: str) -> None:
        """Ends judging: open sittings are closed, what is not judged stays so."""
        with self.locked(experiment) as registrar:
            backlog = self.read_tidy(registrar)
            close_all(backlog.evidence.sittings, backlog, registrar)
            self._store_end(EndOfJudging(closed=True, reason=reason), registrar)

    def reopen(self, reason: str, *, experiment: str) -> None:
        """Opens judging again: what is not judged waits."""
        with self.locked(experiment) as registrar:
            self.tracking.deliver_left_over()
            self._store_end(EndOfJudging(closed=False, reason=reason), registrar)

    def release(self, token: str, *, experiment: str) -> str:
        """Takes a sitting back from its judge: complete blocks count, the rest waits again. Gives its state.

        Raises:
            UsageError: there is no such sitting.
        """
        with self.locked(experiment) as registrar:
            backlog = self.read_tidy(registrar)
            close_all([find_sitting(token, backlog, registrar)], backlog, registrar)
            backlog = self.read(registrar, fresh=True)
            refresh_views(backlog, registrar)
        return find_sitting(token, backlog, registrar).state

    def decide(self, decision: Decision, *, experiment: str, with_late: bool = False) -> StoredSitting:
        """A person's word on a closed sitting, whatever the rule said; gives the sitting as it is now.

        `with_late` lets answers count that came after the close.

        Raises:
            UsageError: there is no such sitting, it is open, or no answer came late.
        """
        with self.locked(experiment) as registrar:
            backlog = self.read_tidy(registrar)
            sitting = find_sitting(decision.sitting, backlog, registrar)
            if sitting.closed is None:
                raise UsageError(
                    f"sitting {decision.sitting} is still open",
                    hint="Close it first: tipbench judge --apply FILE --close, or tipbench judge release.",
                )
            if with_late:
                decision = decision.model_copy(
                    update={"closed": close_with_late(sitting, backlog, registrar)}
                )
            self.tracking.deliver(decision_write(decision, write=self.stamps.blank(registrar.experiment)))
            backlog = self.read(registrar, fresh=True)
            refresh_views(backlog, registrar)
            mark_doubtful(self.tracking, registrar.experiment, backlog.evidence, stamps=self.stamps)
        return find_sitting(decision.sitting, backlog, registrar)

    def judges(
        self,
        experiments: Iterable[str],
        *,
        delta: float | None = None,
        pass_over: Callable[[str, TipbenchError], None] | None = None,
    ) -> JudgesReport:
        """All sittings of these experiments, and how far their judges agree; only reads.

        `delta` is the gap that is too far, else the data say; `pass_over` is told of broken experiments.

        Raises:
            TrackingError: one is broken, and nobody is there to be told.
            NewerSchema: the same, of one that a newer tipbench wrote.
        """
        benches: list[Bench] = []
        for name in experiments:
            try:
                backlog = self.read(self.registrar(name))
                # Read here: a pack that is gone must not stop the others.
                for given in list_verdicts(backlog.evidence):
                    backlog.rubric_of(given.cell)
            except TrackingUnavailable:
                raise
            except (TrackingError, PackError, NewerSchema) as error:
                if pass_over is None:
                    raise
                pass_over(name, error)
                continue
            benches.append(Bench(name, backlog.evidence, backlog.rubric_of))
        return read_judges(benches, now_ms=self.stamps.now_ms(), threshold=delta)

    def status(self, *, experiment: str, fresh: bool = False, delta: float | None = None) -> Status:
        """Where judging stands; only reads. `delta` is the gap that is too far, else the data say."""
        backlog = self.read(self.registrar(experiment), fresh=fresh)
        disagreement, _ = measure_disagreement(
            backlog.evidence, backlog.rubric_of, experiment=experiment, threshold=delta
        )
        return read_status(backlog, experiment=experiment, disagreement=disagreement)

    def find_end(self, experiment: str) -> str | None:
        """Why nobody has to wait for judging any more; None while it goes on. Only reads."""
        return find_end(self.read(self.registrar(experiment)))

    def _store_end(self, end: EndOfJudging, registrar: Registrar) -> None:
        blank = self.stamps.blank(registrar.experiment)
        self.tracking.deliver(end_of_judging_write(end, write=blank))
        refresh_views(self.read(registrar, fresh=True), registrar)

    @contextmanager
    def locked(self, experiment: str) -> Generator[Registrar]:
        """One command of this host at a time."""
        registrar = self.registrar(experiment)
        with hold_lock(self.locks / f"judge-{registrar.experiment.uid}.lock"):
            yield registrar

    def registrar(self, experiment: str) -> Registrar:
        """Where sittings of the experiment are stored."""
        return Registrar(self.tracking, self.tracking.find_experiment(experiment), self.stamps)

    def read(self, registrar: Registrar, *, fresh: bool = False) -> Backlog:
        """What the store holds."""
        return read_backlog(
            self.tracking, registrar.experiment, now_ms=self.stamps.now_ms(), packs=self.packs, fresh=fresh
        )

    def read_tidy(self, registrar: Registrar) -> Backlog:
        """What the store holds, after everything that ran out was closed and the views follow."""
        self.tracking.deliver_left_over()
        backlog = self.read(registrar)
        if close_expired(backlog, registrar):
            backlog = self.read(registrar, fresh=True)
        # Also when nothing ran out: whoever closed the last sitting may have been killed before this.
        refresh_views(backlog, registrar)
        return backlog


def find_sitting(token: str, backlog: Backlog, registrar: Registrar) -> StoredSitting:
    """The sitting of that token.

    Raises:
        UsageError: there is none.
    """
    for sitting in backlog.evidence.sittings:
        if sitting.facts.token == token:
            return sitting
    name = registrar.experiment.name
    raise UsageError(
        f"experiment {name!r} has no sitting {token!r}",
        hint=f"List them: tipbench judge status --experiment {name!r}",
    )
