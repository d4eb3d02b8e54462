"""Makes a real database with an older schema, by MLflow's own migrations: `python -m … FILE REVISION`."""

import sys
import warnings

REVISION = "b7e2c1a4d9f3"
"""Two before that of MLflow 3.17: the server would migrate it without a word, for tables are missing."""


def main(path: str, revision: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import sqlalchemy
        from alembic import command
        from mlflow.store.db import utils
        from mlflow.store.tracking.dbmodels.initial_models import Base
    url = f"sqlite:///{path}"
    engine = sqlalchemy.create_engine(url)
    Base.metadata.create_all(engine)
    config = utils._get_alembic_config(url)  # pyright: ignore
    with engine.begin() as connection:
        config.attributes["connection"] = connection
        command.upgrade(config, revision)


if __name__ == "__main__":
    main(*sys.argv[1:])
