"""What crosses the wire between a judge and us, over MCP and over the API: blind, and checked here."""

from collections import Counter
from collections.abc import Callable, Sequence
from random import Random
from typing import Annotated, Literal, Self, cast

from pydantic import Field, ValidationError, WithJsonSchema

from tipbench.bench.sittings import Answer
from tipbench.errors import (
    ExperimentNotFound,
    JudgingClosed,
    MixedContents,
    SheetError,
    TipbenchError,
    TrackingUnavailable,
    UsageError,
)
from tipbench.inert import make_inert
from tipbench.judging.request import SittingRequest, check_wishes
from tipbench.judging.sheet import (
    GivenAnswer,
    LiveSitting,
    SheetRubric,
    StoredAnswers,
    answers_error,
    make_id,
    tell_invalid,
)
from tipbench.records import Record, RequestRecord

Values = dict[str, str | tuple[str, ...]]
MARK_LENGTH = 8
"""Nobody who wrote a text before it was handed out can guess it."""

# What a judge asks for.

NextCount = Annotated[
    int | None,
    Field(
        ge=1,
        le=1_000,
        description="About so many items, in whole blocks: those that decide the winner.",
        examples=[15],
    ),
]
Order = Annotated[
    Literal["decisive", "random"] | None, Field(description="With next: what decides (default), or random.")
]
Percent = Annotated[
    float | None,
    Field(
        gt=0,
        le=100,
        description="A second opinion on so many percent of what others judged.",
        examples=[10],
    ),
]
SpotCount = Annotated[
    int | None,
    Field(
        ge=1,
        le=1_000,
        description="So many automatic verdicts, to check how good they are.",
        examples=[10],
    ),
]


class SittingWishes(RequestRecord, strict=True):
    """What to hand out; without anything whatever waits. At most one of the three."""

    next: NextCount = None
    second_opinion: Percent = None
    disagreements: SpotCount = None

    def to_request(
        self,
        judged_by: str,
        *,
        sits: str | None = None,
        order: str | None = None,
        champion: str | None = None,
    ) -> SittingRequest:
        """The request of this judge; the champion matters only for what decides.

        Raises:
            UsageError: they do not go together.
        """
        wishes = {**self.model_dump(), "order": order}
        check_wishes([name for name, wish in wishes.items() if wish is not None])
        return SittingRequest(
            judged_by,
            sits=sits,
            items=self.next,
            at_random=order == "random",
            champion=champion if self.next is not None else None,
            second_share=None if self.second_opinion is None else self.second_opinion / 100,
            spots=self.disagreements,
        )


# What a judge is told.


class ExperimentToJudge(Record):
    """An experiment and about how many sittings wait in it, those that are with another judge included.

    Nothing that can be counted: who knows how many candidates there are knows how many items are checks.
    """

    experiment: str
    sittings_waiting: int
    judging_closed: bool


class ExperimentsToJudge(Record):
    """All experiments, and which one is meant when none is named: none where that holds nothing to judge."""

    judged_by: str
    default_experiment: str | None
    experiments: tuple[ExperimentToJudge, ...]
    unreadable: tuple[str, ...]
    what_now: str


class SittingProgress(Record):
    """How far a sitting is; `sitting` is absent when nothing was handed out, and `state` says why."""

    experiment: str
    sitting: str | None
    state: str
    items: int = 0
    answered: int = 0
    remaining: int = 0
    sittings_left: int = 0
    """How many more there are of what was asked for, after this one."""

    @classmethod
    def of(cls, sitting: LiveSitting, **more: object) -> Self:
        return cls(
            experiment=sitting.experiment,
            sitting=sitting.token,
            state=sitting.state,
            items=len(sitting.section.items),
            answered=len(sitting.answers),
            remaining=len(sitting.waiting) if sitting.state == "open" else 0,
            sittings_left=sitting.section.sittings_left,
            **more,  # pyright: ignore[reportArgumentType]
        )


class Progress(SittingProgress):
    """The same over MCP."""

    what_now: str


class StoredVerdicts(Progress):
    """The same after verdicts were taken, with what was stored of them."""

    stored: StoredAnswers


class SittingView(SittingProgress):
    """The same over the API."""

    said: str = ""


class StoredView(SittingView):
    """The same after verdicts were taken, with what was stored of them."""

    stored: StoredAnswers


class JudgeItem(Record):
    """One item under an id that means nothing elsewhere. Over MCP its text stands in a fence."""

    item: str
    scenario: str
    """Its label, under which the scenario stands once beside the items."""
    text: str
    flags: dict[str, bool]


class NextItems(Record):
    """The next items in their order, and the scenarios they are about. What they are scored on is in the
    rubric."""

    sitting: str
    scenarios: dict[str, Values]
    items: tuple[JudgeItem, ...]
    remaining: int
    what_now: str


class ScaleView(Record):
    """One scale of the rubric."""

    lowest: int
    highest: int


class HandedItems(Record):
    """The same over the API, with the rubric."""

    experiment: str
    sitting: str
    rubric: str
    rubric_text: str
    scales: dict[str, ScaleView]
    flags: tuple[str, ...]
    scenarios: dict[str, Values]
    items: tuple[JudgeItem, ...]
    remaining: int


def show_rubric(sitting: LiveSitting) -> SheetRubric:
    """The pinned scoring guide of this sitting."""
    text = sitting.rubric.text
    return sitting.rubric.model_copy(update={"text": make_inert(text, limit=max(1, 2 * len(text)))})


def show_items(sitting: LiveSitting, n: int, *, rng: Random) -> NextItems:
    """The next n items, each text in a fence of its own."""
    items = _show_waiting(sitting, n, lambda text: fence_text(text, rng=rng))
    return NextItems(
        sitting=sitting.token,
        scenarios=_show_scenarios(sitting, items),
        items=items,
        remaining=len(sitting.waiting),
        what_now="submit_verdicts for these" if items else "close_sitting",
    )


def hand_items(sitting: LiveSitting, n: int) -> HandedItems:
    """The next n items, inert, and the rubric; none of a sitting that is closed."""
    is_open, rubric = sitting.state == "open", sitting.rubric
    items = _show_waiting(sitting, n, make_inert) if is_open else ()
    return HandedItems(
        experiment=sitting.experiment,
        sitting=sitting.token,
        rubric=rubric.name,
        rubric_text=rubric.text,
        scales={name: ScaleView(lowest=low, highest=high) for name, (low, high) in rubric.scales.items()},
        flags=rubric.flags,
        scenarios=_show_scenarios(sitting, items),
        items=items,
        remaining=len(sitting.waiting) if is_open else 0,
    )


def _show_waiting(sitting: LiveSitting, n: int, show: Callable[[str], str]) -> tuple[JudgeItem, ...]:
    return tuple(
        JudgeItem(item=each.id, scenario=each.scenario, text=show(each.text), flags=each.flags)
        for each in sitting.waiting[:n]
    )


def _show_scenarios(sitting: LiveSitting, items: Sequence[JudgeItem]) -> dict[str, Values]:
    """Label → scenario, of those that these items are about."""
    labels = {item.scenario for item in items}
    return {
        scenario.label: {
            name: make_inert(value) if isinstance(value, str) else tuple(map(make_inert, value))
            for name, value in scenario.values.items()
        }
        for scenario in sitting.section.scenarios
        if scenario.label in labels
    }


def echo_stored(sitting: LiveSitting, given: Sequence[GivenAnswer]) -> StoredAnswers:
    """What the sitting holds now of what was given."""
    computed = {item.id: item.flags for item in sitting.section.items}
    return StoredAnswers.of({each.item: sitting.answers[each.item] for each in given}, computed)


def fence_text(text: str, *, rng: Random) -> str:
    """The text, made inert, between two lines with the same mark: new each time, and not in the text."""
    inert = make_inert(text)
    mark = make_id(rng, length=MARK_LENGTH)
    while mark in inert.casefold():
        mark = make_id(rng, length=MARK_LENGTH)
    return f"<<<{mark}\n{inert}\n{mark}>>>"


def explain(error: TipbenchError) -> str:
    """What a judge is told of a failure. Texts that may name a model, a prompt or a run stay with us."""
    if type(error) in {UsageError, SheetError, ExperimentNotFound}:
        message, hint = error.message, error.hint
    elif isinstance(error, JudgingClosed):
        message, hint = f"judging of {error.experiment!r} was closed by a person", "Nothing is to be judged."
    elif isinstance(error, MixedContents):
        message = "one name stands for several contents in this experiment, so nothing is handed out"
        hint = "Tell the user: `tipbench compare` says what to do."
    elif isinstance(error, TrackingUnavailable):
        message, hint = "MLflow did not answer, or did not take everything", "Nothing is lost. Call it again."
    else:
        message = f"the experiment cannot be read or written ({type(error).__name__})"
        hint = "Tell the user: `tipbench judge status` and `tipbench doctor` say why."
    return make_inert(f"{message}\n→ {hint}" if hint else message)


# What a judge answers.


class ReasonedAnswer(GivenAnswer):
    """The same over MCP, where a reason must be given."""

    reason: str = Field(min_length=1, max_length=4_000, description="Why, in a sentence.")


GivenAnswers = Annotated[
    list[object],
    WithJsonSchema({"type": "array", "items": ReasonedAnswer.model_json_schema(), "minItems": 1}),
]
"""Clients are told the schema; we check it ourselves, so that every problem names its item."""


class Verdicts(RequestRecord):
    """Verdicts, as many as there are; a later one on the same item replaces the earlier."""

    verdicts: tuple[GivenAnswer, ...] = Field(
        min_length=1,
        max_length=500,
        description="What you say of items of this sitting.",
        examples=[[{"item": "k3f9w2", "scores": {"relevance": 4, "actionability": 3, "tone": 5}}]],
    )


def read_given(given: Sequence[object]) -> list[ReasonedAnswer]:
    """The answers as records, each item once.

    Raises:
        SheetError: names every problem by item.
    """
    answers: list[ReasonedAnswer] = []
    problems: list[str] = [] if given else ["there are no verdicts"]
    for place, each in enumerate(given, start=1):
        try:
            answers.append(ReasonedAnswer.model_validate(each))
        except ValidationError as error:
            item = cast("dict[str, object]", each).get("item") if isinstance(each, dict) else None
            name = f"item {item!r}" if isinstance(item, str) else f"verdict {place}"
            problems += [f"{name}: {problem}" for problem in tell_invalid(error)]
    problems += _repeated(answers)
    if problems:
        raise answers_error(problems)
    return answers


def _repeated(given: Sequence[GivenAnswer]) -> list[str]:
    times = Counter(answer.item for answer in given)
    return [f"item {item!r} appears {n} times" for item, n in times.items() if n > 1]


def make_answers(given: Sequence[GivenAnswer], sitting: LiveSitting) -> dict[str, Answer]:
    """Answers by item, in the rubric's own order, with the computed flags where the judge says nothing.

    Raises:
        SheetError: an item appears twice.
    """
    if problems := _repeated(given):
        raise answers_error(problems)
    computed = {item.id: item.flags for item in sitting.section.items}
    order = {name: place for place, name in enumerate(sitting.rubric.scales)}
    return {
        each.item: Answer(
            # The same answers are the same bytes, whoever sent them.
            scores=dict(sorted(each.scores.items(), key=lambda score: order.get(score[0], len(order)))),
            flags=computed.get(each.item, {}) | each.flags,
            reason=each.reason,
        )
        for each in given
    }
