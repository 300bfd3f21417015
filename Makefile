# Everything a contributor runs. Needs python3 (3.11 or newer), make and a package index; the rest goes into .venv.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
PYTEST := $(BIN)/python -m pytest
FAST := tests/core tests/engine
LOCK := $(BIN)/uv pip compile --no-config --universal --python-version 3.11 --generate-hashes --no-progress --quiet \
	--custom-compile-command "make lock" $(LOCK_FLAGS)

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-fast test-all check format bench lock clean
.DELETE_ON_ERROR:

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.installed ## Create .venv with the locked dependencies and perdure itself

demo: setup ## Run the demonstration
	$(BIN)/python examples/demo.py

test: setup ## Run the tests: the fast ones first, then the others, without the slow ones
	$(PYTEST) -m "not slow" $(FAST)
	$(PYTEST) -m "not slow" -n 2 $(FAST:%=--ignore=%) tests

test-fast: setup ## Run the fast tests only
	$(PYTEST) -m "not slow" $(FAST)

test-all: setup ## Run every test, the slow ones too
	$(PYTEST) -n 2 tests

check: setup ## Lint, formatting, types, layers
	$(BIN)/python -m ruff check
	$(BIN)/python -m ruff format --check
	$(BIN)/python -m basedpyright
	$(BIN)/lint-imports

format: setup ## Format the code and sort its imports
	$(BIN)/python -m ruff check --select I --fix
	$(BIN)/python -m ruff format

bench: setup ## Run the benchmarks
	$(BIN)/python -m benchmarks

lock: $(BIN)/python ## Write requirements/*.txt again (LOCK_FLAGS=--upgrade for newer versions)
	$(PIP) install --quiet "uv>=0.9"
	$(LOCK) pyproject.toml --all-extras --group dev --output-file requirements/dev.txt
	$(LOCK) pyproject.toml --constraints requirements/dev.txt --output-file requirements/runtime.txt
	@! grep -nE '(index-url|find-links|trusted-host|file:|://| @ |^/)' requirements/*.txt

clean: ## Remove .venv and everything that was built
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(PIP) install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

$(VENV)/.locked: requirements/dev.txt | $(BIN)/python
	@echo "Installing the locked dependencies into $(VENV) ..."
	@$(PIP) install --quiet --require-hashes --requirement requirements/dev.txt
	@touch $@

$(BIN)/python:
	@command -v "$(PYTHON)" >/dev/null || \
		{ echo "perdure needs Python 3.11 or newer, and '$(PYTHON)' was not found. Try: make PYTHON=/path/to/python3" >&2; exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "perdure needs Python 3.11 or newer, and '$(PYTHON)' is $$("$(PYTHON)" --version 2>&1). Try: make PYTHON=python3.12" >&2; exit 1; }
	@"$(PYTHON)" -c 'import venv, ensurepip' 2>/dev/null || \
		{ echo "'$(PYTHON)' cannot create virtual environments: its venv or ensurepip module is missing. On Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	@"$(PYTHON)" -m venv --clear $(VENV)
