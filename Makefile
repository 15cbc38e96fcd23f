# make demo   install, then train a small policy end to end (DEMO="--fresh --seed 1" passes options)
# make test   install what the tests need, then check style, types, layers and run every test
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

.PHONY: demo test check services clean
.DELETE_ON_ERROR:

demo: .venv/demo.stamp
	$(BIN)/palestra demo $(DEMO)

test: check services
	$(BIN)/python -m pytest -n auto --dist loadgroup $(PYTEST)

check: .venv/test.stamp
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

services: .venv/test.stamp
	for script in tests/services/*.sh; do [ ! -e "$$script" ] || bash "$$script" || exit 1; done

clean:
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .import_linter_cache build dist src/*.egg-info

.venv/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 13))' \
		|| { echo "Python 3.11 or 3.12 is needed, $(PYTHON) is not: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv .venv \
		|| { [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv .venv; } \
		|| { echo "python3-venv is missing: install it (Debian: apt-get install python3-venv)"; rm -rf .venv; exit 1; }

# torch is named on its own line, so that it is this version and not the newest one.
.venv/demo.stamp: pyproject.toml | .venv/bin/python
	$(PIP) torch==2.13.0
	$(PIP) -e '.[train]'
	touch $@

.venv/test.stamp: pyproject.toml .venv/demo.stamp
	$(PIP) -e '.[train,worlds,search,dense,sql,web,oscar,dev]'
	touch $@
