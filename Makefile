# Every target does its own set-up: only Python 3.10+ and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# In an environment of its own, so that what is looked up is ours alone.
AUDIT := build/audit
audit = $(BIN)/python scripts/audit_dependencies.py --pip-audit $(AUDIT)/bin/pip-audit

.PHONY: demo test test-embedded test-browser test-faults check audit format bench bench-full bench-peers soak clean

$(VENV)/.runtime: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

$(VENV)/.dev: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev]"
	touch $@

$(VENV)/.demo: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[demo]"
	touch $@

demo: $(VENV)/.demo  ## evaluate the baseline on bundled clips with the embedded judge; fetches 1.3 GB once
	$(BIN)/otoscope demo

test: $(VENV)/.dev  ## run the tests
	$(BIN)/python -m pytest -n auto --dist worksteal

test-embedded: $(VENV)/.dev $(VENV)/.demo  ## run the tests of the models inside of the process
	$(BIN)/otoscope models fetch
	$(BIN)/python -m pytest tests/embedded -m embedded

$(VENV)/.browser: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[browser]"
	touch $@

test-browser: $(VENV)/.browser  ## run the tests of the page in a real browser; needs Chromium
	$(BIN)/python -m pytest tests/browser -m browser

test-faults: $(VENV)/.dev  ## interfere with the real command in every way, and fuzz what it reads; FAULTS=--short for less
	$(BIN)/python -m pytest tests/faults -m faults $(FAULTS)

check: $(VENV)/.browser  ## lint, format, types, and known vulnerabilities of dependencies
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/mypy --platform win32 src  # what Windows lacks
	-$(MAKE) --no-print-directory $(AUDIT)/.made
	$(audit) || [ $$? -eq 2 ]  # 2: it could not be looked up, which it says

$(AUDIT)/.made: Makefile
	$(PYTHON) -m venv $(AUDIT)
	$(AUDIT)/bin/python -m pip install --quiet --disable-pip-version-check "pip-audit>=2.9,<3"
	touch $@

audit: $(VENV)/.browser $(AUDIT)/.made  ## look every installed package up among the known vulnerabilities
	$(audit)

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

$(VENV)/.bench: $(VENV)/.runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	touch $@

bench: $(VENV)/.bench  ## measure the tool itself on a tenth of the data: a few minutes
	$(BIN)/python -m benchmarks.run

bench-full: $(VENV)/.bench  ## measure the tool itself on all of the data: an hour or so
	$(BIN)/python -m benchmarks.run --full

bench-peers: $(VENV)/.bench  ## the same for other evaluators, installed into build/peers
	$(BIN)/python -m benchmarks.peers

soak: $(VENV)/.bench  ## 10,000 short clips against a server that misbehaves: does anything grow? A few minutes
	$(BIN)/python -m benchmarks.soak

clean:
	rm -rf $(VENV) build dist outputs .pytest_cache .mypy_cache .ruff_cache .hypothesis
