"""Preferences: which of two candidates of one block a judge liked better, for preference tuning."""

from collections.abc import Iterable, Iterator
from itertools import combinations

from tipbench.bench.bench import Bench
from tipbench.bench.cells import StoredCell
from tipbench.bench.evidence import CountedVerdict, Evidence, check_contents
from tipbench.errors import TrackingError, UsageError
from tipbench.records import Record

BLOCKS = ("block", "second")
"""How verdicts of whole blocks are drawn; spot checks were chosen one by one."""


class Preference(Record):
    """One line: `chosen` and `rejected` answer the same scenario and were judged side by side.

    `prompt` is what the chosen one's arm was asked, with all its tips; `same_prompt` says whether the
    rejected one was asked the same. Scores are composites, `margin` is their difference.
    """

    prompt: str
    chosen: str
    rejected: str
    score_chosen: float
    score_rejected: float
    margin: float
    chosen_arm: str
    rejected_arm: str
    same_prompt: bool
    scenario: str
    context: dict[str, str | tuple[str, ...]]
    judge: str
    judge_kind: str
    rubric: str
    rubric_hash: str
    experiment: str
    sitting: str
    block: int


class Preferences(Record):
    """What was found. `blocks` were looked at; without a pair `why` says what is missing."""

    pairs: tuple[Preference, ...]
    blocks: int
    why: str = ""


def find_preferences(bench: Bench, *, min_margin: float) -> Preferences:
    """All pairs of an experiment whose composites are at least `min_margin` apart, best margins first.

    Of accepted lazy sittings only. Two judges of one block give two pairs: they may disagree.

    Raises:
        MixedContents: one name stands for several contents.
        UsageError: the experiment has no cells, or the margin is not above 0.
    """
    if not min_margin > 0:
        raise UsageError(f"a margin of {min_margin:g} prefers nothing", hint="Take one above 0.")
    bench.check_cells()
    evidence = bench.evidence
    check_contents(evidence.cells, experiment=bench.name)
    blocks = _group_blocks(evidence)
    maker = _PairMaker(bench)
    pairs = [pair for members in blocks for pair in maker.make(members, min_margin)]
    pairs.sort(key=lambda pair: (-pair.margin, pair.scenario, pair.sitting, pair.block))
    why = "" if pairs else _say_why(evidence, blocks, min_margin)
    return Preferences(pairs=tuple(pairs), blocks=len(blocks), why=why)


def _group_blocks(evidence: Evidence) -> list[list[CountedVerdict]]:
    """What one judge saw side by side: the same scenario, sitting and block; only what has a text."""
    blocks: dict[tuple[str, int, str], list[CountedVerdict]] = {}
    for given in (*evidence.lazy, *evidence.doubles):
        lazy = given.sitting.facts.tier == "lazy" and given.verdict.drawn in BLOCKS
        if lazy and not given.verdict.failed:
            place = (given.sitting.facts.token, given.verdict.block, given.cell.facts.scenario_hash)
            blocks.setdefault(place, []).append(given)
    return list(blocks.values())


class _PairMaker:
    """Makes pairs of blocks; texts and packs are read once."""

    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    def make(self, members: Iterable[CountedVerdict], min_margin: float) -> Iterator[Preference]:
        scored = [(self._composite(given), given) for given in members]
        for (score, one), (other_score, other) in combinations(scored, 2):
            if abs(score - other_score) < min_margin:
                continue
            pair = ((score, one), (other_score, other))
            yield self._pair(*(pair if score > other_score else reversed(pair)))

    def _pair(self, better: tuple[float, CountedVerdict], worse: tuple[float, CountedVerdict]) -> Preference:
        (score_chosen, chosen), (score_rejected, rejected) = better, worse
        facts, sitting = chosen.cell.facts, chosen.sitting
        prompt = self._bench.texts_of(chosen.cell).prompt
        return Preference(
            prompt=prompt,
            chosen=self._text(chosen),
            rejected=self._text(rejected),
            score_chosen=score_chosen,
            score_rejected=score_rejected,
            margin=score_chosen - score_rejected,
            chosen_arm=facts.arm,
            rejected_arm=rejected.cell.facts.arm,
            same_prompt=self._bench.texts_of(rejected.cell).prompt == prompt,
            scenario=facts.scenario,
            context=self._context(chosen.cell),
            judge=sitting.judged_by,
            judge_kind=sitting.facts.judge_kind,
            rubric=facts.rubric,
            rubric_hash=facts.rubric_hash,
            experiment=self._bench.name,
            sitting=sitting.facts.token,
            block=chosen.verdict.block,
        )

    def _composite(self, given: CountedVerdict) -> float:
        return self._bench.rubric_of(given.cell).composite(given.verdict.scores, given.verdict.flags)

    def _context(self, cell: StoredCell) -> dict[str, str | tuple[str, ...]]:
        scenarios = self._bench.pack_of(cell.facts.pack_hash).scenarios
        return next(dict(each.values) for each in scenarios if each.hash == cell.facts.scenario_hash)

    def _text(self, given: CountedVerdict) -> str:
        slot, candidates = given.verdict.slot, self._bench.candidates_of(given.cell)
        text = next((each.text for each in candidates if each.slot == slot), "")
        if not text:
            raise TrackingError(
                f"candidate {slot} of cell {given.cell.run.run_id} was judged and has no text",
                hint="Its texts were edited in MLflow: put them back, or retire the cell.",
            )
        return text


def _say_why(evidence: Evidence, blocks: list[list[CountedVerdict]], min_margin: float) -> str:
    if not any(sitting.counts and sitting.facts.tier == "lazy" for sitting in evidence.sittings):
        return "no sitting of a person or an agent was accepted yet: judge some blocks first"
    if not any(len(members) > 1 for members in blocks):
        return "no block has two judged candidates: preferences need two arms that were judged together"
    apart = f"{min_margin:g} points apart"
    return f"in {len(blocks)} blocks no two candidates are {apart}: try a smaller --min-margin"
