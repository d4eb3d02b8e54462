"""Graphics cards: what the installed llama.cpp can compute on, and how many layers of a model go there.

Whoever looks at a card holds some of its memory until its end: the look is taken by a process of its own.
"""

import importlib
import importlib.util
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pydantic import TypeAdapter

from tipbench.engines.machine import GIB, SPARE_BYTES
from tipbench.errors import EngineUnavailable
from tipbench.records import Record

PRINT_CARDS = f"from {__name__} import main; main()"
LOOK_SECONDS = 60.0
"""The first look at a card may compile for it."""
OWN_MEMORY, SHARED_MEMORY = "GGML_BACKEND_DEVICE_TYPE_GPU", "GGML_BACKEND_DEVICE_TYPE_IGPU"
GpuLayers = int | Literal["auto"]


class Card(Record):
    """A graphics card that this build can use; without `total_bytes` it does not tell its memory.

    `shared`: it computes in the machine's own memory.
    """

    name: str
    description: str
    free_bytes: int
    total_bytes: int
    shared: bool = False

    def __str__(self) -> str:
        memory = f", {self.free_bytes / GIB:.1f} of {self.total_bytes / GIB:.1f} GiB free"
        return f"{self.name} {self.description}{memory if self.total_bytes else ''}"


_CARDS = TypeAdapter(tuple[Card, ...])


def read_cards() -> tuple[Card, ...]:
    """The cards that a load would use now; none for a wheel that was built for the processor alone.

    Raises:
        EngineUnavailable: llama.cpp is not installed, or cannot say.
    """
    check_installed()
    try:
        ended = subprocess.run(
            [sys.executable, "-P", "-c", PRINT_CARDS],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=LOOK_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise _unreadable(f"no answer within {LOOK_SECONDS:g} s") from error
    # Drivers greet on the same stream.
    lines = ended.stdout.splitlines()
    if ended.returncode or not lines:
        words = ended.stderr.decode(errors="replace").strip().splitlines()[-1:]
        raise _unreadable(f"exit code {ended.returncode}{': ' if words else ''}{''.join(words)}")
    return _CARDS.validate_json(lines[-1])


def check_installed() -> None:
    """Refuses to go on without llama.cpp.

    Raises:
        EngineUnavailable: with the line that installs it.
    """
    if importlib.util.find_spec("xllamacpp") is None:
        raise EngineUnavailable(
            "llama.cpp is not installed", hint="Install it with: pip install 'tipbench[local]'"
        )


def _unreadable(reason: str) -> EngineUnavailable:
    return EngineUnavailable(
        f"llama.cpp cannot say which cards there are: {reason}",
        hint="Set gpu_layers = 0 to compute on the processor.",
    )


def choose_cards(devices: Sequence[Mapping[str, Any]]) -> tuple[Card, ...]:
    """Those that llama.cpp would use: all cards with memory of their own, else the first without."""
    cards = [
        Card(
            name=device["name"],
            description=device["description"],
            free_bytes=device["memory_free"],
            total_bytes=device["memory_total"],
            shared=device["type"].name == SHARED_MEMORY,
        )
        for device in devices
        if device["type"].name in {OWN_MEMORY, SHARED_MEMORY}
    ]
    return tuple(card for card in cards if not card.shared) or tuple(cards[:1])


@dataclass(frozen=True)
class Need:
    """What a model takes when it is loaded: bytes of weights and context, in so many layers."""

    name: str
    weights_bytes: int
    kv_bytes: int
    layers: int

    @property
    def all_layers(self) -> int:
        """The blocks and, after them, the output."""
        return self.layers + 1

    def share(self, layers: int) -> float:
        """How much of it so many layers are, at most: what is in no block is counted among the blocks."""
        return min(1.0, layers / self.layers) if self.layers else float(layers > 0)

    def bytes_of(self, layers: int) -> float:
        return (self.weights_bytes + self.kv_bytes) * self.share(layers)


@dataclass(frozen=True)
class LayerCount:
    """How many layers of a model a load would now give to the cards, of how many; or why it is refused."""

    on_card: int
    of: int
    refusal: str = ""


class Placement:
    """Which layers of models go to the cards: as many as were asked for, or with `auto` as many as fit."""

    def __init__(self, wanted: GpuLayers, *, read: Callable[[], Sequence[Card]] = read_cards) -> None:
        self._wanted: GpuLayers = wanted
        # On the processor alone nobody looks at cards: it takes time, and a driver may be broken.
        self.cards = tuple(read()) if wanted else ()

    def place(self, need: Need) -> int:
        """How many layers of this model the cards compute.

        Raises:
            EngineUnavailable: a number was asked for, and there is no card, or no room for so many.
        """
        if self._wanted == "auto":
            fitting = (layers for layers in range(need.all_layers, 0, -1) if self._fits(need, layers))
            return next(fitting, 0) if self.cards else 0
        layers = min(self._wanted, need.all_layers)
        if layers and not self.cards:
            raise EngineUnavailable(
                f"gpu_layers is {self._wanted}, and the installed llama.cpp finds no graphics card",
                hint="Install a build of xllamacpp for CUDA, ROCm, Vulkan or Metal, or set gpu_layers = 0.",
            )
        if not self._fits(need, layers):
            raise EngineUnavailable(
                f"{layers} layers of {need.name!r} need {need.bytes_of(layers) / GIB:.1f} GiB on the card, "
                f"and 0.5 spare; free are {', '.join(map(str, self.cards))}",
                hint='Set gpu_layers = "auto" for as many as fit, or a smaller context_tokens.',
            )
        return layers

    def count(self, need: Need) -> LayerCount:
        """The same for people who only look."""
        try:
            return LayerCount(self.place(need), need.all_layers)
        except EngineUnavailable as error:
            return LayerCount(0, need.all_layers, refusal=error.message)

    def share_here(self, need: Need, layers: int) -> float:
        """How much of it stays in the machine's own memory."""
        return 1.0 if any(card.shared for card in self.cards) else 1.0 - need.share(layers)

    def _fits(self, need: Need, layers: int) -> bool:
        if not layers or not all(card.total_bytes for card in self.cards):
            return True
        room = sum(max(0, card.free_bytes - SPARE_BYTES) for card in self.cards)
        return need.bytes_of(layers) <= room


def main() -> None:
    """Prints the cards as JSON."""
    xllamacpp = importlib.import_module("xllamacpp")
    sys.stdout.write(_CARDS.dump_json(choose_cards(xllamacpp.get_device_info())).decode() + "\n")
