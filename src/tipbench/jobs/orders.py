"""What a job runs: settings of a phase as argument lists, one `--option=value` each. Never a shell."""

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema, field_validator

from tipbench.errors import TipbenchError, UsageError
from tipbench.jobs.records import Step
from tipbench.records import AGENT, LAZY_KINDS, RequestRecord
from tipbench.settings import RunSettings, Settings, run_field
from tipbench.web import is_loopback


def _check_argument(value: str) -> str:
    # No argument of a process can hold one.
    if "\0" in value:
        raise ValueError("must not hold a zero byte")
    if not value.strip():
        raise ValueError("must not be blank")
    return value


def _join_names(value: object) -> object:
    if not isinstance(value, list | tuple):
        return value
    names = cast("list[object] | tuple[object, ...]", value)
    if not names or not all(isinstance(name, str) and name.strip() and "," not in name for name in names):
        raise ValueError("must be names, each without a comma")
    return ",".join(map(str, names))


def _check_models(value: str) -> str:
    for name in (each.strip() for each in value.split(",")):
        if name.startswith(("/", ".", "~")) or name.lower().endswith(".gguf"):
            raise ValueError("must be names from `tipbench models`, not files of the server")
    return value


Name = Annotated[str, Field(min_length=1, max_length=250), AfterValidator(_check_argument)]
Experiment = Annotated[str, Field(min_length=1, max_length=500), AfterValidator(_check_argument)]
Names = Annotated[
    str,
    Field(min_length=1, max_length=4_000),
    BeforeValidator(_join_names),
    AfterValidator(_check_argument),
    WithJsonSchema(
        {
            "anyOf": [
                {
                    "type": "array",
                    "items": {"type": "string", "pattern": r"^[^,]*[^,\s][^,]*$"},
                    "minItems": 1,
                },
                {
                    "type": "string",
                    "minLength": 1,
                    "maxLength": 4_000,
                    "description": "The same with commas.",
                },
            ]
        },
        mode="validation",
    ),
]
"""A list of names; kept as one text with commas, which is taken as well."""
ModelName = Annotated[Name, AfterValidator(_check_models)]
AUTO_JUDGE = ("judge", "--auto")
AGENT_KIND = LAZY_KINDS[0]
"""The kind of judge that sheets are for."""


class RunOrder(RunSettings, RequestRecord, strict=True):
    """The configuration of a run: the keys, defaults and limits of `tipbench collect`.

    `ollama_url` and `mlflow_url` are chosen among those that the server was configured with.
    """

    models: Names = run_field(
        "models",
        description="Models by their names in `tipbench models`",
        examples=[["qwen2.5:0.5b", "smollm2"]],
    )
    prompts: Names = run_field(
        "prompts", description="Prompt versions of the pack", examples=[["v1", "v2-mentor"]]
    )
    ollama_url: str | None = run_field("ollama_url", default=None)
    mlflow_url: str | None = run_field("mlflow_url")
    skip_missing: bool = run_field("skip_missing")

    _check_arguments = field_validator("scenarios", "experiment")(_check_argument)
    _check_models = field_validator("models")(_check_models)

    def over(self, settings: Settings) -> Settings:
        """The settings with what was ordered."""
        return settings.model_copy(update=self.model_dump(exclude={"skip_missing"}, exclude_none=True))


class JudgeOrder(RequestRecord):
    """Who shall judge: `auto` is the model of the setting `judge_model`, `lazy` the agent of `judge_command`.

    What either of them is, no request says.
    """

    tier: Literal["auto", "lazy"] = Field(
        default="auto", description="The automatic judge, or the coding agent.", examples=["lazy"]
    )


class ImproveOrder(RequestRecord, strict=True):
    """The configuration of an improvement: the keys, defaults and limits of `tipbench improve`.

    Over the API a model writes the versions; a brief for a coding agent is the command line's. `model`,
    `prompt`, `n_tips`, `temperature` and `seed` are for a pack without a champion: a champion brings its own.
    """

    experiment: Experiment = Field(
        default="tip-bench-improve", description="MLflow experiment", examples=["tip-bench-improve"]
    )
    proposer: ModelName = Field(description="The model that writes new versions", examples=["qwen2.5:1.5b"])
    versions: int = Field(default=2, ge=1, le=8, description="New versions of it in each round", examples=[3])
    rounds: int = Field(default=1, ge=1, le=20, description="How many rounds", examples=[2])
    train_on: Literal["lazy", "auto"] = Field(
        default="lazy",
        description="Whose verdicts choose among versions; the gate asks the lazy tier whatever this is",
        examples=["auto"],
    )
    model: ModelName | None = Field(
        default=None, description="Whom to ask when there is no champion", examples=["smollm2"]
    )
    prompt: Name | None = Field(
        default=None, description="What to improve when there is no champion", examples=["v1"]
    )
    scenarios: Name | None = Field(
        default=None, description="The set to train on, less its held-out", examples=["wide"]
    )
    n_scenarios: int = run_field("n_scenarios")
    n_tips: int | None = run_field("n_tips", default=None)
    temperature: float | None = run_field("temperature", default=None)
    seed: int | None = run_field("seed", default=None)


class SimulateOrder(RequestRecord, strict=True):
    """The configuration of a simulation: the keys, defaults and limits of `tipbench policies simulate`."""

    policies: Names = Field(
        default="egreedy-v1,egreedy-v2,linucb,random",
        description="Policies to compare",
        examples=[["linucb", "random"]],
    )
    users: int = Field(default=40, ge=8, le=100_000, description="Simulated users", examples=[40])
    rounds: int = Field(default=300, ge=10, le=100_000, description="Rounds", examples=[300])
    profile_effect: float = Field(
        default=0.0,
        ge=0,
        le=10,
        allow_inf_nan=False,
        description="How much a user's profile decides which kind of tip works",
        examples=[0.5],
    )
    seed: int = run_field("seed")
    experiment: Experiment = Field(
        default="tipbench-policies", description="MLflow experiment", examples=["tipbench-policies"]
    )


def check_judge(order: RunOrder, settings: Settings) -> None:
    """Refuses a run that would wait for a judge who does not exist, or may not judge.

    Raises:
        UsageError: it is to wait for the automatic judge, and none is set; or it is not one for jobs.
    """
    check_auto_judge(settings)
    if order.judge_kind not in LAZY_KINDS and settings.judge_model is None:
        raise UsageError(
            f"judge_kind {order.judge_kind!r} waits for an automatic judge, and none is set",
            hint="Set judge_model in the server's tipbench.toml, as in smollm2, or let it wait for "
            f"{' or '.join(LAZY_KINDS)}.",
        )


class NoAutoJudge(TipbenchError):
    """No automatic judge is set."""

    def __init__(self) -> None:
        super().__init__(
            "no automatic judge is set", hint="Set judge_model in the server's tipbench.toml, as in smollm2."
        )


def check_auto_judge(settings: Settings, *, needed: bool = False) -> None:
    """Lets jobs use the automatic judge that is set, if one is.

    Raises:
        NoAutoJudge: it is needed, and none is set.
        UsageError: it is not one of those that jobs may use, or may cost money without a limit.
    """
    name, allowed = settings.judge_model, _split(settings.judge_models)
    if name is None:
        if needed:
            raise NoAutoJudge
        return
    if allowed and name not in allowed:
        raise UsageError(
            f"judge_model {name!r} is not among the judges that jobs may use: {', '.join(sorted(allowed))}",
            hint="Add it to the setting 'judge_models' of the server, or set another judge_model.",
        )
    if _may_cost(name, settings) and not settings.judge_budget:
        raise UsageError(
            f"the automatic judge {name!r} may cost money, and judge_budget is not set",
            hint="Set judge_budget in the server's tipbench.toml: US dollars for each sitting, as in 2.5",
        )


def _may_cost(name: str, settings: Settings) -> bool:
    """Whether that cannot be ruled out; the command knows the price, and keeps to the budget in any case."""
    prices = (settings.judge_price_prompt, settings.judge_price_output)
    if None not in prices:
        return any(prices)
    here = is_loopback(settings.openai_url or "") if settings.openai_local is None else settings.openai_local
    return name.startswith("litellm:") or (name.startswith("openai:") and not here)


def pipeline_steps(order: RunOrder, *, folder: Path, settings: Settings) -> tuple[Step, ...]:
    """Collect, hand a sheet to a coding agent if one is to judge, let the automatic judge judge if one is
    set, wait for judging, compare."""
    experiment = f"--experiment={order.experiment}"
    steps = [Step(name="collect", arguments=("collect", *collect_options(order)))]
    if order.judge_kind == AGENT_KIND:
        sheet = folder / "sheet.json"
        # Whoever fills the sheet may say so when it is applied; the server's own user is no judge.
        judged_by = f"--judged-by={settings.judged_by or AGENT}"
        steps.append(Step(name="export", arguments=("judge", f"--export={sheet}", judged_by, experiment)))
    if settings.judge_model is not None:
        steps.append(auto_judge_step(order.experiment))
    steps.append(Step(name="wait"))
    # A tie and an open race are outcomes, not failures.
    return (*steps, Step(name="compare", arguments=("compare", experiment), passing=(0, 3, 4)))


def collect_options(order: RunOrder) -> tuple[str, ...]:
    """The options of `tipbench collect`, all of them said."""
    given = order.model_dump(exclude_none=True)
    switches = {"diversity": "--diversity" if order.diversity else "--no-diversity"}
    if given.pop("skip_missing"):
        switches["skip_missing"] = "--skip-missing"
    del given["diversity"]
    return (*_options(given), *switches.values())


def auto_judge_step(experiment: str) -> Step:
    """The automatic judge of the settings; one that may not judge (3) or may spend no more (4) ends well."""
    return Step(name="judge", arguments=(*AUTO_JUDGE, f"--experiment={experiment}"), passing=(0, 3, 4))


def agent_judge_step(experiment: str) -> Step:
    """The agent of the settings; one whose sitting does not count (3) or who left something (4) ends well."""
    return Step(name="agent", arguments=("judge", "--agent", f"--experiment={experiment}"), passing=(0, 3, 4))


def improve_step(order: ImproveOrder, *, folder: Path, settings: Settings) -> Step:
    """One stretch of an improvement: it ends well where it needs verdicts (4) or found nothing better (3)."""
    options = _options(order.model_dump(exclude_none=True))
    # Where an agent judges, nobody needs a file.
    sheet = () if settings.judge_command else (f"--sheet={folder / 'sheet.json'}",)
    return Step(name="improve", arguments=("improve", *options, *sheet), passing=(0, 3, 4))


def simulate_step(order: SimulateOrder) -> Step:
    """Policies on simulated users."""
    return Step(name="simulate", arguments=("policies", "simulate", *_options(order.model_dump())))


def _options(given: Mapping[str, object]) -> tuple[str, ...]:
    return tuple(f"--{name.replace('_', '-')}={value}" for name, value in given.items())


def check_addresses(addresses: Mapping[str, str | None], settings: Settings) -> None:
    """Refuses addresses that are not exactly configured ones.

    Raises:
        UsageError: names the option, and the setting that would admit it.
    """
    allowed = {
        "ollama_url": {settings.ollama_url, *_split(settings.ollama_urls)},
        "mlflow_url": {settings.mlflow_url} if settings.mlflow_url else set[str](),
    }
    for name, url in addresses.items():
        if url is not None and url not in allowed[name]:
            setting = "ollama_urls" if name == "ollama_url" else "mlflow_url"
            raise UsageError(
                f"{name} {url!r} is not one that this server was configured with",
                hint=f"Leave it out, or add it to the setting {setting!r} of the server.",
            )


def check_step(step: Step, settings: Settings) -> None:
    """The same of a step that is about to run: what stands in the database is believed by nobody.

    Raises:
        UsageError: an address in it is not configured, or its judge is not one for jobs.
    """
    if step.arguments[:2] == AUTO_JUDGE or step.arguments[:1] == ("improve",):
        check_auto_judge(settings)
    for argument in step.arguments:
        option, _, value = argument.partition("=")
        name = option.removeprefix("--").replace("-", "_")
        if name in {"ollama_url", "mlflow_url"}:
            check_addresses({name: value}, settings)


def _split(text: str) -> set[str]:
    return {each.strip().rstrip("/") for each in text.split(",") if each.strip()}
