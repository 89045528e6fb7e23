# All targets run in a virtual environment in the repository and create it if needed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test lint types unit test-slow test-hosts figures tutorial docs benchmarks clean

demo: $(VENV)/dev            ## loss of plasticity with Adam, with and without clipping; writes a figure
	$(BIN)/python examples/loss_of_plasticity.py --out demo

test: lint types unit        ## checks required for every commit

lint: $(VENV)/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell README.md CHANGELOG.md CONTRIBUTING.md docs src examples benchmarks

types: $(VENV)/dev
	$(BIN)/mypy

unit: $(VENV)/dev
	$(BIN)/python -m pytest -n 2 --dist worksteal

test-slow: $(VENV)/dev       ## slow tests and tests that access a package registry
	$(BIN)/python -m pytest -n 2 --dist worksteal -m "slow or network"

test-hosts: $(VENV)/hosts    ## the integrations and examples with their libraries
	$(BIN)/python -m pytest -m host

figures: $(VENV)/dev         ## redraw every figure of the documentation from its committed table
	$(BIN)/python docs/results/redraw.py

tutorial: $(VENV)/dev        ## run the tutorial and save its outputs
	WEIGHTCLIP_OFFLINE=1 WEIGHTCLIP_CACHE=$(VENV)/cache OMP_NUM_THREADS=1 $(BIN)/python -c "import nbclient, nbformat as f; p = 'docs/tutorial.ipynb'; n = nbclient.execute(f.read(p, 4), cwd='docs', record_timing=False); n.metadata.language_info = {'name': 'python'}; f.write(n, p)"

docs: $(VENV)/docs           ## build the site in site/
	NO_MKDOCS_2_WARNING=1 WEIGHTCLIP_OFFLINE=1 WEIGHTCLIP_CACHE=$(VENV)/cache OMP_NUM_THREADS=1 $(BIN)/mkdocs build --strict

benchmarks: $(VENV)/hosts
	set -e; for script in $(filter-out %/plain_ppo.py %/ppo_learning.py %/timing.py %/tianshou_updates.py %/vector_atari.py,$(wildcard benchmarks/*.py)); do $(BIN)/python $$script; done

clean:
	rm -rf $(VENV) site demo

# Install PyTorch first with its exact version, so that no dependency installs another build.
$(VENV)/torch: constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(INSTALL) "torch==2.13.0"
	touch $@

$(VENV)/dev $(VENV)/hosts $(VENV)/docs: $(VENV)/%: $(VENV)/torch pyproject.toml
	$(INSTALL) --editable ".[$*]"
	touch $@

# The host tests also require the test tools.
$(VENV)/hosts: $(VENV)/dev
