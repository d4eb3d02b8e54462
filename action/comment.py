"""The gate's answer as one comment of a pull request: written once, then updated.

usage: comment.py EXPERIMENT FILE.md      in a step of GitHub Actions; only the standard library
"""

import json
import os
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

PER_PAGE = 100
MOST = 60_000
"""Characters; a comment takes 65,536."""


def call(method: str, path: str, body: object = None) -> Any:
    """One request to the repository's API."""
    url = f"{os.environ['GITHUB_API_URL']}/repos/{os.environ['GITHUB_REPOSITORY']}/{path}"
    request = urllib.request.Request(  # noqa: S310 - the runner's own address
        url,
        method=method,
        data=None if body is None else json.dumps(body).encode(),
        headers={
            "Authorization": f"Bearer {os.environ['GITHUB_TOKEN']}",
            "Accept": "application/vnd.github+json",
            "Content-Type": "application/json",
        },
    )
    with urllib.request.urlopen(request, timeout=60) as answer:  # noqa: S310
        return json.load(answer)


def find_comment(number: int, mark: str) -> int | None:
    """The comment that an earlier run wrote."""
    page = 1
    while True:
        found = call("GET", f"issues/{number}/comments?per_page={PER_PAGE}&page={page}")
        for comment in found:
            if comment["body"].startswith(mark):
                return comment["id"]
        if len(found) < PER_PAGE:
            return None
        page += 1


def main() -> None:
    experiment, file = sys.argv[1:]
    event = json.loads(Path(os.environ["GITHUB_EVENT_PATH"]).read_text(encoding="utf-8"))
    number = event.get("number") if "pull_request" in event else None
    if number is None:
        print("not a pull request: no comment")
        return
    mark = f"<!-- tipbench {experiment.encode().hex()} -->\n"
    body = mark + Path(file).read_text(encoding="utf-8")
    if len(body) > MOST:
        body = body[:MOST] + "\n\n… the rest is in the summary of the run."
    try:
        known = find_comment(number, mark)
        if known is None:
            call("POST", f"issues/{number}/comments", {"body": body})
        else:
            call("PATCH", f"issues/comments/{known}", {"body": body})
    except (urllib.error.URLError, TimeoutError) as error:
        # Pull requests of forks get a token that may only read; the answer is in the summary all the same.
        print(
            f"::warning title=tipbench::the comment was not written ({error}); pull-requests: write is needed"
        )
        return
    print("comment", "written" if known is None else "updated")


if __name__ == "__main__":
    main()
