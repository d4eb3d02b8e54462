"""The one door to MLflow."""

from tipbench.tracking.delivery import Delivery
from tipbench.tracking.runs import Experiment, Run, Write
from tipbench.tracking.tracking import Tracking, open_tracking, search_runs

__all__ = ["Delivery", "Experiment", "Run", "Tracking", "Write", "open_tracking", "search_runs"]
