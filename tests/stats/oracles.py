"""Other people's statistics, to check ours against. They come without types."""

from importlib import import_module
from typing import Any


class _Later:
    """A module that is imported when a test uses it: every worker reads all test files and runs a third."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)  # pytest looks whether it is a fixture or a mock.
        return getattr(import_module(self._name), name)


scipy_stats: Any = _Later("scipy.stats")
krippendorff: Any = _Later("krippendorff")
linear_model: Any = _Later("statsmodels.regression.linear_model")
_libqsturng: Any = _Later("statsmodels.stats.libqsturng")


def studentized_range(*asked: float) -> float:
    """The quantile of the studentized range."""
    return _libqsturng.qsturng(*asked)
