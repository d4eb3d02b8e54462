"""The job store of a data folder, as settings have it."""

from tipbench.errors import UsageError
from tipbench.jobs import outbox, store
from tipbench.jobs.database import FILE_NAME, Database
from tipbench.jobs.outbox import Outbox, Webhooks, parse_urls
from tipbench.jobs.store import JobStore
from tipbench.settings import Settings
from tipbench.tracking.stamps import Stamps

TABLES = store.TABLES + outbox.TABLES


def open_jobs(settings: Settings, stamps: Stamps, *, more_tables: str = "") -> JobStore:
    """The jobs of the data folder; `more_tables` are those of others in the same file.

    Raises:
        UsageError: webhooks are set without a secret.
    """
    urls = tuple(parse_urls(settings.webhook_urls))
    if urls and not settings.webhook_secret:
        raise UsageError(
            "webhook_urls is set without webhook_secret",
            hint="Set TIPBENCH_WEBHOOK_SECRET to a long random text.",
        )
    database = Database(settings.home / FILE_NAME, TABLES + more_tables)
    webhooks = Webhooks(urls, settings.webhook_secret or "")
    return JobStore(database, settings.home / "jobs", Outbox(webhooks, stamps.now_ms, stamps.new_id))
