"""Layers on a graphics card: how many fit, what is refused, what a run says of it.

There need be no card: they are written down, or pretended (`pretended_card`). The real wheel is asked, too.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.conftest import Cli
from tests.engines.conftest import OpenEngine
from tipbench.engines.llamacpp.card import (
    Card,
    GpuLayers,
    LayerCount,
    Need,
    Placement,
    choose_cards,
    read_cards,
)
from tipbench.engines.machine import check_memory
from tipbench.errors import EngineUnavailable
from tipbench.records import Model, Sampling
from tipbench.tracking import Tracking

GIB = 2**30
PRETENDED = Path(__file__).parent / "pretended_card"
NEED = Need("m", weights_bytes=3 * GIB, kv_bytes=GIB, layers=32)


def card(free: float, *, total: int = 24 * GIB, shared: bool = False) -> Card:
    return Card(
        name="CUDA0", description="a card", free_bytes=int(free * GIB), total_bytes=total, shared=shared
    )


def place(wanted: GpuLayers, *cards: Card) -> LayerCount:
    return Placement(wanted, read=lambda: cards).count(NEED)


@pytest.mark.parametrize(
    ("wanted", "cards", "layers"),
    [
        ("auto", [], 0),
        ("auto", [card(24)], 33),
        ("auto", [card(4.5)], 33),
        ("auto", [card(2.5)], 16),
        ("auto", [card(1.5), card(1.5)], 16),
        ("auto", [card(0.4)], 0),
        ("auto", [card(0, total=0)], 33),
        (0, [card(24)], 0),
        (7, [card(24)], 7),
        (99, [card(24)], 33),
        (99, [card(0, total=0)], 33),
    ],
)
def test_as_many_layers_as_asked_for_or_as_fit_with_half_a_gibibyte_to_spare(
    wanted: GpuLayers, cards: Sequence[Card], layers: int
) -> None:
    assert place(wanted, *cards) == LayerCount(layers, of=33)


def test_a_number_that_cannot_be_had_is_refused_with_the_figures() -> None:
    assert "finds no graphics card" in place(1).refusal
    told = place(32, card(4.4)).refusal
    assert "32 layers of 'm' need 4.0 GiB on the card" in told
    assert "CUDA0 a card, 4.4 of 24.0 GiB free" in told


def test_on_the_processor_alone_nobody_looks_at_cards() -> None:
    def refuse() -> Sequence[Card]:
        raise AssertionError("looked")

    assert Placement(0, read=refuse).count(NEED) == LayerCount(0, of=33)


@pytest.mark.parametrize(
    ("layers", "shared", "here"), [(0, False, 1.0), (16, False, 0.5), (33, False, 0.0), (33, True, 1.0)]
)
def test_what_is_on_the_card_takes_no_memory_here_unless_they_share_it(
    layers: int, shared: bool, here: float
) -> None:
    assert Placement("auto", read=lambda: [card(24, shared=shared)]).share_here(NEED, layers) == here


def test_memory_here_is_checked_for_the_rest_alone(smollm2: Model) -> None:
    huge = smollm2.model_copy(update={"size_bytes": 2**50})
    check_memory(huge, kv_bytes=2**50, share=0.0)
    with pytest.raises(EngineUnavailable, match=r"weights 524288\.0"):
        check_memory(huge, kv_bytes=0, share=0.5)


def device(name: str, kind: str) -> dict[str, Any]:
    kinds = SimpleNamespace(name=f"GGML_BACKEND_DEVICE_TYPE_{kind}")
    return {"name": name, "description": "", "memory_free": 1, "memory_total": 2, "type": kinds}


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        ([("CPU", "CPU"), ("BLAS", "ACCEL")], []),
        ([("CPU", "CPU"), ("CUDA0", "GPU"), ("CUDA1", "GPU")], ["CUDA0", "CUDA1"]),
        ([("Vulkan0", "IGPU"), ("Vulkan1", "IGPU")], ["Vulkan0"]),
        ([("Vulkan0", "IGPU"), ("Vulkan1", "GPU")], ["Vulkan1"]),
    ],
)
def test_cards_with_memory_of_their_own_are_taken_before_the_processor_s(
    devices: list[tuple[str, str]], names: list[str]
) -> None:
    assert [each.name for each in choose_cards([device(*each) for each in devices])] == names


def test_the_installed_wheel_says_which_cards_it_can_use(open_engine: OpenEngine, smollm2: Model) -> None:
    cards = read_cards()
    engine = open_engine(gpu_layers="auto")
    with engine.load(smollm2) as model:
        said = model.generate("Hello", sampling=Sampling(max_tokens=3), seed=1)
        assert (model.gpu_layers > 0) == bool(cards)
    assert said.output_tokens == 3
    if not cards:
        with (
            pytest.raises(EngineUnavailable, match="finds no graphics card"),
            open_engine(gpu_layers=3).load(smollm2),
        ):
            pass


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """A card with room for some of the small model's layers."""
    monkeypatch.setenv("PYTHONPATH", str(PRETENDED))
    monkeypatch.setenv("TIPBENCH_TEST_CARD_FREE", str(600 * 2**20))
    return monkeypatch


def test_doctor_and_models_say_what_a_card_would_compute(cli: Cli, pretended: pytest.MonkeyPatch) -> None:
    def embedded() -> dict[str, Any]:
        return next(each for each in cli("doctor", "--json").json() if each["part"] == "embedded llama.cpp")

    def smollm2() -> dict[str, Any]:
        lines = map(json.loads, cli.ok("models", "--json").out.splitlines())
        return next(each for each in lines if each["name"] == "smollm2")

    assert "gpu_layers = 0, cards: CUDA0 Pretended RTX, 0.6 of 8.0 GiB free" in embedded()["says"]
    assert smollm2()["gpu_layers"] == 0
    pretended.setenv("TIPBENCH_GPU_LAYERS", "auto")
    layers = smollm2()["gpu_layers"]
    assert 10 <= layers < 20
    assert f"{layers} of 31" in cli.ok("models").out
    pretended.setenv("TIPBENCH_GPU_LAYERS", "31")
    assert "31 layers of 'smollm2' need" in smollm2()["reason"]
    pretended.delenv("PYTHONPATH")
    if not read_cards():
        assert (embedded()["ok"], "gpu_layers = 0" in embedded()["to_do"]) == (False, True)


def test_a_run_says_how_many_layers_the_card_computed_and_its_cells_are_the_same_cells(
    cli: Cli, pretended: pytest.MonkeyPatch, tracking: Tracking, experiment_name: str
) -> None:
    collect = (
        *("collect", "--models", "smollm2", "--prompts", "v1", "--n-tips", "1", "--n-scenarios", "1"),
        *("--experiment", experiment_name, "--json"),
    )
    pretended.setenv("TIPBENCH_GPU_LAYERS", "12")
    cli.ok(*collect)
    pretended.delenv("TIPBENCH_GPU_LAYERS")
    cli.ok(*collect)
    runs = tracking.read_runs(tracking.find_experiment(experiment_name), fresh=True)
    cells = [run for run in runs if run.tags["tipbench.kind"] == "cell"]
    assert [run.metrics["gpu_layers"] for run in cells] == [12.0]
