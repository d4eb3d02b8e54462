"""The tree of expected failures: what happened, and what to do next."""

import shlex
from collections.abc import Sequence
from itertools import groupby


class TipbenchError(Exception):
    """An expected failure. The CLI prints it without a traceback and exits with `exit_code`."""

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class Problems(TipbenchError):
    """Several problems found before anything was begun, all of them."""

    def __init__(self, problems: Sequence[TipbenchError]) -> None:
        lines: list[str] = []
        for hint, alike in groupby(problems, key=lambda problem: problem.hint):
            lines += [problem.message for problem in alike]
            lines += [f"  → {hint}"] if hint else []
        head = f"{len(problems)} problems:\n" if len(problems) > 1 else ""
        super().__init__(head + "\n".join(lines))
        self.exit_code = max(problem.exit_code for problem in problems)


class UsageError(TipbenchError):
    """What was asked for makes no sense: a bad value, an unknown name."""

    exit_code = 2


class PackError(UsageError):
    """The pack is broken; the message names every mistake with file and line."""


class SheetError(UsageError):
    """A filled sheet cannot be taken; the message names every problem by item."""


class PortableError(UsageError):
    """A file cannot become an experiment, or an experiment a file; nothing was changed."""


class JudgingClosed(UsageError):
    """A person ended judging of the experiment: nothing is handed out."""

    def __init__(self, experiment: str, *, reason: str) -> None:
        super().__init__(
            f"judging of {experiment!r} was closed: {reason}",
            hint=f"Open it again: tipbench judge reopen --experiment {experiment!r} --reason …",
        )
        self.experiment = experiment


class JudgedEnough(TipbenchError):
    """More verdicts would not change what is decided with them."""

    exit_code = 0

    def __init__(self, message: str) -> None:
        super().__init__(message, hint="To judge all the same: leave --next out.")


class TooOftenRefused(JudgedEnough):
    """This judge's last sittings were all refused: handing out more would lead in a circle."""

    exit_code = 3

    def __init__(self, times: int, token: str) -> None:
        super().__init__(
            f"the last {times} sittings of this judge were refused: nothing more is handed out before "
            "a person lets one of them count, or somebody else judges"
        )
        self.hint = f"To let the last one count: tipbench judge accept {token} --reason TEXT"


class NoChampion(UsageError):
    """The pack has no champion yet."""

    def __init__(self, pack: str) -> None:
        super().__init__(
            f"the pack {pack!r} has no champion yet",
            hint="Name the first one: tipbench promote --experiment NAME --initial MODEL+PROMPT --reason …",
        )


class ChampionMissing(UsageError):
    """The champion cannot be asked here: nobody could be compared with it."""

    def __init__(self, champion: str, why: str) -> None:
        super().__init__(
            f"the champion {champion} cannot be asked: {why}",
            hint="Get it back (of a .gguf file a link in the models folder will do). Without it the gate "
            "lets nobody pass; to go on all the same: collect --without-champion",
        )


class WordLost(TipbenchError):
    """Somebody else's word came first and is in force."""

    exit_code = 3


class PromotionLost(WordLost):
    """Somebody else's promotion came first."""


class MixedContents(TipbenchError):
    """One name stands for several contents, so a leaderboard would compare apples with pears."""


class ContentsDiffer(UsageError):
    """What is asked for would give a name in the experiment a second content. `free_name` has room for it."""

    def __init__(self, experiment: str, changes: Sequence[str], *, free_name: str) -> None:
        super().__init__(
            f"experiment {experiment!r} holds other contents, and a board cannot mix them:\n  "
            + "\n  ".join(changes),
            hint=f"Take another experiment: --experiment {shlex.quote(free_name)} (or collect --into-new). "
            "To go on in this one, first retire what is there: tipbench collect retire.",
        )
        self.changes = tuple(changes)
        self.free_name = free_name


class EngineError(TipbenchError):
    """Something about the engine that turns prompts into text."""


class EngineUnavailable(EngineError):
    """The engine is down or died. Nothing more can be generated: the run stops."""


class ModelRefused(EngineError):
    """The model is unknown, too big, or its size cannot be established."""

    exit_code = 2


class ModelMissing(ModelRefused):
    """The engine does not have the model; `get` is the command that gets it, if there is one."""

    def __init__(self, message: str, *, get: str = "", hint: str = "") -> None:
        super().__init__(message, hint=hint or (f"Get it with: {get}" if get else ""))
        self.get = get


class GenerationFailed(EngineError):
    """One generation failed; the engine is still there. The cell records it and the run goes on."""


class EngineBusy(EngineError):
    """Another process of this machine holds the engine lock, or another client uses the engine."""


class CannotHoldFormat(TipbenchError):
    """An automatic judge does not answer as it was asked to. Nothing is guessed."""


class BudgetSpent(TipbenchError):
    """The next call might cost more than is left. What was judged is kept."""

    exit_code = 4


class TrackingError(TipbenchError):
    """Something about the MLflow server."""


class TrackingUnavailable(TrackingError):
    """The MLflow server does not answer, or answers with 5xx: try again later."""


class TrackingRefused(TrackingError):
    """The MLflow server understood and said no (4xx): repeating does not help."""


class ExperimentNotFound(TrackingError):
    """No experiment of that name on this server."""

    exit_code = 2


class BackupError(TrackingError):
    """A backup cannot be made, read or brought back; the data is as it was."""


class NewerSchema(TipbenchError):
    """The data was written by a newer tipbench."""
