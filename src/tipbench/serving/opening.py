"""Opening what serves: the store, the signal log, the shadows, the token."""

import os
import secrets
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tipbench.policies.policy import Policy
from tipbench.policies.refusals import StoreUnavailable, UnknownPolicy
from tipbench.policies.registry import find_policy, list_policies
from tipbench.policies.store import Store
from tipbench.serving.active import ActiveFile
from tipbench.serving.app import Serving
from tipbench.serving.service import PolicyService
from tipbench.serving.shadows import SHADOWS, Shadows
from tipbench.serving.signals import SignalLog
from tipbench.serving.tips import StoredTip
from tipbench.tracking.stamps import Stamps

FILES = "files"


@dataclass(frozen=True)
class ServingOptions:
    """How to serve. `store` is `files` or the address of a Redis server."""

    store: str
    token: str
    active: str
    shadows: Sequence[str] = ()
    tips: Sequence[StoredTip] = ()
    seed: int = 0


def open_store(folder: Path, store: str) -> Store:
    """The store in the folder, or in Redis.

    Raises:
        StoreInUse: another process has the files.
        StoreUnavailable: Redis does not answer, or its client is not installed.
    """
    if store == FILES:
        from tipbench.policies.file_store import FileStore  # noqa: PLC0415 - an opening

        return FileStore(folder / "state")
    try:
        from tipbench.policies.redis_store import RedisStore  # noqa: PLC0415 - needs the extra `serve`
    except ModuleNotFoundError as error:
        raise StoreUnavailable(
            "a store in Redis needs the extra `serve`", hint="Install it: pip install 'tipbench[serve]'"
        ) from error

    return RedisStore(store, policies=list_policies())


def open_serving(folder: Path, options: ServingOptions, *, stamps: Stamps) -> Serving:
    """Everything an app needs, opened.

    Raises:
        UnknownPolicy: the active policy or a shadow is none of ours.
        StoreInUse: another process has the files.
        StoreUnavailable: Redis does not answer.
    """
    policies = list_policies()
    shadows = {name: _find_shadow(name, policies) for name in options.shadows}
    active = ActiveFile(folder, default=options.active)
    find_policy(policies, active.name())
    store = open_store(folder, options.store)
    signals = SignalLog(folder / "signals", begun_ms=stamps.now_ms())
    running = Shadows(shadows, store=store, signals=signals, seed=options.seed) if shadows else None
    return Serving(
        service=PolicyService(store, stamps=stamps, seed=options.seed, signals=signals, shadows=running),
        policies=policies,
        active=active,
        token=options.token,
        signals=signals,
        shadows=running,
        tips=options.tips,
        texts={tip.id: tip.text for tip in options.tips},
    )


def read_token(folder: Path) -> str:
    """The token kept in the folder, made at the first time; only its owner can read the file."""
    path = folder / "token"
    folder.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    except FileExistsError:
        return path.read_text(encoding="ascii").strip()
    token = secrets.token_urlsafe(32)
    with os.fdopen(descriptor, "w", encoding="ascii") as file:
        file.write(f"{token}\n")
    return token


def _find_shadow(name: str, policies: dict[str, Policy]) -> Policy:
    if name not in SHADOWS:
        raise UnknownPolicy(f"no shadow {name!r}", hint=f"There are: {', '.join(SHADOWS)}")
    return find_policy(policies, SHADOWS[name])
