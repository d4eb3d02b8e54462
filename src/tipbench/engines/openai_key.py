"""Which key goes to which server. A key belongs to one origin: the one named beside it in the environment.

The address may come from a file in the current folder, which somebody else may have written. So it never
decides where a key goes.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from tipbench.engines.origins import is_loopback, normalise_url, origin_of
from tipbench.errors import UsageError

OWN_KEY, OWN_URL = "TIPBENCH_OPENAI_KEY", "TIPBENCH_OPENAI_URL"
GENERAL_KEY, GENERAL_URL = "OPENAI_API_KEY", "OPENAI_BASE_URL"
GENERAL_DEFAULT = "https://api.openai.com/v1"
KEY_HINT = (
    f"A key is sent only to the origin that stands beside it in the environment: {OWN_KEY} to that of "
    f"{OWN_URL}, {GENERAL_KEY} to that of {GENERAL_URL}, else of {GENERAL_DEFAULT}."
)


@dataclass(frozen=True)
class ApiKey:
    """A key, the variable it came from, and the only origin it may be sent to."""

    variable: str
    origin: str
    value: str = field(repr=False)

    def header_for(self, url: str) -> dict[str, str]:
        """The header that carries the key; none for any other origin than its own."""
        return {"Authorization": f"Bearer {self.value}"} if origin_of(url) == self.origin else {}


def find_key(url: str, environ: Mapping[str, str]) -> ApiKey | None:
    """The key for the server at this address, if the environment has one for its origin.

    Raises:
        UsageError: the key is not one, or would cross the network unencrypted.
    """
    for variable, home in (
        (OWN_KEY, environ.get(OWN_URL)),
        (GENERAL_KEY, environ.get(GENERAL_URL) or GENERAL_DEFAULT),
    ):
        value = environ.get(variable, "").strip()
        if value and home and _same_origin(url, home):
            return ApiKey(variable, origin_of(url), _checked(value, variable=variable, url=url))
    return None


def _same_origin(url: str, home: str) -> bool:
    try:
        return origin_of(normalise_url(home, setting="")) == origin_of(url)
    except UsageError:
        # An address that we cannot read is not the origin of any server that we ask.
        return False


def _checked(value: str, *, variable: str, url: str) -> str:
    # Said here, without the value: the HTTP library would print it.
    if not (value.isascii() and value.isprintable() and " " not in value):
        raise UsageError(f"{variable} holds characters that no key has", hint="Was it copied completely?")
    if url.startswith("http:") and not is_loopback(url):
        raise UsageError(
            f"{variable} is not sent to {origin_of(url)}: anybody on the way could read it",
            hint="Use https, or a tunnel to localhost and openai_local = false; or unset the key.",
        )
    return value
