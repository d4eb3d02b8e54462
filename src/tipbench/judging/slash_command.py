"""The slash command `/judge-mlflow` for Claude Code: one text in the package, installed in both its forms."""

import json
import re
from collections.abc import Mapping
from importlib.resources import files
from pathlib import Path
from typing import cast

from tipbench import __version__
from tipbench.errors import TipbenchError, UsageError
from tipbench.files import write_whole

NAME = "judge-mlflow"
SERVER = "tipbench"
MCP_FILE = ".mcp.json"
MCP_ENTRY: Mapping[str, object] = {"type": "stdio", "command": "tipbench", "args": ["mcp"]}


def command_files() -> dict[str, str]:
    """Path in a project → text: as a command, the older form, and as a skill, the current one."""
    text = files("tipbench.judging").joinpath("judge_mlflow.md").read_text(encoding="utf-8")
    return {
        f".claude/commands/{NAME}.md": text,
        f".claude/skills/{NAME}/SKILL.md": text.replace("---\n", f"---\nname: {NAME}\n", 1),
    }


def plugin_files() -> dict[str, str]:
    """Path in the repository → text of the plugin for Claude Code, and of the list that it is installed from.

    A server that a plugin brings has the plugin's name in the names of its tools, too.
    """
    ours, theirs = f"mcp__{SERVER}__", f"mcp__plugin_{SERVER}_{SERVER}__"
    about = (
        "Judge tips of small language models, blind and by a pinned rubric; what is said goes into MLflow."
    )
    made: dict[str, object] = {
        "plugin/.claude-plugin/plugin.json": {
            "name": SERVER,
            "version": __version__,
            "description": about,
            "author": {"name": "tipbench"},
            "license": "Apache-2.0",
            "keywords": ["evaluation", "llm-as-a-judge", "mlflow", "prompts"],
        },
        "plugin/.mcp.json": {"mcpServers": {SERVER: MCP_ENTRY}},
        ".claude-plugin/marketplace.json": {
            "name": SERVER,
            "owner": {"name": "tipbench"},
            "plugins": [{"name": SERVER, "source": "./plugin", "description": about}],
        },
    }
    files = {name: json.dumps(content, indent=2, ensure_ascii=False) + "\n" for name, content in made.items()}
    for name, text in command_files().items():
        named = re.sub(rf"\b{ours}(\w+)", rf"{ours}\1 {theirs}\1", text)
        files[f"plugin/{name.removeprefix('.claude/')}"] = named
    return files


def add_server(text: str, *, force: bool) -> str:
    """The text of `.mcp.json` with our server among the others; "" is a file that is not there yet.

    Raises:
        UsageError: it is no such file, or names another server `tipbench` and `force` was not given.
    """
    try:
        found: object = json.loads(text) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise UsageError(
            f"{MCP_FILE} is not JSON: {error}", hint="Fix it, or add the entry by hand."
        ) from None
    servers: object = (
        cast("dict[str, object]", found).get("mcpServers", {}) if isinstance(found, dict) else None
    )
    if not isinstance(servers, dict):
        raise UsageError(f"{MCP_FILE} holds no object mcpServers", hint="Fix it, or add the entry by hand.")
    known = cast("dict[str, object]", servers)
    if known.get(SERVER, MCP_ENTRY) != MCP_ENTRY and not force:
        raise UsageError(f"{MCP_FILE} has another server {SERVER!r}", hint="Replace it with --force.")
    if known.get(SERVER) == MCP_ENTRY:
        return text
    merged = cast("dict[str, object]", found) | {"mcpServers": known | {SERVER: MCP_ENTRY}}
    return json.dumps(merged, indent=2, ensure_ascii=False) + "\n"


def install(folder: Path, *, with_server: bool, force: bool) -> dict[Path, bool]:
    """Writes what is missing into the project; path → whether it was written now.

    Raises:
        UsageError: a file was changed since, and `force` was not given; nothing was written.
        TipbenchError: a file cannot be read or written.
    """
    if not folder.is_dir():
        raise UsageError(f"there is no folder {str(folder)!r}", hint="Make it first.")
    wanted = {folder / name: text for name, text in command_files().items()}
    there = {path: _read(path) for path in wanted}
    changed = [str(path) for path, text in wanted.items() if there[path] not in {None, text}]
    if changed and not force:
        raise UsageError(
            "changed since they were installed, or by another version: " + ", ".join(changed),
            hint="Keep them, or replace them with --force.",
        )
    if with_server:
        path = folder / MCP_FILE
        there[path] = _read(path)
        wanted[path] = add_server(there[path] or "", force=force)
    for path, text in wanted.items():
        if there[path] != text:
            _write(path, text)
    return {path: there[path] != text for path, text in wanted.items()}


def _read(path: Path) -> str | None:
    try:
        return path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError as error:
        raise UsageError(f"{str(path)!r} is not UTF-8 text: {error.reason}") from error
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be read: {error.strerror}") from error


def _write(path: Path, text: str) -> None:
    """In one step, so that what was there is never torn; a link stays one."""
    target = path.resolve()
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        write_whole(target, text)
    except OSError as error:
        raise TipbenchError(f"{str(path)!r} cannot be written: {error.strerror}") from error
