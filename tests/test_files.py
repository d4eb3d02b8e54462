"""Files are written whole or not at all, and keep what they were."""

import os
import subprocess
import sys
from pathlib import Path
from threading import Thread

import pytest

from tests.support.rights import open_to_others
from tipbench.files import append_whole, hold_lock, make_folder, make_private, write_private, write_whole


def mode_of(path: Path) -> int:
    return path.stat().st_mode & 0o777


def test_a_file_holds_exactly_what_was_given_and_nothing_is_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_whole(path, "fünf\nlines\r\n")
    assert path.read_bytes() == "fünf\nlines\r\n".encode()
    write_whole(path, b"\x00\xff")
    assert path.read_bytes() == b"\x00\xff"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_rights_it_is_given_and_an_old_one_keeps_its_own(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        write_whole(tmp_path / "open", "x")
        write_whole(tmp_path / "private", "x", mode=0o600)
        (tmp_path / "private").chmod(0o640)
        write_whole(tmp_path / "private", "y", mode=0o600)
    finally:
        os.umask(before)
    assert (mode_of(tmp_path / "open"), mode_of(tmp_path / "private")) == (0o644, 0o640)


def test_a_place_that_cannot_be_written_is_as_it_was(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    with pytest.raises(IsADirectoryError):
        write_whole(folder, "x")
    with pytest.raises(FileNotFoundError):
        write_whole(tmp_path / "missing" / "file", "x")
    assert list(tmp_path.iterdir()) == [folder]


FULL = """
import resource, signal, sys
from pathlib import Path
from tipbench.files import append_whole, write_whole

signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
path = Path(sys.argv[1])
old = path.open("ab")
for write in (lambda: write_whole(path, "y" * 2000), lambda: append_whole(old.fileno(), b"y" * 600)):
    try:
        write()
    except OSError as error:
        print(error.strerror)
"""


def test_a_full_disk_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("x" * 600)
    said = subprocess.run([sys.executable, "-c", FULL, str(path)], capture_output=True, text=True, check=True)
    assert said.stdout.split("\n") == ["File too large", "File too large", ""]
    assert path.read_text() == "x" * 600
    assert list(tmp_path.iterdir()) == [path]


def test_many_threads_writing_one_file_leave_one_of_their_texts(tmp_path: Path) -> None:
    path = tmp_path / "file"
    threads = [Thread(target=write_whole, args=(path, str(n) * 10_000)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    text = path.read_text()
    assert text == text[0] * 10_000
    assert list(tmp_path.iterdir()) == [path]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    script = (
        "import os, sys, threading; from pathlib import Path; from tipbench.files import write_whole\n"
        "path = Path(sys.argv[1])\n"
        "left = path.with_name(f'.tipbench-{os.getpid()}-{threading.get_ident()}.part')\n"
        "left.write_text('torn, and longer than what comes'); left.chmod(0o400)\n"
        "write_whole(path, 'whole')\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "file")], check=True)
    assert (tmp_path / "file").read_text() == "whole"
    assert mode_of(tmp_path / "file") & 0o200


def test_appended_pieces_follow_each_other(tmp_path: Path) -> None:
    with (tmp_path / "file").open("ab") as file:
        append_whole(file.fileno(), b"one\n")
        append_whole(file.fileno(), b"two\n", durable=False)
    assert (tmp_path / "file").read_bytes() == b"one\ntwo\n"


def test_a_data_folder_and_what_is_put_into_it_is_its_owners_alone(tmp_path: Path) -> None:
    home = tmp_path / "new" / "home"
    assert not make_private(home)
    with hold_lock(home / "locks" / "a.lock"):
        write_private(home / "locks" / "b", "x")
    assert open_to_others(home) == []
    home.chmod(0o750)
    assert make_private(home)
    assert not make_private(home)
    assert mode_of(home) == 0o700


@pytest.mark.parametrize("mode", [0o2770, 0o1777])
def test_a_folder_that_is_shared_on_purpose_is_left_alone(tmp_path: Path, mode: int) -> None:
    (tmp_path / "home").mkdir()
    (tmp_path / "home").chmod(mode)
    assert not make_private(tmp_path / "home")
    assert mode_of(tmp_path / "home") == mode & 0o777


def test_a_file_in_the_place_of_a_folder_is_an_error_and_stays_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "home").write_text("mine")
    (tmp_path / "home").chmod(0o644)
    with pytest.raises(NotADirectoryError):
        make_private(tmp_path / "home")
    with pytest.raises(NotADirectoryError):
        make_folder(tmp_path / "home" / "deep" / "er")
    assert mode_of(tmp_path / "home") == 0o644
