"""The real xllamacpp, which says that there is a card. It computes as it does without."""

import importlib
import os
import sys
from pathlib import Path
from typing import Any

sys.path.remove(str(Path(__file__).parent))
del sys.modules["xllamacpp"]
real: Any = importlib.import_module("xllamacpp")

CARD = {
    "name": "CUDA0",
    "description": "Pretended RTX",
    "memory_free": int(os.environ["TIPBENCH_TEST_CARD_FREE"]),
    "memory_total": 2**33,
    "type": real.ggml_backend_dev_type.GGML_BACKEND_DEVICE_TYPE_GPU,
}
DEVICES = [*real.get_device_info(), CARD]
real.get_device_info = DEVICES.copy
