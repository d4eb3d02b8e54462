"""Anchors that a judge practised on: their references were shown to them, so they are no checks any more."""

from collections.abc import Iterable

from pydantic import Field, ValidationError

from tipbench.bench.blindness import judge_key
from tipbench.bench.damage import FACTS_TAG, find_readable
from tipbench.records import SCHEMA, Anchor, Record, content_hash
from tipbench.tracking.runs import Run, Write
from tipbench.tracking.tracking import Tracking

PRACTICES = "tags.`tipbench.kind` = 'practice'"


class Practice(Record):
    """Whose, and the hashes of the texts: an anchor may have another name in another pack."""

    judge: str = Field(min_length=1)
    texts: tuple[str, ...]


def practice_write(judged_by: str, anchors: Iterable[Anchor], *, write: Write) -> Write:
    """The run that says so; stored before anything is shown."""
    practice = Practice(judge=judge_key(judged_by), texts=tuple(text_key(anchor) for anchor in anchors))
    tags = {"tipbench.kind": "practice", "tipbench.schema": str(SCHEMA), "tipbench.state": "complete"}
    return write.model_copy(
        update={
            "run_name": f"practice of {judged_by}"[:200],
            "tags_at_create": tags,
            "tags": {FACTS_TAG: practice.model_dump_json()},
        }
    )


def text_key(anchor: Anchor) -> str:
    """By what an anchor is known, whatever pack it is in."""
    return content_hash(anchor.text.strip())


def read_practised(tracking: Tracking, judged_by: str) -> frozenset[str]:
    """The keys of what this judge practised on, in every experiment."""
    experiments = [each.id for each in tracking.list_experiments()]
    runs = tracking.search_runs(experiments, PRACTICES) if experiments else []
    return find_practised(runs, judged_by)


def find_practised(runs: Iterable[Run], judged_by: str) -> frozenset[str]:
    """The same among these runs. What cannot be read is passed over: a check more is hidden, at worst."""
    found: set[str] = set()
    for run in find_readable(runs, "practice"):
        try:
            practice = Practice.model_validate_json(run.tags.get(FACTS_TAG, ""))
        except ValidationError:
            continue
        if practice.judge == judge_key(judged_by):
            found |= set(practice.texts)
    return frozenset(found)
