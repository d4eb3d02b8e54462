"""Whom Python processes talk to: a hook writes every address down, in a process and in all its children."""

import json
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RECORDER = """
import json, os, sys

def record(event, arguments):
    if event == "socket.connect" or event == "socket.sendto":
        told = arguments[1] if isinstance(arguments[1], (str, bytes)) else list(arguments[1][:2])
    elif event in ("socket.getaddrinfo", "socket.gethostbyname", "urllib.Request"):
        told = arguments[0]
    else:
        return
    write(event, told)

def write(event, told):
    line = json.dumps([os.getpid(), event, told.decode() if isinstance(told, bytes) else told])
    # One write, appended: processes do not tear each other's lines.
    file = os.open(os.environ["RECORD_CONNECTIONS"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(file, (line + "\\n").encode())
    os.close(file)

write("started", sys.orig_argv)
sys.addaudithook(record)
"""
HOSTS = {"127.0.0.1", "::1", "localhost"}


@dataclass(frozen=True)
class Connections:
    """What processes with this environment do is written to a file in the folder."""

    folder: Path

    def environ(self, before: Mapping[str, str] = os.environ) -> dict[str, str]:
        """The environment with the recorder in it, and without the switches that others may have set."""
        self.folder.mkdir(exist_ok=True)
        (self.folder / "sitecustomize.py").write_text(RECORDER, encoding="utf-8")
        kept = {key: value for key, value in before.items() if not SWITCHES.match(key)}
        path = os.pathsep.join(filter(None, (str(self.folder), before.get("PYTHONPATH", ""))))
        return kept | {"PYTHONPATH": path, "RECORD_CONNECTIONS": str(self.folder / "record")}

    def started(self) -> list[list[str]]:
        """The command line of every process that was watched."""
        return [told for _, event, told in self._read() if event == "started"]

    def addresses(self) -> set[tuple[str, int]]:
        """Every address that was connected to, sockets of this machine's files left out."""
        sent = [told for _, event, told in self._read() if event in {"socket.connect", "socket.sendto"}]
        return {(str(told[0]), int(told[1])) for told in sent if not isinstance(told, str)}

    def names(self) -> set[str]:
        """Every name that was looked up."""
        looked = {"socket.getaddrinfo", "socket.gethostbyname"}
        return {told for _, event, told in self._read() if event in looked and told is not None}

    def _read(self) -> list[Any]:
        return [json.loads(line) for line in (self.folder / "record").read_text().splitlines()]


SWITCHES = re.compile(
    "DO_NOT_TRACK|MLFLOW_DISABLE_TELEMETRY|PYTEST_|CI$|.*_CI$|GITHUB_|CIRCLECI|JENKINS_|TRAVIS|CODEBUILD_|"
    "BUILDKITE|TEAMCITY_|CLOUD_RUN_|BITBUCKET_|TF_BUILD"
)
"""What keeps others silent in tests and in CI: the promise is ours, not the test run's."""
