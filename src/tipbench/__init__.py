"""Which small local model with which prompt writes the best tips, and how sure are we?"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tipbench.champion import Champion
    from tipbench.notebook import OpenExperiment

__version__ = "0.1.0"
__all__ = ["__version__", "open_bench", "open_champion"]


def open_bench(name: str, *, mlflow_url: str | None = None) -> "OpenExperiment":
    """An experiment that has been opened, for programs and notebooks: see docs/python.md. It only reads.

    Raises:
        ExperimentNotFound: there is none of that name.
        TrackingError: MLflow is not reached.
    """
    from tipbench.notebook import open_experiment  # noqa: PLC0415 - `import tipbench` stays free of numpy

    return open_experiment(name, mlflow_url=mlflow_url)


def open_champion(
    pack: str = "tip", *, file: "str | Path | None" = None, mlflow_url: str | None = None
) -> "Champion":
    """The champion of a pack, for the application that uses it: see docs/use-the-champion.md. It only reads.

    From MLflow; or from a `file` that `tipbench champion --save FILE` made, without MLflow.

    Raises:
        NoChampion: the pack has none.
        TrackingError: MLflow is not reached.
        UsageError: the file is not there, or is not a champion's.
        NewerSchema: a newer tipbench made the file.
    """
    from tipbench import champion  # noqa: PLC0415 - `import tipbench` stays free of pydantic

    return champion.open_champion(pack, file=file, mlflow_url=mlflow_url)
