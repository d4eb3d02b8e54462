"""What an Ollama server says, as far as we use it."""

import json
from typing import cast

from pydantic import BaseModel, ConfigDict, Field

LONGEST_MESSAGE = 400


class Reply(BaseModel):
    """What the server sends; what we do not know of it is passed over, what is zero it leaves out."""

    model_config = ConfigDict(frozen=True, extra="ignore")


class Tag(Reply):
    """A model in the server's store."""

    name: str
    digest: str
    size: int = 0


class Details(Reply):
    """What the server says of a model for people to read."""

    parameter_size: str = ""


class Shown(Reply):
    """What the server knows of one model."""

    modelfile: str = ""
    template: str = ""
    details: Details = Details()
    model_info: dict[str, object] = Field(default_factory=dict)
    capabilities: tuple[str, ...] = ()
    remote_host: str = ""


class Resident(Reply):
    """A model in the server's memory, by the name it was first loaded under."""

    name: str
    digest: str = ""
    context_length: int = 0


class Message(Reply):
    """What the model said, and what it only thought."""

    content: str = ""
    thinking: str = ""


class Chatted(Reply):
    """The reply to a question. Durations are in nanoseconds."""

    message: Message = Message()
    done: bool = False
    done_reason: str = ""
    total_duration: int = 0
    load_duration: int = 0
    prompt_eval_count: int = 0
    eval_count: int = 0


class Version(Reply):
    """Which server answers."""

    version: str


class Tags(Reply):
    """The server's store."""

    models: tuple[Tag, ...] = ()


class Residents(Reply):
    """The server's memory."""

    models: tuple[Resident, ...] = ()


def error_text(status: int, text: str) -> str:
    """Why the server refused, in its own words."""
    shown = " ".join(_innermost(text).split())
    return shown[:LONGEST_MESSAGE] or f"HTTP {status}"


def _innermost(text: str) -> str:
    """Newer servers wrap what their engine said, as JSON within a text, sometimes twice."""
    try:
        content = json.loads(text)
    except ValueError:
        return text
    while isinstance(content, dict):
        fields = cast(dict[str, object], content)
        content = fields.get("error", fields.get("message"))
    return _innermost(content) if isinstance(content, str) else text
