"""Children end with us, and with everything they started."""

import os
import select
import subprocess
import sys
from pathlib import Path
from typing import IO

import pytest

from tests.support.waiting import PATIENCE_SECONDS
from tipbench.processes import MODULE, Child

STUBBORN = "(trap '' TERM; sleep 1000) > {fifo} & wait"
"""Starts something that does not end when it is asked to, and holds the pipe open as long as it lives."""
USER = """
import sys, time
from tipbench.processes import MODULE, Child
with Child(MODULE, "sh", "-c", sys.argv[1]):
    time.sleep(1000)
"""


@pytest.fixture
def fifo(tmp_path: Path) -> Path:
    path = tmp_path / "alive"
    os.mkfifo(path)
    return path


def _is_over(pipe: IO[bytes]) -> bool:
    """Whether nobody holds the other end of the pipe any more, or will not in a while."""
    return bool(select.select([pipe], [], [], PATIENCE_SECONDS)[0]) and pipe.read() == b""


def test_a_command_is_gone_with_everything_it_started_when_it_is_not_needed(fifo: Path) -> None:
    with Child(MODULE, "sh", "-c", STUBBORN.format(fifo=fifo)) as child, fifo.open("rb") as alive:
        assert not select.select([alive], [], [], 0)[0]
        child.end(None)
        assert _is_over(alive)


def test_a_command_is_gone_with_everything_it_started_when_we_are_killed(fifo: Path) -> None:
    command = [sys.executable, "-c", USER, STUBBORN.format(fifo=fifo)]
    with subprocess.Popen(command) as user, fifo.open("rb") as alive:
        user.kill()
        assert _is_over(alive)


def test_a_child_that_does_not_end_by_itself_is_killed_after_a_while() -> None:
    with Child("http.server", "0", patience_seconds=0.1) as child:
        assert child.is_running()
    assert not child.is_running()


def test_a_command_that_ends_by_itself_leaves_its_exit_code_and_its_last_words() -> None:
    with Child(MODULE, "sh", "-c", "echo one; echo two >&2; echo three; exit 7") as child:
        assert child.wait() == 7
        assert child.last_lines(2) == ["two", "three"]
