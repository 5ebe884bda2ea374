# Every target does its own set-up: only Python 3.10+ and make are needed.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# In an environment of its own, so that what is looked up is ours alone.
AUDIT := build/audit
audit = $(BIN)/python scripts/audit_dependencies.py --pip-audit $(AUDIT)/bin/pip-audit

# Likewise: what local models and trackers bring along is large, and must not decide which versions the others get.
EXTRAS := build/extras

.PHONY: setup demo test weights test-embedded test-browser test-faults extras test-extras check audit format bench bench-full bench-peers soak clean

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

$(VENV)/.all: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[dev,demo,browser]"
	touch $(addprefix $(VENV)/, .runtime .dev .demo .browser) $@

setup: $(VENV)/.all  ## install what demo, test, test-browser and check need in one go, which is faster than one by one

demo: $(VENV)/.demo  ## evaluate the baseline on bundled clips with the embedded judge; fetches 1.3 GB once
	$(BIN)/otoscope demo

test: $(VENV)/.dev  ## run the tests; TESTS=--hypothesis-profile=ci for the same, and fewer, examples each time
	$(BIN)/python -m pytest -n auto --dist worksteal $(TESTS)

weights: $(VENV)/.runtime  ## fetch what demo and test-embedded need: 1.3 GB once
	$(BIN)/otoscope models fetch

test-embedded: $(VENV)/.dev $(VENV)/.demo weights  ## run the tests of the models inside of the process
	$(BIN)/python -m pytest tests/embedded -m embedded

$(VENV)/.browser: $(VENV)/.dev
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[browser]"
	touch $@

test-browser: $(VENV)/.browser  ## run the tests of the page in a real browser; needs Chromium
	$(BIN)/python -m pytest tests/browser -m browser

test-faults: $(VENV)/.dev  ## interfere with the real command in every way, and fuzz what it reads; FAULTS=--short for less
	$(BIN)/python -m pytest tests/faults -m faults $(FAULTS)

$(EXTRAS)/.made: pyproject.toml tests/extras/constraints.txt
	$(PYTHON) -m venv $(EXTRAS)
	$(EXTRAS)/bin/python -m pip install --quiet --disable-pip-version-check \
		--constraint tests/extras/constraints.txt -e ".[dev,local,ray,mlflow]"
	touch $@

extras: $(EXTRAS)/.made  ## install the extras for local models, Ray and trackers into build/extras

test-extras: $(EXTRAS)/.made  ## run the tests of those extras
	$(EXTRAS)/bin/python -m pytest tests/extras -m extras

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
