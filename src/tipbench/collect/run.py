"""Collect: every missing cell of the grid is generated and stored. One failed cell is data, not a crash."""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import count, groupby

from tipbench.bench.bench import open_bench
from tipbench.bench.cells import (
    RETIRED_TAG,
    CellTexts,
    Retirement,
    StoredCell,
    StoredTexts,
    cell_write,
    generation_metrics,
    read_cells,
)
from tipbench.bench.evidence import content_of, find_changes, format_content, read_evidence
from tipbench.bench.packs import find_pack_run, pack_write
from tipbench.bench.views import refresh_views
from tipbench.clock import Stamps
from tipbench.collect.candidates import measure_diversity, parse_candidates
from tipbench.engines.machine import PeakWatch, read_machine_load
from tipbench.engines.protocol import Engine, LoadedModel, PlacedModel
from tipbench.errors import (
    ContentsDiffer,
    ExperimentNotFound,
    GenerationFailed,
    TipbenchError,
    TrackingRefused,
    UsageError,
    WordLost,
)
from tipbench.grid import Cell
from tipbench.records import ANSWERED, FAILED, Candidate, Generation, Model, Pack
from tipbench.tracking import Delivery, Tracking
from tipbench.tracking.runs import Experiment, blank_write

STOP_SECONDS = 10.0
"""How long a stopped collect tries to deliver what it made; the rest stays in the journal."""
LONGEST_NAME = 490
"""Of an experiment that a number is put behind: MLflow takes 500 characters."""
HAND_OVER_SECONDS = 20.0
"""How long the engine is kept at the end of a model so that the next process sees its cells stored."""


@dataclass(frozen=True)
class Plan:
    """What a collect will do: cells that are there, cells to take over, cells to generate.

    `close_reason` says why judging of the experiment was ended, if it was; `packs` are the hashes of those
    that are there, among `runs` runs in all.
    """

    cells: tuple[Cell, ...]
    stored: tuple[StoredCell, ...]
    reusable: Mapping[str, StoredCell]
    missing: tuple[Cell, ...]
    close_reason: str | None = None
    packs: frozenset[str] = frozenset()
    runs: int = 0

    @property
    def to_generate(self) -> list[Cell]:
        """The cells that need the engine."""
        return [cell for cell in self.missing if cell.key not in self.reusable]

    @property
    def to_reuse(self) -> list[Cell]:
        """The cells whose answer stands in another experiment."""
        return [cell for cell in self.missing if cell.key in self.reusable]


@dataclass(frozen=True)
class CollectedCell:
    """One cell that is safe on disk and on its way to MLflow."""

    cell: Cell
    candidates: tuple[Candidate, ...]
    generation: Generation
    reused: bool = False

    @property
    def failure(self) -> str:
        """Why the whole cell failed; empty when there is at least one candidate."""
        return "" if any(c.answered for c in self.candidates) else self.candidates[0].failure


@dataclass(frozen=True)
class CellStore:
    """Where cells go."""

    tracking: Tracking
    experiment: Experiment
    stamps: Stamps
    judge_kind: str
    judging_closed: bool = False


def plan_collect(
    cells: Sequence[Cell], *, tracking: Tracking, experiment: Experiment | None, reuse_from: Experiment | None
) -> Plan:
    """What is there already, what can be taken over, what is missing. Generates and writes nothing."""
    here = tracking.read_runs(experiment) if experiment else []
    evidence = read_evidence(here)
    stored = evidence.cells
    known = {cell.facts.key for cell in stored}
    missing = tuple(cell for cell in cells if cell.key not in known)
    elsewhere = tracking.read_runs(reuse_from) if reuse_from else []
    wanted = {cell.key for cell in missing}
    # Retired cells answered the same question: their answer is taken, not generated again.
    reusable = {c.facts.key: c for c in (*read_cells(here), *read_cells(elsewhere)) if c.facts.key in wanted}
    return Plan(
        cells=tuple(cells),
        stored=stored,
        reusable=reusable,
        missing=missing,
        close_reason=evidence.close_reason,
        packs=frozenset(cell.pack.hash for cell in cells[:1] if find_pack_run(here, cell.pack.hash)),
        runs=len(here),
    )


def refuse_changes(
    stored: Sequence[StoredCell], cells: Sequence[Cell], *, tracking: Tracking, experiment: str
) -> None:
    """Refuses cells that would give a name in the experiment a second content: its board would be gone.

    Raises:
        ContentsDiffer: says what differs, and where there is room.
    """
    if changes := find_changes(stored, cells):
        raise ContentsDiffer(experiment, changes, free_name=find_room(cells, tracking, experiment))


def find_room(cells: Sequence[Cell], tracking: Tracking, experiment: str) -> str:
    """The experiment if the cells fit, else the next name that is free or that was begun with them before."""
    keys = {cell.key for cell in cells}
    for number in count(1):
        name = experiment if number == 1 else f"{experiment[:LONGEST_NAME]}-{number}"
        try:
            found = tracking.find_experiment(name, also_foreign=True)
        except ExperimentNotFound:
            return name
        except TrackingRefused:
            continue  # Deleted in MLflow, which keeps the name.
        stored = read_evidence(tracking.read_runs(found)).cells if found.uid else ()
        known = {cell.facts.key for cell in stored}
        missing = [cell for cell in cells if cell.key not in known]
        if (number == 1 or keys & known) and not find_changes(stored, missing):
            return name
    raise AssertionError("never")


def collect_cells(
    plan: Plan,
    *,
    store: CellStore,
    engine_of: Callable[[Model], Engine],
    read_load: Callable[[], float] = read_machine_load,
) -> Generator[CollectedCell]:
    """Stores every missing cell, one by one. Stop it at any time: what it yielded is safe.

    Raises:
        EngineUnavailable: the engine is gone; nothing more can be generated.
    """
    if plan.cells:
        _store_pack(plan.cells[0].pack, plan, store)
    for cell in plan.to_reuse:
        yield _reuse_cell(cell, plan.reusable[cell.key], store)
    for model, group in groupby(plan.to_generate, key=lambda cell: cell.model):
        yield from _collect_model(list(group), engine=engine_of(model), store=store, read_load=read_load)


@dataclass(frozen=True)
class Collecting:
    """Collect as a phase: planned, generated, delivered."""

    tracking: Tracking
    stamps: Stamps
    judge_kind: str

    def foresee(self, cells: Sequence[Cell], *, experiment: str, reuse_from: str | None = None) -> Plan:
        """What would be done. Writes nothing: the experiment need not be there yet.

        Raises:
            ContentsDiffer: a name would have two contents there.
        """
        found = self.tracking.seek_experiment(experiment)
        plan = plan_collect(
            cells, tracking=self.tracking, experiment=found, reuse_from=self._find(reuse_from)
        )
        refuse_changes(plan.stored, plan.missing, tracking=self.tracking, experiment=experiment)
        return plan

    def begin(self, cells: Sequence[Cell], *, experiment: str, reuse_from: str | None = None) -> "Collection":
        """Makes the experiment where there is none, and plans.

        Raises:
            ContentsDiffer: a name would have two contents there.
        """
        source = self._find(reuse_from)
        stored = self.tracking.ensure_experiment(experiment)
        plan = plan_collect(cells, tracking=self.tracking, experiment=stored, reuse_from=source)
        refuse_changes(plan.stored, plan.missing, tracking=self.tracking, experiment=experiment)
        closed = plan.close_reason is not None
        return Collection(plan, CellStore(self.tracking, stored, self.stamps, self.judge_kind, closed))

    def retire(self, kind: str, value: str, *, experiment: str, by: str, undo: bool) -> int:
        """Takes the cells of one content out of the comparison, or back; gives how many. The views follow.

        Raises:
            UsageError: there are none that are not so already.
            WordLost: somebody else said something of one of them at the same time.
        """
        bench = open_bench(self.tracking, experiment, stamps=self.stamps)
        cells = [cell for cell in bench.stored_cells.values() if cell.retired == undo]
        found = [cell for cell in cells if _written(cell, kind) == value]
        if not found:
            known = sorted({_written(cell, kind) for cell in cells})
            raise UsageError(
                f"experiment {experiment!r} has no cells with {kind} {value!r}",
                hint=f"Write NAME@HASH, of these: {', '.join(known)}",
            )
        said = Retirement(content="" if undo else f"{kind} {value}")
        lost: list[WordLost] = []
        for cell in found:
            tags = {
                RETIRED_TAG: said.content,
                "judge_pending": str(undo and bool(cell.answered_slots)).lower(),
            }
            try:
                cell.words.say(said, by=by, tracking=self.tracking, stamps=self.stamps, tags=tags)
            except WordLost as error:
                lost.append(error)
        refresh_views(bench.again(fresh=True))
        if lost:
            raise WordLost(f"{len(lost)} of {len(found)} cells: {lost[0].message}", hint=lost[0].hint)
        return len(found)

    def _find(self, experiment: str | None) -> Experiment | None:
        return self.tracking.find_experiment(experiment) if experiment else None


def _written(cell: StoredCell, kind: str) -> str:
    return format_content(*content_of(cell.facts, kind))


@dataclass(frozen=True)
class Collection:
    """A collect that was begun."""

    plan: Plan
    store: CellStore

    @contextmanager
    def generate(self, engine_of: Callable[[Model], Engine]) -> Generator[Iterator[CollectedCell]]:
        """The missing cells, one by one; whatever happens, the model is unloaded and what was made is sent.

        Raises:
            TipbenchError: it was interrupted, or the engine is gone.
        """
        tracking = self.store.tracking
        try:
            with closing(collect_cells(self.plan, store=self.store, engine_of=engine_of)) as collected:
                yield collected
        except KeyboardInterrupt:
            tracking.flush(patience_seconds=STOP_SECONDS)
            raise TipbenchError(
                "stopped", hint="What was shown is stored. Run the same command again to go on."
            ) from None
        except TipbenchError:
            tracking.flush(patience_seconds=STOP_SECONDS)
            raise

    def deliver(self) -> Delivery:
        """Waits until MLflow has everything, or says what it has not."""
        tracking = self.store.tracking
        report = tracking.flush()
        if not report.left_in_journal:
            tracking.fill_cache(self.store.experiment, runs=self.plan.runs + len(self.plan.missing))
        return report


def estimate_seconds(plan: Plan) -> float:
    """How long generating will take: from this model's stored cells, else a rough guess from its size."""
    return sum(_estimate_cell(cell, plan.stored) for cell in plan.to_generate)


def _estimate_cell(cell: Cell, stored: Iterable[StoredCell]) -> float:
    seen = [
        other.run.metrics["latency_seconds"]
        for other in stored
        if other.facts.model_digest == cell.model.digest and "latency_seconds" in other.run.metrics
    ]
    if seen:
        return sum(seen) / len(seen)
    # Memory bandwidth decides on a CPU: 0.135 billion parameters gave 88 tokens/s on two cores.
    tokens_per_second = 12.0 / max(0.05, (cell.model.parameters or 10**9) / 1e9)
    return 30.0 * cell.options.n_tips / tokens_per_second


def _collect_model(
    cells: Sequence[Cell], *, engine: Engine, store: CellStore, read_load: Callable[[], float]
) -> Generator[CollectedCell]:
    with engine.load(cells[0].model) as loaded, PeakWatch() as watch:
        # Whoever held the engine before us may have made some of these cells.
        stored = [c for c in read_cells(store.tracking.read_runs(store.experiment)) if not c.retired]
        known = {c.facts.key for c in stored}
        new = [cell for cell in cells if cell.key not in known]
        refuse_changes(stored, new, tracking=store.tracking, experiment=store.experiment.name)
        first = True
        for cell in new:
            collected = _generate_cell(cell, loaded)
            peak = watch.take()
            measured = {
                "load_seconds": loaded.load_seconds if first else 0.0,
                "peak_resident_models": float(peak.models),
                "peak_memory_mib": peak.memory_bytes / 2**20,
                "machine_load": read_load(),
            }
            if isinstance(loaded, PlacedModel):
                measured["gpu_layers"] = float(loaded.gpu_layers)
            _store_cell(collected, store, measured=measured, tags={})
            yield collected
            first = False
        store.tracking.settle(patience_seconds=HAND_OVER_SECONDS)


def _generate_cell(cell: Cell, loaded: LoadedModel) -> CollectedCell:
    sampling = cell.options.sampling
    try:
        generation = loaded.generate(cell.question, sampling=sampling, seed=cell.seed)
        failure = ""
    except GenerationFailed as error:
        generation = Generation(text="", finish="stop", prompt_tokens=0, output_tokens=0, seconds=0.0)
        failure = error.message
    return CollectedCell(cell, _make_candidates(cell, generation, failure), generation)


def _make_candidates(cell: Cell, generation: Generation, failure: str) -> tuple[Candidate, ...]:
    n_tips = cell.options.n_tips
    if failure:
        return tuple(Candidate(slot=slot, failure=failure) for slot in range(n_tips))
    form = "list" if cell.question.form is None else "json"
    return parse_candidates(generation.text, n_tips=n_tips, rubric=cell.pack.rubric, form=form)


def _reuse_cell(cell: Cell, source: StoredCell, store: CellStore) -> CollectedCell:
    metrics = source.run.metrics
    generation = Generation(
        text=StoredTexts(source.run, store.tracking.read_artifact).raw,
        finish="stop",
        prompt_tokens=int(metrics.get("prompt_tokens", 0)),
        output_tokens=int(metrics.get("output_tokens", 0)),
        seconds=metrics.get("latency_seconds", 0.0),
    )
    # Parsed again: this pack's rubric may have other flags than the one the cell was made for.
    candidates = _make_candidates(
        cell, generation, "" if generation.output_tokens else "failed where it came from"
    )
    collected = CollectedCell(cell, candidates, generation, reused=True)
    # Its seconds come from there, and so does what the machine did beside, and what computed it.
    measured = {name: metrics[name] for name in ("machine_load", "gpu_layers") if name in metrics}
    _store_cell(collected, store, measured=measured, tags={"tipbench.reused_from": source.run.run_id})
    return collected


def _store_cell(
    collected: CollectedCell, store: CellStore, *, measured: dict[str, float], tags: dict[str, str]
) -> None:
    cell, candidates = collected.cell, collected.candidates
    texts = [candidate.text for candidate in candidates if candidate.answered]
    blank = blank_write(store.experiment, store.stamps)
    write = cell_write(
        cell.facts(
            judge_kind=store.judge_kind,
            slots="".join(ANSWERED if candidate.answered else FAILED for candidate in candidates),
        ),
        CellTexts(
            prompt=cell.text,
            context={"scenario": cell.scenario.id, "values": cell.scenario.values},
            candidates=candidates,
            raw=collected.generation.text,
        ),
        options=cell.options,
        metrics=generation_metrics(
            collected.generation, candidates=candidates, diversity=measure_diversity(texts)
        )
        | measured,
        write=blank.model_copy(
            update={
                "run_name": cell.name[:250],
                # So that MLflow shows how long the answer took.
                "start_time": blank.start_time - int(collected.generation.seconds * 1000),
                "end_time": blank.start_time,
            }
        ),
    )
    if store.judging_closed:
        tags = tags | {"judge_pending": "false"}
    store.tracking.submit(write.model_copy(update={"tags": write.tags | tags}))


def _store_pack(pack: Pack, plan: Plan, store: CellStore) -> None:
    # Known here by its hash: nobody on this machine has to fetch it.
    store.tracking.text_cache.keep(pack.hash, pack.files)
    if pack.hash not in plan.packs:
        store.tracking.submit(pack_write(pack, write=blank_write(store.experiment, store.stamps)))
