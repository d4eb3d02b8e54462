"""Failures as pages, for people."""

from fastapi import Request
from fastapi.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from tipbench.admin.failures import FailureAnswer
from tipbench.admin.panel import FRAGMENT, render, who_is_here

TITLES = {
    400: "That does not work",
    403: "You may not see this",
    404: "There is nothing here",
    409: "Not now",
    422: "Something is missing",
    503: "MLflow does not answer",
}


def send_to_sign_in(request: Request, error: Exception) -> Response:
    """Whoever is nobody signs in first; a script is told and goes there itself."""
    return Response(status_code=401) if request.headers.get(FRAGMENT) else RedirectResponse("/sign-in", 303)


def answer_problem(request: Request, failure: JSONResponse) -> Response:
    """The same failure as a page."""
    told = FailureAnswer.model_validate_json(bytes(failure.body)).error
    fields = "; ".join(f"{name}: {words}" for name, words in told.fields.items())
    message = f"{told.message}. {fields}" if fields else told.message
    if request.headers.get(FRAGMENT):
        said = f"{message}\n{told.hint}" if told.hint else message
        # 422 would be taken for a form with remarks in it.
        status = 400 if failure.status_code == 422 else failure.status_code
        return PlainTextResponse(said, status)
    return render(
        request,
        "problem.html",
        user=who_is_here(request),
        status=failure.status_code,
        title=TITLES.get(failure.status_code, "Something went wrong"),
        message=message[:1].upper() + message[1:],
        hint=told.hint,
        sitting_of=request.path_params.get("experiment", "") if told.code == "blind" else "",
    )
