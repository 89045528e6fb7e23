# Everything runs in a virtual environment of the repository's own; any target sets it up first.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types unit test-slow test-hosts figures tutorial docs benchmarks clean

demo: $(VENV)/dev            ## Adam loses its plasticity, with clipping it keeps it; ends with a picture
	$(BIN)/python examples/loss_of_plasticity.py --out demo

test: lint types unit        ## what must pass on every commit

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src examples benchmarks

types: $(VENV)/dev
	$(BIN)/mypy

unit: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/dev       ## what takes long, or fetches from a package registry
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or network"

test-hosts: $(VENV)/hosts    ## the examples, each with its real library
	$(BIN)/python -m pytest -m host

figures: $(VENV)/dev         ## every figure of the documentation, from its committed table
	$(BIN)/python docs/results/redraw.py

tutorial: $(VENV)/dev        ## the outputs of the tutorial, with the bundled digits
	WEIGHTCLIP_OFFLINE=1 WEIGHTCLIP_CACHE=$(VENV)/cache OMP_NUM_THREADS=1 $(BIN)/jupyter execute --inplace --NotebookClient.record_timing=False docs/tutorial.ipynb

docs: $(VENV)/docs           ## the site, in site/
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

benchmarks: $(VENV)/hosts
	set -e; for script in $(filter-out %/plain_ppo.py %/ppo_learning.py %/timing.py %/tianshou_updates.py %/vector_atari.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script; done

clean:
	rm -rf $(VENV) site demo

# PyTorch first and by its exact version, so that nothing else pulls another build of it.
$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "torch==2.13.0"
	touch $@

$(VENV)/dev $(VENV)/hosts $(VENV)/docs: $(VENV)/%: $(VENV)/torch pyproject.toml
	$(INSTALL) --editable ".[$*]"
	touch $@

# The hosts' tests need the test tools too.
$(VENV)/hosts: $(VENV)/dev
