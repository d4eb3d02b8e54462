"""A folder of data → a Pack; its prompts rendered, its scenarios chosen."""

from tipbench.pack.prompts import answer_schema, read_parts, render_prompt
from tipbench.pack.reading import (
    answer_tokens,
    builtin_pack,
    check_folder,
    describe_pack,
    examine,
    parse_pack,
    read_pack,
    seal_pack,
    select_scenarios,
    unseal_pack,
)
from tipbench.pack.schemas import start_pack

__all__ = [
    "answer_schema",
    "answer_tokens",
    "builtin_pack",
    "check_folder",
    "describe_pack",
    "examine",
    "parse_pack",
    "read_pack",
    "read_parts",
    "render_prompt",
    "seal_pack",
    "select_scenarios",
    "start_pack",
    "unseal_pack",
]
