# Two commands: `make demo` and `make test`. Both need only Python 3.11+, make and the package registries.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
UV_VERSION := 0.13.7
# Some machines forbid bytecode: then every start of MLflow compiles it anew, 30 s instead of 8.
unexport PYTHONDONTWRITEBYTECODE
export MLFLOW_DISABLE_TELEMETRY := true
export DO_NOT_TRACK := true

.PHONY: help setup demo check format programs test test-slow test-faults ollama test-ollama test-ollama-newer bench requirements clean

help:
	@echo "make demo         set everything up and do the main job: a real model, a real MLflow, a leaderboard"
	@echo "make test         set everything up, check and test"
	@echo "make setup        everything into $(VENV)"
	@echo "make check        format, lint, types, import rules"
	@echo "make format       let ruff format and fix"
	@echo "make test-slow    the statistics' bars and the exotic MLflow servers"
	@echo "make test-faults  the whole table of faults"
	@echo "make ollama       build a real Ollama server (needs Go, gcc, g++) with SmolLM2 and variants"
	@echo "make test-ollama  the engine tests on that server"
	@echo "make test-ollama-newer  the same on a newer server with a stand-in for its inference program"
	@echo "make bench        side-by-side measurements (benchmarks/)"
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
	$(BIN)/ruff format --check --quiet src tests benchmarks
	$(BIN)/ruff check --quiet src tests benchmarks
	$(BIN)/lint-imports --no-logo
	$(BIN)/pyright

format: setup
	$(BIN)/ruff format src tests benchmarks
	$(BIN)/ruff check --fix src tests benchmarks

# The browser and Redis: what is found, else Debian's packages where apt and the rights are there, else skipped by name.
programs:
	@for program in chromium redis-server; do \
		command -v $$program >/dev/null && continue; \
		[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && { apt-get update -qq; apt-get install -y -qq $$program; } >/dev/null 2>&1; \
		command -v $$program >/dev/null || echo "no $$program: tests that need it are skipped, unless another one is found"; \
	done

test: check programs
	$(BIN)/pytest -n 3 --dist loadgroup --no-loadscope-reorder

test-slow: setup
	$(BIN)/pytest -m slow

test-faults: setup
	mkdir -p build/faults
	TIPBENCH_FAULT_STEP=1 TIPBENCH_FAULT_TABLE=build/faults $(BIN)/pytest tests/faults

ollama: setup
	$(BIN)/python -m tests.engines.ollama_server

test-ollama: ollama
	$(BIN)/pytest -m ollama

test-ollama-newer: ollama
	TIPBENCH_TEST_OLLAMA_NEWER=1 $(BIN)/python -m tests.engines.ollama_server
	TIPBENCH_TEST_OLLAMA_NEWER=1 $(BIN)/pytest -m ollama

bench: setup
	$(BIN)/python -m benchmarks.headline
	$(BIN)/python -m benchmarks.stats_bars

requirements: $(BIN)/uv
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --all-extras pyproject.toml -o requirements.txt
	$(BIN)/uv pip compile --quiet --universal --generate-hashes --no-header --no-annotate --all-extras --group dev -c requirements.txt pyproject.toml -o requirements-dev.txt

clean:
	rm -rf $(VENV) .pytest_cache .ruff_cache .import_linter_cache build dist
