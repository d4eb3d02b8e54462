"""`tipbench schema`: the form of our files, for editors and validators."""

from typing import Any

import click

KINDS = ("toml", "pack", "scenarios", "anchors", "sheet")
URLS = ("mlflow_url", "ollama_url", "openai_url", "airflow_url")


@click.command(name="schema")
@click.argument("kind", type=click.Choice(KINDS))
def command(kind: str) -> None:
    """Print the JSON Schema of a file: tipbench.toml (`toml`), a pack's, or a judge's sheet.

    Of scenarios and anchors, it is that of one line. The first line of a TOML file tells editors where its
    schema is, as in `#:schema ./tipbench.schema.json`; packs that `tipbench pack new` made have theirs.
    """
    from tipbench.judging.sheet import Sheet
    from tipbench.pack import schemas

    describe = {
        "toml": _describe_settings,
        "pack": schemas.describe_pack_toml,
        "scenarios": schemas.describe_scenario,
        "anchors": schemas.describe_anchor,
        "sheet": lambda: schemas.with_dialect(Sheet.model_json_schema(), title="a judge's sheet"),
    }
    click.echo(schemas.format_schema(describe[kind]()), nl=False)


def _describe_settings() -> dict[str, Any]:
    """tipbench.toml: every setting that is for a file to say."""
    from tipbench.pack.schemas import with_dialect, without_null
    from tipbench.run_keys import RUN_KEYS
    from tipbench.settings import COMMAND, Settings

    made = without_null(with_dialect(Settings.model_json_schema(), title="tipbench.toml"))
    properties, gate = made["properties"], made["$defs"]["GateSettings"]["properties"]
    # Not for a file to say.
    del properties["insecure"], made["required"]
    properties["judge_model"]["not"] = {"pattern": f"^{COMMAND}"}
    for name in URLS:
        properties[name]["pattern"] = "^https?://"
    for name, key in RUN_KEYS.items():
        if key.choices:
            del properties[name]["pattern"]
            properties[name]["enum"] = list(key.choices)
    gate["looks"] = {"anyOf": [gate["looks"], {"type": "string"}], "default": gate["looks"]["default"]}
    return made
