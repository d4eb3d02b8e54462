"""The configuration of a run is declared once: settings, orders, options and DAG follow it, key by key."""

from typing import get_args

import click
import pytest
from tipbench_airflow.conf import KEYS as DAG_KEYS

from tests.support.option_uses import commands
from tipbench.errors import UsageError
from tipbench.jobs.orders import ImproveOrder, RunOrder
from tipbench.run_keys import RUN_KEYS
from tipbench.settings import Settings, read_settings

CLICK = {str: click.STRING, int: click.INT, float: click.FLOAT, bool: click.BOOL}
JSON = {str: "string", int: "integer", float: "number", bool: "boolean"}
BAD = {
    "experiment": ["", "x" * 501],
    "models": ["", "m" * 4001],
    "prompts": ["", "p" * 4001],
    "scenarios": ["", "s" * 251],
    "n_scenarios": [-1, 1_000_001],
    "n_tips": [0, 51],
    "temperature": [-0.1, 2.1, float("inf")],
    "max_model_b": [0, float("nan")],
    "seed": [-1, 2**63],
    "judge_kind": ["gpt", "claude-code "],
}
"""Beyond every limit that is declared."""


def test_every_limit_is_tried() -> None:
    limited = {
        name
        for name, key in RUN_KEYS.items()
        if key.choices or any(each is not None for each in (key.least, key.above, key.longest))
    }
    assert limited - set(BAD) == {"ollama_url", "mlflow_url"}, "they are compared with configured ones"


@pytest.mark.parametrize("name", RUN_KEYS)
def test_an_order_has_the_key_with_its_type_and_default(name: str) -> None:
    field, key = RunOrder.model_fields[name], RUN_KEYS[name]
    kinds = set(get_args(field.annotation) or (field.annotation,)) - {type(None)}
    assert kinds == {key.type}
    # Without an address it is the server's own.
    assert field.default == (None if name == "ollama_url" else key.default)


def test_an_order_has_no_other_key() -> None:
    assert set(RunOrder.model_fields) == set(RUN_KEYS)


@pytest.mark.parametrize("name", sorted(set(RUN_KEYS) - {"skip_missing"}))
def test_a_setting_has_the_type_and_default_of_the_key(name: str) -> None:
    field, key = Settings.model_fields[name], RUN_KEYS[name]
    assert set(get_args(field.annotation) or (field.annotation,)) - {type(None)} == {key.type}
    assert field.default == key.default


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name, values in BAD.items() for value in values]
)
def test_settings_and_orders_refuse_the_same_values(name: str, value: object) -> None:
    with pytest.raises(UsageError, match=name):
        read_settings({name: value}, environ={})
    for order in (RunOrder, ImproveOrder):
        if name in order.model_fields:
            given = {name: value} | ({"proposer": "m"} if order is ImproveOrder else {})
            with pytest.raises(ValueError, match=name):
                order.model_validate(given)


@pytest.mark.parametrize("name", RUN_KEYS)
def test_collect_has_an_option_of_that_type_with_that_help(name: str) -> None:
    key = RUN_KEYS[name]
    (option,) = [each for each in commands()["collect",].params if each.name == name]
    assert isinstance(option, click.Option)
    assert option.opts == [f"--{name.replace('_', '-')}"]
    if key.choices:
        assert isinstance(option.type, click.Choice)
        assert list(option.type.choices) == list(key.choices)
    else:
        assert option.type.name == CLICK[key.type].name
    assert (option.help or "").startswith(key.hint)


def test_the_dag_has_the_same_keys_and_a_few_of_its_own() -> None:
    assert set(DAG_KEYS) - set(RUN_KEYS) == {"judge_agent", "judge_budget", "judge_model", "until"}
    # There a model that is missing fails its own task.
    assert set(RUN_KEYS) - set(DAG_KEYS) == {"skip_missing"}


@pytest.mark.parametrize("name", sorted(set(RUN_KEYS) - {"skip_missing"}))
def test_a_key_of_the_dag_has_the_type_default_and_limits_that_are_declared(name: str) -> None:
    theirs, key = DAG_KEYS[name], RUN_KEYS[name]
    assert (theirs["default"], type(theirs["default"])) == (key.default, type(key.default))
    limits = {
        "minimum": key.least,
        "maximum": key.most,
        "exclusiveMinimum": key.above,
        "exclusiveMaximum": key.below,
        "maxLength": key.longest,
        "enum": list(key.choices) or None,
    }
    assert {limit: theirs.get(limit) for limit in limits} == limits
    kind = JSON[key.type]
    assert theirs.get("type") == (None if key.choices else ["null", kind] if key.default is None else kind)
