"""An opened experiment without a store, for tests of what follows from what it holds."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from tipbench.bench.bench import Bench
from tipbench.bench.evidence import Evidence
from tipbench.clock import make_stamps
from tipbench.records import Pack
from tipbench.tracking import Experiment, Run, Tracking


def refuse(run: Run, path: str) -> str:
    raise AssertionError(f"{path} of {run.run_id} is read, and nothing is stored")


@dataclass(frozen=True)
class _Texts:
    """As much of MLflow as a bench reads after its runs."""

    read_artifact: Callable[[Run, str], str]


def hold_bench(
    evidence: Evidence,
    *,
    packs: dict[str, Pack] | None = None,
    read_artifact: Callable[[Run, str], str] = refuse,
    now_ms: int = 1,
) -> Bench:
    """A bench that holds this evidence."""
    tracking = cast(Tracking, _Texts(read_artifact))
    bench = Bench(
        tracking, Experiment(id="1", name="held", uid="1", artifact_location=""), make_stamps(), packs or {}
    )
    vars(bench).update(now_ms=now_ms, runs=(), evidence=evidence)
    return bench
