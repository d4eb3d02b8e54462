"""Which small local model with which prompt writes the best tips, and how sure are we?"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tipbench.notebook import OpenExperiment

__version__ = "0.1.0"
__all__ = ["__version__", "open_bench"]


def open_bench(name: str, *, mlflow_url: str | None = None) -> "OpenExperiment":
    """An experiment that has been opened, for programs and notebooks: see docs/python.md. It only reads.

    Raises:
        ExperimentNotFound: there is none of that name.
        TrackingError: MLflow is not reached.
    """
    from tipbench.notebook import open_experiment  # noqa: PLC0415 - `import tipbench` stays free of numpy

    return open_experiment(name, mlflow_url=mlflow_url)
