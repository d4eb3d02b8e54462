"""Is every state what the log says?"""

from tipbench.policies.states import Learned
from tipbench.policies.store import Store


def find_differences(store: Store) -> tuple[int, list[tuple[str, str]]]:
    """How many states there are, and which of them are not the log replayed, bit for bit."""
    replayed = store.replay()
    differing = [place for place, learned in replayed.items() if not same_bits(store.read(*place), learned)]
    return len(replayed), differing


def same_bits(one: Learned, other: Learned) -> bool:
    """Whether two are equal to the last bit."""
    return _bits(one) == _bits(other)


def _bits(learned: Learned) -> object:
    models = {
        kind: (model.gram.tobytes(), model.moment.tobytes(), model.count, model.total.hex())
        for kind, model in learned.models.items()
    }
    return learned.epoch, models, dict(learned.shown), learned.decisions
