"""The one door to MLflow."""

from tipbench.tracking.courier import Delivery
from tipbench.tracking.opening import open_tracking, search_runs
from tipbench.tracking.runs import Experiment, Run
from tipbench.tracking.store import Tracking
from tipbench.tracking.write import Write

__all__ = ["Delivery", "Experiment", "Run", "Tracking", "Write", "open_tracking", "search_runs"]
