# `make demo` and `make test` are all that a newcomer needs. Each sets up .venv the first time.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# All cores, and two workers more for tests that wait; tests that share fixtures stay in one process, and the longest
# begin first (tests/conftest.py).
PYTEST := $(BIN)/python -m pytest -n auto

.PHONY: demo test test-quick coverage lint format docs bench clean attack attack-federation kills

demo: $(VENV)/ready
	$(BIN)/fedprox demo

test: $(VENV)/ready-dev
	$(PYTEST)

# All tests but the slow ones: real clusters, federations, browsers, killed processes, and what was measured to be long.
test-quick: $(VENV)/ready-dev
	$(PYTEST) -m "not slow"

coverage: $(VENV)/ready-dev
	$(PYTEST) --cov --cov-report=term:skip-covered

docs: $(VENV)/ready-dev
	$(BIN)/python -m mkdocs build --strict

lint: $(VENV)/ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

bench: $(VENV)/ready-dev
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[torch]'
	$(BIN)/python -m benchmarks.speed

attack: $(VENV)/ready-dev  ## damaged input for every reader: SEED and SECONDS per kind
	FEDPROX_MESSAGES=10000 $(BIN)/python -m pytest -n 0 -q tests/test_deploy_fuzz.py
	PYTHONPATH=tests $(BIN)/python -m attack --seed $(or $(SEED),0) --seconds $(or $(SECONDS),60)

kills: $(VENV)/ready-dev  ## commands that are killed at random moments: SEED and KILLS
	PYTHONPATH=tests $(BIN)/python -m attack.kills --seed $(or $(SEED),0) --kills $(or $(KILLS),100)

attack-federation: $(VENV)/ready-dev  ## a real federation of five nodes, one of which answers with damaged messages
	PYTHONPATH=tests $(BIN)/python -m attack.federation --seed $(or $(SEED),0) --rounds $(or $(ROUNDS),200)

clean:
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
		|| { echo "fedprox needs Python 3.11 or newer; set PYTHON=/path/to/python3.11 (found: $$($(PYTHON) --version))"; exit 2; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/ready: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	@touch $@

$(VENV)/ready-dev: $(BIN)/python pyproject.toml constraints.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	@touch $@ $(VENV)/ready
