"""The app in this process, with a client that has its token."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import uuid4

from fastapi.testclient import TestClient

from tipbench.clock import Stamps
from tipbench.policies.serving.app import ServingOptions, create_app, open_serving
from tipbench.policies.serving.tips import StoredTip

TOKEN = "a-token-for-tests"
STAMPS = Stamps(now_ms=lambda: time.time_ns() // 1_000_000, new_id=lambda: uuid4().hex)
TIPS = [
    {"id": "t1", "kind": "focus", "urgency": 0.2, "match": 0.9},
    {"id": "t2", "kind": "break", "urgency": 0.8, "match": 0.1},
]
ASK: dict[str, Any] = {"user": "ann", "hour": 9.5, "weekend": False, "tips": TIPS}
PROFILE = {"completion_rate": 0.7, "dismiss_rate": 0.1, "mean_dwell_seconds": 40, "preferred_hour": 8}
POLICY_PATHS = ("egreedy/v1", "egreedy/v2", "linucb/v1", "random/v1")


def open_client(
    folder: Path, *, shadows: Sequence[str] = (), tips: Sequence[StoredTip] = (), store: str = "files"
) -> TestClient:
    options = ServingOptions(store=store, token=TOKEN, active="egreedy-v1", shadows=shadows, tips=tips)
    app = create_app(open_serving(folder, options, stamps=STAMPS))
    client = TestClient(app, raise_server_exceptions=False)
    client.headers["Authorization"] = f"Bearer {TOKEN}"
    return client
