"""A stored pack is fetched once: its hash says that what is kept in the data folder is the same."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.support.fault_proxy import FaultProxy
from tests.support.small_pack import write_small_pack
from tests.tracking.writing import make_write
from tipbench.bench.packs import pack_write, read_pack_files
from tipbench.errors import TrackingError
from tipbench.pack import read_pack
from tipbench.records import Pack
from tipbench.settings import Settings
from tipbench.tracking import Experiment, Run, Tracking, open_tracking


@dataclass
class Reader:
    """Reads the stored pack as processes of one machine do, each with a client of its own."""

    proxy: FaultProxy
    experiment: Experiment
    pack: Pack
    home: Path
    runs: list[Run] = field(default_factory=list[Run])

    @property
    def kept(self) -> Path:
        return self.home / "cache" / "packs" / f"{self.pack.hash}.json"

    def read(self, times: int = 1) -> tuple[Mapping[str, str], int]:
        """What one process reads, and how many requests for texts that took."""
        with open_tracking(Settings(home=self.home, mlflow_url=self.proxy.url)) as tracking:
            before = len(self.proxy.requests)
            files = [read_pack_files(self.runs, self.pack.hash, tracking=tracking) for _ in range(times)]
            sent = self.proxy.requests[before:]
        assert all(each == files[0] for each in files)
        assert all("mlflow-artifacts" in line for line in sent)
        return files[0], len(sent)

    @property
    def whole(self) -> int:
        """So many texts make the pack."""
        return len(self.pack.files) + 1


@pytest.fixture
def reader(mlflow_url: str, tracking: Tracking, experiment: Experiment, tmp_path: Path) -> Iterator[Reader]:
    pack = read_pack(write_small_pack(tmp_path / "pack"))
    tracking.deliver(pack_write(pack, write=make_write(experiment, artifacts={}, tags={})))
    with FaultProxy(mlflow_url) as proxy:
        yield Reader(proxy, experiment, pack, tmp_path / "machine", tracking.read_runs(experiment))


def test_a_machine_fetches_a_pack_once(reader: Reader) -> None:
    assert reader.read() == (reader.pack.files, reader.whole)
    assert reader.read(times=2) == (reader.pack.files, 0)
    assert [path.name for path in reader.kept.parent.iterdir()] == [reader.kept.name]


def cut_short(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-40])


def change_a_word(path: Path) -> None:
    path.write_text(path.read_text(encoding="utf-8").replace("a", "e"), encoding="utf-8")


def empty(path: Path) -> None:
    path.write_bytes(b"")


def make_a_list(path: Path) -> None:
    path.write_text("[1, 2]", encoding="utf-8")


@pytest.mark.parametrize("damage", [cut_short, change_a_word, empty, make_a_list])
def test_what_was_damaged_on_disk_is_fetched_again(reader: Reader, damage: Callable[[Path], None]) -> None:
    reader.read()
    whole = reader.kept.read_bytes()
    damage(reader.kept)
    assert reader.kept.read_bytes() != whole
    assert reader.read() == (reader.pack.files, reader.whole)
    assert reader.kept.read_bytes() == whole
    assert reader.read() == (reader.pack.files, 0)


def test_where_nothing_can_be_kept_a_process_fetches_it_once(reader: Reader) -> None:
    (reader.home / "cache").mkdir(parents=True)
    reader.kept.parent.write_text("in the way", encoding="utf-8")
    for _ in range(2):
        assert reader.read(times=3) == (reader.pack.files, reader.whole)


def test_a_pack_whose_files_were_edited_in_mlflow_is_refused_and_not_kept(
    reader: Reader, tracking: Tracking
) -> None:
    (run,) = reader.runs
    edited = {"pack/rubric.md": "another rubric"}
    tracking.deliver(make_write(reader.experiment, run_id=run.run_id, artifacts=edited, tags={}))
    with pytest.raises(TrackingError, match=f"artifacts 'pack/…' of run {run.run_id} were edited"):
        reader.read()
    assert not reader.kept.exists()


def test_a_pack_whose_run_was_deleted_is_missed_though_it_is_kept(reader: Reader) -> None:
    reader.read()
    reader.runs = []
    with pytest.raises(TrackingError, match="is not stored in this experiment"):
        reader.read()
