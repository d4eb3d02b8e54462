"""The schemas that we print say yes and no where our readers do, by a validator that is not ours."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from tests.conftest import Cli
from tipbench.cli.schema import KINDS
from tipbench.errors import TipbenchError
from tipbench.pack import builtin_pack, parse_pack
from tipbench.run_keys import RUN_KEYS
from tipbench.settings import read_settings

ROOT = Path(__file__).parents[1]
Content = dict[str, Any]


def validator(cli: Cli, kind: str) -> Any:
    schema = cli.ok("schema", kind).json()
    Draft202012Validator.check_schema(schema)
    return Draft202012Validator(schema)


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_a_json_schema(cli: Cli, kind: str) -> None:
    assert validator(cli, kind).schema["$schema"].startswith("https://json-schema.org/")


SETTINGS: tuple[str, ...] = (
    "n_tips = 3",
    "n_tips = 0",
    "n_tips = 51",
    "models = ''",
    "judge_kind = 'human'",
    "judge_kind = 'cat'",
    "temperature = 2",
    "temperature = 2.1",
    "mlflow_url = 'https://x.example/base'",
    "mlflow_url = 'x.example'",
    "insecure = true",
    "judge_model = 'openai:x'",
    "judge_model = 'command:rm'",
    "no_such_key = 1",
    "threads = 4",
    "threads = 0",
    "gpu_layers = 12",
    "gpu_layers = 'auto'",
    "gpu_layers = -1",
    "gpu_layers = 'all'",
    "[gate]\nlooks = [0.5, 1.0]",
    "[gate]\nlooks = '0.5, 1'",
    "[gate]\nalpha = 0.5",
    "[gate]\nrequire = 'lazy'",
    "[gate]\nrequire = 'none'",
    "[gate]\nscenarios = 1",
    "[gate]\nlatency_seconds = 2",
    "[gate]\nodd = 1",
    "policies_store = 'redis://x'",
    "policies_store = 'floppy'",
    "webhook_secret = 'short'",
)


@pytest.mark.parametrize("text", SETTINGS)
def test_tipbench_toml_is_refused_by_both_or_by_none(cli: Cli, text: str, tmp_path: Path) -> None:
    (tmp_path / "tipbench.toml").write_text(text)
    try:
        read_settings({}, environ={"HOME": str(tmp_path)}, folder=tmp_path)
    except TipbenchError:
        taken = False
    else:
        taken = True
    assert validator(cli, "toml").is_valid(tomllib.loads(text)) == taken


def test_every_setting_and_its_words_are_there(cli: Cli) -> None:
    properties = validator(cli, "toml").schema["properties"]
    for name, key in RUN_KEYS.items():
        if name != "skip_missing":
            assert properties[name]["description"] == key.help
    assert "insecure" not in properties


def change(content: Content, path: str, value: object) -> Content:
    """The content with another value at that place; None takes it out."""
    changed: Content = json.loads(json.dumps(content))
    *way, last = path.split("/")
    place = changed
    for name in way:
        place = place[name]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return changed


MANIFESTS: tuple[tuple[str, object], ...] = (
    ("schema", 2),
    ("schema", None),
    ("name", "a b"),
    ("max_tokens", 0),
    ("max_tokens", 32_768),
    ("diversity_request", ""),
    ("odd", 1),
    ("scales", {}),
    ("scales/Tone", {}),
    ("scales/tone/weight", 2.5),
    ("scales/tone/minimum", 1.5),
    ("flags/overlong/rule", {}),
    ("flags/overlong/rule/min_words", 3),
    ("flags/overlong/weight", None),
    ("flags/overlong/rule/odd", 3),
    ("rubric", None),
    ("well_formed", "overlong"),
)


@pytest.mark.parametrize(("path", "value"), MANIFESTS)
def test_pack_toml_is_refused_by_both_or_by_none(cli: Cli, path: str, value: object) -> None:
    files = dict(builtin_pack().files)
    found = change(tomllib.loads(files["pack.toml"]), path, value)
    try:
        parse_pack(files | {"pack.toml": to_toml(found)})
    except TipbenchError:
        taken = False
    else:
        taken = True
    assert validator(cli, "pack").is_valid(found) == taken


def to_toml(content: Content, section: str = "") -> str:
    plain = {name: value for name, value in content.items() if not isinstance(value, dict)}
    lines = [f"{name} = {json.dumps(value)}" for name, value in plain.items()]
    for name, value in content.items():
        if isinstance(value, dict):
            inner = f"{section}.{name}" if section else name
            lines += [f"[{inner}]", to_toml(value, inner)]  # pyright: ignore[reportUnknownArgumentType]
    return "\n".join(lines)


def read_lines(text: str) -> list[Content]:
    return [json.loads(line) for line in text.splitlines() if line.strip() and not line.startswith("#")]


def test_the_lines_of_our_own_packs_fit_and_broken_ones_do_not(cli: Cli) -> None:
    for name in ("tip", "starter"):
        files = builtin_pack(name).files
        for kind in ("scenarios", "anchors"):
            check = validator(cli, kind)
            lines = read_lines(files[f"{kind}.jsonl"])
            assert lines
            for line in lines:
                check.validate(line)
                assert not check.is_valid(line | {"odd": 1})
                assert not check.is_valid(line | {"id": "a b"})
    anchor = read_lines(builtin_pack("tip").files["anchors.jsonl"])[0]
    plain = {name: value for name, value in anchor.items() if name != "sealed"}
    check = validator(cli, "anchors")
    assert not check.is_valid(plain), "no reference"
    assert check.is_valid(plain | {"scores": {"tone": 3}, "reason": "why"})
    assert not check.is_valid(anchor | {"scores": {"tone": 3}, "reason": "why"}), "both"


def test_a_sheet_fits_before_and_after_it_is_filled_in(cli: Cli, collected: str) -> None:
    cli.ok("judge", "--experiment", collected, "--export", "sheet.json")
    sheet = json.loads(Path("sheet.json").read_text(encoding="utf-8"))
    check = validator(cli, "sheet")
    check.validate(sheet)
    item = sheet["sections"][0]["items"][0]
    item["scores"] = dict.fromkeys(item["scores"], 3)
    check.validate(sheet)
    item["scores"] = dict.fromkeys(item["scores"], "three")
    assert not check.is_valid(sheet)


def test_a_new_pack_tells_editors_where_its_schema_is(cli: Cli) -> None:
    cli.ok("pack", "new", "mine")
    text = Path("mine/pack.toml").read_text(encoding="utf-8")
    (place,) = [line.removeprefix("#:schema ") for line in text.splitlines() if line.startswith("#:schema ")]
    assert text.startswith("#:schema ./")
    schema = json.loads((Path("mine") / place).read_text(encoding="utf-8"))
    assert schema == cli.ok("schema", "pack").json()
    assert validator(cli, "pack").is_valid(tomllib.loads(text))
    cli.ok("pack", "check", "mine")
    assert place.removeprefix("./") not in builtin_pack("starter").files
