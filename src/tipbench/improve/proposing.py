"""Who writes new versions: a coding agent or a person through files, or a model through any engine."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from tipbench.engines.protocol import Engine, FormModel
from tipbench.errors import GenerationFailed, ModelRefused, TipbenchError, UsageError
from tipbench.improve.brief import Brief
from tipbench.improve.versions import MOST_CHARACTERS, Proposal, Proposals
from tipbench.records import Model, Sampling

TRIES = 3
"""How often a model is asked for one version before it is given up."""
SAMPLING = Sampling(temperature=0.8, max_tokens=1_200)
QUESTION = """{brief}
For this answer one version is enough, and no file: answer with one JSON object {{"why": "…", "text": "…"}}.
"""
FORM = {
    "type": "object",
    "properties": {
        "why": {"type": "string", "minLength": 1, "maxLength": 500},
        "text": {"type": "string", "minLength": 1, "maxLength": MOST_CHARACTERS},
    },
    "required": ["why", "text"],
    "additionalProperties": False,
}
Check = Callable[[Sequence[Proposal]], list[str]]
"""Everything that is wrong with proposals."""


@dataclass(frozen=True)
class ModelProposer:
    """A model of one of our engines that writes so many versions."""

    model: Model
    engine: Engine
    versions: int

    @property
    def name(self) -> str:
        """As it is kept with its versions."""
        return self.model.name if self.model.engine == "openai" else f"{self.model.engine}:{self.model.name}"

    def propose(self, brief: Brief, *, check: Check) -> list[Proposal]:
        """At least one version. Asked for one at a time; what does not pass is asked for again.

        Raises:
            TipbenchError: nothing that it wrote can be used.
        """
        found: list[Proposal] = []
        problems: list[str] = []
        with self.engine.load(self.model) as loaded:
            if not isinstance(loaded, FormModel):
                raise ModelRefused(f"the engine {self.model.engine!r} cannot hold a model to a form")
            for seed in range(self.versions * TRIES):
                if len(found) == self.versions:
                    break
                proposal = _ask(loaded, brief, seed=seed)
                wrong = [proposal] if isinstance(proposal, str) else check([*found, proposal])
                problems += wrong
                if not wrong and isinstance(proposal, Proposal):
                    found.append(proposal)
        if not found:
            listed = "\n  ".join(dict.fromkeys(problems))
            raise TipbenchError(
                f"{self.name} wrote no version that can be used:\n  {listed}",
                hint="Take another model, or a coding agent: --export BRIEF.",
            )
        return found


def _ask(loaded: FormModel, brief: Brief, *, seed: int) -> Proposal | str:
    """One version, or what is wrong with the reply."""
    try:
        reply = loaded.generate_json(
            QUESTION.format(brief=brief.text), schema=FORM, sampling=SAMPLING, seed=seed
        )
        return Proposal.model_validate_json(reply.text)
    except GenerationFailed as error:
        return error.message
    except ValidationError as error:
        return f"not in the form: {error.errors(include_url=False)[0]['msg']}"


def read_proposals(path: Path) -> Proposals:
    """The versions in this file.

    Raises:
        UsageError: it cannot be read; says where it breaks.
    """
    try:
        content: object = json.loads(path.read_text(encoding="utf-8-sig"))
        return Proposals.model_validate(content)
    except OSError as error:
        raise UsageError(f"{str(path)!r} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc'])) or 'the file'}: {problem['msg']}"
            for problem in error.errors(include_url=False)
        ]
        raise UsageError(
            f"{str(path)!r} does not answer a brief:\n  " + "\n  ".join(problems),
            hint="The brief says at its end what the file looks like.",
        ) from None
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{str(path)!r} is no JSON: {error}") from error
