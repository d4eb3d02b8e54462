"""What a model file says about itself, and how broken ones are refused."""

import struct
from contextlib import suppress
from pathlib import Path

import pytest
from gguf import GGUFReader
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tipbench.engines.weights import read_header
from tipbench.errors import ModelRefused


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _number(key: str, value: int) -> bytes:
    return _text(key) + struct.pack("<II", 4, value)


def _numbers(key: str, values: list[int]) -> bytes:
    return _text(key) + struct.pack("<IIQ", 9, 4, len(values)) + struct.pack(f"<{len(values)}I", *values)


def _words(key: str, values: list[str]) -> bytes:
    return _text(key) + struct.pack("<IIQ", 9, 8, len(values)) + b"".join(map(_text, values))


def _tensor(name: str, shape: list[int], offset: int) -> bytes:
    dimensions = struct.pack(f"<I{len(shape)}Q", len(shape), *shape)
    return _text(name) + dimensions + struct.pack("<IQ", 0, offset)


def _file(values: list[bytes], tensors: list[bytes], *, version: int = 3, data: int = 1000) -> bytes:
    head = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(values))
    return head + b"".join(values) + b"".join(tensors) + bytes(data)


ARCHITECTURE = _text("general.architecture") + struct.pack("<I", 8) + _text("tiny")
SOUND = _file(
    [
        ARCHITECTURE,
        _number("tiny.block_count", 3),
        _number("tiny.embedding_length", 64),
        _number("tiny.attention.head_count", 4),
        _numbers("tiny.attention.head_count_kv", [2, 0, 2]),
        _number("tiny.context_length", 2048),
        _words("tokenizer.ggml.tokens", ["a", "", "ß"]),
        _numbers("long", list(range(5000))),
    ],
    [_tensor("a", [8, 4], 0), _tensor("b", [5], 128)],
)


def test_the_header_is_read_as_the_reference_reader_reads_it(models_folder: Path) -> None:
    path = models_folder / "SmolLM2-135M-Instruct.Q4_1.gguf"
    reference = GGUFReader(path)
    header = read_header(path)
    assert header.parameters == sum(int(tensor.n_elements) for tensor in reference.tensors)
    assert header.trained_context_tokens == reference.fields["llama.context_length"].contents()
    # 30 layers, 3 heads for keys and values, 64 numbers each, 2 bytes a number.
    assert header.kv_bytes_per_token == 2 * 30 * 3 * 64 * 2


def test_numbers_may_differ_from_layer_to_layer(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(SOUND)
    header = read_header(tmp_path / "a.gguf")
    assert header.parameters == 37
    assert header.kv_bytes_per_token == 2 * (2 + 0 + 2) * (16 + 16)
    assert header.parts == 1


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "empty"),
        (b"GGML" + bytes(100), "begin"),
        (_file([ARCHITECTURE], [], version=1), "version 1"),
        (_file([], []), "architecture"),
        (b"GGUF" + struct.pack("<IQQ", 3, 2**60, 1), "absurd"),
        (_file([_text("key") + struct.pack("<II", 77, 0)], []), "type 77"),
        (_file([_text("key") + struct.pack("<IIQ", 9, 9, 1)], []), "type 9"),
        (_file([_text("key") + struct.pack("<IQ", 8, 2**62)], []), "beyond the end"),
        (_file([ARCHITECTURE], [_tensor("a", [1] * 9, 0)]), "9 dimensions"),
        (_file([ARCHITECTURE], [_tensor("a", [4], 5000)]), "last tensor"),
    ],
)
def test_a_broken_file_is_refused_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "broken.gguf"
    path.write_bytes(content)
    with pytest.raises(ModelRefused, match=reason) as caught:
        read_header(path)
    assert str(path) in caught.value.message


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelRefused, match="cannot be read"):
        read_header(tmp_path)


@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(st.integers(0, 900), st.binary(min_size=1, max_size=9), st.integers(0, len(SOUND)))
def test_no_damage_gives_anything_but_a_header_or_a_refusal(
    tmp_path: Path, place: int, damage: bytes, kept: int
) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes((SOUND[:place] + damage + SOUND[place + len(damage) :])[:kept])
    with suppress(ModelRefused):
        read_header(path)
