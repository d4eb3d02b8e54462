"""MLflow's prompt registry: one entry per pack, one version per arm, an alias on the champion's."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pydantic import Field

from tipbench.tracking.client import AnsweredNo, Rest, call_patiently
from tipbench.web import Reply

PROMPT_TAG = {"mlflow.prompt.is_prompt": "true"}
"""What makes a registered model a prompt."""
TEXT_TAG = "mlflow.prompt.text"
TYPE_TAG = "_mlflow_prompt_type"
ANSWER_TAG = "_mlflow_prompt_response_format"
SETTINGS_TAG = "_mlflow_prompt_model_config"
MOST_VERSIONS = 10_000
_GONE = "RESOURCE_DOES_NOT_EXIST"
_THERE = "RESOURCE_ALREADY_EXISTS"


class _Tag(Reply):
    key: str
    value: str = ""


class _AliasAnswer(Reply):
    alias: str
    version: int


class _EntryAnswer(Reply):
    name: str
    tags: list[_Tag] = Field(default_factory=list[_Tag])
    aliases: list[_AliasAnswer] = Field(default_factory=list[_AliasAnswer])


class _OneEntry(Reply):
    registered_model: _EntryAnswer


class _VersionAnswer(Reply):
    version: int
    tags: list[_Tag] = Field(default_factory=list[_Tag])

    def to_version(self) -> "PromptVersion":
        return PromptVersion(self.version, {tag.key: tag.value for tag in self.tags})


class _ManyVersions(Reply):
    model_versions: list[_VersionAnswer] = Field(default_factory=list[_VersionAnswer])
    next_page_token: str = ""


@dataclass(frozen=True)
class RegistryEntry:
    """One prompt of the registry."""

    name: str
    tags: Mapping[str, str]
    aliases: Mapping[str, int]


@dataclass(frozen=True)
class PromptTemplate:
    """What a version holds in MLflow's own form: one text, or the messages of a chat; what it answers with.

    Double braces are the variables. `answer_schema` is a JSON Schema, or nothing. `model_settings` are by
    MLflow's names: provider, model_name, temperature, …
    """

    template: str | Sequence[Mapping[str, str]]
    answer_schema: Mapping[str, object] | None = None
    model_settings: Mapping[str, object] | None = None

    @property
    def text(self) -> str:
        """As the registry keeps it."""
        return self.template if isinstance(self.template, str) else json.dumps(list(self.template))

    @property
    def tags(self) -> dict[str, str]:
        """All that MLflow's own client would write."""
        kind = "text" if isinstance(self.template, str) else "chat"
        form = {} if self.answer_schema is None else {ANSWER_TAG: json.dumps(self.answer_schema)}
        model = {} if self.model_settings is None else {SETTINGS_TAG: json.dumps(self.model_settings)}
        return {**PROMPT_TAG, TEXT_TAG: self.text, TYPE_TAG: kind, **form, **model}


@dataclass(frozen=True)
class PromptVersion:
    """One version of it."""

    number: int
    tags: Mapping[str, str] = field(repr=False)

    @property
    def text(self) -> str:
        """The template as it is kept now; anybody may have edited it in MLflow."""
        return self.tags.get(TEXT_TAG, "")


class Registry:
    """The prompts of one server."""

    def __init__(self, rest: Rest) -> None:
        self._rest = rest

    def find_entry(self, name: str) -> RegistryEntry | None:
        """The entry of that name with its aliases."""
        try:
            answer = call_patiently(
                lambda: self._rest.get("registered-models/get", _OneEntry, query={"name": name})
            )
        except AnsweredNo as error:
            if error.code == _GONE:
                return None
            raise
        found = answer.registered_model
        return RegistryEntry(
            name=found.name,
            tags={tag.key: tag.value for tag in found.tags},
            aliases={each.alias: each.version for each in found.aliases},
        )

    def create_entry(self, name: str, *, tags: Mapping[str, str]) -> None:
        """Makes the entry, unless there is one: the first one's tags stand. Read it afterwards."""
        body = {"name": name, "tags": _pairs({**PROMPT_TAG, **tags})}
        try:
            call_patiently(lambda: self._rest.tell("registered-models/create", body))
        except AnsweredNo as error:
            if error.code != _THERE:
                raise

    def tag_entry(self, name: str, key: str, value: str) -> None:
        """Sets a tag of the entry."""
        body = {"name": name, "key": key, "value": value}
        call_patiently(lambda: self._rest.tell("registered-models/set-tag", body))

    def list_versions(self, name: str) -> list[PromptVersion]:
        """All versions of the entry, the first one first."""
        query = {
            "filter": f"name='{name}' AND tags.`mlflow.prompt.is_prompt` = 'true'",
            "max_results": str(MOST_VERSIONS),
        }
        answer = call_patiently(lambda: self._rest.get("model-versions/search", _ManyVersions, query=query))
        return sorted((each.to_version() for each in answer.model_versions), key=lambda found: found.number)

    def ensure_version(
        self, name: str, prompt: PromptTemplate, *, mark: tuple[str, str], tags: Mapping[str, str]
    ) -> int:
        """The number of the first version with this template and this mark, a tag; made if there is none.

        All tags go into the create, and nothing is edited later. A create whose answer was lost is found by
        its mark before it is repeated.
        """
        key, value = mark
        full = {**prompt.tags, key: value, **tags}

        def find_or_create() -> int:
            for version in self.list_versions(name):
                if version.tags.get(key) == value and version.text == prompt.text:
                    return version.number
            body = {"name": name, "source": "prompt-template", "tags": _pairs(full)}
            self._rest.tell("model-versions/create", body)
            return 0

        # Read back: of two that were made at once both take the first.
        return call_patiently(find_or_create) or call_patiently(find_or_create)

    def point_alias(self, name: str, alias: str, version: int) -> bool:
        """Moves the alias; False when the version is gone."""
        body = {"name": name, "alias": alias, "version": str(version)}
        try:
            call_patiently(lambda: self._rest.tell("registered-models/alias", body))
        except AnsweredNo as error:
            if error.code == _GONE:
                return False
            raise
        return True


def _pairs(values: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in values.items()]
