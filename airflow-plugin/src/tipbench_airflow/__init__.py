"""tipbench on Airflow: for Airflow's own environment. Needs the standard library and, to wait, Airflow."""

__version__ = "0.1.0"
"""That of the tipbench it belongs to."""
