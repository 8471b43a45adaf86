# make demo    what it does, on two ranks of this machine
# make test    the tests on the default torch          (ARGS="-k wait" goes to pytest)
# make matrix  the version-dependent tests on each torch   (VERSIONS="2.5.1 2.15.0" for some)
# make frameworks  the frameworks that people reach us through   (FRAMEWORKS="main litgpt" for some; ARGS="-k DeepSpeed";
#                  STORE=1 for the page's table)
# make fuzz    random programs and random graph edits   (MINUTES=60 SEED=1)
# make lint    ruff and mypy
# The first two set up .venv; where wheels come from is pip's own business (PIP_INDEX_URL, PIP_FIND_LINKS, …).
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.PHONY: help demo test matrix frameworks fuzz lint format clean

TORCH := 2.13.0
VERSIONS := 2.5.1 2.6.0 2.9.1 2.13.0 2.15.0
FRAMEWORKS := main torchtitan torchtitan-spmd torchtune automodel litgpt
ARGS :=
STORE :=
MINUTES := 60
SEED := 1
# The first Python that torch has wheels for and that can make a virtual environment.
PYTHON = $(or $(shell for python in python3 python3.12 python3.11 python3.10 python3.13; do \
	$$python -c 'import sys, venv, ensurepip; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& command -v $$python && break; done), \
	$(error no Python 3.10 to 3.13 with the venv module found; name one with make PYTHON=...))
RUN := .venv/bin/python -m

help:
	@sed -n '1,/^SHELL/s/^# //p' Makefile

demo: .venv/.package
	.venv/bin/tp-compile-pass demo

test: .venv/.test
	$(RUN) pytest $(ARGS)

matrix: .venv/.test
	$(RUN) nox --sessions $(foreach version,$(VERSIONS),"matrix(torch='$(version)')") $(if $(ARGS),-- $(ARGS))

frameworks: .venv/.test
	TPCP_STORE_RESULTS=$(STORE) $(RUN) nox --sessions \
		$(foreach group,$(FRAMEWORKS),"frameworks(group='$(group)')") $(if $(ARGS),-- $(ARGS))

fuzz: .venv/.test
	$(RUN) tests.fuzz --minutes $(MINUTES) --seed $(SEED)

lint: .venv/.test
	$(RUN) ruff check .
	$(RUN) ruff format --check .
	$(RUN) mypy

format: .venv/.test
	$(RUN) ruff check --fix .
	$(RUN) ruff format .

clean:
	rm -rf .venv build .nox .pytest_cache .mypy_cache .ruff_cache .hypothesis

# Two stages, so that the demo installs no more than a user would (numpy because torch warns where it is missing).
.venv/.package: pyproject.toml requirements/torch-$(TORCH).txt
	$(PYTHON) -m venv .venv
	$(RUN) pip install -r requirements/torch-$(TORCH).txt numpy -e .
	touch $@

.venv/.test: .venv/.package
	$(RUN) pip install -r requirements/torch-$(TORCH).txt -e '.[test,dev]'
	touch $@
