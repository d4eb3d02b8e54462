"""Import: an experiment of the original becomes one of ours. Its candidates can then be judged blind.

Cells keep the names that they had. What a judge said of a whole cell is kept as that (`CellScores`), under
one sitting for each judge. What the source does not say (templates of prompts, weights) is not made up.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import cast

from tipbench.bench.bench import Bench
from tipbench.bench.cells import SCORES_TAG, CellScores, CellTexts, candidate_metrics, cell_write
from tipbench.bench.foreign import ForeignCell, ParamNames, describe_left_out, read_foreign
from tipbench.bench.packs import find_pack_run, pack_write
from tipbench.bench.sittings import (
    DRIFT_TAG,
    BlindKey,
    ClosedSitting,
    SittingFacts,
    StoredDrift,
    close_hash,
    sitting_write,
)
from tipbench.clock import Stamps
from tipbench.collect.candidates import NO_TIP, measure_diversity, split_tips
from tipbench.errors import ExperimentNotFound, TrackingRefused, TrackingUnavailable, UsageError
from tipbench.inert import clean_line
from tipbench.pack import parse_pack
from tipbench.pack.check import ALWAYS, PLACEHOLDER
from tipbench.records import (
    ANSWERED,
    FAILED,
    LAZY_KINDS,
    Candidate,
    CellFacts,
    Options,
    Pack,
    Record,
    Sampling,
    Scenario,
    compute_flags,
    content_hash,
)
from tipbench.tracking import Tracking
from tipbench.tracking.runs import Write

SOURCE_TAG = "tipbench.imported_from"
"""On a cell: the experiment that it comes from."""
RUN_TAG = "tipbench.imported_run"
KINDS = (*LAZY_KINDS, "haiku")
SET = "imported"
MOST_TIPS = 50
PROMPT = "prompts/not-imported.md"
NO_TEMPLATE = """The prompts of these cells were sent as they stand in each run's prompt.txt. Their templates
were not imported, so no arm of this experiment can become champion. ({{n_tips}} tips. {{diversity}})
"""
MEASURED = ("latency_seconds", "prompt_tokens", "output_tokens", "tokens_per_second")
TEXTS = ("text", "tip", "content", "candidate")
LISTS = ("candidates", "tips")


class ImportedSitting(Record):
    """What one judge of the source said, as one sitting."""

    sitting: str
    judged_by: str
    cells: int


class ImportReport(Record):
    """What became of an import. `new_cells` and `new_scores` count what was not there before."""

    source: str
    experiment: str
    cells: int
    new_cells: int
    new_scores: int
    sittings: tuple[ImportedSitting, ...]
    remarks: tuple[str, ...]


@dataclass(frozen=True)
class _SourceCell:
    """A cell of the source with its texts."""

    cell: ForeignCell
    candidates: tuple[Candidate, ...]
    prompt: str
    raw: str
    scenario: Scenario
    known_situation: bool


@dataclass
class _SourceCells:
    """What is to be imported, and what cannot be."""

    cells: list[_SourceCell] = field(default_factory=list[_SourceCell])
    left_out: dict[str, list[str]] = field(default_factory=dict[str, list[str]])


@dataclass(frozen=True)
class Importing:
    """Imports on one server. `pack` gives rubric, anchors, and situations that the source does not keep."""

    tracking: Tracking
    stamps: Stamps
    pack: Pack

    def run(self, source: str, *, into: str | None, params: ParamNames) -> ImportReport:
        """Imports what is not there yet; the source is only read.

        Raises:
            ExperimentNotFound: there is no such source.
            UsageError: nothing in it can be imported, or `into` holds something else.
            TrackingUnavailable: not everything was stored; the same command again completes it.
        """
        found = read_foreign(self.tracking, source, params=params)
        read = _SourceCells(left_out={why: list(ids) for why, ids in found.left_out.items()})
        for cell in found.cells:
            self._read_cell(cell, read)
        if not read.cells:
            lines = "\n  ".join(describe_left_out(read.left_out))
            raise UsageError(
                f"nothing of experiment {source!r} can be imported:\n  {lines}",
                hint="Say how its params are called: --model-param, --prompt-param, --scenario-param",
            )
        pack = _make_pack(self.pack, [each.scenario for each in read.cells])
        experiment = self.tracking.ensure_experiment(self._choose_name(source, into))
        return self._store(source, read, Bench(self.tracking, experiment, self.stamps, fresh=True), pack)

    def _choose_name(self, source: str, into: str | None) -> str:
        """The name that was asked for; else the first one that is free, or holds an import of this source."""
        if into is not None:
            if not self._is_free(into, source):
                raise UsageError(
                    f"experiment {into!r} holds something else than an import of {source!r}",
                    hint=f"Choose a new name, or leave --into out for {self._choose_name(source, None)!r}.",
                )
            return into
        number = 1
        while not self._is_free(name := f"{source}-imported" + (f"-{number}" if number > 1 else ""), source):
            number += 1
        return name

    def _is_free(self, name: str, source: str) -> bool:
        experiment = self.tracking.seek_experiment(name)
        if experiment is None:
            return not self._is_foreign(name)
        runs = self.tracking.read_runs(experiment, fresh=True)
        cells = [run for run in runs if run.tags.get("tipbench.kind") == "cell"]
        return all(run.tags.get(SOURCE_TAG) == source for run in cells)

    def _is_foreign(self, name: str) -> bool:
        try:
            self.tracking.find_foreign(name)
        except ExperimentNotFound:
            return False
        return True

    # What the source holds.

    def _read_cell(self, cell: ForeignCell, read: _SourceCells) -> None:
        rubric = cell.run.tags.get("rubric", "")
        if rubric and rubric != self.pack.rubric.name:
            why = f"judged by rubric {rubric!r}, and pack {self.pack.name!r} has {self.pack.rubric.name!r}"
            read.left_out.setdefault(f"{why} (give another --pack)", []).append(cell.run.run_id)
            return
        raw = self._read_text(cell, "raw.txt")
        texts = _parse_candidates(self._read_text(cell, "candidates.json")) or split_tips(raw, n_tips=1)
        if not texts:
            why = "neither candidates.json nor raw.txt holds a candidate that can be read"
            read.left_out.setdefault(why, []).append(cell.run.run_id)
            return
        # A tip that was asked for and is not there is a failed slot, as everywhere.
        asked = _read_options(cell.run.params).n_tips if "n_tips" in cell.run.params else 0
        texts += [""] * (min(asked, MOST_TIPS) - len(texts))
        candidates = tuple(self._make_candidate(slot, text) for slot, text in enumerate(texts))
        scenario, known = self._find_scenario(cell)
        prompt = self._read_text(cell, "prompt.txt")
        read.cells.append(_SourceCell(cell, candidates, prompt, raw, scenario, known))

    def _make_candidate(self, slot: int, text: str) -> Candidate:
        tip = clean_line(text)
        if not any(character.isalpha() for character in tip):
            return Candidate(slot=slot, failure=NO_TIP)
        return Candidate(slot=slot, text=tip, flags=compute_flags(tip, self.pack.rubric))

    def _find_scenario(self, cell: ForeignCell) -> tuple[Scenario, bool]:
        """The situation as the run keeps it, else the pack's of that name; else the name is all we have."""
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", cell.scenario).strip("-._")[:48] or "scenario"
        name = name if name == cell.scenario else f"{name}-{content_hash(cell.scenario)[:6]}"
        context = self._read_text(cell, "context.json") or self._read_text(cell, "context")
        values = _parse_context(context)
        known = {each.id: each for each in self.pack.scenarios}
        if not values and cell.scenario in known:
            return known[cell.scenario], True
        if cell.scenario in known:
            name = f"{name}-{content_hash(values)[:6]}"
        return Scenario(id=name, set=SET, values={"scenario": cell.scenario, **values}), bool(values)

    def _read_text(self, cell: ForeignCell, path: str) -> str:
        try:
            return self.tracking.read_artifact(cell.run, path)
        except TrackingRefused:
            # We split long texts over several tags; the original did not.
            return cell.run.tags.get(f"artifact:{path}", "")

    # What becomes of it.

    def _store(self, source: str, read: _SourceCells, bench: Bench, pack: Pack) -> ImportReport:
        if find_pack_run(bench.runs, pack.hash) is None:
            self.tracking.deliver(pack_write(pack, write=bench.blank()))
        judges = self._store_sittings(source, read, bench, pack)
        stored = {cell.facts.key: cell for cell in bench.stored_cells.values()}
        new_cells = new_scores = others = 0
        for each in read.cells:
            facts, options = _make_facts(each, pack)
            scores, there = _make_scores(each.cell, judges), stored.get(facts.key)
            if there is None:
                marks = {SOURCE_TAG: source, RUN_TAG: each.cell.run.run_id}
                write = _make_write(each, facts, options, write=bench.blank())
                write = write.model_copy(update={"tags_at_create": write.tags_at_create | marks})
            elif there.run.tags.get(RUN_TAG) != each.cell.run.run_id:
                # Scores of other texts than those that are there.
                others += 1
                continue
            elif scores and there.scores is None:
                write = bench.blank().model_copy(update={"run_id": there.run.run_id})
            else:
                continue
            new_cells += there is None
            new_scores += bool(scores)
            self.tracking.submit(write.model_copy(update={"tags": write.tags | scores}))
        self._finish()
        return ImportReport(
            source=source,
            experiment=bench.name,
            cells=len(read.cells),
            new_cells=new_cells,
            new_scores=new_scores,
            sittings=tuple(
                ImportedSitting(sitting=token, judged_by=judge, cells=_count(read, judge))
                for judge, token in judges.items()
            ),
            remarks=(*_make_remarks(read, self.pack), *_tell_others(others)),
        )

    def _finish(self) -> None:
        report = self.tracking.flush()
        if report.left_in_journal or report.refused:
            refused = "".join(f"\n  {message}" for _, message in report.refused[:3])
            raise TrackingUnavailable(
                f"not everything was stored: {report.left_in_journal} writes wait, "
                f"{len(report.refused)} were refused{refused}",
                hint="Run the same command again: nothing is imported twice.",
            )

    def _store_sittings(self, source: str, read: _SourceCells, bench: Bench, pack: Pack) -> dict[str, str]:
        """Judge → token of the one sitting that stands for all they said; made where it is not there yet."""
        known = {sitting.facts.token for sitting in bench.evidence.sittings}
        tokens: dict[str, str] = {}
        for judge in sorted({each.cell.judged_by for each in read.cells if each.cell.scores}):
            token = tokens[judge] = content_hash([SET, source, judge])[:12]
            if token not in known:
                theirs = [e.cell for e in read.cells if e.cell.scores and e.cell.judged_by == judge]
                self.tracking.deliver(_sitting_write(token, theirs, pack=pack, write=bench.blank()))
        return tokens


def _make_write(each: _SourceCell, facts: CellFacts, options: Options, *, write: Write) -> Write:
    """The run of a cell, at the time of the run that it comes from."""
    at = each.cell.run.start_time or write.start_time
    return cell_write(
        facts,
        CellTexts(
            prompt=each.prompt,
            context={"scenario": each.scenario.id, "values": each.scenario.values},
            candidates=each.candidates,
            raw=each.raw,
        ),
        options=options,
        metrics=_measure(each),
        write=write.model_copy(
            update={
                "run_name": f"{facts.model} · {facts.prompt} · {facts.scenario}"[:250],
                "start_time": at,
                "end_time": at,
            }
        ),
    )


def _parse_candidates(text: str) -> list[str]:
    """The texts of a candidates.json: a list of texts or of objects with one, or an object around it."""
    try:
        content: object = json.loads(text)
    except ValueError:
        return []
    if isinstance(content, dict):
        known = cast(dict[str, object], content)
        content = next((known[name] for name in LISTS if name in known), None)
    if not isinstance(content, list):
        return []
    texts = [_find_text(each) for each in cast(list[object], content)]
    return [each for each in texts if each is not None] if all(each is not None for each in texts) else []


def _find_text(entry: object) -> str | None:
    if isinstance(entry, dict):
        known = cast(dict[str, object], entry)
        entry = next((known[name] for name in TEXTS if name in known), None)
    return entry if isinstance(entry, str) else None


def _parse_context(text: str) -> dict[str, str | tuple[str, ...]]:
    """The situation that a run kept: texts and lists of texts, under names that a pack takes."""
    try:
        content: object = json.loads(text) if text else None
    except ValueError:
        return {"context": text.strip()}
    if isinstance(content, dict) and isinstance(content.get("values"), dict):  # pyright: ignore[reportUnknownMemberType]
        content = cast(dict[str, object], content)["values"]
    if not isinstance(content, dict):
        return {"context": text.strip()} if text.strip() and content is not None else {}
    values: dict[str, str | tuple[str, ...]] = {}
    for name, value in cast(dict[str, object], content).items():
        plain = _plain_value(value)
        if plain and name not in (*ALWAYS, "scenario") and PLACEHOLDER.fullmatch("{{" + name + "}}"):
            values[name] = plain
    return values


def _plain_value(value: object) -> str | tuple[str, ...]:
    if isinstance(value, list):
        items = [str(item).strip() for item in cast(list[object], value)]
        return tuple(item for item in items if item)
    return "" if value is None or isinstance(value, dict) else str(value).strip()


def _make_pack(base: Pack, scenarios: Sequence[Scenario]) -> Pack:
    """Rubric and anchors of the pack with the scenarios of the source, and those that anchors need."""
    needed = {anchor.scenario for anchor in base.anchors}
    kept = {each.id: each for each in (*(s for s in base.scenarios if s.id in needed), *scenarios)}
    lines = [
        json.dumps(each.model_dump(mode="json"), ensure_ascii=False)
        for each in sorted(kept.values(), key=lambda scenario: scenario.id)
    ]
    files = {name: text for name, text in base.files.items() if not name.startswith("prompts/")}
    return parse_pack(files | {"scenarios.jsonl": "\n".join(lines) + "\n", PROMPT: NO_TEMPLATE})


def _make_facts(each: _SourceCell, pack: Pack) -> tuple[CellFacts, Options]:
    """What is stored of the cell. Weights and template are known by their names alone: unpinned."""
    cell = each.cell
    options = _read_options(cell.run.params)
    kind = cell.run.tags.get("judge_kind", "")
    facts = CellFacts(
        # By the names of the source: imported again with another pack, it is the same cell.
        key=content_hash([SET, cell.model, cell.prompt, cell.scenario, options.hash]),
        model=cell.model,
        engine=SET,
        model_digest=f"{SET}:{cell.model}",
        pinned=False,
        prompt=cell.prompt,
        prompt_hash=content_hash([SET, cell.prompt]),
        scenario=each.scenario.id,
        scenario_hash=each.scenario.hash,
        options_hash=options.hash,
        rubric=pack.rubric.name,
        rubric_hash=pack.rubric.hash,
        pack_hash=pack.hash,
        judge_kind=kind if kind in KINDS else LAZY_KINDS[0],
        slots="".join(ANSWERED if candidate.answered else FAILED for candidate in each.candidates),
    )
    return facts, options


def _read_options(params: Mapping[str, str]) -> Options:
    """As the run says; what it does not say, or not in numbers, is the original's default."""
    default = Options(sampling=Sampling(), n_tips=5, diversity=False, seed=0)
    try:
        return Options(
            sampling=Sampling(temperature=float(params.get("temperature", default.sampling.temperature))),
            n_tips=int(params.get("n_tips", default.n_tips)),
            diversity=params.get("diversity", "false").strip().lower() in {"true", "1", "yes"},
            seed=int(params.get("seed", 0)),
        )
    except ValueError:
        return default


def _measure(each: _SourceCell) -> dict[str, float]:
    texts = [candidate.text for candidate in each.candidates if candidate.answered]
    known = each.cell.run.metrics
    taken = {name: known[name] for name in MEASURED if name in known}
    return taken | candidate_metrics(each.candidates, diversity=measure_diversity(texts))


def _make_scores(cell: ForeignCell, judges: Mapping[str, str]) -> dict[str, str]:
    """The tag with what was said of the whole cell; none where nobody said anything."""
    if not cell.scores:
        return {}
    scores = CellScores(sitting=judges[cell.judged_by], values=dict(cell.scores))
    return {SCORES_TAG: scores.model_dump_json()}


def _sitting_write(token: str, cells: Sequence[ForeignCell], *, pack: Pack, write: Write) -> Write:
    """A sitting that is over: nothing of it was handed out, so it has neither items nor anchors."""
    kind = cells[0].run.tags.get("judge_kind", "")
    facts = SittingFacts(
        token=token,
        tier="auto" if kind == "haiku" else "lazy",
        judge_kind=kind if kind in KINDS else LAZY_KINDS[0],
        rubric=pack.rubric.name,
        rubric_hash=pack.rubric.hash,
        pack_hash=pack.hash,
        drawn="cell",
        order_seed=0,
        expires_ms=0,
        items=0,
        anchors=0,
        blocks=0,
        judge_pinned=False,
    )
    judge = cells[0].judged_by
    closed = ClosedSitting(judged_by=judge)
    drift = StoredDrift(
        offset=0.0, se=0.0, correction=0.0, slope=None, alarms=(), anchors=0, exact=False, unanchored=True
    )
    made = sitting_write(facts, BlindKey(items=()), judged_by=judge, write=write)
    judged_ms = max((_read_time(cell.run.tags.get("judged_at", "")) for cell in cells), default=0)
    return made.model_copy(
        update={
            # Two imports at once adopt each other's run instead of making two.
            "attempt": f"imported-{token}",
            "params": {"judged_by": judge, "closed": close_hash(closed)},
            "tags": made.tags
            | {
                "tipbench.closed": closed.model_dump_json(),
                "tipbench.closed_ms": str(judged_ms or write.start_time),
                DRIFT_TAG: drift.model_dump_json(),
                "tipbench.state": "accepted",
            },
            "end_time": write.start_time,
        }
    )


def _read_time(text: str) -> int:
    """Milliseconds of a time as people write it; 0 where it is none."""
    try:
        at = datetime.fromisoformat(text.strip())
    except ValueError:
        return 0
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _count(read: _SourceCells, judge: str) -> int:
    return sum(bool(each.cell.scores) and each.cell.judged_by == judge for each in read.cells)


def _make_remarks(read: _SourceCells, pack: Pack) -> list[str]:
    remarks = describe_left_out(read.left_out)
    if blank := sorted({each.cell.scenario for each in read.cells if not each.known_situation}):
        remarks.append(
            f"{len(blank)} scenarios are known by name alone, and judges will see no more than that "
            f"(--pack with scenarios of these names helps): {', '.join(blank[:5])}"
        )
    if other := [each for each in read.cells if _other_formula(each.cell.scores, pack)]:
        remarks.append(
            f"the composite of {len(other)} cells is not what rubric {pack.rubric.name!r} makes of its "
            "parts; it is kept as it was logged"
        )
    return remarks


def _tell_others(cells: int) -> list[str]:
    if not cells:
        return []
    return [
        f"{cells} cells were generated again since they were imported, and stay as they are; to have the new "
        "ones: --into with a new name"
    ]


def _other_formula(scores: Mapping[str, float], pack: Pack) -> bool:
    weights = {part.name: part.weight for part in (*pack.rubric.scales, *pack.rubric.flags)}
    if "composite" not in scores or not weights.keys() <= scores.keys():
        return False
    return abs(sum(weight * scores[name] for name, weight in weights.items()) - scores["composite"]) > 1e-6
