"""JSON Schemas of a pack's files, made of the records that read them; a new pack, which has its own."""

import json
import re
from importlib.resources import files as package_files
from pathlib import Path
from typing import Any

from tipbench.errors import UsageError
from tipbench.pack.check import PackFindings, ScenarioLine
from tipbench.pack.reading import METRIC, AnchorLine, Manifest, read_texts
from tipbench.records import SCHEMA

DIALECT = "https://json-schema.org/draft/2020-12/schema"
PACK_SCHEMA = "pack.schema.json"
"""Beside the pack.toml of a pack that `pack new` made; no part of the pack."""
Made = dict[str, Any]


def describe_pack_toml() -> Made:
    """pack.toml."""
    made = without_null(with_dialect(Manifest.model_json_schema(), title="pack.toml"))
    version: Made = {"const": SCHEMA, "description": f"Always {SCHEMA}."}
    made["properties"] = {"schema": version, **made["properties"]}
    made["required"] = ["schema", *made["required"]]
    for named in ("scales", "flags"):
        made["properties"][named] |= {"propertyNames": {"pattern": f"^{METRIC.pattern}$"}}
    made["$defs"]["FlagRule"]["minProperties"] = 1
    return made


def describe_scenario() -> Made:
    """A line of scenarios.jsonl."""
    return with_dialect(ScenarioLine.model_json_schema(), title="a line of scenarios.jsonl")


def describe_anchor() -> Made:
    """A line of anchors.jsonl: its reference is sealed, or in plain text."""
    made = without_null(with_dialect(AnchorLine.model_json_schema(), title="a line of anchors.jsonl"))
    sealed, plain = {"required": ["sealed"]}, [{"required": ["scores"]}, {"required": ["reason"]}]
    made["oneOf"] = [sealed | {"not": {"anyOf": plain}}, {"allOf": plain, "not": sealed}]
    made["properties"]["reason"]["minLength"] = 1
    return made


def with_dialect(made: Made, *, title: str) -> Made:
    """The schema as a file of its own."""
    return {"$schema": DIALECT, **made, "title": title}


def without_null(made: Made) -> Made:
    """What may be left out is none in memory; in our files there is no null, and TOML has none at all."""
    for part in (made, *made.get("$defs", {}).values()):
        for name, value in part.get("properties", {}).items():
            kept = [each for each in value.get("anyOf", ()) if each.get("type") != "null"]
            if len(kept) == 1:
                told = {key: text for key, text in value.items() if key not in ("anyOf", "default")}
                part["properties"][name] = told | kept[0]
    return made


def format_schema(made: Made) -> str:
    """As it is printed and written."""
    return json.dumps(made, indent=1, ensure_ascii=False) + "\n"


def start_pack(folder: Path) -> list[str]:
    """Writes a small working pack into a new or empty folder, and the schema of its pack.toml; their names.

    Raises:
        UsageError: the folder is not empty, is a file, or cannot be written to.
    """
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(f"{str(folder)!r} is not an empty folder", hint="Name a new folder")
    texts = read_texts(package_files("tipbench") / "packs" / "starter", PackFindings())
    name = re.sub(r"[^a-z0-9._-]+", "-", folder.resolve().name.lower()).strip("-._")[:64] or "headlines"
    toml = texts["pack.toml"].replace('name = "headlines"', f'name = "{name}"', 1)
    texts["pack.toml"] = f"#:schema ./{PACK_SCHEMA}\n{toml}"
    texts[PACK_SCHEMA] = format_schema(describe_pack_toml())
    try:
        (folder / "prompts").mkdir(parents=True)
        for file, text in texts.items():
            (folder / file).write_text(text, encoding="utf-8", newline="\n")
    except OSError as error:
        raise UsageError(f"cannot write into {str(folder)!r}: {error.strerror}") from error
    return list(texts)
