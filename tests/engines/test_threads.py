"""As many threads as others leave cores: at a load, and again when that has changed for long."""

from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.engines.conftest import make_engine
from tipbench.engines.machine import allowed_cpus
from tipbench.engines.threads import TICKS, ThreadWatch, Usage, count_free, read_usage
from tipbench.records import Sampling


@pytest.mark.parametrize(
    ("others", "free"), [(0.0, 2), (0.4, 2), (0.6, 1), (1.0, 1), (2.0, 1), (9.0, 1), (-0.5, 2)]
)
def test_of_two_cores_those_are_free_that_others_leave(others: float, free: int) -> None:
    assert count_free(2, Usage(10.0, 100.0, 7.0), Usage(14.0, 100.0 + 4 * others + 3.0, 10.0)) == free


def write_kernel(root: Path, *, busy: int, own: int) -> None:
    (root / "proc" / "7").mkdir(parents=True, exist_ok=True)
    lines = [f"cpu{cpu} {busy} 5000 {busy} 99999 99999 {busy} {busy} {busy} 0 0" for cpu in allowed_cpus()]
    lines += ["cpu 1 2 3 4 5 6 7 8", "cpu99999 777777 0 777777 0 0 0 0 0", "intr 1 2 3"]
    (root / "proc" / "stat").write_text("\n".join(lines))
    fields = ["S", *["0"] * 10, str(own), str(own), *["0"] * 30]
    (root / "proc" / "7" / "stat").write_text(f"7 (a ) b) {' '.join(fields)}")


def test_what_our_cpus_worked_is_read_without_idling_and_without_who_yields(tmp_path: Path) -> None:
    write_kernel(tmp_path, busy=100, own=30)
    usage = read_usage(7, root=tmp_path)
    assert usage is not None
    assert usage.everybody == pytest.approx(500 * len(allowed_cpus()) / TICKS)
    assert usage.own == pytest.approx(60 / TICKS)
    alone = read_usage(root=tmp_path)
    assert alone is not None
    assert alone.own == 0.0
    assert read_usage(root=tmp_path / "elsewhere") is None, "a kernel that does not say"


def test_this_machine_says_what_its_cpus_worked() -> None:
    before, after = read_usage(1), read_usage(1)
    assert before is not None
    assert after is not None
    assert after.everybody >= before.everybody > 0
    assert after.own >= before.own > 0


def usages(others: Iterable[float], *, seconds: float = 4.0) -> Iterator[Usage]:
    """What the kernel says every so many seconds while others take so many cores, and we the rest of two."""
    at = everybody = own = 0.0
    yield Usage(at, everybody, own)
    for taken in others:
        at += seconds
        own += seconds * max(0.0, 2 - taken)
        everybody += seconds * 2
        yield Usage(at, everybody, own)


def follow(others: list[float], *, threads: int, load_seconds: float = 0.5) -> list[int]:
    """The number of threads after each look, from one load on."""
    said = usages(others)
    watch = ThreadWatch(cores=2, read=lambda _: next(said), wait=lambda _: None)
    numbers: list[int] = []
    for _ in range(len(others) + 1):
        threads = watch.look(threads, process_id=1, load_seconds=load_seconds)
        numbers.append(threads)
    return numbers


def test_a_load_of_others_that_lasts_takes_a_thread_and_gives_it_back() -> None:
    assert follow([2.0] * 3, threads=2) == [2, 2, 2, 1]
    assert follow([0.0] * 3, threads=1) == [1, 1, 1, 2]


def test_a_short_load_of_others_changes_nothing() -> None:
    assert set(follow([2.0, 2.0, 0.0] * 5, threads=2)) == {2}


def test_a_model_that_loads_slowly_is_loaded_again_only_for_a_long_time() -> None:
    numbers = follow([2.0] * 12, threads=2, load_seconds=10.0)
    assert numbers == [2] * 10 + [1] * 3, "after forty seconds"


def test_a_fixed_number_is_never_changed_and_nothing_is_looked_at() -> None:
    def look_nowhere(_: int | None) -> Usage | None:
        raise AssertionError

    watch = ThreadWatch(3, cores=2, read=look_nowhere)
    assert watch.choose() == 3
    assert watch.look(3, process_id=1, load_seconds=0.0) == 3


def test_a_load_begins_with_the_cores_that_are_free_in_that_moment() -> None:
    waits: list[float] = []
    for others, threads in ((0.0, 2), (2.0, 1)):
        said = iter([Usage(0.0, 0.0), Usage(0.3, 0.3 * others)])
        watch = ThreadWatch(cores=2, read=lambda _, said=said: next(said), wait=waits.append)
        assert watch.choose() == threads
    assert len(waits) == 2
    assert ThreadWatch(cores=4, read=lambda _: None, wait=waits.append).choose() == 4, "nobody says: all"


def test_a_model_is_loaded_again_with_other_threads_and_writes_the_same(
    models_folder: Path, tmp_path: Path
) -> None:
    # Two others when it is loaded; then nobody, for longer than any load takes.
    said = iter([Usage(0.0, 0.0), Usage(0.3, 0.6), *(Usage(1e5 * n, 0.6) for n in range(1, 5))])
    engine = make_engine(
        models_folder,
        tmp_path,
        threads=None,
        watch_threads=lambda fixed: ThreadWatch(
            fixed, cores=2, read=lambda _: next(said), wait=lambda _: None
        ),
    )
    asked: list[tuple[int, str]] = []
    processes: list[Path] = []
    with engine.load(engine.find_model("smollm2")) as model:
        for _ in range(3):
            answer = model.generate("Name a colour.", sampling=Sampling(max_tokens=8), seed=1)
            asked.append((model.threads, answer.text))
            processes.append(Path(f"/proc/{model.process_id}"))
            assert {each for each in processes if each.exists()} == {processes[-1]}, "never two in memory"
    first, second, third = processes
    assert first != second == third
    assert not second.exists()
    assert asked == [(1, asked[0][1]), (2, asked[0][1]), (2, asked[0][1])]
