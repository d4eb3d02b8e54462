"""Texts of a run: in its own artifact store if that is reached through the server, else in its tags."""

from collections.abc import Iterator, Mapping
from urllib.parse import urlsplit

PIECE = 7_500
"""Characters of text in one tag. A piece of exactly this length is followed by another one."""


def proxied_folder(artifact_uri: str, *, url: str) -> str | None:
    """The run's folder under the server's artifact root; None if the server does not pass it on."""
    parts = urlsplit(artifact_uri)
    if parts.scheme != "mlflow-artifacts" or parts.netloc not in {"", urlsplit(url).netloc}:
        return None
    return parts.path.strip("/")


def artifact_tags(artifacts: Mapping[str, str]) -> dict[str, str]:
    """The tags that hold these texts: split where one would be too long, never cut."""
    return {
        _piece_key(path, n): piece for path, text in artifacts.items() for n, piece in enumerate(_split(text))
    }


def join_artifact(tags: Mapping[str, str], path: str) -> str | None:
    """The text that the tags hold under this path; None if they do not hold all of it."""
    pieces: list[str] = []
    while True:
        piece = tags.get(_piece_key(path, len(pieces)))
        if piece is None:
            return None
        pieces.append(piece)
        if len(piece) < PIECE:
            return "".join(pieces)


def _piece_key(path: str, n: int) -> str:
    return f"artifact:{path}:{n}" if n else f"artifact:{path}"


def _split(text: str) -> Iterator[str]:
    # The last piece is always shorter than the others, so pieces of a longer text that stood here
    # before are never read as part of this one.
    for start in range(0, len(text) + 1, PIECE):
        yield text[start : start + PIECE]
