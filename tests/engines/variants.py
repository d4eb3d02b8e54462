"""Real models for the tests: SmolLM2 and variants of it that are known to be as good or worse.

`q8_0` writes as well as the original, `prune:6` worse, `sim2` word salad: a bench must see that.
"""

import fcntl
import os
import re
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from gguf import GGMLQuantizationType, GGUFReader, GGUFValueType, GGUFWriter, ReaderTensor
from gguf.quants import dequantize, quantize
from numpy.typing import NDArray

from tipbench.engines.weights import fetch_weights

Q8_0 = GGMLQuantizationType.Q8_0
UNQUANTISED = (GGMLQuantizationType.F32, GGMLQuantizationType.F16)
BLOCK = 32
LAYER = re.compile(r"blk\.(\d+)\.(.+)")


@dataclass(frozen=True)
class Recipe:
    """What to do to a model: forget layers of the middle, round weights to few levels, or only repack."""

    name: str
    forget_layers: int = 0
    levels: int = 0

    @classmethod
    def parse(cls, text: str) -> "Recipe":
        """`q8_0`, `prune:LAYERS`, or `simBITS`."""
        if text == "q8_0":
            return cls(text)
        if text.startswith("prune:"):
            return cls(text.replace(":", ""), forget_layers=int(text.removeprefix("prune:")))
        if text.startswith("sim"):
            return cls(text, levels=2 ** int(text.removeprefix("sim")))
        raise ValueError(f"unknown recipe {text!r}")


def prepare_models(*recipes: str) -> Path:
    """A folder with `smollm2` and the asked variants of it, kept for the next test run."""
    caches = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    folder = caches / "tipbench-tests" / "models"
    folder.mkdir(parents=True, exist_ok=True)
    original = fetch_weights("smollm2", folder, environment=os.environ)
    for recipe in recipes:
        make_variant(original, recipe, folder=folder)
    return folder


def make_variant(source: Path, recipe_text: str, *, folder: Path) -> Path:
    """The variant's file, named `smollm2-RECIPE.gguf`; made unless it is there."""
    recipe = Recipe.parse(recipe_text)
    target = folder / f"smollm2-{recipe.name}.gguf"
    with _one_maker(folder):
        if not target.exists():
            unfinished = target.with_suffix(".unfinished")
            _write_variant(GGUFReader(source), recipe, unfinished)
            unfinished.replace(target)
    return target


@contextmanager
def _one_maker(folder: Path) -> Generator[None]:
    with (folder / ".variants.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _write_variant(reader: GGUFReader, recipe: Recipe, target: Path) -> None:
    architecture = str(_value(reader, "general.architecture"))
    layers = int(str(_value(reader, f"{architecture}.block_count")))
    first = (layers - recipe.forget_layers) // 2
    forgotten = range(first, first + recipe.forget_layers)
    writer = GGUFWriter(target, architecture)
    changed = {f"{architecture}.block_count": layers - len(forgotten)}
    for key, field in reader.fields.items():
        if key == "general.architecture" or key.startswith("GGUF."):
            continue
        is_list = field.types[0] == GGUFValueType.ARRAY
        value = changed.get(key, field.contents())
        writer.add_key_value(key, value, field.types[0], sub_type=field.types[-1] if is_list else None)
    for name, tensor in _kept_tensors(reader, forgotten):
        data, kind = (tensor.data, tensor.tensor_type) if forgotten else _repack(tensor, recipe)
        writer.add_tensor(name, data, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _value(reader: GGUFReader, key: str) -> object:
    return reader.fields[key].contents()


def _kept_tensors(reader: GGUFReader, forgotten: range) -> Iterator[tuple[str, ReaderTensor]]:
    """All tensors but those of forgotten layers; the layers behind them move up."""
    for tensor in reader.tensors:
        match = LAYER.fullmatch(tensor.name)
        layer = int(match[1]) if match else -1
        if layer in forgotten:
            continue
        moved = layer - len(forgotten) if layer >= forgotten.stop else layer
        yield (f"blk.{moved}.{match[2]}" if match else tensor.name), tensor


def _repack(tensor: ReaderTensor, recipe: Recipe) -> tuple[NDArray[np.generic], GGMLQuantizationType]:
    """The tensor as Q8_0, coarsened if the recipe says so; norms stay as they are."""
    if len(tensor.shape) < 2 or tensor.tensor_type == GGMLQuantizationType.F32:
        return tensor.data, tensor.tensor_type
    weights = _as_floats(tensor)
    # Embeddings stay fine: a model that cannot read its prompt would be too easy to tell.
    if recipe.levels and tensor.name != "token_embd.weight":
        weights = _round_to_levels(weights, recipe.levels)
    return quantize(weights, Q8_0), Q8_0


def _as_floats(tensor: ReaderTensor) -> NDArray[np.float32]:
    data = tensor.data if tensor.tensor_type in UNQUANTISED else dequantize(tensor.data, tensor.tensor_type)
    return np.asarray(data, dtype=np.float32).reshape([int(size) for size in reversed(tensor.shape)])


def _round_to_levels(weights: NDArray[np.float32], levels: int) -> NDArray[np.float32]:
    """Every block of weights on `levels` evenly spaced values between its lowest and highest."""
    blocks = weights.reshape(-1, BLOCK)
    lowest = blocks.min(axis=1, keepdims=True)
    step = (blocks.max(axis=1, keepdims=True) - lowest) / np.float32(levels - 1)
    step[step == 0] = 1
    return (lowest + np.rint((blocks - lowest) / step) * step).reshape(weights.shape)
