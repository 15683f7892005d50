# One command on a fresh machine is all the set-up: each target makes its virtual environment and installs what it needs.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
NAME ?=
# Processes that run the tests; JOBS=0 runs them in one, for a debugger.
JOBS ?= auto

.DEFAULT_GOAL := help
.PHONY: help demo test check house bench format docs clean

help: ## show the targets
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 10

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[local]'
	@touch $@

$(VENV)/.dev: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e '.[dev]'
	@touch $@ $(VENV)/.demo

demo: $(VENV)/.demo ## build the sample indexes and answer questions in three languages; no key, no server
	@$(BIN)/agentic-retriever demo

# Tests start a hundred processes; without bytecode on disk each would compile the library anew.
test: export PYTHONDONTWRITEBYTECODE :=
test: $(VENV)/.dev ## run the tests, a process for each core
	$(BIN)/python -m pytest -n $(JOBS) --dist loadfile $(ARGS)

check: $(VENV)/.dev ## ruff, mypy --strict, layers
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

house: $(VENV)/.dev ## count lines, files, settings, import cycles and a query's frames; a broken limit ends it
	$(BIN)/python scripts/house.py --check
	$(BIN)/python scripts/trace_query.py --check

bench: $(VENV)/.dev ## measure against the peers in the same run; NAME=... runs one
	$(BIN)/python -m benchmarks $(NAME)

format: $(VENV)/.dev ## write the code in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: $(VENV)/.dev ## write docs/configuration.md and .env.example from the settings
	$(BIN)/python scripts/settings_pages.py

clean: ## remove the environment and caches
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
