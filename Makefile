# make install   .venv with the package, and GNU Screen
# make demo      the main job, whole, in demo/ (SIMULATE=4 simulates in any case)
# make test      the whole suite                (PYTEST="-k word" for more options)
# make check     lint, format, types, layers
# make docs      docs/commands.md and docs/states.md anew, from the code
# make torture   kills, power cuts and races at full size, half an hour (SIZE=0.1, PARTS="P1 P4", SEED=7)
# make model     the model of the attempt protocol, every state of it, some minutes
# make test-all  the whole suite on every Python from 3.10 to 3.13 that is here
# make clean     removes what these made; make distclean also .venv

SHELL := /bin/bash
.DEFAULT_GOAL := install
.PHONY: install demo test check torture model clean distclean docs test-all

PYTHON := .venv/bin/python
SIZE ?= full
PARTS ?=
SEED ?= $(shell echo $$RANDOM)
SIMULATE ?=
PYTEST ?=

install:
	@bash tools/setup.sh screen

demo: install
	@bash tools/demo.sh $(SIMULATE)

test:
	@bash tools/setup.sh screen --optional tmux
	$(PYTHON) -m pytest -n 2 --dist worksteal -q $(PYTEST)

docs:
	@bash tools/setup.sh
	$(PYTHON) tools/docs.py

check:
	@bash tools/setup.sh
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	$(PYTHON) -m pytest -q tests/core/test_layers.py

torture: install
	$(PYTHON) -m tests.torture $(PARTS) --size $(SIZE) --seed $(SEED) --out torture.json
	@if [ "$(SIZE)$(PARTS)" = full ]; then $(PYTHON) -m tests.torture.report torture.json; fi

model:
	@bash tools/setup.sh
	$(PYTHON) -m tests.protocol

test-all:
	@bash tools/setup.sh screen --optional tmux
	@bash tools/test_all.sh $(PYTEST)

clean:
	rm -rf demo build dist *.egg-info .pytest_cache .hypothesis .mypy_cache .ruff_cache .coverage
	find . -name __pycache__ -type d -not -path './.venv/*' -prune -exec rm -rf {} +

distclean: clean
	rm -rf .venv .venv-3.*
