# Two commands: `make demo` and `make test`. Both need only Python 3.11+, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
CODE := src tests benchmarks dags airflow-plugin action
UV_VERSION := 0.13.7
BY_FILE := -n 4 --dist loadfile --no-loadscope-reorder
# Some machines forbid bytecode: then every start of MLflow compiles it anew, 30 s instead of 8.
unexport PYTHONDONTWRITEBYTECODE
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true
# Small matrices: two threads cost 2.6 times the time of one and are no faster.
export OPENBLAS_NUM_THREADS := 1

.PHONY: help setup demo check format programs pytest test test-all test-costs test-slow test-mutants test-faults test-postgres coverage ollama test-ollama test-ollama-newer test-airflow test-matrix bench dist requirements clean

help:
	@echo "make demo         set everything up and do the main job: a real model, a real MLflow, a leaderboard"
	@echo "make test         set everything up, check and test"
	@echo "make setup        everything into $(VENV)"
	@echo "make check        format, lint, types, import rules"
	@echo "make format       let ruff format and fix"
	@echo "make test-all     the outer ring: everything below, results into docs/test-rings.md"
	@echo "make test-slow    the statistics' bars, kills, the exotic MLflow servers, the whole headline and demo"
	@echo "make test-mutants seeded defects in the product, each by the test that finds it"
	@echo "make test-costs   the inner ring, and how long each file takes into tests/costs.json: it decides their order"
	@echo "make test-faults  the whole table of faults"
	@echo "make test-postgres  the same with MLflow on Postgres, one fault a request"
	@echo "make coverage     how much of the code the tests run, branches too; names files under 85 %"
	@echo "make ollama       build a real Ollama server (needs Go, gcc, g++) with SmolLM2 and variants"
	@echo "make test-ollama  the engine tests on that server"
	@echo "make test-ollama-newer  the same on a newer server with a stand-in for its inference program"
	@echo "make test-airflow the DAG on a real Airflow, in an environment of its own"
	@echo "make test-matrix  the wheel on the oldest and the newest MLflow and Python, each in an environment of its own"
	@echo "make bench        side-by-side measurements (benchmarks/)"
	@echo "make dist         sdist and wheel into dist/, checked"
	@echo "make requirements resolve the pinned requirement files again"

setup: $(VENV)/.installed

$(BIN)/uv:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet "uv==$(UV_VERSION)"

$(VENV)/.installed: requirements-dev.txt pyproject.toml | $(BIN)/uv
	$(BIN)/uv pip install --python $(BIN)/python --quiet --compile-bytecode --require-hashes -r requirements-dev.txt
	$(BIN)/uv pip install --python $(BIN)/python --quiet --no-deps --editable .
	touch $@

demo: setup
	$(BIN)/tipbench demo

check: setup
	$(BIN)/ruff format --check --quiet $(CODE)
	$(BIN)/ruff check --quiet $(CODE)
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format $(CODE)
	$(BIN)/ruff check --fix $(CODE)

# The browser, Redis and strace: what is found, else Debian's packages where apt and the rights are there, else skipped by name.
programs:
	@for program in chromium redis-server strace; do \
		command -v $$program >/dev/null && continue; \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { apt-get update -qq; apt-get install -y -qq $$program; } >/dev/null 2>&1; \
		command -v $$program >/dev/null || echo "no $$program: tests that need it are skipped, unless another one is found"; \
	done

# The inner ring: checks and tests side by side.
test: setup programs
	@$(MAKE) --no-print-directory -j2 check pytest
	@$(BIN)/python -m tests.rings --age

# By file: servers and models that a file starts serve all its tests.
pytest: setup
	$(BIN)/pytest $(BY_FILE)

# The outer ring; each part is a target of its own.
test-all: setup programs
	$(BIN)/python -m tests.rings

test-costs: setup programs
	TIPBENCH_TEST_COSTS=1 $(BIN)/pytest $(BY_FILE)

test-slow: setup programs
	$(BIN)/pytest -m slow $(BY_FILE)

test-mutants: setup programs
	$(BIN)/python -m tests.mutants

test-faults: setup
	mkdir -p build/faults
	TIPBENCH_FAULT_TABLE=build/faults $(BIN)/pytest tests/faults/whole_tables.py

# Debian's Postgres where apt and the rights are there; else the tests are skipped by name.
test-postgres: setup
	@ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || command -v initdb >/dev/null || { \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { apt-get update -qq; apt-get install -y -qq postgresql; } >/dev/null 2>&1; } || \
		echo "no Postgres, and no right to install it: these tests are skipped"
	mkdir -p build/faults-postgres
	TIPBENCH_FAULT_DATABASE=postgres TIPBENCH_FAULT_TURN=1 TIPBENCH_FAULT_TABLE=build/faults-postgres \
		$(BIN)/pytest tests/faults/whole_tables.py -k "collect or apply"

# Branches too, in all processes. A part of the tests: make coverage TESTS="tests/pack tests/stats"
coverage: setup
	rm -rf build/coverage && mkdir -p build/coverage
	$(BIN)/coverage run -m pytest -n 2 --dist loadfile --no-loadscope-reorder $(TESTS); ended=$$?; \
	$(BIN)/coverage combine --quiet && $(BIN)/coverage json --quiet -o build/coverage/report.json && \
	$(BIN)/python -m tests.support.uncovered build/coverage/report.json && exit $$ended

ollama: setup
	$(BIN)/python -m tests.engines.ollama_server

test-ollama: ollama
	$(BIN)/pytest -m ollama

test-ollama-newer: ollama
	TIPBENCH_TEST_OLLAMA_NEWER=1 $(BIN)/python -m tests.engines.ollama_server
	TIPBENCH_TEST_OLLAMA_NEWER=1 $(BIN)/pytest -m ollama

# Airflow, the newest we know and the oldest that will do: each in an environment of its own.
.venv-airflow/.installed: requirements-airflow.txt airflow-plugin/pyproject.toml | $(BIN)/uv
.venv-airflow-oldest/.installed: requirements-airflow-oldest.txt airflow-plugin/pyproject.toml | $(BIN)/uv
.venv-airflow/.installed .venv-airflow-oldest/.installed:
	$(BIN)/uv venv --quiet --clear --python $(BIN)/python $(@D)
	$(BIN)/uv pip install --python $(@D)/bin/python --quiet --compile-bytecode --require-hashes -r $<
	$(BIN)/uv pip install --python $(@D)/bin/python --quiet --no-deps --editable airflow-plugin
	touch $@

test-airflow: setup
	@for version in airflow airflow-oldest; do \
		$(MAKE) --no-print-directory .venv-$$version/.installed || { rm -rf .venv-$$version; echo "$$version cannot be installed here: its tests are skipped"; }; \
	done
	$(BIN)/pytest -m airflow tests/airflow

test-matrix: dist
	$(BIN)/python -m tests.matrix dist/*.whl $(PAIRS)

bench: setup
	$(BIN)/python -m benchmarks.headline
	$(BIN)/python -m benchmarks.stats_bars

dist: setup
	rm -rf dist
	$(BIN)/uv build --quiet --out-dir dist
	$(BIN)/python -m tests.support.dist dist

requirements: $(BIN)/uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --all-extras pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --all-extras --group dev -c requirements.txt pyproject.toml -o requirements-dev.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --group airflow-plugin/pyproject.toml:newest -o requirements-airflow.txt
	$(BIN)/uv pip compile --quiet --python-version 3.11 --generate-hashes --no-header --no-annotate --exclude-newer 2025-09-01 --group airflow-plugin/pyproject.toml:oldest -o requirements-airflow-oldest.txt

clean:
	rm -rf $(VENV) .venv-airflow .venv-airflow-oldest .pytest_cache .ruff_cache .import_linter_cache build dist
