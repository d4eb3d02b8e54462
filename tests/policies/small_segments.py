"""The app on files with short segments and few states in memory: checkpoints and evictions all the time.

python -m tests.policies.small_segments PORT FOLDER TOKEN
"""

import sys
from pathlib import Path

import uvicorn

from tests.serving.serving_app import STAMPS
from tipbench.policies.policy import list_policies
from tipbench.policies.serving.app import Serving, create_app
from tipbench.policies.serving.service import PolicyService
from tipbench.policies.serving.tips import ActiveFile
from tipbench.policies.stores.file import FileStore


def main(port: str, folder: str, token: str) -> None:
    store = FileStore(Path(folder) / "state", kept_states=8, segment_bytes=8_000)
    serving = Serving(
        service=PolicyService(store, stamps=STAMPS),
        policies=list_policies(),
        active=ActiveFile(Path(folder), default="egreedy-v1"),
        token=token,
    )
    uvicorn.run(create_app(serving), port=int(port), log_level="warning", access_log=False)


if __name__ == "__main__":
    main(*sys.argv[1:])
