"""An experiment that has been opened: what it holds, and the way to write to it."""

import shlex
from collections.abc import Iterable, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, field, replace
from functools import cached_property

from tipbench.bench.blindness import Looks, find_look
from tipbench.bench.cells import ReadCells, StoredCell, StoredTexts
from tipbench.bench.damage import UNREADABLE, Damage, check_unchanged, read_as
from tipbench.bench.evidence import Evidence, read_evidence
from tipbench.bench.packs import read_pack_files
from tipbench.bench.plans import check_plans
from tipbench.bench.scores import kind_of_judge, list_noises, read_noise
from tipbench.bench.sittings import (
    KEY_FILE,
    KEY_LEFT_OUT_TAG,
    KEY_TAG,
    Answer,
    BlindKey,
    SeenArms,
    StoredSitting,
    Submission,
    submission_file,
)
from tipbench.bench.versions import check_versions
from tipbench.clock import Stamps
from tipbench.errors import JudgingClosed, TipbenchError, TrackingUnavailable, UsageError
from tipbench.pack import parse_pack
from tipbench.records import Candidate, Drawn, Pack, Rubric
from tipbench.stats import JudgeNoise, Noise
from tipbench.tracking import Tracking
from tipbench.tracking.client import NoSuchText
from tipbench.tracking.runs import Experiment, Run, Write, blank_write
from tipbench.tracking.search import Reading

TELLING_NAME = 4
"""Characters of a prompt's name that is masked: `v1` may be a word of a tip."""


@dataclass(frozen=True)
class Bench:
    """Read at the first question, and then it stays as it was read: `again` gives it as it is now.

    `packs` keeps what was read of packs, for others too: their hash is their content.
    """

    tracking: Tracking
    experiment: Experiment
    stamps: Stamps
    packs: dict[str, Pack] = field(default_factory=dict[str, Pack], repr=False)
    fresh: bool = False
    """Read everything, without the cache."""
    keys: dict[str, BlindKey] = field(default_factory=dict[str, BlindKey], repr=False)
    """Blind keys that were read, by run: they never change."""
    texts: dict[str, StoredTexts] = field(default_factory=dict[str, StoredTexts], repr=False)
    """Texts of cells that were read, by run: they never change either."""
    looks: Looks | None = None
    """What judges saw of arms, where that is known."""
    reading: Reading | None = None
    """Its runs, where they were found already."""

    def again(self, *, fresh: bool = False) -> "Bench":
        """The same experiment as it is now."""
        return replace(self, fresh=fresh, reading=None)

    def still(self) -> "Bench":
        """The same, found unchanged now: what was made of it stays, and leases run on."""
        same = copy(self)
        vars(same).pop("now_ms", None)
        return same

    @cached_property
    def now_ms(self) -> int:
        """When it was read."""
        return self.stamps.now_ms()

    @cached_property
    def found(self) -> Reading:
        """Its runs as they were found, and what was made of them."""
        _ = self.now_ms
        return self.reading or self.tracking.open_reading(self.experiment, fresh=self.fresh)

    @cached_property
    def runs(self) -> Sequence[Run]:
        return self.found.runs

    @cached_property
    def evidence(self) -> Evidence:
        evidence = read_evidence(self.runs, rubric_of=self._known_rubric_of, cells=self._cells)
        others: list[Damage] = []
        check_plans(self.runs, others.append)
        check_versions(self.runs, others.append)
        return replace(evidence, damaged=(*evidence.damaged, *(each.told for each in others)))

    @cached_property
    def stored_cells(self) -> dict[str, StoredCell]:
        """Run id → cell, also of those that were retired or are there twice."""
        return {cell.run.run_id: cell for cell in self._cells.cells}

    @cached_property
    def _cells(self) -> ReadCells:
        return ReadCells.of(self.runs)

    @property
    def name(self) -> str:
        return self.experiment.name

    @property
    def arms(self) -> list[str]:
        """The arms there are cells of."""
        return sorted({cell.facts.arm for cell in self.evidence.cells})

    @cached_property
    def hidden_names(self) -> tuple[str, ...]:
        """What a text must not tell a judge: models, and prompts that are not called like `v1`, a word."""
        facts = [cell.facts for cell in self.evidence.cells]
        prompts = {each.prompt for each in facts if len(each.prompt) >= TELLING_NAME}
        return tuple(sorted({each.model for each in facts} | prompts))

    @property
    def pack(self) -> Pack:
        """The pack that the newest cells were collected with."""
        return self.pack_of(self.evidence.cells[-1].facts.pack_hash)

    def noise_of(self, sitting: StoredSitting) -> Noise:
        """What the drift rule counts with for judges of this kind."""
        return read_noise(self.evidence, self.rubric_of, kind=kind_of_judge(sitting)).rule

    @property
    def noises(self) -> list[JudgeNoise]:
        """How noisy each kind of judge is that has judged here."""
        return list_noises(self.evidence, self.rubric_of)

    def check_cells(self) -> None:
        """Refuses an experiment without cells.

        Raises:
            UsageError: it has none.
        """
        if not self.evidence.cells:
            raise UsageError(
                f"experiment {self.name!r} has no cells",
                hint=f"Collect some: tipbench collect --experiment {shlex.quote(self.name)}",
            )

    def check_arm(self, arm: str) -> None:
        """Refuses an arm without cells.

        Raises:
            UsageError: lists those there are.
        """
        if arm not in self.arms:
            raise UsageError(
                f"experiment {self.name!r} has no arm {arm!r}", hint=f"Available: {', '.join(self.arms)}"
            )

    def check_open(self) -> None:
        """Nothing is handed out after judging was ended.

        Raises:
            JudgingClosed: it was; with the reason.
        """
        if self.evidence.close_reason is not None:
            raise JudgingClosed(self.name, reason=self.evidence.close_reason)

    def pack_of(self, pack_hash: str) -> Pack:
        """The stored pack with this hash, read once."""
        if pack_hash not in self.packs:
            files = read_pack_files(self.runs, pack_hash, tracking=self.tracking)
            self.packs[pack_hash] = parse_pack(files)
        return self.packs[pack_hash]

    @property
    def lacks_packs(self) -> bool:
        """Whether a pack could not be read: what was made without it may change when it is there again."""
        return bool(self._unreadable_packs)

    def rubric_of(self, cell: StoredCell) -> Rubric:
        """The rubric that the cell was collected under."""
        return self.pack_of(cell.facts.pack_hash).rubric

    def _known_rubric_of(self, cell: StoredCell) -> Rubric | None:
        """None where its pack cannot be read; who needs the pack says why."""
        pack_hash = cell.facts.pack_hash
        if pack_hash not in self._unreadable_packs:
            try:
                return self.pack_of(pack_hash).rubric
            except TrackingUnavailable:
                raise
            except TipbenchError:
                self._unreadable_packs.add(pack_hash)
        return None

    def find_sitting(self, token: str) -> StoredSitting:
        """The sitting of that token.

        Raises:
            UsageError: there is none.
        """
        for sitting in self.evidence.sittings:
            if sitting.facts.token == token:
                return sitting
        raise UsageError(
            f"experiment {self.name!r} has no sitting {token!r}",
            hint=f"List them: tipbench judge status --experiment {self.name!r}",
        )

    def keys_of_open(self, *drawn: Drawn) -> dict[str, BlindKey]:
        """Token → key of the sittings, drawn so, whose items are with a judge now.

        What cannot be read holds up nobody: its items may be judged twice.
        """
        return self.keys_of(
            sitting
            for sitting in self.evidence.sittings
            if sitting.facts.drawn in drawn and sitting.is_open(self.now_ms)
        )

    def keys_of(self, sittings: Iterable[StoredSitting]) -> dict[str, BlindKey]:
        """Token → key of these sittings, as far as they can be read."""
        found: dict[str, BlindKey] = {}
        for sitting in sittings:
            with suppress(*UNREADABLE):
                found[sitting.facts.token] = self.key_of(sitting)
        return found

    def key_of(self, sitting: StoredSitting) -> BlindKey:
        """The blind key of a sitting, read once.

        Raises:
            NoSuchText: it came out of a file without its key, or lost it.
        """
        run = sitting.run
        if KEY_LEFT_OUT_TAG in run.tags:
            raise NoSuchText(
                f"sitting {sitting.facts.token} was imported without its key",
                hint="Where it comes from: tipbench export NAME FILE.tipbench --with-keys",
            )
        if run.run_id not in self.keys:
            text = self.read_artifact(run, KEY_FILE)
            check_unchanged(run, KEY_FILE, text, stored=run.tags.get(KEY_TAG))
            self.keys[run.run_id] = read_as(BlindKey, text, run=run, where=KEY_FILE)
        return self.keys[run.run_id]

    def find_seen(self, judge: str, key: BlindKey, *, until_ms: int | None = None) -> SeenArms | None:
        """What this judge saw of the arms of these items, until now or before that time.

        Now is not a time: clocks of two connections differ by seconds, and what is written down was seen.
        """
        looks = self.looks.of(judge) if self.looks is not None else []
        looks = [look for look in looks if until_ms is None or look.first_ms < until_ms]
        if not looks:
            return None
        held = [self.stored_cells[item.cell] for item in key.items if item.cell in self.stored_cells]
        seen = find_look(looks, held, experiment=self.experiment, tracking=self.tracking)
        return seen and SeenArms(experiment=seen.name, what=seen.what, at_ms=seen.first_ms)

    def answers_of(
        self, sitting: StoredSitting, submissions: Sequence[int] | None = None
    ) -> dict[str, Answer]:
        """What the sitting had said with the last of these submissions; without them, with its last."""
        submissions = sitting.submissions if submissions is None else submissions
        if not submissions:
            return {}
        run, n = sitting.run, max(submissions)
        text = self.read_artifact(run, submission_file(n))
        check_unchanged(run, submission_file(n), text, stored=run.tags.get(f"submission:{n}"))
        return read_as(Submission, text, run=run, where=submission_file(n)).answers

    def reasons_of(self, sitting: StoredSitting) -> dict[tuple[str, int], str]:
        """Cell and slot → what the judge wrote beside the scores that count.

        Of a sitting that came without its key it is not known what the reasons are about.
        """
        token = sitting.facts.token
        if KEY_LEFT_OUT_TAG in sitting.run.tags:
            return {}
        if token not in self._reasons:
            answers = self.answers_of(sitting, sitting.closed.submissions if sitting.closed else ())
            self._reasons[token] = {
                (item.cell, item.slot): answers[item.id].reason
                for item in (self.key_of(sitting).items if answers else ())
                if item.cell and item.id in answers
            }
        return self._reasons[token]

    def candidates_of(self, cell: StoredCell) -> tuple[Candidate, ...]:
        """The candidates of a cell, read once."""
        return self.texts_of(cell).candidates

    def texts_of(self, cell: StoredCell) -> StoredTexts:
        """The texts of a cell, each read once."""
        return self.texts.setdefault(cell.run.run_id, StoredTexts(cell.run, self.read_artifact))

    @cached_property
    def _reasons(self) -> dict[str, dict[tuple[str, int], str]]:
        return {}

    @cached_property
    def _unreadable_packs(self) -> set[str]:
        return set()

    def read_artifact(self, run: Run, path: str) -> str:
        return self.tracking.read_artifact(run, path)

    def blank(self) -> Write:
        """An empty write into the experiment, with an attempt id of its own."""
        return blank_write(self.experiment, self.stamps)


def find_newest(tracking: Tracking) -> str | None:
    """The experiment into which a cell was collected last; None where there is no cell."""
    names = {each.id: each.name for each in tracking.list_experiments()}
    found = tracking.search_newest_runs(list(names), "tags.`tipbench.kind` = 'cell'", most=1) if names else []
    return names.get(found[0].experiment_id) if found else None


def open_bench(
    tracking: Tracking,
    experiment: str,
    *,
    stamps: Stamps,
    packs: dict[str, Pack] | None = None,
    fresh: bool = False,
    looks: Looks | None = None,
) -> Bench:
    """The experiment of that name.

    Raises:
        ExperimentNotFound: there is none.
    """
    found = tracking.find_experiment(experiment)
    return Bench(tracking, found, stamps, {} if packs is None else packs, fresh, looks=looks)


def read_bench(tracking: Tracking, experiment: str, *, stamps: Stamps, fresh: bool = False) -> Bench:
    """The experiment, which has cells.

    Raises:
        ExperimentNotFound: there is none.
        UsageError: it has no cells.
    """
    bench = open_bench(tracking, experiment, stamps=stamps, fresh=fresh)
    bench.check_cells()
    return bench
