"""Snapshots: the state of one user with one policy as a file, so that not all of the log is read again."""

import json
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
from pydantic import ValidationError

from tipbench.policies.models import KindModel
from tipbench.policies.states import KeptDecision, Learned, UserState
from tipbench.records import SCHEMA, Record, content_hash

LONGEST_NAME = 150
_NOT_PLAIN = re.compile(rb"[^a-z0-9-]")


class _StoredModel(Record):
    gram: tuple[tuple[float, ...], ...]
    moment: tuple[float, ...]
    count: int
    total: float


class _StoredDecision(Record):
    id: str
    tip_kind: str
    x: tuple[float, ...]
    reward: float | None


class StoredState(Record):
    """A state as it stands in the file."""

    user: str
    position: int
    epoch: int
    decisions: int
    shown: dict[str, int]
    models: dict[str, _StoredModel]
    kept: tuple[_StoredDecision, ...]


def snapshot_name(user: str, policy: str) -> str:
    """The name of the file: no two users share one, also where upper and lower case are the same."""
    return f"{encode_user(user)}_{policy.replace('-', '_')}.json"


def encode_user(user: str) -> str:
    """The user's name as part of a file name: plain bytes stay, others are written as `%xx`."""
    name = _NOT_PLAIN.sub(lambda match: b"%" + match[0].hex().encode(), user.encode()).decode()
    return name if len(name) <= LONGEST_NAME else f"={sha256(user.encode()).hexdigest()}"


def write_snapshot(path: Path, state: UserState, *, user: str) -> None:
    """Replaces the file as a whole."""
    values = _to_stored(state, user=user).model_dump(mode="json")
    text = json.dumps({"schema": SCHEMA, "sum": content_hash(values), "state": values})
    hidden = path.with_suffix(".new")
    hidden.write_text(text, encoding="utf-8")
    hidden.replace(path)


def read_snapshot(path: Path, *, user: str) -> UserState | None:
    """The state in the file; None if it is not whole or not this user's.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
        if values["schema"] != SCHEMA or values["sum"] != content_hash(values["state"]):
            return None
        stored = StoredState.model_validate(values["state"])
    except (ValueError, TypeError, KeyError, ValidationError):
        return None
    return _from_stored(stored) if stored.user == user else None


def set_aside(path: Path) -> Path:
    """Moves a broken file out of the way and says where to."""
    aside = path.parent / "damaged" / path.name
    aside.parent.mkdir(exist_ok=True)
    return path.replace(aside)


def _to_stored(state: UserState, *, user: str) -> StoredState:
    learned = state.learned
    return StoredState(
        user=user,
        position=state.position,
        epoch=learned.epoch,
        decisions=learned.decisions,
        shown=dict(learned.shown),
        models={
            kind: _StoredModel(
                gram=tuple(tuple(row) for row in model.gram.tolist()),
                moment=tuple(model.moment.tolist()),
                count=model.count,
                total=model.total,
            )
            for kind, model in learned.models.items()
        },
        kept=tuple(
            _StoredDecision(id=name, tip_kind=kept.tip_kind, x=tuple(kept.x.tolist()), reward=kept.reward)
            for name, kept in state.kept.items()
        ),
    )


def _from_stored(stored: StoredState) -> UserState:
    models = {
        kind: KindModel(
            np.array(model.gram, dtype=np.float64).reshape(len(model.moment), len(model.moment)),
            np.array(model.moment, dtype=np.float64),
            model.count,
            model.total,
        )
        for kind, model in stored.models.items()
    }
    kept = {
        each.id: KeptDecision(each.tip_kind, np.array(each.x, dtype=np.float64), each.reward)
        for each in stored.kept
    }
    return UserState(Learned(stored.epoch, models, stored.shown, stored.decisions), kept, stored.position)
