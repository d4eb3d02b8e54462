"""Export: an experiment goes into a file, with every fact and without what is nobody else's business."""

import json
import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from tipbench.bench.bench import Bench, open_bench
from tipbench.bench.cells import VERDICT_TAG
from tipbench.bench.champions import EXPERIMENT, PROMOTION_KINDS, STATE_TAG, SUCCESSOR, PromotionFacts
from tipbench.bench.damage import FACTS_TAG, KIND_TAG, find_readable, ignore, read_each, read_tag
from tipbench.bench.plans import read_spent_looks
from tipbench.bench.sittings import JUDGE_TAG, KEY_FILE, KEY_LEFT_OUT_TAG, KEY_TAG, judge_tag
from tipbench.bench.views import AUTO_TAGS, BOARD_TAGS, JUDGE_TAGS
from tipbench.clock import Stamps
from tipbench.errors import TipbenchError
from tipbench.files import write_whole
from tipbench.portable.file import PortableHead, PortableRun, pack_runs
from tipbench.records import SCHEMA, Record
from tipbench.tracking import Tracking
from tipbench.tracking.client import NoSuchText
from tipbench.tracking.runs import (
    ATTEMPT_TAG,
    FIRST_ID_TAG,
    LATEST_MS,
    TOUCHED,
    Run,
    clean_text,
    is_plain_path,
)

AT_ONCE = 4
WINDOW = 64
UNFINISHED = ("open", "preparing")
"""States of runs that do not count yet; of a sitting: its items are with a judge."""
KEYS_OF = ("accepted", "refused", "expired")
"""Sittings whose key may leave: nobody is going to fill in their sheets."""
ORDER = (
    "pack",
    "cell",
    "version",
    "kept",
    "close",
    "decision",
    "sitting",
    "practice",
    "plan",
    "look",
    *PROMOTION_KINDS,
)
"""Each kind names runs of the kinds before it alone, but for claims, which are params."""
OUR_TAGS = frozenset(
    [
        *("rubric", "judge_kind", "judge_pending", "mlflow.note.content"),
        *(*JUDGE_TAGS, *AUTO_TAGS, *BOARD_TAGS.values()),
    ]
)
OUR_PREFIXES = ("tipbench.", "verdict:", "submission:")
LOCAL_TAGS = (ATTEMPT_TAG, FIRST_ID_TAG, "tipbench.version")
"""What says something about this server alone: who wrote it when, the number in its registry."""


class ExportReport(Record):
    """What went into a file; `remarks` say what did not."""

    file: str
    experiment: str
    runs: int
    cells: int
    sittings: int
    promotions: int
    size_bytes: int
    with_keys: bool
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _Chosen:
    """The runs of an experiment that go into its file, in the file's order, and what is left out."""

    runs: tuple[Run, ...]
    open_sittings: int
    unfinished: int

    @property
    def ids(self) -> dict[str, str]:
        """Run id here → id in the file, where they differ."""
        return {run.run_id: run.first_id for run in self.runs if run.run_id != run.first_id}

    @property
    def tokens(self) -> set[str]:
        return {run.tags.get("tipbench.sitting", "") for run in self.runs}


@dataclass(frozen=True)
class Exporting:
    """Experiments of one server go into files. `report` is told how many runs of how many are read."""

    tracking: Tracking
    stamps: Stamps
    report: Callable[[int, int], None]

    def run(self, experiment: str, path: Path, *, with_keys: bool) -> ExportReport:
        """Writes everything that the experiment holds, or nothing at all.

        Raises:
            ExperimentNotFound: there is none.
            PortableError: it does not fit into a file.
            TipbenchError: the file cannot be written.
        """
        bench = open_bench(self.tracking, experiment, stamps=self.stamps, fresh=True)
        chosen = self._choose(bench)
        mark = bench.experiment.imported
        head = PortableHead(
            tipbench_schema=SCHEMA,
            experiment=mark.experiment if mark else bench.name,
            runs=len(chosen.runs),
        )
        left_out = Counter[str]()
        content = pack_runs(head, self._read(chosen, left_out, with_keys=with_keys))
        try:
            write_whole(path, content)
        except OSError as error:
            raise TipbenchError(
                f"{str(path)!r} cannot be written: {error.strerror}", hint="Choose another file."
            ) from error
        kinds = Counter(run.tags.get(KIND_TAG) for run in chosen.runs)
        return ExportReport(
            file=str(path),
            experiment=bench.name,
            runs=len(chosen.runs),
            cells=kinds["cell"],
            sittings=kinds["sitting"],
            promotions=sum(kinds[kind] for kind in PROMOTION_KINDS),
            size_bytes=len(content),
            with_keys=with_keys,
            remarks=tuple(_tell_left_out(chosen, left_out)),
        )

    def _choose(self, bench: Bench) -> _Chosen:
        found = [run for run in bench.runs if run.tags.get(STATE_TAG) not in UNFINISHED]
        # A look that was spent is spent, also when its run was deleted.
        found += read_spent_looks(self.tracking, bench.runs)
        found += self._read_promotions(bench)
        begun = [run for run in bench.runs if run.tags.get(STATE_TAG) in UNFINISHED]
        is_open = [run for run in begun if run.tags[STATE_TAG] == "open" and run.tags[KIND_TAG] == "sitting"]
        known = {run.first_id: run for run in found}
        return _Chosen(tuple(sorted(known.values(), key=_place)), len(is_open), len(begun) - len(is_open))

    def _read_promotions(self, bench: Bench) -> list[Run]:
        """What came into force out of this experiment; it is stored with the champions of its pack."""
        experiment = self.tracking.seek_experiment(EXPERIMENT)
        if experiment is None or experiment.id == bench.experiment.id:
            return []
        runs = self.tracking.search_runs([experiment.id], f"tags.`{STATE_TAG}` = 'done'", "ALL")
        promotions = [run for kind in PROMOTION_KINDS for run in find_readable(runs, kind)]

        def is_from_here(run: Run) -> tuple[Run, bool]:
            return run, read_tag(run, FACTS_TAG, PromotionFacts).experiment == bench.name

        return [run for run, here in read_each(promotions, is_from_here, ignore) if here]

    def _read(self, chosen: _Chosen, left_out: Counter[str], *, with_keys: bool) -> Iterator[PortableRun]:
        """The runs with their texts, a few at a time."""
        ids, known, tokens = chosen.ids, {run.first_id for run in chosen.runs}, chosen.tokens
        done = 0
        with ThreadPoolExecutor(AT_ONCE) as pool:
            for window in _windows(chosen.runs, WINDOW):
                texts = pool.map(partial(self._read_texts, with_keys=with_keys), window)
                for run, (files, others) in zip(window, texts, strict=True):
                    left_out["files that are not plain text"] += others
                    yield _clean(_make_portable(run, files, left_out, tokens).named(ids), known)
                    done += 1
                    self.report(done, len(chosen.runs))

    def _read_texts(self, run: Run, *, with_keys: bool) -> tuple[dict[str, str], int]:
        """Name → text, and how many files are none that a file of ours takes."""
        files: dict[str, str] = {}
        others = 0
        for name in self.tracking.list_artifacts(run):
            if name == KEY_FILE and not (with_keys and run.tags.get(STATE_TAG) in KEYS_OF):
                continue
            try:
                if is_plain_path(name):
                    files[name] = clean_text(self.tracking.read_artifact(run, name))
                    continue
            except NoSuchText:
                pass
            others += 1
        return files, others


def _place(run: Run) -> tuple[int, int, str]:
    kind = run.tags.get(KIND_TAG, "")
    return ORDER.index(kind) if kind in ORDER else len(ORDER), run.start_time, run.first_id


def _make_portable(run: Run, files: dict[str, str], left_out: Counter[str], tokens: set[str]) -> PortableRun:
    """The run without what is not ours, what is of this server alone, and what an open sitting said."""
    tags: dict[str, str] = {}
    for key, value in run.tags.items():
        if key.startswith(OUR_PREFIXES) or key in OUR_TAGS:
            found = VERDICT_TAG.match(key) if key.startswith("verdict:") else None
            if key not in LOCAL_TAGS and (found is None or found[1] in tokens):
                tags[key] = clean_text(value)
        elif not key.startswith(("mlflow.", "artifact:")):
            left_out["tags of others"] += 1
    if run.tags.get(KIND_TAG) == "sitting" and KEY_FILE not in files:
        tags.pop(KEY_TAG, None)
        tags[KEY_LEFT_OUT_TAG] = "true"
    ended = (run.end_time or run.start_time) if run.status == "FINISHED" else 0
    return PortableRun(
        id=run.first_id,
        name=clean_text(run.name),
        started_ms=max(run.start_time, 0),
        ended_ms=min(max(ended, 0), LATEST_MS),
        tags=tags,
        params={key: clean_text(value) for key, value in run.params.items()},
        metrics={k: v for k, v in run.metrics.items() if k != TOUCHED and math.isfinite(v)},
        files=files,
    )


def _clean(run: PortableRun, known: set[str]) -> PortableRun:
    """The run without names of users but those of judges, and without runs that are not in the file."""
    tags, params = dict(run.tags), dict(run.params)
    if FACTS_TAG in tags:
        tags[FACTS_TAG] = _without_names(tags[FACTS_TAG], known)
    judge = params.get("judged_by", "")
    if tags.get("tipbench.for", "") != judge:
        tags.pop("tipbench.for", None)
    if tags.pop(JUDGE_TAG, "") and judge:
        tags |= judge_tag(judge)
    for key in list(params):
        if key.startswith("word:"):
            params[key] = _without_names(params[key], known)
        elif key.startswith("plan:") or (key == SUCCESSOR and params[key] not in known):
            del params[key]
    return run.model_copy(update={"tags": tags, "params": params})


def _without_names(text: str, known: set[str]) -> str:
    """What a person said, without who it was. What is not readable says nothing, here as there."""
    try:
        content = cast(object, json.loads(text))
    except ValueError:
        content = None
    if not isinstance(content, dict):
        return "{}"
    facts = cast(dict[str, object], content)
    said = facts.get("said")
    changed = [_blank(facts, known)]
    changed += [_blank(cast(dict[str, object], said), known)] if isinstance(said, dict) else []
    return json.dumps(facts, ensure_ascii=False, separators=(",", ":")) if any(changed) else text


def _blank(facts: dict[str, object], known: set[str]) -> bool:
    gone = [key for key in ("predecessor", "origin") if facts.get(key) and facts[key] not in known]
    gone += ["by"] if facts.get("by") else []
    facts.update(dict.fromkeys(gone, ""))
    return bool(gone)


def _tell_left_out(chosen: _Chosen, left_out: Mapping[str, int]) -> Iterator[str]:
    if chosen.open_sittings:
        yield (
            f"left out: {chosen.open_sittings} sittings that are still open, with what was said in them; "
            "they stay here with their judges"
        )
    if chosen.unfinished:
        yield f"left out: {chosen.unfinished} runs that were never completed"
    yield from (f"left out: {number} {what}" for what, number in sorted(left_out.items()) if number)


def _windows(runs: Sequence[Run], size: int) -> Iterator[Sequence[Run]]:
    return (runs[start : start + size] for start in range(0, len(runs), size))
