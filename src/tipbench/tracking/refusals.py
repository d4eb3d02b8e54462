"""What an answer of the server means when it is not what was asked for. Translated here and nowhere else."""

import re
from urllib.parse import urlsplit

import httpx2
from pydantic import ValidationError

from tipbench.errors import TrackingRefused, TrackingUnavailable
from tipbench.tracking.runs import ErrorAnswer

MAX_MESSAGE = 300
TRY_AGAIN = frozenset({408, 425, 429})
COLLISION = re.compile(r"^\([\w.]*(IntegrityError|UniqueViolation)\)", re.MULTILINE)
"""Two deliveries of the same facts met in the database (a late request, its repetition): MLflow answers the
second with 400 and the words of its database. Asked again it compares, and accepts or refuses for good."""


class AnsweredNo(TrackingRefused):
    """MLflow's own handler refused this one call; `code` is its word for why."""

    def __init__(self, message: str, *, code: str, hint: str = "") -> None:
        super().__init__(message, hint=hint)
        self.code = code


class ArtifactsNotServed(TrackingRefused):
    """The server runs without `--serve-artifacts`, although the run's own store would need it."""


class NotLetIn(TrackingRefused):
    """The server lets no call of ours in, or is not MLflow: nothing is wrong with what was sent."""


def check_answer(response: httpx2.Response, *, url: str) -> None:
    """Returns if the server did what was asked.

    Raises:
        TrackingUnavailable: 5xx, asked to come back later, or met another delivery of the same facts.
        AnsweredNo: MLflow refused this call.
        NotLetIn: credentials, Host header, a redirect, or another program on this port.
    """
    status = response.status_code
    if status < 300:
        return
    if status < 400:
        raise _redirected(response, url=url)
    if status >= 500 or status in TRY_AGAIN:
        raise _failing(response, url=url)
    raise _refused(response, url=url)


def stranger(url: str, *, saw: str) -> NotLetIn:
    """The error for a server that does not talk like MLflow."""
    return NotLetIn(
        f"what answers at {url} is not MLflow ({saw})",
        hint="Another program has this port, or the base path is wrong (as in http://host:5000/mlflow). "
        "Set MLFLOW_TRACKING_URI, or stop the stranger.",
    )


def shorten(message: str) -> str:
    """The first line of a message, at most 300 characters: what follows can be SQL with the user's texts."""
    first = message.strip().partition("\n")[0]
    return first if len(first) <= MAX_MESSAGE else first[: MAX_MESSAGE - 1] + "…"


def _failing(response: httpx2.Response, *, url: str) -> TrackingRefused | TrackingUnavailable:
    status = response.status_code
    if status == 503 and "--no-serve-artifacts" in response.text[:500]:
        return ArtifactsNotServed(f"MLflow at {url} does not pass artifacts on (--no-serve-artifacts)")
    # The message of a 5xx can hold SQL parameters, so the user's texts: only its code is shown.
    answer = _read_error(response)
    code = f" {answer.error_code}" if answer else ""
    return TrackingUnavailable(
        f"MLflow at {url} answered {status}{code}", hint="Look at the server's own log."
    )


def _refused(response: httpx2.Response, *, url: str) -> TrackingRefused | TrackingUnavailable:
    status, answer = response.status_code, _read_error(response)
    if status == 401:
        return NotLetIn(
            f"MLflow at {url} wants credentials, or other ones",
            hint="Set MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD, or MLFLOW_TRACKING_TOKEN.",
        )
    if status == 403 and "Invalid Host header" in response.text[:200]:
        return _wrong_host(response, url=url)
    if status == 403 and answer is None:
        return NotLetIn(
            f"MLflow at {url} does not permit {_call(response, url=url)}",
            hint="Ask its administrator for permission, or use other credentials.",
        )
    if answer is None:
        return stranger(url, saw=f"{status} to {_call(response, url=url)}")
    if COLLISION.search(answer.message):
        return _failing(response, url=url)
    return AnsweredNo(
        f"MLflow refused {_call(response, url=url)}: {shorten(answer.message)}", code=answer.error_code
    )


def _read_error(response: httpx2.Response) -> ErrorAnswer | None:
    try:
        return ErrorAnswer.model_validate_json(response.content)
    except ValidationError:
        return None


def _call(response: httpx2.Response, *, url: str) -> str:
    path = response.request.url.path.removeprefix(urlsplit(url).path)
    return f"{response.request.method} {path}"


def _redirected(response: httpx2.Response, *, url: str) -> NotLetIn:
    target = urlsplit(response.headers.get("location", ""))
    place = f"{target.scheme}://{target.hostname}{target.path}" if target.hostname else repr(target.path)
    return NotLetIn(
        f"{url} redirects to {place}; redirects are not followed",
        hint="Set MLFLOW_TRACKING_URI to the address of the MLflow server itself.",
    )


def _wrong_host(response: httpx2.Response, *, url: str) -> NotLetIn:
    sent = response.request.headers.get("host", "")
    name = sent if sent.endswith("]") else sent.rpartition(":")[0] or sent
    port = urlsplit(url).port or (443 if url.startswith("https") else 80)
    return NotLetIn(
        f"MLflow at {url} is up but refuses every call made under the name {sent!r} "
        "(its --allowed-hosts does not list it)",
        hint="Set mlflow_host (TIPBENCH_MLFLOW_HOST) to a name that it allows, such as localhost:5000; "
        f"or ask its administrator to add it: --allowed-hosts '{name},{name}:{port},localhost,localhost:*'",
    )
