"""tipbench on Airflow: for Airflow's own environment. Needs the standard library and, to wait, Airflow."""
