# Every command of the house. `make` alone lists them; each one sets itself up first.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PY := $(BIN)/python
STAMP := $(VENV)/.setup-done
PYTEST_WORKERS ?= 2
SIM_SEEDS ?= 10000
# What mypy looks at besides the packages; folders that have no code yet are left out.
EXTRA_TYPED := $(wildcard docs/*.py tests benchmarks/*.py benchmarks/*/*.py examples/*/*.py)

# Where it is set, each of the hundreds of processes of a test run would compile everything that it imports, for seconds.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: help setup demo dev test check fmt assets bench sim chaos nightly migrate diagrams docs lock clean

help: ## List these commands
	@grep -hE '^[a-z]+:.*## ' $(MAKEFILE_LIST) | sort | sed -E 's/^([a-z]+):.*## /\1\t/' \
		| while IFS=$$'\t' read -r name what; do printf '  make %-10s %s\n' "$$name" "$$what"; done

setup: $(STAMP) ## Make .venv from requirements.lock (does nothing when it is up to date)

# Where HOME cannot be written (an unprivileged account in a container), uv keeps its cache in the environment.
UV_ENV := $(shell test -w "$$HOME" || echo UV_CACHE_DIR=$(CURDIR)/$(VENV)/.uv-cache)

$(STAMP): requirements.lock pyproject.toml
	@command -v $(PYTHON) >/dev/null \
		|| { echo "setup: '$(PYTHON)' was not found. Install Python 3.11 or newer, or say which: make setup PYTHON=/path/to/python3" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "setup: Harness needs Python 3.11 or newer and '$(PYTHON)' is $$($(PYTHON) -V 2>&1). Say which to use: make setup PYTHON=/path/to/python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null \
		|| { echo "setup: '$(PYTHON)' cannot make virtual environments. Install its venv package (on Debian and Ubuntu: apt-get install python3-venv)." >&2; exit 1; }
	@$(PY) -c '' 2>/dev/null || $(PYTHON) -m venv --clear $(VENV)
	@awk '/^uv==/ {on=1} on {print} on && !/\\$$/ {exit}' requirements.lock > $(VENV)/uv.txt
	@test -s $(VENV)/uv.txt || { echo "setup: requirements.lock does not pin uv; run 'make lock' where it is installed." >&2; exit 1; }
	$(PY) -m pip install --quiet --disable-pip-version-check --require-hashes -r $(VENV)/uv.txt
	$(UV_ENV) $(BIN)/uv pip install --quiet --python $(PY) --require-hashes -r requirements.lock
	$(UV_ENV) $(BIN)/uv pip install --quiet --python $(PY) --no-deps -e .
	@touch $@

demo: setup ## Start everything, run the analyst example, kill its worker half-way, show the outcome
	$(PY) -m examples.analyst.demo

dev: setup ## Start the whole stack on this machine and leave it up until Ctrl-C
	$(BIN)/harness dev

test: setup ## Run the tests (all but the nightly ones); ARGS="-k lease" picks some
	$(PY) -m pytest tests -n $(PYTEST_WORKERS) --dist worksteal -m "not nightly" $(ARGS)

check: setup ## Formatting, lint, strict types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy harness_common harness_worker harness_api $(EXTRA_TYPED)
	$(BIN)/lint-imports

fmt: setup ## Format, and repair what lint can repair
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

assets: setup ## Fetch the scripts of others that the console serves, as harness_api/console/vendor.py pins them
	$(PY) -m harness_api.console.vendor

bench: setup ## Measure; writes benchmarks/results/latest.json and prints a table
	$(PY) -m benchmarks.run $(ARGS)

sim: setup ## Simulate: 10,000 seeds in virtual time, then every mutation has to be found; ARGS="--seed 7 --trace" shows one
	$(PY) -m tests.sim $(or $(ARGS),--seeds $(SIM_SEEDS) --gate)

chaos: setup ## Random faults against real processes, about 8 minutes; ARGS="--small" for two, ARGS="--seed N" to repeat one
	$(PY) -m tests.chaos $(ARGS)

nightly: check sim chaos ## Every test, the nightly ones too, the whole simulation and the whole chaos
	$(PY) -m pytest tests -n $(PYTEST_WORKERS) $(ARGS)

migrate: setup ## Bring the database of HARNESS_DATABASE_URL to the current schema
	$(PY) -m harness_common.store.migrate

diagrams: setup ## Write docs/states.md from the transition table, and the picture of the docs
	$(PY) docs/diagrams.py
	$(PY) docs/picture.py

docs: diagrams ## Regenerate what is generated (references too), then check links, commands and settings
	$(PY) docs/reference.py
	$(PY) -m pytest tests/test_house.py tests/unit/test_docs.py -k docs -q

lock: setup ## Resolve pyproject.toml again into requirements.lock (keeps pins that still fit)
	$(UV_ENV) $(BIN)/uv pip compile pyproject.toml --all-extras --group dev --generate-hashes \
		--no-emit-index-url --no-header --universal --python-version 3.11 --quiet \
		-o requirements.lock $(ARGS)
	$(UV_ENV) $(BIN)/uv pip compile pyproject.toml --extra otel --extra s3 --constraint requirements.lock --generate-hashes \
		--no-emit-index-url --no-header --no-annotate --universal --python-version 3.11 --quiet \
		-o deploy/requirements.lock

clean: ## Remove caches; keeps .venv and the data folder
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache dist
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
