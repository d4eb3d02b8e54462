"""One shape for every refusal, and which status goes with which error."""

from typing import Any, Literal

from fastapi import Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import Field, ValidationError
from pydantic_core import ErrorDetails
from starlette.exceptions import HTTPException

from tipbench.admin.repeats import NeverFinished
from tipbench.admin.sittings import StillBlind
from tipbench.admin.users import ReadOnlyToken, TokenGone, TooManyAttempts, TooManyTokens
from tipbench.errors import (
    ExperimentNotFound,
    TipbenchError,
    TrackingRefused,
    TrackingUnavailable,
    UsageError,
)
from tipbench.inert import make_inert
from tipbench.jobs.records import NotThere
from tipbench.jobs.store import RepeatedDifferently, TooManyJobs
from tipbench.judging.agent import NoAgent
from tipbench.judging.wire import explain
from tipbench.records import Record

Code = Literal[
    "bad_request",
    "blind",
    "conflict",
    "forbidden",
    "host",
    "invalid",
    "method",
    "mlflow_away",
    "not_found",
    "not_signed_in",
    "refused",
    "too_large",
    "too_many",
]
"""What programs tell refusals apart by."""
STATUSES: tuple[tuple[type[TipbenchError], int, Code], ...] = (
    (TooManyAttempts, 429, "too_many"),
    (TooManyJobs, 429, "too_many"),
    (TooManyTokens, 429, "too_many"),
    (ReadOnlyToken, 403, "forbidden"),
    (StillBlind, 403, "blind"),
    (ExperimentNotFound, 404, "not_found"),
    (NotThere, 404, "not_found"),
    (RepeatedDifferently, 409, "conflict"),
    (NeverFinished, 409, "conflict"),
    (TokenGone, 409, "conflict"),
    (NoAgent, 409, "conflict"),
    (TrackingUnavailable, 503, "mlflow_away"),
    (TrackingRefused, 400, "refused"),
    (UsageError, 400, "bad_request"),
    (TipbenchError, 409, "conflict"),
)
BLIND = ("/api/bench/judging/", "/judge/")
"""Where judges are: no text there may name an arm."""
HTTP_CODES: dict[int, Code] = {
    401: "not_signed_in",
    403: "forbidden",
    404: "not_found",
    405: "method",
    409: "conflict",
    413: "too_large",
    429: "too_many",
}
SENTENCES = {
    "extra_forbidden": "There is no such key.",
    "missing": "This is needed.",
    "string_too_short": "This must not be empty.",
    "string_too_long": "At most {max_length} characters.",
    "int_parsing": "Give a whole number.",
    "int_type": "Give a whole number.",
    "int_from_float": "Give a whole number.",
    "float_parsing": "Give a number.",
    "float_type": "Give a number.",
    "finite_number": "Give a number.",
    "less_than": "Less than {lt}.",
    "less_than_equal": "At most {le}.",
    "greater_than": "More than {gt}.",
    "greater_than_equal": "At least {ge}.",
    "literal_error": "One of: {expected}.",
    "string_pattern_mismatch": "This is not one of the values there are.",
    "json_invalid": "This is not JSON: {error}.",
    "model_attributes_type": "Send a JSON object, with Content-Type: application/json.",
    "list_type": "Give a list.",
    "bool_type": "Give true or false.",
}


class Failure(Record):
    """What went wrong, what to do next, and which fields are wrong."""

    code: Code
    message: str
    hint: str = ""
    fields: dict[str, str] = Field(default_factory=dict[str, str])


class FailureAnswer(Record):
    """The shape of every refusal."""

    error: Failure


REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": FailureAnswer, "description": words}
    for status, words in {
        400: "It cannot be done as it was asked (`bad_request`, `refused`).",
        401: "Neither a good token nor a session (`not_signed_in`).",
        403: "Not with this role or token (`forbidden`), or while you judge (`blind`).",
        404: "There is no such thing (`not_found`).",
        405: "Not with this method (`method`).",
        409: "What is there is against it (`conflict`).",
        413: "The body is too long (`too_large`).",
        421: "The server does not answer to that name (`host`).",
        422: "Wrong values (`invalid`): `fields` says which.",
        429: "Too many (`too_many`): the message says of what, Retry-After when to come again.",
        503: "MLflow does not answer (`mlflow_away`).",
    }.items()
}
"""The refusals of every route, for its documentation."""
MARKED = REFUSALS | {304: {"description": "You have it: nothing changed."}}
"""The same of what is polled."""


def status_of(error: TipbenchError) -> tuple[int, Code]:
    """Status and code of one of our errors."""
    return next((status, code) for kind, status, code in STATUSES if isinstance(error, kind))


def plain_words(problem: ErrorDetails) -> str:
    """One short sentence for what is wrong with a value."""
    sentence = SENTENCES.get(problem["type"])
    # Only our own sentences are filled in: a message may hold somebody's text with braces.
    if sentence is not None:
        return sentence.format(**problem.get("ctx", {}))
    return problem["msg"].removeprefix("Value error, ").removeprefix("must ").join(("Must ", "."))


def field_problems(error: ValidationError | RequestValidationError) -> dict[str, str]:
    """Field → what is wrong with it."""
    found: dict[str, str] = {}
    for problem in error.errors():
        place = [str(part) for part in problem["loc"] if part not in {"body", "query", "path", "header"}]
        if problem["type"] == "json_invalid":
            place = []  # It is said in which byte.
        words = plain_words(ErrorDetails(**problem))  # pyright: ignore[reportArgumentType]
        found.setdefault(make_inert(".".join(place), limit=200) or "body", words)
    return found


def describe(error: TipbenchError, *, blind: bool) -> Failure:
    """The error as it is told; to a judge without anything that may name an arm."""
    _, code = status_of(error)
    if blind and not isinstance(error, NotThere | StillBlind):
        message, _, hint = explain(error).partition("\n→ ")
        return Failure(code=code, message=message, hint=hint)
    return Failure(code=code, message=make_inert(error.message), hint=make_inert(error.hint))


HINTS = {
    "not_signed_in": "Sign in, or send a token: Authorization: Bearer …",
    "forbidden": "Ask an admin for the role, or use another token.",
    "blind": "Close your sitting first: then everything can be read again.",
    "not_found": "Check the spelling; the lists of the API name what there is.",
    "method": "The paths and their methods are in /api/openapi.json.",
    "conflict": "Read what is there again, then decide anew.",
    "bad_request": "Correct the value that is named, and send the request again.",
    "refused": "MLflow refused it; repeating does not help. See tipbench doctor.",
    "too_large": "Send less in one request.",
    "too_many": "Wait, then try again.",
    "invalid": "Correct the fields that are named; /api/openapi.json says what they take.",
    "mlflow_away": "Nothing is lost: send the same request again when MLflow answers.",
}
"""What to do next, by code, where the error does not say it better."""


def answer_failure(status: int, failure: Failure, headers: dict[str, str] | None = None) -> JSONResponse:
    """The refusal as an answer."""
    failure = failure if failure.hint else failure.model_copy(update={"hint": HINTS.get(failure.code, "")})
    return JSONResponse(FailureAnswer(error=failure).model_dump(mode="json"), status, headers=headers)


def answer_failure_of(request: Request, error: Exception) -> JSONResponse:
    """Whatever was refused: by us, by the framework, or because values do not fit."""
    if isinstance(error, TipbenchError):
        return _answer_ours(request, error)
    if isinstance(error, HTTPException):
        failure = Failure(code=HTTP_CODES.get(error.status_code, "refused"), message=str(error.detail))
        return answer_failure(error.status_code, failure, dict(error.headers or {}))
    assert isinstance(error, RequestValidationError)  # noqa: S101
    fields = field_problems(error)
    message = f"wrong values: {', '.join(fields)}"[:500]
    return answer_failure(422, Failure(code="invalid", message=message, fields=fields))


def _answer_ours(request: Request, error: TipbenchError) -> JSONResponse:
    if isinstance(error, TrackingUnavailable):
        request.app.state.parts.mlflow.lose()
    status, _ = status_of(error)
    headers = {"Retry-After": str(error.seconds)} if isinstance(error, TooManyAttempts) else None
    blind = request.url.path.startswith(BLIND)
    return answer_failure(status, describe(error, blind=blind), headers)
