"""The configuration of a run, declared once: every key with its default, its limits and its words.

Settings and orders check by it; the options of the command line and the panel's form are made of it. The
Airflow plugin cannot import it: a test compares its table with this one. Nothing heavy is imported: `--help`
reads it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RunKey:
    """One key. `choices` maps the values there are to words for people; a text has 1 to `longest` letters."""

    default: str | float | bool | None
    label: str
    help: str
    least: int | None = None
    most: int | None = None
    above: int | None = None
    below: int | None = None
    longest: int | None = None
    choices: Mapping[str, str] = field(default_factory=dict[str, str])
    sample: str | float | None = None
    """A value that says more than the default."""

    @property
    def example(self) -> str | float | bool | None:
        """A value as somebody could give it."""
        return self.default if self.sample is None else self.sample

    @property
    def type(self) -> type:
        """What its values are; one without a default is a text."""
        return str if self.default is None else type(self.default)

    @property
    def hint(self) -> str:
        """Its help, with the limits that people meet."""
        limits = f" ({self.least} to {self.most})" if self.most is not None and self.most <= 100 else ""
        return f"{self.help}{limits}."


RUN_KEYS: dict[str, RunKey] = {
    "experiment": RunKey("tip-bench-auto", "Experiment", "MLflow experiment", longest=500),
    "models": RunKey(
        "qwen2.5:0.5b,qwen2.5:1.5b,gemma3:1b,llama3.2:3b",
        "Models",
        "Models, with commas: names from `tipbench models`, or paths of .gguf files",
        longest=4000,
    ),
    "prompts": RunKey(
        "v1,v2-mentor,v3-few-shot", "Prompts", "Prompt versions of the pack, with commas", longest=4000
    ),
    "scenarios": RunKey(
        "core", "Scenario set", "Scenario set: core, wide, all, or one of your pack", longest=250
    ),
    "n_scenarios": RunKey(
        0,
        "Scenarios at most",
        "At most so many scenarios of the set; 0: all of it",
        least=0,
        most=1_000_000,
        sample=8,
    ),
    "n_tips": RunKey(5, "Tips a cell", "Candidates per cell", least=1, most=50),
    "temperature": RunKey(0.7, "Temperature", "Sampling temperature", least=0, most=2),
    "max_model_b": RunKey(
        4.0, "Largest model, in billions", "Refuse larger models (billions of parameters)", above=0
    ),
    "seed": RunKey(0, "Seed", "Seed of the whole grid: another seed, other answers", least=0, below=2**63),
    "judge_kind": RunKey(
        "claude-code",
        "Who judges",
        "The judge that the cells wait for",
        choices={"claude-code": "a coding agent", "human": "a person", "haiku": "the automatic judge"},
    ),
    "diversity": RunKey(default=False, label="Ask for varied tips", help="Ask for tips that differ in angle"),
    "skip_missing": RunKey(
        default=False,
        label="Skip models that are missing",
        help="Go on without models that are not there",
    ),
    "ollama_url": RunKey("http://localhost:11434", "Ollama", "Ollama server", longest=2000),
    "mlflow_url": RunKey(
        None,
        "MLflow",
        "MLflow server; without it localhost:5000 if it answers there, else the managed one",
        longest=2000,
        sample="http://localhost:5000",
    ),
}
