"""Pages: sign in and out."""

from typing import Annotated

from fastapi import APIRouter, Form, HTTPException, Request, Response

from tipbench.admin.access import Server, cookie_name, is_same_site, page_user, session_secret
from tipbench.admin.credentials import SESSION_MS, TooManyAttempts
from tipbench.admin.panel import go, render

router = APIRouter(include_in_schema=False)


@router.get("/sign-in")
def show_sign_in(request: Request, parts: Server) -> Response:
    """The form."""
    first = not parts.accounts.list_users()
    return render(request, "sign_in.html", user=None, name="", problem="", first=first)


@router.post("/sign-in")
def sign_in(
    request: Request,
    parts: Server,
    name: Annotated[str, Form(max_length=64)] = "",
    password: Annotated[str, Form(max_length=1_000)] = "",
) -> Response:
    """Begins a session."""
    if not is_same_site(request):
        raise HTTPException(403, "a request from another site is refused")
    status, problem, secret = 401, "Name and password do not fit.", None
    headers: dict[str, str] = {}
    try:
        secret = parts.credentials.sign_in(
            name, password, address=request.client.host if request.client else ""
        )
    except TooManyAttempts as error:
        status, problem = 429, f"Too many attempts. {error.hint}"
        headers["Retry-After"] = str(error.seconds)
    if secret is None:
        answer = render(
            request, "sign_in.html", user=None, status=status, name=name, problem=problem, first=False
        )
        answer.headers.update(headers)
        return answer
    answer = go("/")
    answer.set_cookie(
        cookie_name(parts),
        secret,
        max_age=SESSION_MS // 1000,
        httponly=True,
        samesite="lax",
        secure=parts.public_origin.startswith("https://"),
    )
    return answer


@router.post("/sign-out")
def sign_out(request: Request, parts: Server) -> Response:
    """Ends the session, for every copy of its cookie."""
    page_user(request)
    secret = session_secret(request)
    if secret:
        parts.credentials.sign_out(secret)
    answer = go("/sign-in")
    answer.delete_cookie(cookie_name(parts), secure=parts.public_origin.startswith("https://"))
    return answer
