"""Power loss: what a program asked the system to do, and every disk that it could leave behind.

strace records a program that runs on a folder. What a disk must keep is what POSIX promises: data once its
file was synced after it was written, a name once its folder was synced after it was given. All else may be
gone, so that for each moment there are many disks. Each of them is put into a folder, for a test to open.
"""

import shutil
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tests.support.system_calls import read_calls, traced

CALLS = (
    "open,openat,write,pwrite64,lseek,ftruncate,fsync,fdatasync,sync,rename,renameat,renameat2,"
    "link,linkat,unlink,unlinkat,mkdir,mkdirat,rmdir"
)
ACKNOWLEDGE = """
import os, sys
from pathlib import Path
root = Path(sys.argv[1])
told = os.open(root.parent / "told", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
def acknowledge(what):
    os.write(told, str(what).encode())
"""
"""What a recorded program begins with: `root` is its folder, `acknowledge` tells what may not be lost now."""


@dataclass(frozen=True)
class Data:
    """Bytes written to a file at a place; without any, the file was cut or grown to that length."""

    file: int
    at: int
    content: bytes | None


@dataclass(frozen=True)
class Names:
    """Names given in folders to files and folders, or taken (None), in one step."""

    entries: tuple[tuple[int, str, int | None], ...]


@dataclass(frozen=True)
class Synced:
    """A file or folder that was synced; None is everything."""

    what: int | None


@dataclass(frozen=True)
class Told:
    """What was acknowledged."""

    what: str


Step = Data | Names | Synced | Told
ROOT = 0


@dataclass
class Recording:
    """The steps of a program, and which of the numbered files and folders are folders."""

    root: Path
    steps: list[Step] = field(default_factory=list[Step])
    folders: set[int] = field(default_factory=lambda: {ROOT})
    _tree: dict[tuple[int, str], int] = field(default_factory=dict[tuple[int, str], int])
    _open: dict[int, int] = field(default_factory=dict[int, int])
    _at: dict[int, int | None] = field(default_factory=dict[int, int | None])
    _sizes: dict[int, int] = field(default_factory=dict[int, int])
    _count: int = 0

    def take(self, call: str, arguments: Sequence[str], result: int) -> None:
        """Takes note of a call that succeeded."""
        if call in {"open", "openat"}:
            self._take_open(arguments, result)
        elif call in {"write", "pwrite64", "lseek", "ftruncate", "fsync", "fdatasync"}:
            self._take_descriptor(call, arguments, result)
        elif call == "sync":
            self.steps.append(Synced(None))
        else:
            self._take_names(call, [self._find(text) for text in arguments if text.startswith('"')])

    def _take_open(self, arguments: Sequence[str], descriptor: int) -> None:
        place, flags = (text for text in arguments if text.startswith(('"', "O_")))
        if _text(place) == str(self.root.parent / "told"):
            self._open[descriptor] = -1
            return
        found = self._find(place)
        self._open.pop(descriptor, None)
        if found is None:
            return
        if found not in self._tree and found != (ROOT, ""):
            assert "O_CREAT" in flags, f"{found} was not made by what was recorded"
            self._give(found, is_folder=False)
        file = ROOT if found == (ROOT, "") else self._tree[found]
        self._open[descriptor] = file
        self._at[descriptor] = None if "O_APPEND" in flags else 0
        if "O_TRUNC" in flags and self._sizes.get(file):
            self._write(file, 0, None)

    def _take_descriptor(self, call: str, arguments: Sequence[str], result: int) -> None:
        descriptor = int(arguments[0])
        file = self._open.get(descriptor)
        if file is None:
            return
        if file == -1:
            self.steps.append(Told(_text(arguments[1])))
        elif call == "lseek":
            self._at[descriptor] = result if self._at[descriptor] is not None else None
        elif call == "ftruncate":
            self._write(file, int(arguments[1]), None)
        elif call in {"fsync", "fdatasync"}:
            self.steps.append(Synced(file))
        else:
            content = _bytes(arguments[1])[:result]
            at = int(arguments[3]) if call == "pwrite64" else self._at[descriptor]
            place = self._sizes.get(file, 0) if at is None else at
            self._write(file, place, content)
            if call == "write" and at is not None:
                self._at[descriptor] = place + result

    def _take_names(self, call: str, places: Sequence[tuple[int, str] | None]) -> None:
        assert all(place is not None for place in places) or all(place is None for place in places), call
        named = [place for place in places if place is not None]
        if not named:
            return
        if call.startswith("mkdir"):
            self._give(named[0], is_folder=True)
            return
        old, *new = named
        what = self._tree[old]
        taken = ((*old, None),) if not call.startswith("link") else ()
        if taken:
            del self._tree[old]
        self._tree |= dict.fromkeys(new, what)
        self.steps.append(Names((*taken, *((*place, what) for place in new))))

    def _give(self, place: tuple[int, str], *, is_folder: bool) -> None:
        self._count += 1
        self._tree[place] = self._count
        self.folders |= {self._count} if is_folder else set()
        self.steps.append(Names(((*place, self._count),)))

    def _write(self, file: int, at: int, content: bytes | None) -> None:
        self._sizes[file] = at if content is None else max(self._sizes.get(file, 0), at + len(content))
        # In two pieces: the power may go in the middle.
        half = len(content or b"") // 2
        if content is not None and half:
            self.steps.append(Data(file, at, content[:half]))
            at, content = at + half, content[half:]
        self.steps.append(Data(file, at, content))

    def _find(self, text: str) -> tuple[int, str] | None:
        """The folder and the name in it; None for what is somewhere else."""
        path = Path(_text(text))
        if not path.is_relative_to(self.root):
            return None
        folder = ROOT
        parts = path.relative_to(self.root).parts
        for part in parts[:-1]:
            folder = self._tree[folder, part]
        return folder, parts[-1] if parts else ""


def record(program: str, root: Path, *, follow: bool = True) -> Recording:
    """What the program did to the folder; with `follow`, its threads too."""
    root.mkdir(parents=True)
    log = root.parent / "calls"
    options = ("-xx", "-s", "1000000")
    command = [sys.executable, "-c", ACKNOWLEDGE + program, str(root)]
    options = ("-f", *options) if follow else options
    subprocess.run(traced(command, log, CALLS, options=options), check=True)
    recording = Recording(root)
    for call in read_calls(log):
        if not call.result.startswith("-1"):
            # Hexadecimal text holds no comma.
            recording.take(call.name, call.arguments.split(", "), int(call.result))
    return recording


def _bytes(text: str) -> bytes:
    assert not text.endswith("..."), "cut off by strace"
    return bytes.fromhex(text.strip('"').replace("\\x", ""))


def _text(text: str) -> str:
    return _bytes(text).decode()


@dataclass(frozen=True)
class Disk:
    """What could be there after the power went, and what had been acknowledged before."""

    told: tuple[str, ...]
    moment: str
    folders: frozenset[str]
    files: dict[str, bytes]

    def put(self, folder: Path) -> None:
        """Makes it."""
        folder.mkdir()
        for name in sorted(self.folders):
            (folder / name).mkdir()
        for name, content in self.files.items():
            (folder / name).write_bytes(content)


def disks(recording: Recording) -> Iterator[Disk]:
    """Every disk that can be left, at every moment; each once."""
    seen: set[object] = set()
    for cut in range(len(recording.steps) + 1):
        told = tuple(step.what for step in recording.steps[:cut] if isinstance(step, Told))
        safe, loose = _sort_out(recording.steps[:cut])
        for how, kept in _choose(recording.steps, loose):
            disk = _build(recording, safe | kept)
            key = (told, disk[0], tuple(sorted(disk[1].items())))
            if key not in seen:
                seen.add(key)
                yield Disk(told, f"after step {cut} of {len(recording.steps)}, {how}", *disk)


def _sort_out(steps: Sequence[Step]) -> tuple[set[int], list[int]]:
    """Which changes are on disk for sure, and which are not, by their numbers."""
    safe: set[int] = set()
    loose: list[int] = []
    for number, step in enumerate(steps):
        if isinstance(step, Data | Names):
            loose.append(number)
        elif isinstance(step, Synced):
            done = {each for each in loose if step.what is None or step.what in _parts(steps[each])}
            safe |= done
            loose = [each for each in loose if each not in done]
    return safe, loose


def _parts(step: Step) -> set[int]:
    """The file or the folders that must be synced for it to last."""
    if isinstance(step, Data):
        return {step.file}
    return {folder for folder, _, _ in step.entries} if isinstance(step, Names) else set()


def _choose(steps: Sequence[Step], loose: Sequence[int]) -> Generator[tuple[str, set[int]]]:
    """Which of the loose changes came to the disk: data and names up to some change, or those of one part."""
    everything = set(loose)
    data = [each for each in loose if isinstance(steps[each], Data)]
    names = [each for each in loose if isinstance(steps[each], Names)]
    for one, others in ((data, names), (names, data)):
        for count in range(len(one) + 1):
            for rest in ([], others):
                yield f"{count} of {len(one)} loose changes kept, {len(rest)} others", {*one[:count], *rest}
    for part in sorted(set[int]().union(*(_parts(steps[each]) for each in loose))):
        own = [each for each in loose if part in _parts(steps[each])]
        for count in range(len(own)):
            yield f"without {own[count:]}", everything - set(own[count:])


def _build(recording: Recording, kept: set[int]) -> tuple[frozenset[str], dict[str, bytes]]:
    tree: dict[int, dict[str, int]] = {}
    contents: dict[int, bytearray] = {}
    for number in sorted(kept):
        step = recording.steps[number]
        if isinstance(step, Names):
            for folder, name, what in step.entries:
                tree.setdefault(folder, {}).pop(name, None)
                tree[folder] |= {} if what is None else {name: what}
        elif isinstance(step, Data):
            _put_data(contents.setdefault(step.file, bytearray()), step)
    places = list(_walk(tree))
    folders = frozenset(name for name, what in places if what in recording.folders)
    return folders, {name: bytes(contents.get(what, b"")) for name, what in places if name not in folders}


def _put_data(content: bytearray, step: Data) -> None:
    end = step.at + len(step.content or b"")
    content.extend(bytes(max(0, end - len(content))))
    if step.content is None:
        del content[step.at :]
    else:
        content[step.at : end] = step.content


def _walk(tree: dict[int, dict[str, int]], folder: int = ROOT, prefix: str = "") -> Iterator[tuple[str, int]]:
    for name, what in tree.get(folder, {}).items():
        yield prefix + name, what
        yield from _walk(tree, what, f"{prefix}{name}/")


def check_disks(recording: Recording, folder: Path, check: Callable[[Path, tuple[str, ...]], None]) -> int:
    """Opens every disk with `check`, which is handed what was acknowledged; gives their number."""
    count = 0
    for disk in disks(recording):
        shutil.rmtree(folder, ignore_errors=True)
        disk.put(folder)
        try:
            check(folder, disk.told)
        except Exception as error:
            error.add_note(f"{disk.moment}; acknowledged: {disk.told}; there: {sorted(disk.files)}")
            raise
        count += 1
    return count
