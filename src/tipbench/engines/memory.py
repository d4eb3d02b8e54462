"""Whether a model fits into the memory of this machine."""

from tipbench.engines.machine import available_memory_bytes
from tipbench.errors import EngineUnavailable
from tipbench.records import Model

SPARE_BYTES = 2**29
GIB = 2**30


def check_memory(model: Model, *, kv_bytes: int) -> None:
    """Refuses a load that would not fit beside everything else that runs here.

    Raises:
        EngineUnavailable: with what is needed and what there is.
    """
    available = available_memory_bytes()
    needed = model.size_bytes + kv_bytes + SPARE_BYTES
    if available is not None and needed > available:
        raise EngineUnavailable(
            f"{model.name!r} needs {needed / GIB:.1f} GiB of memory "
            f"(weights {model.size_bytes / GIB:.1f}, context {kv_bytes / GIB:.1f}, spare 0.5), "
            f"{available / GIB:.1f} GiB are available",
            hint="Close other programs, use a smaller model, or set a smaller context_tokens.",
        )
