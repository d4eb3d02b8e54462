"""Answers that are polled: with a mark, so that what did not change is not sent again."""

import hashlib

from fastapi import Request, Response

from tipbench.admin.boards import Answer
from tipbench.records import Record


def answer_marked(request: Request, answer: Answer, *, media_type: str = "application/json") -> Response:
    """The bytes, or 304 when the caller has them."""
    headers = {"ETag": answer.mark, "Cache-Control": "private, no-cache", "Age": f"{answer.age_seconds:.0f}"}
    given = {mark.strip().removeprefix("W/") for mark in request.headers.get("if-none-match", "").split(",")}
    if answer.mark in given or "*" in given:
        return Response(status_code=304, headers=headers)
    if answer.packed and "gzip" in request.headers.get("accept-encoding", ""):
        headers |= {"Content-Encoding": "gzip", "Vary": "Accept-Encoding"}
        return Response(answer.packed, media_type=media_type, headers=headers)
    return Response(answer.body, media_type=media_type, headers=headers)


def answer_record(request: Request, record: Record) -> Response:
    """The same for a record that is made at each call."""
    body = record.model_dump_json().encode()
    return answer_marked(request, Answer(body, f'"{hashlib.sha256(body).hexdigest()[:32]}"'))
