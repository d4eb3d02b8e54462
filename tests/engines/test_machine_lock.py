"""One lock per machine."""

import os
import signal
import stat
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.engines.fake_ollama import run_fake_ollama
from tipbench.engines.machine import LeftBehind, MachineLock, machine_lock_path
from tipbench.engines.ollama.residency import clear_left_behind
from tipbench.errors import EngineBusy, EngineUnavailable

HOLD = """
import sys
from pathlib import Path
from tipbench.engines.machine import MachineLock
lock = MachineLock(Path(sys.argv[1]), holder="pid 77 (tipbench collect)", wait=False, report=print)
with lock.hold("model 'big'"):
    print("held", flush=True)
    sys.stdin.read()
"""
NOBODY = 65534
BUSY = 7


def test_who_does_not_wait_is_told_who_holds_it(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with (
        _other_process(path),
        pytest.raises(EngineBusy, match=r"pid 77 \(tipbench collect\), model 'big'"),
        _lock(path, wait=False).hold("x"),
    ):
        pass
    with _lock(path, wait=False).hold("x"):
        pass


def test_who_waits_is_told_for_whom_and_gets_it_then(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    lines: list[str] = []
    with _other_process(path) as other:

        def free(line: str) -> None:
            lines.append(line)
            other.kill()

        with MachineLock(path, holder="us", wait=True, report=free).hold("x"):
            assert other.wait() != 0
    assert len(lines) == 1
    assert "pid 77" in lines[0]


def test_a_child_with_the_descriptor_keeps_the_lock(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with _lock(path, wait=False).hold("x") as descriptor:
        child = subprocess.Popen(["cat"], stdin=subprocess.PIPE, pass_fds=(descriptor,))
    with child:
        with pytest.raises(EngineBusy), _lock(path, wait=False).hold("x"):
            pass
        assert child.stdin is not None
        child.stdin.close()
        child.wait()
    with _lock(path, wait=False).hold("x"):
        pass


def test_the_file_is_for_everybody_whatever_the_umask(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    before = os.umask(0o077)
    try:
        with _lock(path, wait=False).hold("x"):
            assert stat.S_IMODE(path.stat().st_mode) == 0o666
    finally:
        os.umask(before)
    assert [file.name for file in tmp_path.iterdir()] == ["lock"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be two users")
def test_two_users_exclude_each_other(tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    for parent in (tmp_path, *tmp_path.parents):
        if parent.stat().st_mode & 0o005 == 0:
            parent.chmod(0o755)
    path = folder / "lock"
    # As another user, the file is made and left behind.
    assert _as_nobody(lambda: _take(path)) == 0
    assert path.stat().st_uid == NOBODY
    with _lock(path, wait=False).hold("ours"):
        assert _as_nobody(lambda: _take(path)) == BUSY


def _take(path: Path) -> int:
    try:
        with _lock(path, wait=False).hold("theirs"):
            return 0
    except EngineBusy:
        return BUSY


def _as_nobody(act: Callable[[], int]) -> int:
    """What a process of another user exits with; never a second pytest, whatever goes wrong in it."""
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setuid(NOBODY)
            code = act()
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_lock_file_that_was_tidied_away_is_made_again(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with _other_process(path) as other:
        path.unlink()
        with _lock(path, wait=False).hold("x"):
            assert path.exists()
        other.kill()


@pytest.mark.parametrize("kind", ["link", "folder", "pipe"])
def test_a_trap_in_its_place_is_refused(tmp_path: Path, kind: str) -> None:
    path, victim = tmp_path / "lock", tmp_path / "victim"
    victim.write_text("precious")
    if kind == "link":
        path.symlink_to(victim)
    elif kind == "folder":
        path.mkdir()
    else:
        os.mkfifo(path)
    with pytest.raises(EngineUnavailable, match="lock"), _lock(path, wait=False).hold("x"):
        pass
    assert victim.read_text() == "precious"


def test_escape_codes_in_the_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with _lock(path, wait=False).hold("x"):
        path.write_text("\x1b[31mred\n")
        with pytest.raises(EngineBusy) as caught, _lock(path, wait=False).hold("x"):
            pass
    assert caught.value.message.endswith("by [31mred")


LEFT = LeftBehind(server="http://127.0.0.1:11434", digest="sha256:0123abc")


def test_what_a_killed_holder_left_in_a_server_is_cleared_before_the_next_one_begins(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    _die_holding(path)
    seen: list[LeftBehind] = []
    lock = MachineLock(path, holder="us", wait=False, report=print, clear=seen.append)
    with lock.hold("embedded"):
        assert seen == [LEFT]
    with lock.hold("again"):
        assert seen == [LEFT]


def test_what_does_not_go_away_is_left_for_the_next_try(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    _die_holding(path)
    for _ in range(2):
        with pytest.raises(EngineUnavailable, match="11434"), _lock(path, wait=False).hold("x"):
            pass


def test_a_holder_that_ends_well_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "lock"
    with _lock(path, wait=False).hold("x", leaves=LEFT):
        assert LEFT.server in path.read_text()
    with _lock(path, wait=False).hold("x"):
        pass


STRANGE = (
    "http://example.org",
    "http://127.0.0.1.example.org:80",
    "http://192.168.1.5:80",
    "file:///etc",
    # These two would reach the bait.
    "http://0.0.0.0:{port}",
    "http://127.0.0.1:80@0.0.0.0:{port}",
)


@pytest.mark.parametrize("server", STRANGE)
def test_nobody_is_spoken_to_whose_address_is_not_plainly_this_machine(tmp_path: Path, server: str) -> None:
    with run_fake_ollama() as bait:
        followed = _follow_mark(tmp_path / "lock", server.format(port=urlsplit(bait.url).port))
    assert (followed, bait.paths) == ([], [])


@pytest.mark.parametrize("host", ["127.0.0.1", "127.1", "2130706433"])
def test_a_mark_of_this_machine_is_followed(tmp_path: Path, host: str) -> None:
    with run_fake_ollama() as server:
        url = server.url.replace("127.0.0.1", host)
        assert _follow_mark(tmp_path / "lock", url) == [url]
    assert server.paths == ["/api/ps"]


def _follow_mark(path: Path, server: str) -> list[str]:
    """The servers that were spoken to because of a mark in the file."""
    path.write_text(f"somebody\n{server} sha256:0123abc")
    followed: list[str] = []

    def clear(left: LeftBehind) -> None:
        followed.append(left.server)
        clear_left_behind(left)

    with MachineLock(path, holder="us", wait=False, report=print, clear=clear).hold("x"):
        return followed


def _die_holding(path: Path) -> None:
    pid = os.fork()
    if pid == 0:
        with _lock(path, wait=False).hold("ollama", leaves=LEFT):
            os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_all_users_of_a_machine_share_one_path() -> None:
    assert machine_lock_path({}) == machine_lock_path({})
    assert machine_lock_path({}).parent.stat().st_mode & 0o1777 == 0o1777
    assert machine_lock_path({"TIPBENCH_ENGINE_LOCK": "/part/engine.lock"}) == Path("/part/engine.lock")


def _lock(path: Path, *, wait: bool) -> MachineLock:
    return MachineLock(path, holder="us", wait=wait, report=print)


@contextmanager
def _other_process(path: Path) -> Generator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        yield process
