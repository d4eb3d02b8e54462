"""Who may look: the rights of everything in a folder."""

import stat
from pathlib import Path


def open_to_others(folder: Path) -> list[str]:
    """What somebody else than its owner could read, write or enter there, links left out."""
    return [
        f"{stat.filemode(path.stat().st_mode)} {path.relative_to(folder)}"
        for path in (folder, *folder.rglob("*"))
        if not path.is_symlink() and path.stat().st_mode & 0o077
    ]
