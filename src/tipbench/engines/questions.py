"""What no engine can be asked."""

from tipbench.errors import GenerationFailed
from tipbench.records import Sampling


def check_question(prompt: str, sampling: Sampling) -> None:
    """Refuses text that cannot be sent, and answers of no length, which some engines take for endless.

    Raises:
        GenerationFailed: says why.
    """
    try:
        prompt.encode()
    except UnicodeEncodeError as error:
        raise GenerationFailed(f"the prompt is not valid Unicode: {error}") from error
    if sampling.max_tokens < 1:
        raise GenerationFailed(f"max_tokens is {sampling.max_tokens}, it must be at least 1")
