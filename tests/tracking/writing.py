"""Writes for tests, and a door that loses its patience quickly."""

from pathlib import Path
from uuid import uuid4

from tipbench.tracking import Experiment, Tracking, Write
from tipbench.tracking.client import Pace, Rest, TimeLimits

TEXTS = {"candidates.json": '["ein Tipp: schlaf früh – 日本"]', "deep/raw.txt": "x" * 20_000}


def make_write(experiment: Experiment, **more: object) -> Write:
    return Write.model_validate(
        {
            "attempt": uuid4().hex,
            "experiment": experiment.name,
            "experiment_id": experiment.id,
            "run_name": "model · v1 · s1",
            "tags_at_create": {"tipbench.kind": "cell", "tipbench.state": "open"},
            "start_time": 1_700_000_000_000,
            "artifacts": TEXTS,
            "params": {"model": "m", "empty": ""},
            "metrics": {"latency_seconds": 0.25},
            "tags": {"tipbench.state": "complete", "judge_pending": "true"},
            "end_time": 1_700_000_001_000,
            **more,
        }
    )


def impatient(url: str, home: Path, *, tries: int = 8, call_seconds: float = 10) -> Tracking:
    """Tries again at once, and not for long. A short `call_seconds` is for replies that come late."""
    return Tracking(
        Rest(url, limits=TimeLimits(connect_seconds=2, call_seconds=call_seconds, search_seconds=10)),
        home=home,
        description="",
        new_id=lambda: uuid4().hex,
        pace=Pace(first_seconds=0.02, cap_seconds=0.2, tries=tries),
    )
