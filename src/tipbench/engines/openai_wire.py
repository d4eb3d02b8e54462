"""What an OpenAI-compatible server sends, as far as we use it."""

from typing import Annotated

from pydantic import BaseModel, BeforeValidator, ConfigDict


def _as_unicode(text: object) -> object:
    """The same as valid Unicode: JSON may hold halves of a pair, which no file takes."""
    if isinstance(text, str):
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


Text = Annotated[str, BeforeValidator(_as_unicode)]


class Reply(BaseModel):
    """What a server sends; what we do not know of it is passed over."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Weights(Reply):
    """What a llama.cpp server says about the model it has loaded."""

    n_params: int | None = None
    size: int | None = None


class Offer(Reply):
    """One entry of the server's list of models."""

    id: Text
    meta: Weights | None = None


class Offers(Reply):
    """The server's list of models."""

    data: tuple[Offer, ...]


class Message(Reply):
    """What the model said; `reasoning_content` or `reasoning` is what it only thought."""

    content: Text | None = None
    refusal: Text | None = None
    reasoning_content: Text | None = None
    reasoning: Text | None = None


class Choice(Reply):
    """One answer, and why it ended."""

    message: Message
    finish_reason: str | None = None


class Usage(Reply):
    """How long question and answer are."""

    prompt_tokens: int
    completion_tokens: int


class Completion(Reply):
    """The reply to a question."""

    choices: tuple[Choice, ...]
    usage: Usage | None = None
    seconds: float = 0.0


class Trouble(Reply):
    """What a server says when it says no."""

    message: Text = ""
    param: str | None = None
    code: str | int | None = None
    type: str | None = None


class Failed(Reply):
    """The body of an error."""

    error: Trouble | Text
