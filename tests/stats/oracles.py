"""Other people's statistics, to check ours against. They come without types."""

from importlib import import_module
from typing import Any

scipy_stats: Any = import_module("scipy.stats")
studentized_range: Any = import_module("statsmodels.stats.libqsturng").qsturng
krippendorff: Any = import_module("krippendorff")
