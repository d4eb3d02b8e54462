"""The experiments of one server: found by name, made once, told apart by a random id."""

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path

from tipbench.errors import ExperimentNotFound, TrackingRefused
from tipbench.files import hold_lock
from tipbench.records import content_hash
from tipbench.tracking.client import AnsweredNo, Rest, call_patiently, stranger
from tipbench.tracking.runs import (
    EXPERIMENT_TAG,
    IMPORT_TAG,
    Experiment,
    ExperimentAnswer,
    ImportMark,
    ManyExperiments,
    Nothing,
    OneExperiment,
)

MOST_PAGES = 100
"""A page holds 10,000 experiments."""


class Experiments:
    """The experiments of one server."""

    def __init__(self, rest: Rest, *, locks: Path, new_id: Callable[[], str]) -> None:
        self._rest = rest
        self._locks = locks
        self._new_id = new_id

    def ensure(self, name: str) -> Experiment:
        """The experiment of that name, made if there is none.

        Raises:
            TrackingRefused: it was deleted in MLflow, or the name cannot be one.
        """
        with hold_lock(self._locks / f"{content_hash([self._rest.url, name])}.lock"):
            return call_patiently(lambda: self._find_or_create(name))

    def seek(self, name: str) -> Experiment | None:
        """The experiment of that name; None where there is none of ours, and nobody has to be told more."""
        found = call_patiently(lambda: self._look_up(name))
        return experiment if found is not None and (experiment := _active(found)).uid else None

    def find(self, name: str, *, also_foreign: bool = False) -> Experiment:
        """The experiment of that name; one that holds nothing of ours only if `also_foreign`.

        Raises:
            ExperimentNotFound: there is none; the hint names similar ones.
        """
        found = call_patiently(lambda: self._look_up(name))
        if found is not None and ((experiment := _active(found)).uid or also_foreign):
            return experiment
        names = [experiment.name for experiment in self.list_all()]
        similar = get_close_matches(name, names, n=5, cutoff=0.4) or names[:5]
        what = "holds nothing of tipbench" if found else "does not exist"
        raise ExperimentNotFound(
            f"experiment {name!r} {what} on {self._rest.url}",
            hint=(f"Did the original make it? tipbench import --experiment {name!r}. " if found else "")
            + (f"Available: {', '.join(similar)}" if similar else "Make one with: tipbench collect"),
        )

    def find_foreign(self, name: str) -> Experiment:
        """The experiment of that name that another program made.

        Raises:
            ExperimentNotFound: there is none, or it is ours.
        """
        found = call_patiently(lambda: self._look_up(name))
        if found is None:
            return self.find(name)
        if (experiment := _active(found)).uid:
            raise ExperimentNotFound(f"experiment {name!r} is tipbench's own on {self._rest.url}")
        return experiment

    def list_all(self, *, also_named: str = "") -> list[Experiment]:
        """Every experiment that holds something of ours, by name; and those whose name begins so."""
        found = self._search(f"tags.`{EXPERIMENT_TAG}` LIKE '%'")
        if also_named:
            found += [each for each in self._search(f"name LIKE '{also_named}%'") if not each.uid]
        return sorted(found, key=lambda experiment: experiment.name)

    def begin_import(self, name: str, mark: ImportMark) -> Experiment | None:
        """The experiment that a file is brought into: new, or begun before with the same one.

        None where the name is taken. Until `finish_import` nobody else sees it: it has no random id yet.
        """
        with hold_lock(self._locks / f"{content_hash([self._rest.url, name])}.lock"):
            found = call_patiently(lambda: self._look_up(name))
            if found is None:
                call_patiently(lambda: self._create(name, IMPORT_TAG, mark.model_dump_json()))
                found = call_patiently(lambda: self._look_up(name))
        if found is None or found.lifecycle_stage == "deleted" or not found.is_half_imported:
            return None
        experiment = found.to_experiment()
        return experiment if experiment.imported == mark else None

    def finish_import(self, experiment: Experiment) -> None:
        """Makes it an experiment like others, in one step."""
        call_patiently(lambda: self._name(experiment))

    def _search(self, where: str) -> list[Experiment]:
        found: list[Experiment] = []
        token = ""
        seen = {token}
        while len(seen) <= MOST_PAGES:
            body = {"max_results": 10_000, "filter": where, **({"page_token": token} if token else {})}
            answer = call_patiently(
                lambda body=body: self._rest.post("experiments/search", body, ManyExperiments)
            )
            found += [each.to_experiment() for each in answer.experiments if not each.is_half_imported]
            token = answer.next_page_token
            if not token:
                return found
            if token in seen:
                raise stranger(self._rest.url, saw="the same page of experiments again and again")
            seen.add(token)
        raise stranger(self._rest.url, saw=f"more than {MOST_PAGES} pages of experiments")

    def _find_or_create(self, name: str) -> Experiment:
        found = self._look_up(name)
        if found is None:
            self._create(name, EXPERIMENT_TAG, self._new_id())
            found = self._look_up(name)
        if found is None:
            raise TrackingRefused(f"experiment {name!r} vanished while it was made", hint="Try again.")
        experiment = _active(found)
        if experiment.uid:
            return experiment
        self._name(experiment)
        return self._find_or_create(name)

    def _name(self, experiment: Experiment) -> None:
        self._rest.post(
            "experiments/set-experiment-tag",
            {"experiment_id": experiment.id, "key": EXPERIMENT_TAG, "value": self._new_id()},
            Nothing,
        )

    def _create(self, name: str, tag: str, value: str) -> None:
        tags = [{"key": tag, "value": value}]
        try:
            self._rest.tell("experiments/create", {"name": name, "tags": tags})
        except AnsweredNo as error:
            # Another host was faster: theirs is as good as ours.
            if error.code != "RESOURCE_ALREADY_EXISTS":
                raise

    def _look_up(self, name: str) -> ExperimentAnswer | None:
        try:
            query = {"experiment_name": name}
            return self._rest.get("experiments/get-by-name", OneExperiment, query=query).experiment
        except AnsweredNo as error:
            if error.code == "RESOURCE_DOES_NOT_EXIST":
                return None
            raise


def _active(found: ExperimentAnswer) -> Experiment:
    if found.lifecycle_stage == "deleted":
        raise TrackingRefused(
            f"experiment {found.name!r} was deleted in MLflow",
            hint=f"Restore it (mlflow experiments restore -x {found.experiment_id}), or choose another name.",
        )
    if found.is_half_imported:
        raise TrackingRefused(
            f"the import into experiment {found.name!r} was not finished",
            hint="Run the same `tipbench import FILE` again; or delete the experiment in MLflow.",
        )
    return found.to_experiment()
