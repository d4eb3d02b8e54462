"""A folder of data → a Pack; its prompts rendered, its scenarios chosen."""

from tipbench.pack.reading import (
    answer_tokens,
    builtin_pack,
    check_folder,
    describe_pack,
    examine,
    parse_pack,
    read_pack,
    render_prompt,
    seal_pack,
    select_scenarios,
    start_pack,
    unseal_pack,
)

__all__ = [
    "answer_tokens",
    "builtin_pack",
    "check_folder",
    "describe_pack",
    "examine",
    "parse_pack",
    "read_pack",
    "render_prompt",
    "seal_pack",
    "select_scenarios",
    "start_pack",
    "unseal_pack",
]
