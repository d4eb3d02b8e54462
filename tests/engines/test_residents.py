"""Who holds weights, as the kernel tells."""

from pathlib import Path

from tipbench.engines.llamacpp.engine import LlamaCppEngine
from tipbench.engines.machine import PeakWatch, find_residents
from tipbench.records import Model


def test_a_loaded_model_is_seen_with_its_memory_and_gone_after(
    engine: LlamaCppEngine, smollm2: Model
) -> None:
    with engine.load(smollm2) as loaded:
        (seen,) = [resident for resident in find_residents() if resident.process_id == loaded.process_id]
        assert seen.memory_bytes > smollm2.size_bytes
    assert loaded.process_id not in {resident.process_id for resident in find_residents()}


def test_the_peak_is_the_most_at_one_moment_and_starts_anew_when_taken(tmp_path: Path) -> None:
    _add_process(tmp_path, 7, "/opt/bin/ollama", "runner", "--model", "blob", pages=100)
    _add_process(tmp_path, 8, "/opt/bin/ollama", "serve", pages=1000)
    _add_process(tmp_path, 9, "/usr/lib/ollama/llama-server", "--model", "blob", pages=50)
    watch = PeakWatch(proc=tmp_path)
    watch.look()
    (tmp_path / "9" / "statm").write_text("0 0 0 0 0 0 0")
    watch.look()
    both = watch.take()
    assert both.models == 2
    alone = watch.take()
    assert alone.models == 1
    assert both.memory_bytes == alone.memory_bytes * 1.5


def test_without_proc_nothing_is_seen(tmp_path: Path) -> None:
    assert find_residents(proc=tmp_path / "nothing") == []


def _add_process(proc: Path, pid: int, *arguments: str, pages: int) -> None:
    folder = proc / str(pid)
    folder.mkdir()
    (folder / "cmdline").write_bytes(b"".join(argument.encode() + b"\0" for argument in arguments))
    (folder / "statm").write_text(f"9999 {pages} 0 0 0 0 0")
