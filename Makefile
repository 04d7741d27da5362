# Every target except clean and help first creates .venv, which needs only Python 3.11 or later.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN    := .venv/bin
READY  := .venv/.ready
PIP    := $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench clean

help:
	@echo "make demo      compare five models of ocean currents, fit the best with NUTS; results in demo/"
	@echo "make test      run the tests and the examples in docstrings and README (without slow tests)"
	@echo "make test-all  run all tests, including slow ones, and all examples and tutorials"
	@echo "make lint      check style, format, the layers of the package and the types of its interface"
	@echo "make bench     run all scripts in benchmarks/"
	@echo "make clean     remove caches, builds and demo/, but not .venv"

$(READY): pyproject.toml constraints.txt
	@echo "Setting up .venv with $(PYTHON) (a few minutes the first time)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "ovkgp needs Python 3.11 or later. Run make PYTHON=/path/to/python")'
	@$(PYTHON) -m venv .venv
	@$(PIP) torch==2.13.0
	@$(PIP) -e '.[dev]'
	@touch $@

demo: $(READY)
	@$(BIN)/ovkgp demo

test: $(READY)
	@$(PYTEST) -m "not slow"

test-all: $(READY)
	@$(PYTEST)

lint: $(READY)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/basedpyright

bench: $(READY)
	@for script in peers defaults features posteriors series series_wind ridge hyperparameters itl functional functional_gp functional_toys criticism; do echo "== benchmarks/$$script.py"; $(BIN)/python benchmarks/$$script.py || exit 1; done

clean:
	@rm -rf build dist demo .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	@find ovkgp tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
