"""schemathesis over the API: whatever is sent, nothing breaks and every answer is documented."""

import json
import re
import subprocess
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pytest
import uvicorn

from tests.admin.conftest import PASSWORD
from tests.support.waiting import PATIENCE_SECONDS, eventually
from tipbench.admin.app import make_app
from tipbench.admin.deps import Parts, make_parts
from tipbench.clock import make_stamps
from tipbench.settings import Settings

# Nothing of an earlier run, and nothing that hangs on how busy the machine is.
CERTAIN = ("--seed", "1", "--generation-database", "none", "--suppress-health-check", "all")
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


@contextmanager
def serve(parts: Parts) -> Generator[str]:
    """The application behind a real socket; jobs are queued and never run."""
    config = uvicorn.Config(make_app(parts, dispatch=False), host="127.0.0.1", port=0, log_level="warning")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    eventually(lambda: server.started, "the server listens")
    try:
        yield f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_nothing_that_is_sent_breaks_the_api(mlflow_url: str, tmp_path: Path, judged: str) -> None:
    parts = make_parts(Settings(home=tmp_path / "home", mlflow_url=mlflow_url), make_stamps())
    cases = 0
    # Names are made up, and none is there; the admin's are, so that there is something to break.
    (tmp_path / "known.toml").write_text(f'[parameters]\n"path.experiment" = {json.dumps(judged)}\n')
    with serve(parts) as url:
        # Who has no token does not get it: all are handed the same file.
        described = tmp_path / "openapi.json"
        described.write_text(json.dumps(make_app(parts, dispatch=False).openapi()), encoding="utf-8")
        for role in ("admin", "judge", "viewer", "nobody"):
            headers: list[str] = []
            known = ["--config-file", str(tmp_path / "known.toml")] if role == "admin" else []
            if role != "nobody":
                parts.accounts.create(f"the-{role}", role, PASSWORD, by="test")
                _, secret = parts.credentials.make_token(f"the-{role}", label="", days=1, by="test")
                headers = ["-H", f"Authorization: Bearer {secret}"]
            found = subprocess.run(
                [
                    *(sys.executable, "-m", "schemathesis.cli", *known, "run", str(described), "--url", url),
                    *(*headers, "--include-path-regex", "^/api", "-c", CHECKS, *CERTAIN, "--no-color"),
                    *("--request-timeout", str(PATIENCE_SECONDS)),
                    *("--phases", "examples,coverage,fuzzing", "-n", "15", "--exclude-path-regex", "stream"),
                ],
                capture_output=True,
                text=True,
                check=False,
            )
            assert found.returncode == 0, f"{role}: {found.stdout[-6000:]}{found.stderr[-2000:]}"
            cases += int(re.findall(r"(\d+) generated", found.stdout)[-1])
    assert cases >= 2_000
