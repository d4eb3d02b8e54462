"""Whom processes talk to: in Python a hook writes every address down, in a process and in all its children.

Where strace is, it records the system calls beside that: also of what is not written in Python.
"""

import json
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.system_calls import STRACE, Call, read_calls, traced

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
SENDING = {"connect", "sendto", "sendmsg", "sendmmsg"}
STARTING = {"clone", "clone3", "fork", "vfork"}
ADDRESS = re.compile(r'sin6?_port=htons\((\d+)\).*?(?:inet_addr\(|AF_INET6, )"([^"]+)"')


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

    def traced(self, command: Sequence[str]) -> list[str]:
        """The command with its system calls recorded, if that can be done here."""
        calls = ",".join(sorted({*SENDING, *STARTING, "execve"}))
        return traced(command, self.folder / "calls", calls) if STRACE else list(command)

    def reached(self) -> set[tuple[str, str]]:
        """Who sent something where, by the system calls: the program, and an address of whatever network."""
        calls = list(read_calls(self.folder / "calls")) if STRACE else []
        makers = {call.result: call.thread for call in calls if call.name in STARTING}
        programs: dict[str, str] = {}
        found: set[tuple[str, str]] = set()
        for call in calls:
            if call.name == "execve" and call.result == "0":
                programs[call.thread] = call.arguments
            elif call.name in SENDING:
                program = _program(call, makers, programs)
                found |= {(program, host) for _, host in ADDRESS.findall(call.arguments)}
        return found

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


def _program(call: Call, makers: Mapping[str, str], programs: Mapping[str, str]) -> str:
    """What the thread runs: started by itself, or by the one that made it."""
    thread = call.thread
    while thread not in programs and thread in makers:
        thread = makers[thread]
    return programs.get(thread, "")


SWITCHES = re.compile(
    "DO_NOT_TRACK|MLFLOW_DISABLE_TELEMETRY|PYTEST_|CI$|.*_CI$|GITHUB_|CIRCLECI|JENKINS_|TRAVIS|CODEBUILD_|"
    "BUILDKITE|TEAMCITY_|CLOUD_RUN_|BITBUCKET_|TF_BUILD"
)
"""What keeps others silent in tests and in CI: the promise is ours, not the test run's."""
