"""The audit as people read it: who did what and when, in words, page by page."""

import json
from collections import defaultdict
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response

from tipbench.admin.access import PageAdmin, Server
from tipbench.admin.deps import Parts
from tipbench.admin.panel import render
from tipbench.admin.users import AuditLine, User, count_audit, read_audit

NAMING_ARMS = ("promote.", "rollback")
"""How lines of the audit begin whose subject is an arm."""
LINES_A_PAGE = 50
WORDS = {
    "sign-in": "signed in from {subject}",
    "sign-in.failed": "could not sign in from {subject}",
    "user.create": "added the user {subject} with the role {role}",
    "user.change": "made {subject} {role}{disabled}",
    "user.password": "set a new password for {subject}",
    "token.create": "made a token for {user}, good for {days} days{read_only}{label}",
    "token.revoke": "revoked the token {subject}",
    "job.pipeline": "started a run in {experiment}",
    "job.collect": "started a collection in {experiment}",
    "job.judge": "started the automatic judge or the agent in {experiment}",
    "job.improve": "started an improvement in {experiment}",
    "job.simulate": "started a simulation in {experiment}",
    "job.cancel": "stopped the job {subject}",
    "sitting.open": "began a sitting in {experiment}",
    "sitting.accepted": "finished a sitting in {experiment}; it counts",
    "sitting.refused": "finished a sitting in {experiment}; it does not count",
    "sitting.expired": "left a sitting in {experiment} before a full round",
    "sitting.accept": "let the sitting {subject} in {experiment} count: {reason}",
    "sitting.refuse": "took the sitting {subject} in {experiment} out: {reason}",
    "judging.close": "closed judging of {subject}: {reason}",
    "judging.reopen": "opened judging of {subject} again: {reason}",
    "gate.plan": "planned the looks of the gate in {subject}",
    "gate.ask": "asked the gate in {subject}: {answer}",
    "promote.gate": "asked the gate to promote; champion is {subject} ({outcome})",
    "promote.force": "made {subject} champion without the gate ({outcome})",
    "promote.initial": "named {subject} the first champion ({outcome})",
    "rollback": "went back to {subject} ({outcome})",
}
"""What was done, by the word that the audit keeps for it."""


def tell_line(line: AuditLine) -> str:
    """What was done, as a sentence without its subject; a word that is not known as it stands."""
    words = WORDS.get(line.what)
    if words is None:
        return f"{line.what} {line.subject} {line.detail.removeprefix('{}')}".strip()
    given: dict[str, object] = json.loads(line.detail or "{}")
    facts = defaultdict(lambda: "…", {name: str(value) for name, value in given.items()})
    facts["subject"] = line.subject or "…"
    facts["read_only"] = ", read only" if given.get("read_only") else ""
    facts["disabled"] = ", disabled" if given.get("disabled") else ""
    facts["label"] = f": {given['label']}" if given.get("label") else ""
    return words.format_map(facts)


def without_arms(lines: list[AuditLine], user: User, parts: Parts) -> list[AuditLine]:
    """The lines as this user may read them: who judges is not told which arms were promoted."""
    named = [line for line in lines if line.what.startswith(NAMING_ARMS)]
    if not named or not parts.sittings.holds_items(user):
        return lines
    hidden = {"subject": "", "detail": ""}
    return [line.model_copy(update=hidden) if line in named else line for line in lines]


pages = APIRouter(include_in_schema=False)


@pages.get("/audit")
def show_audit(
    request: Request,
    user: PageAdmin,
    parts: Server,
    skip: Annotated[int, Query(ge=0, le=10_000_000)] = 0,
) -> Response:
    """Every change, the newest first."""
    with parts.jobs.database.read() as view:
        lines, total = read_audit(view, limit=LINES_A_PAGE, skip=skip), count_audit(view)
    told = [(line, tell_line(line)) for line in without_arms(lines, user, parts)]
    return render(request, "audit.html", user=user, lines=told, skip=skip, per=LINES_A_PAGE, total=total)
