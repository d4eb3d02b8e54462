"""The slash command: one text, two forms, installed without harm to what is there."""

import json
import re
import tomllib
from pathlib import Path

import pytest

from tests.conftest import Outcome
from tipbench import __version__
from tipbench.cli import COMMANDS
from tipbench.cli.judge import command as judge_command
from tipbench.judging.mcp import JudgeTools
from tipbench.judging.slash_command import MCP_ENTRY, command_files, plugin_files
from tipbench.settings import STANDARD_VARIABLES, Settings

ROOT = Path(__file__).parent.parent.parent


@pytest.fixture
def install(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> "Install":
    return Install(tmp_path, capsys, monkeypatch)


class Install:
    """`tipbench judge install-command` into a folder of the test's own: no server is needed."""

    def __init__(
        self, folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        self.folder, self._capsys, self._monkeypatch = folder, capsys, monkeypatch
        self.mcp_file = folder / ".mcp.json"

    def __call__(self, *arguments: str, folder: Path | None = None) -> Outcome:
        from tipbench.cli import main

        words = ["tipbench", "judge", "install-command", "--folder", str(folder or self.folder), *arguments]
        self._monkeypatch.setattr("sys.argv", words)
        with pytest.raises(SystemExit) as stopped:
            main()
        printed = self._capsys.readouterr()
        return Outcome(int(stopped.value.code or 0), printed.out, printed.err)


def test_the_repository_has_what_the_command_installs() -> None:
    for name, text in command_files().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, f"{name}: tipbench judge install-command"


def test_the_plugin_in_the_repository_is_the_one_text_with_both_names_of_every_tool() -> None:
    for name, text in plugin_files().items():
        assert (ROOT / name).read_text(encoding="utf-8") == text, "python -m tests.support.plugin"
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "plugin").rglob("*") if path.is_file()}
    assert there == {name for name in plugin_files() if name.startswith("plugin/")}
    # A plugin's own server has its name in the tools, and nothing else may differ.
    for name, text in command_files().items():
        plugged = plugin_files()[f"plugin/{name.removeprefix('.claude/')}"]
        tools = re.findall(r"mcp__tipbench__(\w+)", text)
        assert tools
        assert re.findall(r"mcp__plugin_tipbench_tipbench__(\w+)", plugged) == tools
        assert re.sub(r" mcp__plugin_\w+", "", plugged) == text


def test_the_plugin_is_found_from_the_repository_and_starts_our_server() -> None:
    market = json.loads((ROOT / ".claude-plugin" / "marketplace.json").read_text())
    (listed,) = market["plugins"]
    plugin = ROOT / listed["source"]
    manifest = json.loads((plugin / ".claude-plugin" / "plugin.json").read_text())
    assert (listed["name"], manifest["name"], manifest["version"]) == ("tipbench", "tipbench", __version__)
    assert json.loads((plugin / ".mcp.json").read_text()) == {"mcpServers": {"tipbench": MCP_ENTRY}}


def test_the_manifest_for_the_registry_of_servers_names_this_version_and_what_there_is() -> None:
    manifest = json.loads((ROOT / "server.json").read_text())
    (package,) = manifest["packages"]
    assert manifest["version"] == package["version"] == __version__
    assert re.fullmatch(r"[a-zA-Z0-9.-]+/[a-zA-Z0-9._-]+", manifest["name"])
    assert len(manifest["description"]) <= 100
    assert f"<!-- mcp-name: {manifest['name']} -->" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert [argument["value"] for argument in package["packageArguments"]] == MCP_ENTRY["args"]
    (source,) = package["runtimeArguments"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = re.fullmatch(r"tipbench\[([a-z,]+)\]", source["value"])
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    known = {*STANDARD_VARIABLES.values(), *(f"TIPBENCH_{name.upper()}" for name in Settings.model_fields)}
    assert {each["name"] for each in package["environmentVariables"]} <= known


def test_both_forms_are_written_and_a_second_time_changes_nothing(install: Install) -> None:
    first = install()
    assert first.code == 0
    for name, text in command_files().items():
        assert (install.folder / name).read_text(encoding="utf-8") == text
        assert f"wrote {install.folder / name}" in first.out
    assert '"command": "tipbench"' in first.out
    assert not install.mcp_file.exists()
    assert install().out.count("unchanged") == 2


def test_a_changed_file_is_replaced_only_by_force(install: Install) -> None:
    install()
    mine = install.folder / ".claude/commands/judge-mlflow.md"
    skill = install.folder / ".claude/skills/judge-mlflow/SKILL.md"
    mine.write_text("my own", encoding="utf-8")
    skill.unlink()
    refused = install("--mcp")
    assert refused.code == 2
    assert str(mine) in refused.err
    assert mine.read_text(encoding="utf-8") == "my own"
    assert not skill.exists()
    assert not install.mcp_file.exists()
    assert install("--force").code == 0
    assert mine.read_text(encoding="utf-8") != "my own"


def test_the_server_is_added_beside_what_is_there(install: Install) -> None:
    there = {"mcpServers": {"ours": {"command": "x", "args": ["ü"]}}, "other": [1, {"a": None}]}
    install.mcp_file.write_text(json.dumps(there), encoding="utf-8")
    assert f"wrote {install.mcp_file}" in install("--mcp").out
    after = json.loads(install.mcp_file.read_text(encoding="utf-8"))
    assert after["mcpServers"].pop("tipbench") == MCP_ENTRY
    assert after == there
    assert f"unchanged {install.mcp_file}" in install("--mcp").out
    assert list(install.folder.glob("*.part")) == []


@pytest.mark.parametrize(
    "text",
    ["{", "[]", "null", '{"mcpServers": []}', '{"mcpServers": {"tipbench": {"command": "my own"}}}', "\xff"],
)
def test_a_file_that_cannot_be_merged_is_left_as_it_is(install: Install, text: str) -> None:
    install.mcp_file.write_bytes(text.encode("latin-1"))
    refused = install("--mcp")
    assert refused.code == 2
    assert ".mcp.json" in refused.err
    assert "Traceback" not in refused.err
    assert install.mcp_file.read_bytes() == text.encode("latin-1")
    assert not (install.folder / ".claude").exists()


def test_another_server_of_our_name_is_replaced_only_by_force(install: Install) -> None:
    install.mcp_file.write_text('{"mcpServers": {"tipbench": {"command": "my own"}}}', encoding="utf-8")
    assert install("--mcp", "--force").code == 0
    assert json.loads(install.mcp_file.read_text(encoding="utf-8")) == {"mcpServers": {"tipbench": MCP_ENTRY}}


def test_a_folder_that_is_not_there_is_a_clear_error(install: Install) -> None:
    refused = install(folder=install.folder / "none")
    assert refused.code == 2
    assert "there is no folder" in refused.err


def test_the_text_allows_only_tools_and_options_that_exist() -> None:
    for text in command_files().values():
        (allowed,) = re.findall(r"^allowed-tools: (.+)$", text, re.MULTILINE)
        tools = set(re.findall(r"mcp__tipbench__(\w+)", allowed))
        assert tools == {name for name in vars(JudgeTools) if not name.startswith("_")} - {"lose"}
        options = {option for parameter in judge_command.params for option in parameter.opts}
        assert set(re.findall(r"Bash\(tipbench judge (--\w+) \*\)", allowed)) <= options
        rest = re.sub(r"mcp__tipbench__\w+|Bash\(tipbench judge --\w+ \*\)", "", allowed)
        assert rest.split() == [
            *("Read(judge-sheet*.json)", "Edit(judge-sheet*.json)"),
            *("Write(judge-answers*.jsonl)", "Edit(judge-answers*.jsonl)"),
        ]
        assert "change nothing else" not in text, "a flag may be overruled"
        assert "judge-sheet.schema.json" in text
        assert text.index("`read_rubric`") < text.index("`next_items`")
        assert "--apply judge-answers.jsonl --sheet judge-sheet.json" in text
        # Claude Code puts arguments in place of $0, $1, …, and runs what stands behind !`.
        assert re.findall(r"\$\w+|!`", text) == ["$ARGUMENTS"]
        assert set(re.findall(r"`tipbench (\w+)", text)) <= set(COMMANDS)
