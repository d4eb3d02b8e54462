"""The header of a GGUF file: what the model is, without reading its weights."""

import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path

from tipbench.errors import ModelRefused

Value = int | float | str | list[int | float] | None

STRING, ARRAY = 8, 9
NUMBERS = {
    0: "<B",
    1: "<b",
    2: "<H",
    3: "<h",
    4: "<I",
    5: "<i",
    6: "<f",
    7: "<?",
    10: "<Q",
    11: "<q",
    12: "<d",
}
MOST_ENTRIES = 1_000_000
LONGEST_LIST_KEPT = 4096
MOST_LAYERS = 10_000
BYTES_PER_KV_NUMBER = 2


@dataclass(frozen=True)
class GgufHeader:
    """What we need to know of a model file before loading it."""

    architecture: str
    kind: str
    parts: int
    parameters: int | None
    trained_context_tokens: int | None
    kv_bytes_per_token: int


def read_header(path: Path) -> GgufHeader:
    """The header of the file at `path`.

    Raises:
        ModelRefused: it cannot be read or is not a sound GGUF file; says why.
    """
    hint = "Is the download complete? Fetch or copy the file again."
    try:
        with path.open("rb") as file:
            if path.stat().st_size == 0:
                raise ModelRefused(f"{path} is empty", hint=hint)
            with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
                return _parse(content)
    except OSError as error:
        raise ModelRefused(f"{path} cannot be read: {error.strerror or error}") from error
    except (struct.error, OverflowError, ValueError) as error:
        # Not our own words: a length or an offset leads beyond the end of the file.
        reason = str(error) if isinstance(error, ValueError) else "it ends within its header"
        raise ModelRefused(f"{path} is not a sound GGUF file: {reason}", hint=hint) from error


class _Cursor:
    """Reads one value after the other."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content
        self.place = 0

    def number(self, layout: str) -> int | float:
        (value,) = struct.unpack_from(layout, self.content, self.place)
        self.place += struct.calcsize(layout)
        return value

    def count(self) -> int:
        count = int(self.number("<Q"))
        if count > MOST_ENTRIES:
            raise ValueError(f"an absurd count ({count})")
        return count

    def text(self) -> str:
        length = int(self.number("<Q"))
        start, self.place = self.place, self.place + length
        if self.place > len(self.content):
            raise ValueError("a text goes on beyond the end of the file")
        return self.content[start : self.place].decode(errors="replace")

    def value(self) -> Value:
        kind = int(self.number("<I"))
        if kind == STRING:
            return self.text()
        return self._array() if kind == ARRAY else self.number(_layout(kind))

    def _array(self) -> Value:
        """The numbers of a short list; None for what nobody asks about, such as the vocabulary."""
        kind, count = int(self.number("<I")), self.count()
        if kind == STRING:
            for _ in range(count):
                # Only the length is read: a vocabulary has a hundred thousand entries.
                self.place += 8 + struct.unpack_from("<Q", self.content, self.place)[0]
            return None
        layout = _layout(kind)
        if count > LONGEST_LIST_KEPT:
            self.place += count * struct.calcsize(layout)
            return None
        return [self.number(layout) for _ in range(count)]


def _layout(kind: int) -> str:
    if kind not in NUMBERS:
        raise ValueError(f"unknown value type {kind}")
    return NUMBERS[kind]


def _parse(content: mmap.mmap) -> GgufHeader:
    if content[:4] != b"GGUF":
        raise ValueError("it does not begin with 'GGUF'")
    cursor = _Cursor(content)
    cursor.place = 4
    version = cursor.number("<I")
    if version not in (2, 3):
        raise ValueError(f"version {version}, only 2 and 3 are known")
    tensor_count, value_count = cursor.count(), cursor.count()
    values = {cursor.text(): cursor.value() for _ in range(value_count)}
    parameters, last_offset = 0, 0
    for _ in range(tensor_count):
        elements, offset = _read_tensor(cursor)
        parameters += elements
        last_offset = max(last_offset, offset)
    if tensor_count and cursor.place + last_offset >= len(content):
        raise ValueError("it ends before its last tensor")
    return _describe(values, parameters or None)


def _read_tensor(cursor: _Cursor) -> tuple[int, int]:
    """The number of elements of the next tensor, and where its data begin."""
    cursor.text()
    dimensions = int(cursor.number("<I"))
    if not 0 < dimensions <= 8:
        raise ValueError(f"a tensor of {dimensions} dimensions")
    elements = prod(int(cursor.number("<Q")) for _ in range(dimensions))
    cursor.number("<I")
    return elements, int(cursor.number("<Q"))


def _describe(values: dict[str, Value], parameters: int | None) -> GgufHeader:
    architecture = str(values.get("general.architecture", ""))
    if not architecture:
        raise ValueError("it names no architecture")
    return GgufHeader(
        architecture=architecture,
        kind=str(values.get("general.type", "model")),
        parts=_whole(values.get("split.count")) or 1,
        parameters=parameters,
        trained_context_tokens=_whole(values.get(f"{architecture}.context_length")) or None,
        kv_bytes_per_token=kv_bytes_per_token(values, architecture),
    )


def kv_bytes_per_token(values: Mapping[str, Value], architecture: str) -> int:
    """Keys and values of one token in all layers; 0 for models that keep none."""
    layers = _whole(values.get(f"{architecture}.block_count"))
    if layers > MOST_LAYERS:
        raise ValueError(f"an absurd count of layers ({layers})")
    heads = _per_layer(values.get(f"{architecture}.attention.head_count"), layers)
    kv_heads = _per_layer(values.get(f"{architecture}.attention.head_count_kv"), layers) or heads
    width = _whole(values.get(f"{architecture}.embedding_length")) // max([1, *heads])
    key = _whole(values.get(f"{architecture}.attention.key_length")) or width
    value = _whole(values.get(f"{architecture}.attention.value_length")) or width
    return BYTES_PER_KV_NUMBER * (key + value) * sum(kv_heads)


def _whole(value: Value) -> int:
    return int(value) if isinstance(value, int | float) else 0


def _per_layer(value: Value, layers: int) -> list[int]:
    if isinstance(value, list):
        return [int(number) for number in value]
    return [_whole(value)] * layers if value else []
