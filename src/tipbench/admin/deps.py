"""Everything a server is made of, put together once per process."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from tipbench.admin.cache import Boards
from tipbench.admin.connection import MlflowConnection
from tipbench.admin.health import HealthWatch, open_health
from tipbench.admin.repeats import REPEATS_TABLE, Repeats
from tipbench.admin.sittings import PanelSittings
from tipbench.admin.users import TABLES, Accounts, Credentials, User, note
from tipbench.bench.blindness import LOOKS_TABLE
from tipbench.clock import Stamps
from tipbench.jobs.airflow.launcher import AirflowLauncher, open_launcher
from tipbench.jobs.store import JobStore, open_jobs
from tipbench.settings import Settings


@dataclass(frozen=True)
class Parts:
    """What the routes work with."""

    settings: Settings
    stamps: Stamps
    jobs: JobStore
    accounts: Accounts
    credentials: Credentials
    mlflow: MlflowConnection
    sittings: PanelSittings
    repeats: Repeats
    boards: Boards
    health: HealthWatch
    airflow: AirflowLauncher | None = None
    public_origin: str = ""
    demo: str = ""
    """What a demo shows; empty where it is none."""
    streams: Counter[str] = field(default_factory=Counter[str])
    """How many logs each user follows now."""

    def note(self, user: User, what: str, subject: str, detail: Mapping[str, object] | None = None) -> None:
        """A line of the audit for a change that MLflow holds."""
        with self.jobs.database.change() as change:
            note(change, at_ms=self.stamps.now_ms(), who=user.name, what=what, subject=subject, detail=detail)

    def close(self) -> None:
        """Ends connections and threads."""
        self.boards.close()
        self.mlflow.close()
        if self.airflow is not None:
            self.airflow.airflow.close()


def make_parts(settings: Settings, stamps: Stamps, *, public_origin: str = "", demo: str = "") -> Parts:
    """The parts as the settings have them; MLflow is opened later."""
    jobs = open_jobs(settings, stamps, more_tables=TABLES + LOOKS_TABLE + REPEATS_TABLE)
    accounts = Accounts(jobs.database, stamps)
    mlflow = MlflowConnection(settings, stamps)
    return Parts(
        settings=settings,
        stamps=stamps,
        jobs=jobs,
        accounts=accounts,
        credentials=Credentials(jobs.database, accounts, stamps),
        mlflow=mlflow,
        sittings=PanelSittings(mlflow, jobs.database, jobs.outbox),
        repeats=Repeats(jobs.database, stamps.now_ms),
        boards=Boards(),
        health=open_health(settings, jobs),
        airflow=open_launcher(settings, jobs),
        public_origin=public_origin,
        demo=demo,
    )
