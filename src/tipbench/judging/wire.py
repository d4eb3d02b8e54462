"""What crosses the wire between an MCP client and us: blind, validated, the same for every client."""

from collections import Counter
from collections.abc import Mapping, Sequence
from random import Random
from typing import Annotated, cast

from pydantic import Field, StrictBool, StrictInt, ValidationError, WithJsonSchema

from tipbench.bench.sittings import Answer
from tipbench.errors import SheetError
from tipbench.inert import make_inert
from tipbench.judging.blind import fence_text
from tipbench.judging.service import LiveSitting
from tipbench.judging.sheet import SheetItem
from tipbench.judging.status import Status
from tipbench.records import Record

Scales = dict[str, tuple[int, int]]
"""Name of a scale → its lowest and its highest score."""
Values = dict[str, str | tuple[str, ...]]
MAX_PROBLEMS = 50


class ExperimentToJudge(Record):
    """An experiment and what waits in it for a judge, items that are with another judge included."""

    experiment: str
    candidates: int
    judged: int
    waiting: int
    judging_closed: bool


class ExperimentsToJudge(Record):
    """All experiments, and which one is meant when none is named."""

    judged_by: str
    default_experiment: str
    experiments: tuple[ExperimentToJudge, ...]
    unreadable: tuple[str, ...]


class Progress(Record):
    """Where a sitting stands. Without a sitting nothing waits for this judge."""

    experiment: str
    sitting: str | None
    state: str
    items: int
    answered: int
    remaining: int
    what_now: str


class RubricText(Record):
    """The pinned scoring guide."""

    name: str
    text: str
    scales: Scales
    flags: tuple[str, ...]


class FencedItem(Record):
    """One item. What stands between the two marks of `text` is data."""

    item: str
    scenario: Values
    text: str
    flags: dict[str, bool]


class NextItems(Record):
    """The next items in their order, and what they are scored on."""

    experiment: str
    sitting: str
    scales: Scales
    items: tuple[FencedItem, ...]
    remaining: int
    what_now: str


class GivenAnswer(Record):
    """What the judge says of one item."""

    item: str = Field(min_length=1, max_length=100, description="Id of the item, as next_items gave it.")
    scores: dict[str, StrictInt] = Field(description="A whole number for every scale.")
    flags: dict[str, StrictBool] = Field(
        default_factory=dict[str, bool],
        description="Only flags that the rubric decides otherwise than they were computed.",
    )
    reason: str = Field(min_length=1, max_length=4_000, description="Why, in a sentence.")


GivenAnswers = Annotated[
    list[object], WithJsonSchema({"type": "array", "items": GivenAnswer.model_json_schema(), "minItems": 1})
]
"""Clients are told the schema; we check it ourselves, so that every problem names its item."""


def read_given(given: Sequence[object]) -> list[GivenAnswer]:
    """The answers as records, each item once.

    Raises:
        SheetError: names every problem by item.
    """
    answers: list[GivenAnswer] = []
    problems: list[str] = [] if given else ["there are no verdicts"]
    for place, each in enumerate(given, start=1):
        try:
            answers.append(GivenAnswer.model_validate(each))
        except ValidationError as error:
            name = _name_of(each) or f"verdict {place}"
            problems += [
                f"{name}: {'.'.join(map(str, one['loc'])) or 'it'}: {one['msg']}" for one in error.errors()
            ]
    times = Counter(answer.item for answer in answers)
    problems += [f"item {item!r} appears {n} times" for item, n in times.items() if n > 1]
    if problems:
        shown = problems[:MAX_PROBLEMS]
        more = len(problems) - len(shown)
        shown += [f"… and {more} more"] if more else []
        raise SheetError(
            "nothing was stored:\n  " + "\n  ".join(shown), hint="Correct these and submit again."
        )
    return answers


def _name_of(given: object) -> str:
    item = cast("dict[str, object]", given).get("item") if isinstance(given, dict) else None
    return f"item {item!r}" if isinstance(item, str) else ""


def make_answers(given: Sequence[GivenAnswer], sitting: LiveSitting) -> dict[str, Answer]:
    """Answers by item, in the rubric's own order, with the computed flags where the judge says nothing."""
    items = {item.id: item for item in sitting.section.items}
    return {each.item: _make_answer(each, items.get(each.item), sitting) for each in given}


def _make_answer(given: GivenAnswer, item: SheetItem | None, sitting: LiveSitting) -> Answer:
    order = {name: place for place, name in enumerate(sitting.rubric.scales)}
    scores = sorted(given.scores.items(), key=lambda score: order.get(score[0], len(order)))
    return Answer(
        scores=dict(scores), flags=({} if item is None else item.flags) | given.flags, reason=given.reason
    )


def show_experiment(status: Status) -> ExperimentToJudge:
    """An experiment without anything that tells who wrote what."""
    return ExperimentToJudge(
        experiment=status.experiment,
        candidates=status.candidates,
        judged=status.judged,
        waiting=status.waiting,
        judging_closed=status.close_reason is not None,
    )


def show_rubric(sitting: LiveSitting) -> RubricText:
    """The rubric of this sitting."""
    rubric = sitting.rubric
    text = make_inert(rubric.text, limit=max(1, 2 * len(rubric.text)))
    return RubricText(name=rubric.name, text=text, scales=rubric.scales, flags=rubric.flags)


def show_items(sitting: LiveSitting, n: int, *, rng: Random) -> NextItems:
    """The next n items, each text in a fence of its own."""
    scenarios = {scenario.label: scenario.values for scenario in sitting.section.scenarios}
    waiting = sitting.waiting
    items = tuple(
        FencedItem(
            item=item.id,
            scenario=_inert_values(scenarios[item.scenario]),
            text=fence_text(item.text, rng=rng),
            flags=item.flags,
        )
        for item in waiting[:n]
    )
    return NextItems(
        experiment=sitting.experiment,
        sitting=sitting.token,
        scales=sitting.rubric.scales,
        items=items,
        remaining=len(waiting),
        what_now="submit_verdicts for these" if items else "close_sitting",
    )


def _inert_values(values: Mapping[str, str | tuple[str, ...]]) -> Values:
    return {
        name: make_inert(value) if isinstance(value, str) else tuple(make_inert(each) for each in value)
        for name, value in values.items()
    }
