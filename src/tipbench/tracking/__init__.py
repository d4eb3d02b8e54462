"""The one door to MLflow."""

from tipbench.tracking.delivery import Delivery
from tipbench.tracking.runs import Experiment, Run
from tipbench.tracking.tracking import Tracking, open_tracking, search_runs
from tipbench.tracking.write import Write

__all__ = ["Delivery", "Experiment", "Run", "Tracking", "Write", "open_tracking", "search_runs"]
