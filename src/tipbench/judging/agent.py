"""A coding agent as the lazy judge: the command of the settings, run until it ends or its time is up.

The agent judges as any other judge, over MCP or by file. Here it is only started, listened to and ended; what
it did is read from the store.
"""

import shlex
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from tipbench import processes
from tipbench.errors import TipbenchError, UsageError
from tipbench.inert import make_inert_line
from tipbench.judging.records import SittingLine
from tipbench.judging.service import Judging
from tipbench.processes import Child
from tipbench.settings import BOUND, SECRETS, STANDARD_VARIABLES, Settings

PLACEHOLDER = "{experiment}"
EXAMPLE = f"judge_command = 'claude -p \"/judge-mlflow {PLACEHOLDER}\"'"
LINE_CHARACTERS = 2_000
FAILED, REFUSED, WAITS = 1, 3, 4


class NoAgent(UsageError):
    """The settings name no agent that can be started."""


@dataclass(frozen=True)
class JudgeAgent:
    """The command as words, how long it may take, and what it finds in its environment."""

    words: tuple[str, ...]
    limit_seconds: float
    environment: Mapping[str, str]

    def run(self, experiment: str, *, report: Callable[[str], None]) -> int | None:
        """Its exit code, None when its time was up; either way nothing of it is left running.

        Raises:
            UsageError: the experiment's name would be read as an option.
        """
        words = [word.replace(PLACEHOLDER, experiment) for word in self.words]
        for before, after in zip(self.words, words, strict=True):
            if after.startswith("-") and not before.startswith("-"):
                raise UsageError(
                    f"the agent would take the experiment's name for an option: {after!r}",
                    hint=f"In judge_command, write something before {PLACEHOLDER}.",
                )
        environment = {**self.environment, "TIPBENCH_EXPERIMENT": experiment}

        def tell(line: str) -> None:
            report(make_inert_line(line, limit=LINE_CHARACTERS))

        with Child(processes.MODULE, *words, environment=environment, piped=True) as child:
            return child.wait() if child.follow(tell, seconds=self.limit_seconds) else None


def find_agent(settings: Settings, environ: Mapping[str, str]) -> JudgeAgent:
    """The agent of the settings.

    Raises:
        NoAgent: none is set, or it cannot be started like this; says why.
    """
    command = settings.judge_command
    if command is None:
        raise NoAgent("no agent is set to judge", hint=f"In tipbench.toml, for example: {EXAMPLE}")
    try:
        words = tuple(shlex.split(command))
    except ValueError as error:
        raise NoAgent(
            f"judge_command {command!r} cannot be split into words: {error}",
            hint=f"For example: {EXAMPLE}",
        ) from None
    if not any(PLACEHOLDER in word for word in words[1:]) or PLACEHOLDER in words[0]:
        raise NoAgent(
            f"judge_command {command!r} does not say where the experiment goes",
            hint=f"Write {PLACEHOLDER} into one of its arguments, as in {EXAMPLE}",
        )
    environment = agent_environment(settings, environ)
    if shutil.which(words[0], path=environment["PATH"]) is None:
        raise NoAgent(
            f"judge_command: there is no program {words[0]!r} that can be run here",
            hint="Write its full path, or add its folder to PATH.",
        )
    return JudgeAgent(words, settings.judge_command_minutes * 60, environment)


def agent_environment(settings: Settings, environ: Mapping[str, str]) -> dict[str, str]:
    """What the agent needs to judge on the same MLflow, and no secret of ours that it does not need."""
    secrets = {f"TIPBENCH_{name.upper()}" for name in SECRETS if not name.startswith("mlflow_")}
    for name in BOUND["mlflow_url"]:
        if getattr(settings, name) is None:
            # Not for this address: there it would be named by the environment, and no longer by a file.
            secrets |= {f"TIPBENCH_{name.upper()}", STANDARD_VARIABLES[name]}
    ours = {"TIPBENCH_HOME": str(settings.home)}
    if settings.mlflow_url:
        ours["TIPBENCH_MLFLOW_URL"] = settings.mlflow_url
    if settings.mlflow_host:
        ours["TIPBENCH_MLFLOW_HOST"] = settings.mlflow_host
    # Last, so that an agent finds the `tipbench` of this environment where no other is installed.
    path = ":".join(filter(None, (environ.get("PATH"), str(Path(sys.executable).parent))))
    kept = {name: value for name, value in environ.items() if name not in secrets}
    return {**kept, **ours, "PATH": path}


@dataclass(frozen=True)
class AgentOutcome:
    """What an agent did: verdicts that count since it began, what still waits, what was refused of it."""

    agent_code: int | None
    judged: int
    waiting: int
    refused: tuple[SittingLine, ...]

    @property
    def exit_code(self) -> int:
        """0 judging is done; 1 the agent failed; 3 a sitting does not count; 4 judging still waits."""
        if self.agent_code != 0:
            return FAILED
        if self.refused:
            return REFUSED
        return WAITS if self.waiting else 0

    def check(self, minutes: float) -> None:
        """Refuses the outcome of an agent that failed, whatever it judged before.

        Raises:
            TipbenchError: it failed, or its time was up.
        """
        hint = "What was judged is kept. Run the same command again to go on."
        if self.agent_code is None:
            raise TipbenchError(
                f"the agent was ended after {minutes:g} minutes (judge_command_minutes)", hint=hint
            )
        if self.agent_code:
            raise TipbenchError(f"the agent ended with exit code {self.agent_code}: see above", hint=hint)


@dataclass(frozen=True)
class AgentJudging:
    """The agent at work on experiments of one server; `report` hears what it prints, line by line."""

    judging: Judging
    agent: JudgeAgent
    report: Callable[[str], None]

    def run(self, experiment: str) -> AgentOutcome | None:
        """Lets the agent judge what waits; None when every candidate has a lazy verdict already.

        Raises:
            JudgingClosed: a person ended judging of the experiment.
        """
        before = self.judging.status(experiment=experiment)
        self.judging.open(experiment).check_open()
        if before.judged >= before.candidates:
            return None
        self.report(
            f"{self.agent.words[0]} begins, for at most {self.agent.limit_seconds / 60:g} minutes: "
            f"{before.candidates - before.judged} candidates of {experiment!r} are not judged by a "
            "person or an agent"
        )
        code = self.agent.run(experiment, report=self.report)
        after = self.judging.status(experiment=experiment)
        known = {line.sitting for line in before.sittings if line.state == "refused"}
        refused = (line for line in after.sittings if line.state == "refused" and line.sitting not in known)
        waiting = 0 if after.ended else after.waiting
        return AgentOutcome(code, after.judged - before.judged, waiting, tuple(refused))
