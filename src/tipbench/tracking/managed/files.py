"""The managed server's files: where they are, whose they are, and how a restored folder takes its place."""

from pathlib import Path

from pydantic import ValidationError

from tipbench.files import write_whole
from tipbench.records import Record

DATABASE = "mlflow.db"
ARTIFACTS = "artifacts"
PROOF = "tipbench-server-id"
"""An artifact that only a server of this folder can show: its random id."""


class ServerFile(Record):
    """What `server.json` holds. `pid` is also the process group; 0 when the server was stopped."""

    server_id: str
    port: int = 0
    pid: int = 0

    @property
    def url(self) -> str:
        """Where the server listens."""
        return f"http://127.0.0.1:{self.port}"


def managed_folder(home: Path) -> Path:
    """The folder of the managed server in this data folder."""
    return home / "mlflow"


def managed_name(server_id: str) -> str:
    """What journal and cache call the managed server: its address may change."""
    return f"managed {server_id}"


def read_server_file(folder: Path) -> ServerFile | None:
    """Who the server of this folder is; None if there is none yet."""
    try:
        return ServerFile.model_validate_json((folder / "server.json").read_bytes())
    except (FileNotFoundError, NotADirectoryError, ValidationError):
        return None


def write_server_file(folder: Path, file: ServerFile) -> None:
    """Stores it, whole or not at all."""
    write_whole(folder / "server.json", file.model_dump_json())


def restored_beside(folder: Path) -> Path:
    """A complete restored folder waits under this name until the old one is out of its way."""
    return folder.with_name(f"{folder.name}.restored")


def finish_restore(folder: Path) -> bool:
    """Puts a restored folder in its place if a restore was interrupted between the two renames."""
    waiting = restored_beside(folder)
    if folder.exists() or not waiting.exists():
        return False
    waiting.rename(folder)
    return True
