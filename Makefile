# make help lists what can be made. Everything runs in .venv, which is made when it is missing and
# brought up to date when pyproject.toml or constraints.txt has changed.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Tests, of which several run at once, use one thread each.
TEST_WORKERS ?= 2
TEST_ARGS ?=
DEMO_ARGS ?=
BENCH_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all lint docs bench clean

help:  ## list the targets
	@echo "make TARGET, with TARGET one of:"
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "PYTHON=python3.12 make TARGET uses another Python (3.10 or later) for a new .venv."

install: $(STAMP)  ## make .venv with the package (editable) and everything for its development

$(STAMP): pyproject.toml constraints.txt
	@command -v $(PYTHON) >/dev/null || { \
		echo "make: no program '$(PYTHON)'; name a Python 3.10 or later: make PYTHON=/path/to/python3"; \
		exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { \
		echo "make: $(PYTHON) is $$($(PYTHON) --version 2>&1); palimpsest needs Python 3.10 or later:" \
			"make PYTHON=python3.12"; \
		exit 1; }
	@test -x $(BIN)/python || { \
		echo "making $(VENV) with $$($(PYTHON) --version)"; \
		$(PYTHON) -m venv $(VENV) || { \
			echo "make: $(PYTHON) cannot make a virtual environment (on Debian: apt install python3-venv)"; \
			exit 1; }; }
	@echo "installing palimpsest with its dependencies into $(VENV); torch is large, so the first time"
	@echo "takes some minutes (README.md, Install, says how to get the smaller build without CUDA)"
	$(BIN)/python -m pip install --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $@

demo: $(STAMP)  ## train, measure and sample three small models on text that is already here (minutes)
	$(BIN)/palimpsest demo $(DEMO_ARGS)

test: $(STAMP)  ## the tests, without the slow ones
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) $(TEST_ARGS)

test-all: $(STAMP)  ## all tests; those that need a GPU are skipped where there is none
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(TEST_WORKERS) -m "" $(TEST_ARGS)

lint: $(STAMP)  ## ruff (rules and format) and mypy (strict)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(STAMP)  ## the documentation site, in docs/_build/html; a warning is an error
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d docs/_build/doctrees docs docs/_build/html
	@echo "docs/_build/html/index.html"

bench: $(STAMP)  ## speed of the grounded loop on this machine (docs/performance.md explains it)
	$(BIN)/python benchmarks/grounded_loop.py $(BENCH_ARGS)

clean:  ## remove caches and build outputs; .venv, runs and demos stay
	rm -rf build dist docs/_build docs/api .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
