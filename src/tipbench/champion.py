"""The champion as an application uses it: what to send for a scenario, and the tips in the answer.

Nothing here renders or cuts by itself: a question is a cell of the grid, an answer is cut as collect cuts it.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Literal, cast

from pydantic import ConfigDict, Field, ValidationError

from tipbench.clock import format_time
from tipbench.collect.candidates import parse_candidates
from tipbench.errors import (
    ExperimentNotFound,
    NewerSchema,
    NoChampion,
    TipbenchError,
    TrackingError,
    TrackingUnavailable,
    UsageError,
)
from tipbench.files import write_whole
from tipbench.grid import Cell
from tipbench.pack import answer_schema, parse_pack, read_parts
from tipbench.pack.check import ALWAYS, PLACEHOLDER
from tipbench.pack.prompts import PromptParts
from tipbench.records import (
    SCHEMA,
    ChampionArm,
    Model,
    Options,
    Pack,
    Prompt,
    Record,
    Rubric,
    Scenario,
    Schema,
    content_hash,
)

if TYPE_CHECKING:
    from tipbench.bench.champions import Promotion
    from tipbench.tracking import Tracking

FieldKind = Literal["text", "list"]
Fields = Mapping[str, str | Sequence[str]]
"""A scenario as an application has it: texts, and lists of texts."""
NO_RUBRIC = Rubric(name="", text="", scales=(), flags=())
SAVE_AGAIN = "Make it again: tipbench champion --save FILE"


class ChampionFile(Record):
    """What `champion --save` writes and `GET /api/bench/champion/PACK` answers. `hash` is of all the rest.

    `fields` are the fields of the pack's scenarios; empty where the pack is not stored any more.
    """

    kind: Literal["champion"] = "champion"
    tipbench_schema: int = SCHEMA
    hash: str = ""
    arm: ChampionArm
    fields: dict[str, FieldKind] = Field(default_factory=dict[str, FieldKind])
    version: int | None = None
    how: str = ""
    since: str = ""
    experiment: str = ""
    promotion_run: str = ""

    def sealed(self) -> "ChampionFile":
        """The same with its hash."""
        return self.model_copy(update={"hash": self._content()})

    @property
    def is_whole(self) -> bool:
        """Whether the hash is that of the content."""
        return self.hash == self._content()

    def _content(self) -> str:
        return content_hash(self.model_dump(mode="json", exclude={"hash"}))


class Champion:
    """The arm in use. `render`, `messages` and the options are what was benched; it keeps no connection."""

    def __init__(self, stored: ChampionFile) -> None:
        self.stored = stored

    @property
    def pack(self) -> str:
        return self.stored.arm.pack

    @property
    def model(self) -> str:
        return self.stored.arm.model

    @property
    def model_digest(self) -> str:
        """The weights that were benched: compare it with those that you run."""
        return self.stored.arm.model_digest

    @property
    def engine(self) -> str:
        return self.stored.arm.engine

    @property
    def prompt(self) -> str:
        """The name of the prompt."""
        return self.stored.arm.prompt

    @property
    def options(self) -> Options:
        """Sampling, how many tips are asked for, whether they shall differ, and the grid's seed."""
        return self.stored.arm.options

    @property
    def fields(self) -> dict[str, FieldKind]:
        """What a scenario consists of: the pack's fields, else those that the prompt asks for."""
        return self.stored.fields or dict.fromkeys(sorted(self._asked_for), "text")

    def render(self, scenario: Scenario | Fields) -> str:
        """The text that the bench would send for this scenario, byte by byte; several turns under headings.

        Raises:
            UsageError: a field is missing, unknown, empty, or not of its kind.
        """
        return self._cell(scenario).text

    def messages(self, scenario: Scenario | Fields) -> list[dict[str, str]]:
        """The same as the messages of a chat: what the engines of the bench send.

        Raises:
            UsageError: a field is wrong, or the model has no chat template and was sent bare text.
        """
        if self.stored.arm.raw:
            raise UsageError(
                f"{self.model!r} has no chat template: it was benched with bare text, not with messages",
                hint='Send render(scenario) without a template: Ollama\'s /api/generate with "raw": true.',
            )
        return self._cell(scenario).question.messages

    @property
    def form(self) -> Schema | None:
        """The JSON Schema that the bench held its answers to; None where it asked for a list."""
        return answer_schema(self.options) if self._parts.form == "json" else None

    def seed(self, scenario: Scenario | Fields) -> int:
        """The bench's seed for this scenario; another one gives other tips of the same quality."""
        return self._cell(scenario).seed

    def ollama_options(self, scenario: Scenario | Fields) -> dict[str, float]:
        """`options` of a request to Ollama."""
        return {**self.options.sampling.for_ollama(), "seed": self.seed(scenario)}

    @property
    def ollama_form(self) -> dict[str, Schema]:
        """What a request to Ollama has beside them: `format`, where the answer has a form."""
        return {} if self.form is None else {"format": self.form}

    def openai_options(self, scenario: Scenario | Fields) -> dict[str, object]:
        """Fields of a request to an OpenAI-compatible server; leave out what it does not take."""
        sampling = self.options.sampling
        options = {**sampling.for_openai(), "max_tokens": sampling.max_tokens, "seed": self.seed(scenario)}
        if self.form is None:
            return {**options}
        schema = {"name": "answer", "strict": True, "schema": self.form}
        return {**options, "response_format": {"type": "json_schema", "json_schema": schema}}

    def parse(self, answer: str) -> list[str]:
        """The tips of an answer as the bench cuts them: at most as many as were asked for."""
        form = "json" if self._parts.form == "json" else "list"
        found = parse_candidates(answer, n_tips=self.options.n_tips, rubric=NO_RUBRIC, form=form)
        return [candidate.text for candidate in found if candidate.answered]

    def to_json(self) -> str:
        """As it is stored in a file."""
        return self.stored.model_dump_json(indent=1) + "\n"

    def save(self, file: str | Path) -> None:
        """Writes the file that `open_champion(file=…)` reads, in one step.

        Raises:
            TipbenchError: the place cannot be written; what stood there is as it was.
        """
        try:
            write_whole(Path(file), self.to_json())
        except OSError as error:
            raise TipbenchError(
                f"{str(file)!r} cannot be written: {error.strerror}", hint="Choose another file."
            ) from error

    @property
    def _parts(self) -> PromptParts:
        return read_parts(self.stored.arm.template)

    @property
    def _asked_for(self) -> set[str]:
        return {found[1] for found in PLACEHOLDER.finditer(self.stored.arm.template)} - set(ALWAYS)

    def _cell(self, scenario: Scenario | Fields) -> Cell:
        arm = self.stored.arm
        # Of a pack a question needs the request for diversity alone.
        prompt = Prompt(name=arm.prompt, text=arm.template)
        pack = Pack(
            name=arm.pack,
            rubric=NO_RUBRIC,
            scenarios=(),
            prompts=(prompt,),
            anchors=(),
            diversity_request=arm.diversity_request,
            max_tokens=arm.options.sampling.max_tokens,
            files={},
        )
        model = Model(
            name=arm.model, engine=arm.engine, digest=arm.model_digest, parameters=None, size_bytes=0
        )
        return Cell(pack, model, prompt, self._check(scenario), arm.options)

    def _check(self, scenario: Scenario | Fields) -> Scenario:
        given = scenario.values if isinstance(scenario, Scenario) else scenario
        problems = [f"{name!r} is missing" for name in sorted(self._asked_for - given.keys())]
        known = self.stored.fields
        for name, value in given.items():
            if known and name not in known:
                problems.append(f"{name!r} is no field of the pack")
            elif trouble := _find_trouble(value, known.get(name)):
                problems.append(f"{name!r} is {value!r:.80}: {trouble}")
        if problems:
            listed = ", ".join(f"{name} ({kind})" if known else name for name, kind in self.fields.items())
            raise UsageError(
                f"a scenario of {self.pack!r} cannot be rendered: {'; '.join(problems)}",
                hint=f"Its fields are: {listed}",
            )
        values = {k: v if isinstance(v, str) else tuple(v) for k, v in given.items()}
        return Scenario(id="given", set="given", values=values)


def _find_trouble(value: object, kind: FieldKind | None) -> str:
    """What is wrong with the value of a field; a text where the bench had a list is another prompt."""
    if isinstance(value, str):
        if kind == "list":
            return "give a list of texts"
        return "" if value.strip() else "fill it"
    if kind == "text" or not isinstance(value, (list, tuple)):
        return "give a text" if kind else "give a text or a list of texts"
    items = cast(Sequence[object], value)
    if not items or not all(isinstance(item, str) and item.strip() for item in items):
        return "give a list of texts, none of them empty"
    return ""


def open_champion(
    pack: str = "tip", *, file: str | Path | None = None, mlflow_url: str | None = None
) -> Champion:
    """The champion of the pack, from MLflow; or the one in a file, without MLflow. It only reads.

    Raises:
        NoChampion: the pack has none.
        TrackingError: MLflow is not reached.
        UsageError: the file is not there, or is not a champion's.
        NewerSchema: a newer tipbench made the file.
    """
    if file is not None:
        return _read_file(Path(file))
    from tipbench.settings import read_settings  # noqa: PLC0415 - a file needs no settings and no MLflow
    from tipbench.tracking import open_tracking  # noqa: PLC0415

    with open_tracking(read_settings({"mlflow_url": mlflow_url})) as tracking:
        return open_champion_on(tracking, pack)


def open_champion_on(tracking: "Tracking", pack: str) -> Champion:
    """The champion that is in force there.

    Raises:
        NoChampion: the pack has none.
        TrackingError: what is recorded of it was deleted or edited.
    """
    from tipbench.promotion.succession import read_in_force  # noqa: PLC0415 - a file needs no MLflow

    found = read_in_force(tracking, pack)
    if found is None:
        raise NoChampion(pack)
    facts, run = found.promotion.facts, found.promotion.run
    stored = ChampionFile(
        arm=found.arm,
        fields=open_fields(tracking, found.promotion, found.arm),
        version=found.version,
        how=facts.how,
        since=format_time(run.start_time),
        experiment=facts.experiment,
        promotion_run=run.run_id,
    )
    return Champion(stored.sealed())


def open_fields(tracking: "Tracking", promotion: "Promotion", arm: ChampionArm) -> dict[str, FieldKind]:
    """The fields of the scenarios that it was benched with; none where its pack was deleted since."""
    from tipbench.bench.packs import read_stored_pack  # noqa: PLC0415 - a file needs no MLflow

    try:
        experiment = tracking.find_experiment(promotion.facts.experiment)
        files = read_stored_pack(experiment, arm.pack_hash, tracking=tracking)
    except TrackingUnavailable:
        raise
    except (ExperimentNotFound, TrackingError):
        return {}
    kinds: dict[str, FieldKind] = {}
    for scenario in parse_pack(files).scenarios:
        for name, value in scenario.values.items():
            kinds[name] = "text" if isinstance(value, str) else "list"
    return kinds


def _read_file(path: Path) -> Champion:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error}", hint=SAVE_AGAIN) from error
    return Champion(parse_champion(text, where=str(path)))


class _Schema(Record):
    """Of a file all else may be newer than we are."""

    model_config = ConfigDict(extra="ignore")

    kind: Literal["champion"]
    tipbench_schema: int


def parse_champion(text: str, *, where: str) -> ChampionFile:
    """What stands in a champion's file.

    Raises:
        UsageError: it is no such file, or it was edited.
        NewerSchema: a newer tipbench made it.
    """
    try:
        schema = _Schema.model_validate_json(text).tipbench_schema
        if schema > SCHEMA:
            raise NewerSchema(
                f"{where!r} has schema {schema}; this tipbench knows {SCHEMA}", hint="Upgrade tipbench."
            )
        found = ChampionFile.model_validate_json(text)
    except ValidationError as error:
        raise UsageError(f"{where!r} is not a champion's file", hint=SAVE_AGAIN) from error
    if not found.is_whole:
        raise UsageError(f"{where!r} was edited: its hash is not that of its content", hint=SAVE_AGAIN)
    return found
