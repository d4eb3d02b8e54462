"""An automatic judge's sitting in the store: opened or taken up, answers put in by and by, closed."""

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random

from tipbench.errors import UsageError
from tipbench.judging.apply import close_all, refresh_views
from tipbench.judging.auto_graders import JudgeModel
from tipbench.judging.auto_items import AutoItems, Sample, draw_key, make_facts, sittings_of
from tipbench.judging.backlog import Backlog
from tipbench.judging.closing import Registrar, read_answers
from tipbench.judging.handout import seed_source
from tipbench.judging.phase import Judging, find_sitting
from tipbench.judging.submissions import store_submission
from tipbench.records import Pack
from tipbench.tracking.auto_sittings import PROGRESS_TAG, Spent, read_progress
from tipbench.tracking.cells import read_cells
from tipbench.tracking.contents import check_contents
from tipbench.tracking.sittings import Answer, BlindKey, StoredSitting, sitting_write


@dataclass(frozen=True)
class AutoSitting:
    """A sitting as it was when the judge sat down."""

    sitting: StoredSitting
    key: BlindKey
    pack: Pack
    items: AutoItems
    answers: Mapping[str, Answer]

    @property
    def token(self) -> str:
        """Its name."""
        return self.sitting.facts.token


@dataclass(frozen=True)
class AutoDesk:
    """Sittings of automatic judges in one experiment."""

    judging: Judging
    experiment: str

    def sit_down(self, judge: JudgeModel, *, sample: Sample | None = None) -> AutoSitting | None:
        """This judge's open sitting, else a new one, over a sample if wanted; None when nothing waits for it.

        Raises:
            UsageError: judging of the experiment was closed.
            MixedContents: one name stands for several contents: judging would mix them.
        """
        with self.judging.locked(self.experiment) as registrar:
            backlog = self.judging.read_tidy(registrar)
            backlog.check_open(self.experiment)
            check_contents(backlog.evidence.cells, experiment=self.experiment)
            if not backlog.evidence.cells:
                return None
            mine = [s for s in sittings_of(judge, backlog) if s.is_open(backlog.now_ms)]
            if not mine:
                token = _hand_out(judge, backlog, registrar, sample)
                if token is None:
                    return None
                backlog = self.judging.read(registrar)
                mine = [find_sitting(token, backlog, registrar)]
            sitting = mine[0]
            pack = backlog.pack_of(sitting.facts.pack_hash)
            return AutoSitting(
                sitting=sitting,
                key=backlog.key_of(sitting),
                pack=pack,
                items=AutoItems(backlog, pack),
                answers=read_answers(sitting, sitting.submissions, registrar),
            )

    def store(self, token: str, answers: Mapping[str, Answer], *, ledger: str, spent: Spent) -> None:
        """Stores answers and what they took; what others stored meanwhile stays.

        Raises:
            UsageError: somebody closed the sitting meanwhile.
        """
        with self.judging.locked(self.experiment) as registrar:
            self.judging.tracking.deliver_left_over()
            backlog = self.judging.read(registrar)
            sitting = find_sitting(token, backlog, registrar)
            if not sitting.is_open(backlog.now_ms):
                raise UsageError(
                    f"sitting {token} was closed meanwhile: nothing more is taken",
                    hint="Run the same command again: what is not judged goes into a new one.",
                )
            previous = read_answers(sitting, sitting.submissions, registrar)
            merged = {**previous, **answers}
            if merged != previous:
                store_submission(
                    sitting,
                    answers=merged,
                    previous=previous,
                    key=backlog.key_of(sitting),
                    cells={cell.run.run_id: cell for cell in read_cells(backlog.runs)},
                    registrar=registrar,
                )
            self._store_progress(sitting, registrar, ledger=ledger, spent=spent)

    def _store_progress(
        self, sitting: StoredSitting, registrar: Registrar, *, ledger: str, spent: Spent
    ) -> None:
        progress = read_progress(sitting).with_ledger(ledger, spent)
        blank = registrar.stamps.blank(registrar.experiment)
        registrar.tracking.deliver(
            blank.model_copy(
                update={
                    "run_id": sitting.run.run_id,
                    "tags": {PROGRESS_TAG: progress.model_dump_json()},
                    "metrics": progress.total.metrics,
                }
            )
        )

    def close(self, token: str) -> StoredSitting:
        """Closes the sitting, brings the views up to date, and gives it as it is now."""
        with self.judging.locked(self.experiment) as registrar:
            backlog = self.judging.read(registrar)
            close_all([find_sitting(token, backlog, registrar)], backlog, registrar)
            backlog = self.judging.read(registrar)
            refresh_views(backlog, registrar)
            return find_sitting(token, backlog, registrar)


def _hand_out(judge: JudgeModel, backlog: Backlog, registrar: Registrar, sample: Sample | None) -> str | None:
    """Makes a new sitting over what waits for this judge; its token, or None when nothing does."""
    cell = backlog.evidence.cells[-1]
    seed = seed_source(registrar.stamps)()
    key = draw_key(judge, backlog, backlog.pack_of(cell.facts.pack_hash), rng=Random(seed), sample=sample)
    if key is None:
        return None
    blank = registrar.stamps.blank(registrar.experiment)
    facts = make_facts(judge, key, cell, order_seed=seed, now_ms=blank.start_time)
    write = sitting_write(facts, key, judged_by=judge.name, write=blank)
    params = {"judged_by": judge.name, "judge_digest": judge.digest}
    tags = write.tags | {"judge_kind": facts.judge_kind}
    registrar.tracking.deliver(write.model_copy(update={"params": params, "tags": tags}))
    return facts.token
