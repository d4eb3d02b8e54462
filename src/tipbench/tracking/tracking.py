"""Tracking: the one door to MLflow, and which MLflow that is."""

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Self
from urllib.parse import urlsplit
from uuid import uuid4

from tipbench.clock import Stamps
from tipbench.errors import TrackingError, TrackingRefused, TrackingUnavailable
from tipbench.records import content_hash
from tipbench.settings import Settings, read_settings
from tipbench.tracking.client import (
    Access,
    AnsweredNo,
    ArtifactsNotServed,
    NoSuchText,
    Pace,
    Rest,
    TimeLimits,
    WrongHost,
    call_patiently,
)
from tipbench.tracking.delivery import (
    Delivery,
    Outbox,
    artifact_names,
    join_artifact,
    proxied_folder,
)
from tipbench.tracking.experiments import Experiments
from tipbench.tracking.journal import journal_folder
from tipbench.tracking.managed.files import managed_folder, managed_name
from tipbench.tracking.managed.server import ManagedFolder
from tipbench.tracking.registry import Registry
from tipbench.tracking.runs import (
    Experiment,
    ImportMark,
    ListedFiles,
    ManyExperiments,
    OneRun,
    Run,
    Trace,
    Write,
    prepare_write,
    trace_body,
)
from tipbench.tracking.search import (
    SMALL,
    Reading,
    RunCache,
    TextCache,
    find_newest_runs,
    find_runs,
    open_reading,
)
from tipbench.tracking.touching import overrule_run, tell_stamped
from tipbench.web import check_encrypted, split_credentials

PATIENCE_SECONDS = 60.0
MOST_FOLDERS = 100
"""Of artifacts in one run; ours have three."""


class Tracking:
    """Reads and writes of one MLflow server. `description` is the first line every command prints.

    `server` names the server in journal and cache when its address may change.
    """

    def __init__(
        self,
        rest: Rest,
        *,
        home: Path,
        description: str,
        new_id: Callable[[], str],
        server: str = "",
        pace: Pace | None = None,
    ) -> None:
        self.url = rest.url
        self.description = description
        self._rest = rest
        self._home = home
        self._server = server or rest.url
        self.text_cache = TextCache(home / "cache" / "packs")
        self._experiments = Experiments(rest, locks=home / "locks", new_id=new_id)
        self._new_id = new_id
        self._pace = pace or Pace()

    @cached_property
    def registry(self) -> Registry:
        """MLflow's registry of prompts."""
        return Registry(self._rest)

    @cached_property
    def _outbox(self) -> Outbox:
        # Made by the first write: who only reads leaves the journal alone.
        return Outbox(
            self._rest,
            folder=journal_folder(self._home, self._server),
            server=self._server,
            new_id=self._new_id,
            pace=self._pace,
        )

    def ensure_experiment(self, name: str) -> Experiment:
        """The experiment of that name, made if there is none.

        Raises:
            TrackingRefused: it was deleted in MLflow, or the name cannot be one.
        """
        return self._experiments.ensure(name)

    def seek_experiment(self, name: str) -> Experiment | None:
        """The experiment of that name; None where there is none of ours: that is no mistake of anybody's."""
        return self._experiments.seek(name)

    def find_experiment(self, name: str, *, also_foreign: bool = False) -> Experiment:
        """The experiment of that name; one that another program made only if `also_foreign`.

        Raises:
            ExperimentNotFound: there is none; the hint names similar ones.
        """
        return self._experiments.find(name, also_foreign=also_foreign)

    def find_foreign(self, name: str) -> Experiment:
        """The experiment of that name that another program made.

        Raises:
            ExperimentNotFound: there is none, or it is ours.
        """
        return self._experiments.find_foreign(name)

    def list_experiments(self, *, also_named: str = "") -> list[Experiment]:
        """Every experiment that holds something of ours, by name; and those whose name begins so."""
        return self._experiments.list_all(also_named=also_named)

    def begin_import(self, name: str, mark: ImportMark) -> Experiment | None:
        """The experiment that a file is brought into: new, or begun before with the same one.

        None where the name is taken. Nobody else sees it before `finish_import`.
        """
        return self._experiments.begin_import(name, mark)

    def finish_import(self, experiment: Experiment) -> None:
        """Makes an import the experiment that it is of, in one step."""
        self._experiments.finish_import(experiment)

    def read_runs(self, experiment: Experiment, *, fresh: bool = False) -> list[Run]:
        """All runs of ours, oldest first; only what changed since last time is asked for, unless `fresh`.

        Raises:
            NewerSchema: one of them was written by a newer tipbench.
        """
        return self.open_reading(experiment, fresh=fresh).runs

    def open_reading(self, experiment: Experiment, *, fresh: bool = False) -> Reading:
        """The same, loaded when they are asked for: what was made of them may be kept already."""
        path = self._home / "cache" / f"{content_hash([self._server, experiment.uid])}.db"
        return open_reading(self._rest, experiment, cache=RunCache(path), fresh=fresh)

    def fill_cache(self, experiment: Experiment, *, runs: int) -> None:
        """Reads what was just stored, so that the next read asks for next to nothing; `runs` are there now.

        A small experiment is read whole every time: it has no use for it.
        """
        if runs > SMALL:
            self.open_reading(experiment)

    def search_runs(
        self,
        experiment_ids: Sequence[str],
        filter: str = "",  # noqa: A002 - MLflow's own word
        view: str = "ACTIVE_ONLY",
    ) -> list[Run]:
        """The runs that match an MLflow filter, oldest first."""
        return find_runs(self._rest, experiment_ids, where=filter, view=view)

    def search_newest_runs(self, experiment_ids: Sequence[str], filter: str, *, most: int) -> list[Run]:  # noqa: A002
        """The newest runs that match an MLflow filter, at most so many, newest first: one request."""
        return find_newest_runs(self._rest, experiment_ids, where=filter, most=most)

    def read_run(self, run_id: str) -> Run:
        """One run as it is now.

        Raises:
            TrackingRefused: there is none.
        """
        query = {"run_id": run_id}
        return call_patiently(lambda: self._rest.get("runs/get", OneRun, query=query)).run.to_run()

    def read_artifact(self, run: Run, path: str) -> str:
        """A text of the run.

        Raises:
            NoSuchText: the run has no such text.
        """
        folder = proxied_folder(run.artifact_uri, url=self.url)
        refusal: TrackingRefused | None = None
        if folder is not None:
            try:
                return call_patiently(lambda: self._rest.get_artifact(f"{folder}/{path}"))
            except (AnsweredNo, ArtifactsNotServed) as error:
                refusal = error
        text = join_artifact(run.tags, path)
        if text is None:
            raise NoSuchText(
                f"run {run.run_id} has no text {path!r}",
                hint=f"Its artifacts are at {run.artifact_uri}; were they deleted?",
            ) from refusal
        return text

    def list_artifacts(self, run: Run) -> list[str]:
        """The names of the run's texts, sorted; also of files that somebody else put there."""
        names = artifact_names(run.tags)
        if proxied_folder(run.artifact_uri, url=self.url) is None:
            return sorted(names)
        folders = [""]
        for _ in range(MOST_FOLDERS):
            if not folders:
                return sorted(names)
            query = {"run_id": run.run_id} | ({"path": folders[-1]} if folders[-1] else {})
            folders.pop()
            answer = call_patiently(lambda q=query: self._rest.get("artifacts/list", ListedFiles, query=q))
            folders += [file.path for file in answer.files if file.is_dir]
            names |= {file.path for file in answer.files if not file.is_dir}
        raise TrackingRefused(f"run {run.run_id} has more than {MOST_FOLDERS} folders of artifacts")

    def submit(self, write: Write) -> None:
        """Returns when the write is safe on disk; it is delivered in the background.

        Raises:
            TrackingRefused: MLflow would refuse or cut it; nothing was sent.
            TrackingError: the journal cannot be written.
        """
        self._outbox.submit(write)

    def deliver(self, write: Write, *, artifact_uri: str = "") -> str:
        """Submits the write and waits for it; gives the run id.

        Whoever has read the run that it changes says where its texts lie: that saves asking for it.

        Raises:
            TrackingUnavailable: the server is away; the write stays in the journal.
            TrackingRefused: the server said no.
        """
        return self._outbox.deliver(write, patience_seconds=PATIENCE_SECONDS, artifact_uri=artifact_uri)

    def deliver_all(self, writes: Sequence[Write]) -> list[str]:
        """Submits the writes, waits for all of them, and gives their run ids.

        Raises:
            TrackingUnavailable: the server is away; what it has not taken stays in the journal.
            TrackingRefused: the server said no to one of them.
        """
        shipments = [self._outbox.submit(write) for write in writes]
        report = self.flush()
        if report.refused:
            raise TrackingRefused(report.refused[0][1])
        if report.left_in_journal:
            why = "".join(f": {note}" for note in report.notes[:1])
            raise TrackingUnavailable(f"{report.left_in_journal} writes wait in the journal{why}")
        return [shipment.promise.result(timeout=0) for shipment in shipments]

    def flush(self, *, patience_seconds: float = PATIENCE_SECONDS) -> Delivery:
        """Waits for everything submitted; gives up after `patience_seconds` without any progress."""
        return self._outbox.flush(patience_seconds=patience_seconds)

    def settle(self, *, patience_seconds: float) -> None:
        """Waits for everything submitted without reporting: the next flush does."""
        self._outbox.settle(patience_seconds=patience_seconds)

    def deliver_left_over(self) -> Delivery:
        """Delivers what earlier processes left in their journals for this server.

        Raises:
            NewerSchema: a newer tipbench left it.
        """
        return self._outbox.deliver_left_over(patience_seconds=PATIENCE_SECONDS)

    def claim(
        self,
        run_id: str,
        key: str,
        value: str,
        *,
        beside: Mapping[str, str] | None = None,
        tags: Mapping[str, str] | None = None,
    ) -> str:
        """Tries to be the first to set a param of the run; gives the value that stands: the winner's.

        `beside` are params and `tags` tags that are set only together with it. Not journaled.

        Raises:
            TrackingRefused: the run does not exist or was deleted.
        """
        params = {key: value, **(beside or {})}
        claim = prepare_write(
            Write(
                attempt="claim-param", experiment="", experiment_id="", params=params, tags=dict(tags or {})
            )
        )
        refusal: AnsweredNo | None = None
        try:
            call_patiently(lambda: tell_stamped(self._rest, run_id, claim))
        except AnsweredNo as error:
            refusal = error
        winner = self.read_run(run_id).params.get(key)
        if winner is None:
            raise refusal or TrackingUnavailable(f"the claim of {key!r} was not stored")
        return winner

    def overrule(
        self,
        run_id: str,
        *,
        metrics: Mapping[str, float],
        tags: Mapping[str, str],
        without_tags: Sequence[str],
    ) -> None:
        """Makes the run show these values whatever others logged there, and takes tags away.

        Not journaled: for what can be computed again.

        Raises:
            TrackingRefused: the run does not exist or was deleted.
        """
        call_patiently(
            lambda: overrule_run(self._rest, run_id, metrics=metrics, tags=tags, without_tags=without_tags)
        )

    def publish_trace(self, trace: Trace) -> None:
        """Shows a judged candidate in MLflow's evaluation views; replaces what was shown of it before.

        Not journaled: it can be published again.
        """
        call_patiently(lambda: self._rest.put_trace(trace_body(trace)))

    def follow_clock(self, stamps: Stamps) -> Stamps:
        """The same ids with the server's clock: what is ordered by time does not depend on this machine's."""
        return replace(stamps, now_ms=lambda: self._rest.now_ms)

    def delete_run(self, run_id: str) -> None:
        """Deletes a run as MLflow does: it can be restored there."""
        call_patiently(lambda: self._rest.tell("runs/delete", {"run_id": run_id}))

    def close(self) -> None:
        """Ends deliveries and connections; what is not delivered stays in the journal."""
        if "_outbox" in vars(self):
            self._outbox.close()
        self._rest.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


# Which MLflow: the one that is set, else the one at the default address, else the managed one.


DEFAULT_URL = "http://localhost:5000"
LOOPBACK = {"127.0.0.1", "::1", "localhost"}


def open_tracking(
    settings: Settings,
    *,
    limits: TimeLimits | None = None,
    pace: Pace | None = None,
    default_url: str = DEFAULT_URL,
) -> Tracking:
    """The MLflow server in force, checked to let us in. Close it after use.

    `limits` and `pace` say how long to wait for it and how often to try again; `default_url` is where one is
    looked for when none is set.

    Raises:
        TrackingError: the server that is set does not answer, is not MLflow or does not let us in;
            or none is set and none can be started here.
    """
    if settings.mlflow_url:
        access = Access(
            host=settings.mlflow_host,
            username=settings.mlflow_username,
            password=settings.mlflow_password,
            token=settings.mlflow_token,
        )
        url, how, name = settings.mlflow_url, "as set", ""
        plain, user, _ = split_credentials(url, setting="the MLflow address")
        if (user or access.username or access.token) and not settings.insecure:
            hint = "Use https, or send it all the same: tipbench --insecure …, or TIPBENCH_INSECURE=true."
            check_encrypted(plain, secret="The credential for MLflow", hint=hint)  # noqa: S106
    elif found := find_default(default_url):
        access, url, how, name = Access(), found, "found there", ""
    else:
        server = open_managed_folder(settings.home).start()
        access, url, how, name = Access(), server.url, "managed here", managed_name(server.server_id)
    rest, version = _enter(url, access, limits, settings.spell("mlflow_url") if how == "as set" else "")
    description = f"MLflow {version} at {rest.url} ({how})"
    return Tracking(rest, home=settings.home, description=description, new_id=_new_id, server=name, pace=pace)


def peek_tracking(settings: Settings, *, limits: TimeLimits | None = None) -> str | None:
    """The description of the server in force; None where one would have to be started first: nothing is.

    Raises:
        TrackingError: the server that is set does not answer, is not MLflow or does not let us in.
    """
    found = settings.mlflow_url or open_managed_folder(settings.home).find() or find_default(DEFAULT_URL)
    if found is None:
        return None
    with open_tracking(settings, limits=limits, default_url=DEFAULT_URL) as tracking:
        return tracking.description


def open_managed_folder(home: Path) -> ManagedFolder:
    """The managed server's folder in this data folder."""
    return ManagedFolder(managed_folder(home), environ=os.environ, new_id=_new_id, report=_tell)


def search_runs(
    experiment: str,
    url: str | None = None,
    *,
    filter: str = "",  # noqa: A002 - MLflow's own word
) -> list[Run]:
    """The runs of an experiment that match an MLflow filter, with their raw numbers, in bulk.

    The experiment may be anybody's: it is only read.

    Raises:
        ExperimentNotFound: there is no such experiment.
        TrackingRefused: MLflow does not understand the filter.
        TrackingError: the server does not answer.
    """
    with open_tracking(read_settings({"mlflow_url": url})) as tracking:
        found = tracking.find_experiment(experiment, also_foreign=True)
        return tracking.search_runs([found.id], filter)


def _enter(url: str, access: Access, limits: TimeLimits | None, given_as: str) -> tuple[Rest, str]:
    """A client that is let in, and the server's version."""
    rest = Rest(url, access=access, limits=limits, given_as=given_as)
    try:
        return rest, _check_entry(rest)
    except WrongHost as refused:
        parts = urlsplit(rest.url)
        if access.host or parts.hostname not in LOOPBACK:
            raise
        # The same machine by the name that most lists of allowed hosts have.
        port = parts.port or (443 if parts.scheme == "https" else 80)
        rest = Rest(url, access=replace(access, host=f"localhost:{port}"), limits=limits, given_as=given_as)
        try:
            return rest, _check_entry(rest)
        except WrongHost:
            raise refused from None


def _check_entry(rest: Rest) -> str:
    """The server's version, after a real call has shown that it lets us in: /version answers everybody."""
    try:
        version = call_patiently(rest.read_version)
        call_patiently(lambda: rest.post("experiments/search", {"max_results": 1}, ManyExperiments))
    except BaseException:
        rest.close()
        raise
    return version


def find_default(url: str) -> str | None:
    """Where an MLflow server is when none is set: at the address, or below it as `--static-prefix` has it."""
    return next((each for each in (url, f"{url}/mlflow") if answers_as_mlflow(each)), None)


def answers_as_mlflow(url: str) -> bool:
    """Whether an MLflow server is there."""
    rest = Rest(url, limits=TimeLimits(connect_seconds=1, call_seconds=3))
    try:
        rest.read_version()
    except TrackingError:
        return False
    finally:
        rest.close()
    return True


def _tell(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def _new_id() -> str:
    return uuid4().hex
