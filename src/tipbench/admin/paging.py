"""Lists in pages: every one says how many there are and where the next page begins."""

from typing import Annotated

from fastapi import Query

from tipbench.records import Record

Limit = Annotated[int, Query(ge=1, le=500, description="At most so many on this page.", examples=[50])]
Skip = Annotated[
    int, Query(ge=0, le=10_000_000, description="Leave out so many; `next` of the page before.", examples=[0])
]


class Page(Record):
    """One page of a list: `total` counts all that match, `next` is the `skip` of the page after this one."""

    total: int
    skip: int
    next: int | None
    """Null on the last page."""


def find_next(skip: int, *, shown: int, total: int) -> int | None:
    """Where the page after this one begins; None after the last."""
    return skip + shown if shown and skip + shown < total else None
