"""A fresh experiment for each test."""

import pytest

from tipbench.tracking import Experiment, Tracking


@pytest.fixture
def experiment(tracking: Tracking, experiment_name: str) -> Experiment:
    return tracking.ensure_experiment(experiment_name)
