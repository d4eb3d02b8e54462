"""Settings: defaults < tipbench.toml < TIPBENCH_* < flags. Read once, at an entry point."""

import os
import re
import tomllib
from collections.abc import Mapping
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from tipbench.errors import UsageError
from tipbench.run_keys import RUN_KEYS

FILE_NAME = "tipbench.toml"
ADMIN_DATABASE = "admin.db"
"""In the data folder: what is no evaluation fact."""
STANDARD_VARIABLES = {
    "mlflow_url": "MLFLOW_TRACKING_URI",
    "mlflow_username": "MLFLOW_TRACKING_USERNAME",
    "mlflow_password": "MLFLOW_TRACKING_PASSWORD",
    "mlflow_token": "MLFLOW_TRACKING_TOKEN",
}
"""Variables of MLflow's own client; ours (`TIPBENCH_MLFLOW_URL`, …) win over them."""

SECRETS = (
    *("mlflow_password", "mlflow_token", "webhook_secret", "policies_token"),
    *("airflow_password", "airflow_token"),
)
"""What no message repeats."""

COMMAND = "command:"
"""Before the automatic judge that is a program of the user's."""

BOUND = {
    "mlflow_url": ("mlflow_username", "mlflow_password", "mlflow_token"),
    "airflow_url": ("airflow_username", "airflow_password", "airflow_token"),
}
"""Credentials, and the address that they were set for."""

Name = Annotated[str, Field(min_length=1, max_length=250)]
Require = Literal["agree", "both", "lazy"]


class GateSettings(BaseModel):
    """What the gate asks for: `[gate]` in tipbench.toml, `TIPBENCH_GATE_…` in the environment."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    verdicts: int = Field(default=0, ge=0)
    """The budget of lazy verdicts; 0 = every answered candidate once."""
    looks: tuple[float, ...] = (0.5, 0.75, 1.0)
    """Shares of the budget at which the gate looks."""
    alpha: float = Field(default=0.05, gt=0, lt=0.5)
    margin: float = Field(default=0.0, ge=0, allow_inf_nan=False)
    require: Require = "agree"
    """What is asked of an automatic judge: not to contradict the lazy tier, to agree with it, or nothing."""
    scenarios: int = Field(default=4, ge=2)
    unanchored: bool = False
    """Whether sittings with too few anchors may count."""
    format_drop: float = Field(default=0.05, ge=0, le=1)
    """How much smaller the share of well-formed candidates may be than the champion's."""
    latency_seconds: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How long a tip may take; without it there is no such rule."""
    latency_ratio: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How many times as long as the champion's a tip may take; without it there is no such rule."""

    @field_validator("looks", mode="before")
    @classmethod
    def _split_looks(cls, value: object) -> object:
        return tuple(part.strip() for part in value.split(",")) if isinstance(value, str) else value

    @field_validator("looks")
    @classmethod
    def _rise_to_one(cls, value: tuple[float, ...]) -> tuple[float, ...]:
        rising = all(first < second for first, second in pairwise((0.0, *value)))
        if not value or not rising or value[-1] != 1.0:
            raise ValueError("must be shares that rise and end at 1, as in 0.5, 0.75, 1")
        return value


def run_field(name: str, **other: Any) -> Any:
    """The field of a key of a run, as it is declared; `default=None` for one that may be left out."""
    key = RUN_KEYS[name]
    limits = {"ge": key.least, "le": key.most, "gt": key.above, "lt": key.below, "max_length": key.longest}
    checks: dict[str, Any] = {"default": key.default, "description": key.help, "examples": [key.example]}
    checks |= {limit: value for limit, value in limits.items() if value is not None}
    if key.longest is not None:
        checks["min_length"] = 1
    if key.choices:
        checks["pattern"] = f"^({'|'.join(key.choices)})$"
        checks["json_schema_extra"] = {"enum": list(key.choices)}
    if key.type is float:
        checks["allow_inf_nan"] = False
    return Field(**checks | other)


class RunSettings(BaseModel):
    """What a run is asked with, by settings or by an order. Lists are comma-separated text."""

    model_config = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    models: str = run_field("models")
    prompts: str = run_field("prompts")
    scenarios: str = run_field("scenarios")
    n_tips: int = run_field("n_tips")
    n_scenarios: int = run_field("n_scenarios")
    temperature: float = run_field("temperature")
    diversity: bool = run_field("diversity")
    seed: int = run_field("seed")
    judge_kind: str = run_field("judge_kind")
    experiment: str = run_field("experiment")
    max_model_b: float = run_field("max_model_b")


class Settings(RunSettings):
    """Everything that can be set."""

    home: Path
    mlflow_url: str | None = run_field("mlflow_url")
    mlflow_host: str | None = None
    mlflow_username: str | None = None
    mlflow_password: str | None = Field(default=None, repr=False)
    mlflow_token: str | None = Field(default=None, repr=False)
    insecure: bool = False
    """Whether credentials may cross the network unencrypted; not for a file to say."""
    ollama_url: str = run_field("ollama_url")
    ollama_serve: bool = False
    foreign: Literal["evict", "refuse"] = "evict"
    unload: Literal["per-model", "every-call"] = "per-model"
    ollama_urls: str = ""
    """More Ollama servers that a run started over the API may choose."""
    openai_url: str | None = None
    openai_local: bool | None = None
    raw: bool = False
    """Whether models without a chat template are admitted: they get the bare text."""
    threads: int | None = Field(default=None, ge=1)
    gpu_layers: Annotated[int, Field(ge=0)] | Literal["auto"] = 0
    """How many layers of a model of the embedded engine a graphics card computes; `auto`: as many as fit."""
    context_tokens: int = Field(default=4096, ge=256, le=131_072)

    pack: str = "tip"
    judged_by: Name | None = None
    """Who judges; without it the user of the machine, of `tipbench mcp` a coding agent."""
    judge_model: Name | None = None
    judge_command: str | None = Field(default=None, min_length=1)
    """What starts a coding agent that judges; no shell sees it, `{experiment}` stands for the experiment."""
    judge_command_minutes: float = Field(default=240.0, gt=0, allow_inf_nan=False)
    """How long it may take."""
    judge_answer_seconds: float = Field(default=120.0, gt=0, allow_inf_nan=False)
    """How long a program that judges automatically (`command:…`) may take for one answer."""
    publish_after_apply: bool = False
    """Whether `judge --apply` copies what counts then into MLflow's evaluation views, too."""
    delta: float | None = Field(default=None, gt=0, allow_inf_nan=False)
    """How far an automatic verdict may be from a lazy one; without it the data say."""
    judge_price_prompt: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    judge_price_output: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """US dollars per 1,000 tokens, where the judge's price list is not known."""
    judge_budget: float | None = Field(default=None, ge=0, allow_inf_nan=False)
    """US dollars that a sitting of the automatic judge may cost; a job needs it where that is not free."""
    judge_models: str = ""
    """The only automatic judges that jobs may use, with commas; without it the one of `judge_model`."""
    webhook_urls: str = ""
    webhook_secret: str | None = Field(default=None, min_length=16, repr=False)
    """What the events of `tipbench serve` are signed with."""
    jobs_launcher: Literal["local", "airflow"] = "local"
    """What runs the pipeline of `tipbench serve`; every other job is a local process."""
    airflow_url: str | None = None
    airflow_username: str | None = None
    airflow_password: str | None = Field(default=None, repr=False)
    airflow_token: str | None = Field(default=None, repr=False)
    """Sent to `airflow_url` only; with a name and a password a token is fetched there."""
    gate: GateSettings = GateSettings()
    policies_store: str = Field(default="files", pattern="^(files|(redis|rediss|unix)://.+)$")
    policies_token: str | None = Field(default=None, min_length=16, repr=False)
    policies_active: Name = "egreedy-v1"
    """The policy behind /recommend until another one is promoted."""
    policies_shadows: str = ""

    _spellings: Mapping[str, str] = PrivateAttr(default_factory=dict[str, str])
    """Setting → how it was given, for messages: the option, the variable, or the key of the file."""

    def spelled(self, spellings: Mapping[str, str]) -> Self:
        """The same, which knows how each setting was given."""
        found = self.model_copy()
        found._spellings = spellings
        return found

    def spell(self, name: str) -> str:
        """How this setting was given; its name where it was not."""
        return self._spellings.get(name, name)

    @property
    def models_folder(self) -> Path:
        """Where embedded weights are kept."""
        return self.home / "models"

    @property
    def policies_folder(self) -> Path:
        """Where states, signals and tips of the policies are kept."""
        return self.home / "policies"

    @field_validator("mlflow_url", "ollama_url", "openai_url", "airflow_url")
    @classmethod
    def _is_a_url(cls, value: str | None) -> str | None:
        if value is not None and not value.startswith(("http://", "https://")):
            raise ValueError("must begin with http:// or https://")
        return None if value is None else value.rstrip("/")


def read_settings(
    flags: Mapping[str, object] | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    folder: Path | None = None,
) -> Settings:
    """The settings in force; `flags` that are None were not given.

    Raises:
        UsageError: a value is wrong; says which, where it came from and what it may be.
    """
    environ = os.environ if environ is None else environ
    path = (folder or Path.cwd()) / FILE_NAME
    values: dict[str, object] = {"home": _default_home(environ)}
    origins: dict[str, str] = {}
    for origin, given in (
        (str(path), _read_file(path)),
        ("the environment", _read_environment(environ)),
        ("the command line", {key: value for key, value in (flags or {}).items() if value is not None}),
    ):
        flat = _flatten(given)
        values |= flat
        origins |= dict.fromkeys(flat, origin)
    _refuse_commands_of(str(path), values, origins)
    values = _keep_credentials_at_home(values, origins, file=str(path))
    try:
        settings = Settings.model_validate(_nest(values))
    except ValidationError as error:
        raise UsageError(_explain(error, origins)) from None
    found = settings.model_copy(update={"home": settings.home.expanduser().absolute()})
    return found.spelled({name: _spell(name, origin, environ) for name, origin in origins.items()})


def split_list(text: str, *, what: str) -> tuple[str, ...]:
    """The names of a comma-separated list, each once, in order.

    Raises:
        UsageError: the list is empty.
    """
    names = tuple(dict.fromkeys(name.strip() for name in text.split(",") if name.strip()))
    if not names:
        raise UsageError(
            f"the list of {what} is empty: {text!r}", hint=f"Give at least one, as in --{what} a,b"
        )
    return names


def _refuse_commands_of(file: str, values: Mapping[str, object], origins: Mapping[str, str]) -> None:
    """A file in the current folder may be anybody's: it does not say which program judges."""
    if origins.get("judge_model") == file and str(values["judge_model"]).startswith(COMMAND):
        raise UsageError(
            f"{file}: a program as judge_model ({COMMAND}…) is not for a file to say",
            hint=f"Say --judge-model '{COMMAND}…', or set TIPBENCH_JUDGE_MODEL.",
        )


def _keep_credentials_at_home(
    values: Mapping[str, object], origins: Mapping[str, str], *, file: str
) -> dict[str, object]:
    """The values without credentials of the environment whose address only the file names.

    A file in the current folder may be anybody's: it never decides where a secret goes, or how.
    """
    if origins.get("insecure") == file:
        raise UsageError(
            f"{file}: insecure is not for a file to say",
            hint="Say tipbench --insecure …, or set TIPBENCH_INSECURE=true.",
        )
    withheld = {
        name
        for url, names in BOUND.items()
        if origins.get(url) == file
        for name in names
        if origins.get(name, file) != file
    }
    return {name: value for name, value in values.items() if name not in withheld}


def _default_home(environ: Mapping[str, str]) -> Path:
    data = environ.get("XDG_DATA_HOME") or str(Path(environ.get("HOME", "~")) / ".local" / "share")
    return Path(data) / "tipbench"


def _read_file(path: Path) -> dict[str, object]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error


def _flatten(given: Mapping[str, object]) -> dict[str, object]:
    """Values of a section under dotted names, so that each of them can be set by itself."""
    flat: dict[str, object] = {}
    for name, value in given.items():
        if name == "gate" and isinstance(value, dict):
            flat |= {f"gate.{key}": each for key, each in value.items()}  # pyright: ignore[reportUnknownVariableType]
        else:
            flat[name] = value
    return flat


def _nest(flat: Mapping[str, object]) -> dict[str, object]:
    values = {name: value for name, value in flat.items() if not name.startswith("gate.")}
    section = {name.removeprefix("gate."): value for name, value in flat.items() if name.startswith("gate.")}
    return values | ({"gate": section} if section else {})


def _read_environment(environ: Mapping[str, str]) -> dict[str, object]:
    given: dict[str, object] = {}
    for field in (*Settings.model_fields, *(f"gate.{name}" for name in GateSettings.model_fields)):
        for variable in _variables(field):
            if environ.get(variable):
                given[field] = environ[variable]
                break
    return given


def _spell(name: str, origin: str, environ: Mapping[str, str]) -> str:
    if origin == "the command line":
        return f"--{name.replace('_', '-')}"
    if origin != "the environment":
        return f"{name} in {FILE_NAME}"
    return next(each for each in _variables(name) if environ.get(each))


def _variables(field: str) -> tuple[str, ...]:
    """Where the environment may hold it; the first one wins."""
    standard = STANDARD_VARIABLES.get(field)
    return (f"TIPBENCH_{field.upper().replace('.', '_')}", *([standard] if standard else []))


def _explain(error: ValidationError, origins: Mapping[str, str]) -> str:
    lines: list[str] = []
    for problem in error.errors(include_url=False):
        name = ".".join(str(part) for part in problem["loc"][: 2 if problem["loc"][0] == "gate" else 1])
        value = "" if name in SECRETS else f" {problem['input']!r}"
        if problem["type"] == "extra_forbidden":
            near = get_close_matches(name, Settings.model_fields, n=1)
            meant = f"; did you mean {near[0]!r}?" if near else ""
            lines.append(f"{origins.get(name, 'settings')}: unknown setting {name!r}{meant}")
        else:
            what = re.sub("^(Input|String) should ", "must ", problem["msg"])
            lines.append(f"{name}{value} from {origins.get(name, 'settings')}: {what}")
    return "\n".join(lines)
