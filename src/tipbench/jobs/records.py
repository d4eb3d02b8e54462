"""Jobs: a phase, or several one after the other, run in the background."""

from typing import Literal

from tipbench.errors import UsageError
from tipbench.records import Record

Kind = Literal["collect", "judge", "pipeline", "improve", "simulate"]
State = Literal["queued", "running", "waiting", "done", "failed", "cancelled"]
Where = Literal["local", "airflow"]
ENDED: frozenset[State] = frozenset({"done", "failed", "cancelled"})


class NotThere(UsageError):
    """Nothing of that name or number."""


class Step(Record):
    """One command, as the arguments of `tipbench`; exit codes in `passing` let the job go on.

    A step without arguments waits, with no process, until judging of the experiment is done.
    """

    name: str
    arguments: tuple[str, ...] = ()
    passing: tuple[int, ...] = (0,)

    @property
    def waits(self) -> bool:
        """Whether there is nothing to run."""
        return not self.arguments


class Job(Record):
    """A job as the database has it; `step` counts the steps that are behind it. Times are milliseconds."""

    id: str
    kind: Kind
    experiment: str
    by: str
    steps: tuple[Step, ...]
    step: int
    state: State
    created_ms: int
    started_ms: int | None = None
    ended_ms: int | None = None
    cancel_ms: int | None = None
    group: int | None = None
    exit_code: int | None = None
    message: str = ""
    launcher: Where = "local"

    @property
    def ended(self) -> bool:
        """Whether nothing more comes."""
        return self.state in ENDED
