"""Clock and ids of what is written, handed in from the entry point."""

from collections.abc import Callable
from dataclasses import dataclass

from tipbench.tracking.runs import Experiment
from tipbench.tracking.write import Write


@dataclass(frozen=True)
class Stamps:
    """Where times (in ms) and random ids come from."""

    now_ms: Callable[[], int]
    new_id: Callable[[], str]

    def blank(self, experiment: Experiment) -> Write:
        """An empty write into the experiment, with an attempt id of its own."""
        return Write(
            attempt=self.new_id(),
            experiment=experiment.name,
            experiment_id=experiment.id,
            start_time=self.now_ms(),
        )
