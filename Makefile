# make install   .venv with the package, and GNU Screen
# make demo      run the complete example in demo/ (SIMULATE=4: always on simulated GPUs)
# make test      run the whole test suite         (PYTEST="-k word": further pytest options)
# make check     check lint, format, types and imports between layers
# make docs      generate docs/commands.md and docs/states.md from the code
# make stress    run the stress tests (kills, power cuts, races) at full size: over an hour
#                (SIZE=0.1, PARTS="P1 P4", SEED=7)
# make test-hf   run real Hugging Face and Lightning trainers under the scheduler; installs them in .venv-hf
#                (torch is Debian's package python3-torch); six minutes
# make test-slurm  run the tests of engines with a real Slurm, which they start as root; installs it; one minute
# make model     check every state of the model of the attempt protocol: half an hour
# make test-all  run the suite with every installed Python from 3.10 to 3.13
# make clean     remove generated files; make distclean: also .venv

SHELL := /bin/bash
.DEFAULT_GOAL := install
.PHONY: install demo test test-hf test-slurm check stress model clean distclean docs test-all

PYTHON := .venv/bin/python
SIZE ?= full
PARTS ?=
SEED ?= $(shell echo $$RANDOM)
SIMULATE ?=
PYTEST ?=

install:
	@bash tools/setup.sh screen
	@echo 'installed; next: `make demo` runs an example, or write jobs.txt and run `python3 scheduler.py start`'

demo:
	@bash tools/setup.sh screen
	@bash tools/demo.sh $(SIMULATE)

test:
	@bash tools/setup.sh --dev screen --optional tmux redis-server chromium
	$(PYTHON) -m pytest -n 6 --dist worksteal -q $(PYTEST)

docs:
	@bash tools/setup.sh --dev
	$(PYTHON) tools/docs.py

check:
	@bash tools/setup.sh --dev
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/core/test_layers.py

stress:
	@bash tools/setup.sh --dev screen --optional slurmctld slurmd
	$(PYTHON) -m tests.stress $(PARTS) --size $(SIZE) --seed $(SEED) --out stress.json
	@if [ "$(SIZE)$(PARTS)" = full ]; then $(PYTHON) -m tests.stress.report stress.json; fi

model:
	@bash tools/setup.sh --dev
	$(PYTHON) -m tests.protocol

# Ordinary runs leave out the folder tests/hf (norecursedirs in pyproject.toml).
test-hf:
	@bash tools/setup.sh --dev screen
	@bash tools/setup_hf.sh
	$(PYTHON) -m pytest -q -n 2 --timeout 600 $(PYTEST) tests/hf

# Each worker starts a Slurm of its own. Ordinary runs skip these tests if it is not installed. The package
# slurm-client comes with slurmctld.
test-slurm:
	@bash tools/setup.sh --dev slurmctld slurmd
	GPU_SCHEDULER_NEED_SLURM=1 $(PYTHON) -m pytest -q -n 2 $(PYTEST) tests/engines tests/contract/test_executors.py

test-all:
	@bash tools/setup.sh --dev screen --optional tmux redis-server chromium
	@bash tools/test_all.sh $(PYTEST)

clean:
	rm -rf demo build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .coverage
	find . -name __pycache__ -type d -not -path './.venv*/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-3.* .venv-hf
