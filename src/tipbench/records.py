"""The nouns: frozen records that cross files, sockets and processes; flags that code computes from a text."""

import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from functools import cached_property
from typing import Annotated, Any, Literal, Protocol

from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, SerializationInfo, WithJsonSchema

from tipbench.clock import format_time

SCHEMA = 1
"""Version of everything we store; older ones stay readable, newer ones are refused."""

Values = Mapping[str, str | tuple[str, ...]]


def content_hash(content: object) -> str:
    """The first 16 hexadecimal digits of SHA-256 over canonical JSON."""
    text = json.dumps(content, sort_keys=True, ensure_ascii=False, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


class Record(BaseModel):
    """Frozen; unknown fields are refused."""

    # Checking is prepared when something is checked: of two hundred records a command needs ten.
    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)


class RequestRecord(Record):
    """What a request brings: address, form or body. FastAPI looks into it before anything is checked."""

    model_config = ConfigDict(defer_build=False)


def _tell_time(ms: int, info: SerializationInfo) -> int | str | None:
    if not info.by_alias:
        return ms
    return format_time(ms) if ms else None


_Told = PlainSerializer(_tell_time, when_used="json")
Moment = Annotated[
    int, _Told, WithJsonSchema({"type": "string", "format": "date-time"}, mode="serialization")
]
"""A time in milliseconds. Over the API, where fields go by their aliases, it is ISO 8601 with its zone."""
MaybeMoment = Annotated[
    int,
    _Told,
    WithJsonSchema(
        {"anyOf": [{"type": "string", "format": "date-time"}, {"type": "null"}]}, mode="serialization"
    ),
]
"""The same of what may not have come yet: 0 is told as null."""
TimeText = Annotated[str, Field(json_schema_extra={"format": "date-time"})]
"""A time as `format_time` writes it."""


class Scale(Record):
    """One thing a judge scores, in whole numbers from `minimum` to `maximum`."""

    name: str
    minimum: int = 1
    maximum: int = 5
    weight: float = 1.0


class FlagRule(Record):
    """When a flag is set: all given conditions hold. No code, only counts and patterns."""

    min_words: int | None = None
    max_words: int | None = None
    max_sentences: int | None = None
    must_match: tuple[str, ...] = ()
    must_not_match: tuple[str, ...] = ()


class Flag(Record):
    """One thing code can decide about a candidate; a judge may override."""

    name: str
    weight: float
    rule: FlagRule


class Rubric(Record):
    """The pinned scoring guide: scales, flags, composite, and the text a judge reads."""

    name: str
    text: str
    scales: tuple[Scale, ...]
    flags: tuple[Flag, ...]

    @cached_property
    def hash(self) -> str:
        """Of the content."""
        return content_hash(self.model_dump())

    def composite(self, scores: Mapping[str, int], flags: Mapping[str, bool]) -> float:
        """The weighted sum of scores and flags."""
        return self.judged_part(scores) + self.flagged_part(flags)

    def flagged_part(self, flags: Mapping[str, bool]) -> float:
        """What the flags add to it or take off."""
        return sum(flag.weight * flags[flag.name] for flag in self.flags)

    def judged_part(self, scores: Mapping[str, int]) -> float:
        """The composite without the flags: what a judge and not code decides."""
        return sum(scale.weight * scores[scale.name] for scale in self.scales)

    def admits(self, scores: Mapping[str, int], flags: Mapping[str, bool]) -> bool:
        """Whether these are its scales, within their ends, and its flags: what a composite can be made of."""
        return (
            set(scores) == {scale.name for scale in self.scales}
            and all(scale.minimum <= scores[scale.name] <= scale.maximum for scale in self.scales)
            and set(flags) == {flag.name for flag in self.flags}
        )

    @property
    def judged_ends(self) -> tuple[float, float]:
        """The lowest and the highest that the judged part can be."""
        ends = [(scale.weight * scale.minimum, scale.weight * scale.maximum) for scale in self.scales]
        return sum(map(min, ends)), sum(map(max, ends))

    @property
    def lowest(self) -> float:
        """The lowest composite there is: what a failed candidate counts with."""
        return self.judged_ends[0] + sum(min(0.0, flag.weight) for flag in self.flags)

    @property
    def highest(self) -> float:
        """The highest composite there is."""
        return self.judged_ends[1] + sum(max(0.0, flag.weight) for flag in self.flags)


class Scenario(Record):
    """One fixed situation, the same input for every arm."""

    id: str
    set: str
    held_out: bool = False
    values: dict[str, str | tuple[str, ...]]

    @cached_property
    def hash(self) -> str:
        """Of the content, not of the name."""
        return content_hash(self.values)


class Prompt(Record):
    """One version of the prompt template, the whole file; `{{name}}` stands for a scenario's value."""

    name: str
    text: str

    @cached_property
    def hash(self) -> str:
        """Of the content, not of the name."""
        return content_hash(self.text)


Role = Literal["system", "user", "assistant"]
Schema = Mapping[str, Any]
"""A JSON Schema."""


class Turn(Record):
    """What one side says in a chat."""

    role: Role
    text: str


class Chat(Record):
    """What a model is asked: turns, the last of them a user's. With `form`, a JSON Schema, it must fit it."""

    turns: tuple[Turn, ...]
    form: dict[str, Any] | None = None

    @property
    def messages(self) -> list[dict[str, str]]:
        """As engines take them."""
        return [{"role": turn.role, "content": turn.text} for turn in self.turns]

    @property
    def text(self) -> str:
        """As people read it: a single message as it stands, several under their headings."""
        if len(self.turns) == 1:
            return self.turns[0].text
        return "\n\n".join(f"# {turn.role}\n{turn.text}" for turn in self.turns)


def as_chat(prompt: "str | Chat") -> Chat:
    """A text is one user message."""
    return Chat(turns=(Turn(role="user", text=prompt),)) if isinstance(prompt, str) else prompt


class Anchor(Record):
    """An item with known reference scores, hidden in a sitting."""

    id: str
    scenario: str
    text: str
    origin: str
    scores: dict[str, int]
    reason: str


class Pack(Record):
    """What is benched. `files` are the texts it was read from: they are stored with the experiment."""

    name: str
    rubric: Rubric
    scenarios: tuple[Scenario, ...]
    prompts: tuple[Prompt, ...]
    anchors: tuple[Anchor, ...]
    diversity_request: str
    max_tokens: int
    well_formed: str | None = None
    files: dict[str, str] = Field(repr=False)

    @cached_property
    def hash(self) -> str:
        """Of all files."""
        return content_hash(self.files)

    @property
    def format_flag(self) -> str | None:
        """The flag that means well-formed: the one that is named, else `format_ok` if there is one."""
        usual = (flag.name for flag in self.rubric.flags if flag.name == "format_ok")
        return self.well_formed or next(usual, None)


class Sampling(Record):
    """Every sampling option, always sent explicitly: engines differ in their defaults."""

    temperature: float = 0.7
    top_p: float = 0.9
    top_k: int = 40
    min_p: float = 0.0
    repeat_penalty: float = 1.0
    max_tokens: int = 512

    def for_ollama(self) -> dict[str, float]:
        """By Ollama's names: its defaults differ between versions, and model files change them."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "typical_p": 1.0,
            "repeat_penalty": self.repeat_penalty,
            "repeat_last_n": 64,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "num_predict": self.max_tokens,
        }

    def for_openai(self) -> dict[str, float]:
        """By the names of OpenAI-compatible servers; how they call the limit of tokens differs."""
        return {
            "temperature": self.temperature,
            "top_p": self.top_p,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
            "top_k": self.top_k,
            "min_p": self.min_p,
            "repeat_penalty": self.repeat_penalty,
        }


RAW = "/raw"


class Model(Record):
    """A model that an engine offers; `local` when its weights come into this machine's memory.

    `digest` ends with `/raw` where the weights have no chat template: asked otherwise, it is another model.
    """

    name: str
    engine: str
    digest: str
    parameters: int | None
    size_bytes: int
    pinned: bool = True
    local: bool = True
    location: str = ""

    @property
    def raw(self) -> bool:
        """Whether it has no chat template of its own: it is given bare text."""
        return self.digest.endswith(RAW)

    @property
    def billions(self) -> float | None:
        """Parameters in billions to one decimal, as the size limit compares them."""
        return None if self.parameters is None else round(self.parameters / 1e9, 1)


class Generation(Record):
    """What an engine answered to one prompt."""

    text: str
    finish: Literal["stop", "length"]
    prompt_tokens: int
    output_tokens: int
    seconds: float


class Candidate(Record):
    """One slot of a cell: a tip, or why there is none."""

    slot: int
    text: str = ""
    flags: dict[str, bool] = Field(default_factory=dict)
    failure: str = ""

    @property
    def answered(self) -> bool:
        """Whether there is a text to judge."""
        return not self.failure


class Options(Record):
    """What every cell of an experiment is asked with: the same for all arms, or they cannot be compared."""

    sampling: Sampling
    n_tips: int
    diversity: bool
    seed: int

    @cached_property
    def hash(self) -> str:
        """Of the content."""
        return content_hash(self.model_dump())


class CellFacts(Record):
    """What is known of a stored cell without opening its texts. `slots` has one letter per candidate."""

    key: str
    model: str
    engine: str
    model_digest: str
    pinned: bool
    prompt: str
    prompt_hash: str
    scenario: str
    scenario_hash: str
    options_hash: str
    rubric: str
    rubric_hash: str
    pack_hash: str
    judge_kind: str
    slots: str

    @property
    def arm(self) -> str:
        """One model asked with one prompt."""
        return f"{self.model}+{self.prompt}"


class HasFacts(Protocol):
    """A cell, wherever it is stored."""

    @property
    def facts(self) -> CellFacts:
        """What is known of it."""
        ...


class ChampionArm(Record):
    """An arm with everything that is needed to ask it again."""

    pack: str
    pack_hash: str
    model: str
    engine: str
    model_digest: str
    pinned: bool
    prompt: str
    template: str
    diversity_request: str
    options: Options

    @property
    def raw(self) -> bool:
        """Whether its model has no chat template and is given bare text."""
        return self.model_digest.endswith(RAW)

    @property
    def name(self) -> str:
        """As the leaderboard writes it."""
        return f"{self.model}+{self.prompt}"

    @cached_property
    def hash(self) -> str:
        """Of all that makes its answers; the seed is not part of an arm, nor what else is in the pack."""
        content = self.model_dump(exclude={"pack_hash": True, "options": {"seed"}})
        return content_hash(content)

    def name_in(self, cells: Iterable[HasFacts], *, diversity_request: str) -> str:
        """What an experiment calls the arm, empty if it has no cell of it.

        The weights and the prompt count, not their names.
        """
        prompts = {content_hash(self.template), content_hash([self.template, diversity_request])}
        names = {
            cell.facts.arm
            for cell in cells
            if cell.facts.model_digest == self.model_digest and cell.facts.prompt_hash in prompts
        }
        return min(names, default="")


ANSWERED, FAILED = "a", "f"
"""The letters of `CellFacts.slots`."""

Drawn = Literal["block", "all", "spot", "second", "cell", "repeat"]
"""How the items of a sitting were drawn; `cell`: none were, another program had whole cells judged."""
AGENT = "claude-code-session"
"""How a coding agent signs that says nothing else: over MCP, and in the commands that it is told to run."""
LAZY_KINDS = ("claude-code", "human")


class Verdict(Record):
    """What one judge said of one candidate; a failed candidate that was drawn has no scores."""

    slot: int
    block: int
    drawn: Drawn = "block"
    failed: bool = False
    scores: dict[str, int] = Field(default_factory=dict)
    flags: dict[str, bool] = Field(default_factory=dict)
    shared: str = Field(default="", exclude=True)
    """Equal texts were one item: the same mark on every verdict of the sitting that was said once. Where the
    judge had met the text in an earlier sitting, its token and a slash come before the mark. Kept beside the
    packed verdicts, not in them: readers that know nothing of it read verdicts."""


# What a doctor finds out about one part.


class Finding(Record):
    """What was found out about one part; `needed` parts decide the exit code."""

    part: str
    ok: bool
    says: str
    to_do: str = ""
    needed: bool = True


# Flags: what code can decide about a candidate, by counting and by patterns.

_WORD = re.compile(r"\w+(?:['’]\w+)*")
_SENTENCE_END = re.compile(r"[.!?…]+[\"'”’)\]*_]*(?=\s|$)")


def count_words(text: str) -> int:
    """How many parts between blanks hold a letter or a digit: `to-do` is one word, `–` is none."""
    return sum(any(character.isalnum() for character in part) for part in text.split())


def count_sentences(text: str) -> int:
    """How many ends of sentences there are (`.`, `!`, `?`, `…` before a blank), plus an open rest."""
    ends = list(_SENTENCE_END.finditer(text))
    rest = text[ends[-1].end() :] if ends else text
    return len(ends) + (count_words(rest) > 0)


def list_words(text: str) -> list[str]:
    """The words of a text in order, lower-cased."""
    return _WORD.findall(text.lower())


def word_set(text: str) -> frozenset[str]:
    """The different words of a text, lower-cased."""
    return frozenset(list_words(text))


def obeys(text: str, rule: FlagRule) -> bool:
    """Whether all conditions of the rule hold; patterns are searched anywhere in the text."""
    words = count_words(text)
    return (
        (rule.min_words is None or words >= rule.min_words)
        and (rule.max_words is None or words <= rule.max_words)
        and (rule.max_sentences is None or count_sentences(text) <= rule.max_sentences)
        and all(re.search(pattern, text) for pattern in rule.must_match)
        and not any(re.search(pattern, text) for pattern in rule.must_not_match)
    )


def compute_flags(text: str, rubric: Rubric) -> dict[str, bool]:
    """Every flag of the rubric for this text."""
    return {flag.name: obeys(text, flag.rule) for flag in rubric.flags}
