# make test and make demo each work as the first command in a fresh clone: both build .venv from the
# pinned set and reuse it for as long as pyproject.toml and constraints.txt keep their contents.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
# Processes are the unit of parallelism; torch threads on top of them only fight over the cores.
export OMP_NUM_THREADS ?= 1

KEY := $(shell cat pyproject.toml constraints.txt | cksum | tr -d ' ')
# Inside lib, so that a .venv that lost its packages has lost the stamp too.
INSTALLED := $(VENV)/lib/.installed-$(KEY)
INTEGRATIONS := .venv-integrations
INTEGRATED := accelerate ipykernel lightning mlflow-skinny nbclient transformers wandb
TOGETHER := $(INTEGRATIONS)/lib/.installed-$(shell cat pyproject.toml constraints.txt integrations/constraints.txt | cksum | tr -d ' ')

.PHONY: help test quick browser integrations matrix demo lint types imports pytest pytest-quick bench docs reproduce format clean

help:
	@echo "make demo    what waiting costs and what dropping late work costs; table, figures, page"
	@echo "make test    lint, types, import rules and all tests"
	@echo "make quick   lint, types, import rules and the fastest useful tests: under 90 s on two cores"
	@echo "make browser install Chromium from the distribution's packages; without it the tests of pages are skipped"
	@echo "make integrations  guides, examples with other libraries, and notebooks, in an environment of its own"
	@echo "make matrix  tests of optimizers, server and simulator on the oldest and newest torch and Python; large downloads"
	@echo "make bench   the optimizers against torch's own and against memory traffic"
	@echo "make docs    the documentation as a site"
	@echo "make reproduce  the plan of docs/evidence.md: days, can be killed and resumed"
	@echo "make format  rewrite the code in house style"
	@echo "make clean   remove .venv, .venv-integrations, .venv-matrix and everything built"

$(INSTALLED): pyproject.toml constraints.txt
	@if [ -e $@ ]; then touch $@; else \
	  $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Latecomer needs Python 3.11 or newer: set PYTHON=python3.11 (this is %s)" % sys.version.split()[0])' && \
	  echo "Setting up $(VENV) from constraints.txt (once, about two minutes)" && \
	  if [ -L $(VENV) ]; then rm $(VENV); fi && \
	  $(PYTHON) -m venv --clear $(VENV) && \
	  $(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt hatchling editables && \
	  $(BIN)/python -m pip install -qq --disable-pip-version-check --no-build-isolation -c constraints.txt -e '.[dev]' && \
	  rm -f $(VENV)/lib/.installed-* && touch $@; \
	fi

test: $(INSTALLED)  # types are checked while the first tests run
	@$(MAKE) --no-print-directory -j 2 lint types imports pytest

quick: $(INSTALLED)
	@$(MAKE) --no-print-directory -j 2 lint types imports pytest-quick

browser:
	@.ci/browser

# Its own environment: what is only integrated with must not decide the versions that everything else is tested with.
$(TOGETHER): pyproject.toml constraints.txt integrations/constraints.txt
	@if [ -e $@ ]; then touch $@; else \
	  echo "Setting up $(INTEGRATIONS) from constraints.txt and integrations/constraints.txt" && \
	  $(PYTHON) -m venv --clear $(INTEGRATIONS) && \
	  $(INTEGRATIONS)/bin/python -m pip install -qq --disable-pip-version-check -c constraints.txt hatchling editables && \
	  $(INTEGRATIONS)/bin/python -m pip install -qq --disable-pip-version-check --no-build-isolation -c constraints.txt \
	    -c integrations/constraints.txt -e '.[dev]' $(INTEGRATED) && \
	  rm -f $(INTEGRATIONS)/lib/.installed-* && touch $@; \
	fi

integrations: $(TOGETHER)
	$(INTEGRATIONS)/bin/pytest -n 2 integrations

matrix:  # needs no .venv: each pair of versions has one of its own in .venv-matrix
	$(PYTHON) .ci/matrix.py $(PAIRS)

lint: $(INSTALLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(INSTALLED)
	$(BIN)/mypy

imports: $(INSTALLED)
	$(BIN)/lint-imports

pytest: $(INSTALLED)
	$(BIN)/pytest -n 3 --dist loadgroup  # some wait for processes they have started; what starts Ray stays in one

# The pieces everything else is made of, against their references: about 70 s of CPU. What trains networks, starts
# processes or runs the pages' examples is left to make test.
QUICK := tests/optim/test_twins.py tests/optim/test_kernels.py tests/optim/test_corners.py tests/test_server.py \
  tests/trace tests/delays tests/simulation/test_replayer.py tests/engines/test_codec.py tests/test_house.py

pytest-quick: $(INSTALLED)
	$(BIN)/pytest -q -n 2 $(QUICK) -k "not examples_of"

demo: $(INSTALLED)
	$(BIN)/latecomer demo

bench: $(INSTALLED)
	$(BIN)/python benchmarks/optimizers.py

docs: $(INSTALLED)
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d site/.doctrees docs site
	@echo "Wrote site/index.html"

reproduce: $(INSTALLED)
	$(BIN)/latecomer reproduce all --size standard --out docs/results/paper

format: $(INSTALLED)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf $(VENV) $(INTEGRATIONS) .venv-matrix site demo dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
