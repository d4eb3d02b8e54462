"""A writer whose clock is wrong, as a process of its own: cells, then a verdict on each.

usage: python -m tests.tracking.clocked_writer URL HOME EXPERIMENT CLOCK_OFF_BY_SECONDS CELLS
"""

import sys
import time
from pathlib import Path

OFF_BY = float(sys.argv[4])
_time, _time_ns = time.time, time.time_ns
# Before anything else is imported: every module gets the wrong clock.
time.time = lambda: _time() + OFF_BY
time.time_ns = lambda: _time_ns() + int(OFF_BY * 1e9)

from tests.tracking.writing import make_write  # noqa: E402
from tipbench.settings import Settings  # noqa: E402
from tipbench.tracking import open_tracking  # noqa: E402


def main() -> None:
    url, home, name = sys.argv[1:4]
    with open_tracking(Settings(home=Path(home), mlflow_url=url)) as tracking:
        experiment = tracking.find_experiment(name)
        for _ in range(int(sys.argv[5])):
            start = time.time_ns() // 1_000_000
            run_id = tracking.deliver(make_write(experiment, artifacts={}, start_time=start))
            tags = {"verdict:abc:1": f"clock {OFF_BY}"}
            tracking.deliver(make_write(experiment, run_id=run_id, artifacts={}, tags=tags))


if __name__ == "__main__":
    main()
