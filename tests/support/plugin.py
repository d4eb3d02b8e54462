"""Writes the plugin for Claude Code as the package makes it.

usage: python -m tests.support.plugin
"""

from pathlib import Path

from tipbench.judging.slash_command import plugin_files

ROOT = Path(__file__).parents[2]


def main() -> None:
    for name, text in plugin_files().items():
        path = ROOT / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
        print(name)


if __name__ == "__main__":
    main()
