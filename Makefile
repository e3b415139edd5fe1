# `make run` and `make test` do everything they need in a fresh checkout. ARGS="..." is passed on.

VENV   ?= .venv
ARGS   ?=
PYTHON ?=
RUNNER ?= python
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed
TOOLED := $(VENV)/.installed-dev
# The site generator has an environment of its own, which only `make docs` makes.
DOCS_VENV ?= build/docs-venv
LAUNCHERS_VENV ?= build/launchers-venv
# What the site is made from; a directory changes if a file is removed.
DOCUMENTED = $(shell find *.md LICENSE docs/ ddp_doctor checks tools ! -name '*.pyc' ! -name __pycache__)

.PHONY: help run test test-parallel test-smoke test-ranks ranks-parallel ranks-serial check lint types imports
.PHONY: processes-parallel processes-serial
.PHONY: coverage report mutants fuzz lab lab-parallel lab-serial lab-shell planted planted-all planted-torch gpu torches
.PHONY: bench single-file docs picture release launchers clean
.NOTPARALLEL:
.DEFAULT_GOAL := help
# Settings of the user's shell that change what Python imports or which tests pytest selects.
unexport PYTHONPATH PYTEST_ADDOPTS PYTEST_PLUGINS

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

run: $(STAMP)  ## test this machine: ddp-doctor run
	@$(BIN)/ddp-doctor run $(ARGS)

# Tests that only compute: one worker per processor. Tests with processes mostly wait: two per processor.
PER_CPU = 1
ranks-parallel lab-parallel processes-parallel planted: PER_CPU = 2
# Next to other programs, tests that only compute get up to four more workers, one for each task that runs.
MORE = 0
test-parallel: MORE = $(shell awk '{ n = $$4 - 2; print (n < 0 ? 0 : n > 4 ? 4 : n) }' /proc/loadavg)
WORKERS ?= $(shell expr $(PER_CPU) '*' `nproc` + $(MORE))
AT_ONCE  = --numprocesses=$(WORKERS) --dist=worksteal
OTHERS  := lab or planted or planted_torch or gpu or bench or fuzz
PROCESSES := ranks or serial or timing

# $(call tests,MARKS,OPTIONS): run these tests, or say that ARGS selects none of them.
tests = @$(BIN)/python -m tools.run_tests $@ '$(1)' "$(JUNIT)" "$(BIN)/$(RUNNER)" $(2) -- $(ARGS)

# Without compiled modules, which an installation has, each of the many processes compiles them when it starts.
test-parallel test-smoke ranks-parallel ranks-serial fuzz lab-parallel lab-serial bench: export PYTHONDONTWRITEBYTECODE =
processes-parallel processes-serial: export PYTHONDONTWRITEBYTECODE =
test: test-parallel test-smoke  ## run the tests that compute, and a few with real ranks (2 minutes)

test-parallel: $(STAMP)
	$(call tests,not ($(OTHERS) or $(PROCESSES)),$(AT_ONCE))

test-smoke: $(STAMP)
	$(call tests,smoke,)

test-ranks: ranks-parallel ranks-serial  ## run the other tests with real ranks, agents and watched jobs

ranks-parallel: $(TOOLED)
	$(call tests,ranks and not ($(OTHERS) or smoke or serial or timing),$(AT_ONCE))

ranks-serial: $(TOOLED)
	$(call tests,(serial or timing) and not ($(OTHERS) or smoke),)

check: lint types imports test test-ranks  ## lint, types, import contract, and the tests

lint: $(TOOLED)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/codespell
	$(BIN)/python -m tools.prose

types: $(TOOLED)
	$(BIN)/mypy

imports: $(TOOLED)
	$(BIN)/lint-imports

coverage: $(TOOLED)  ## run the tests and say which lines ran
	$(BIN)/coverage erase
	$(MAKE) test RUNNER="coverage run"
	$(MAKE) report

report: $(TOOLED)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

GUIDED ?= --seconds 20
fuzz: $(TOOLED)  ## hand the parsers junk, then coverage-guided inputs: GUIDED="--seconds 20" for each
	$(call tests,fuzz,$(AT_ONCE))
	$(BIN)/python -m tests.fuzz.guided $(GUIDED)

lab: lab-parallel lab-serial  ## run the tests that need root, network namespaces or other tools

lab-parallel: $(TOOLED)
	$(call tests,lab and not (serial or timing),$(AT_ONCE))

lab-serial: $(TOOLED)
	$(call tests,lab and (serial or timing),)

# For continuous integration: `test-ranks` and `lab` at once, so that no worker waits for the last test of the first.
processes-parallel: $(TOOLED)
	$(call tests,(ranks or lab) and not (planted or planted_torch or gpu or bench or fuzz or smoke or serial or timing),$(AT_ONCE))

processes-serial: $(TOOLED)
	$(call tests,(serial or timing) and not (planted or planted_torch or gpu or bench or fuzz or smoke),)

lab-shell: $(TOOLED)  ## hosts to try things on by hand (root; docs/how-to/lab.md)
	@$(BIN)/python -m tests.lab.shell $(ARGS)

planted: $(TOOLED)  ## run two releases of the real NCCL on planted GPUs, and four on nccl.conf (root; 1.5 GB)
	$(call tests,planted,$(AT_ONCE))

planted-all: $(TOOLED)  ## run the real NCCL on planted GPUs, all machines, faults, settings and releases (root; 1.5 GB): docs/reference/nccl-planted.md
	$(BIN)/python -m tests.planted.table docs/reference/nccl-planted.md

planted-torch: $(TOOLED)  ## run torch's CUDA build and the doctor on planted GPUs (root; 7 GB) and write its table
	$(BIN)/python -m tests.planted.page $(ARGS)

gpu: $(TOOLED)  ## run the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu $(ARGS)

torches: $(TOOLED)  ## run a short set of tests with the oldest, pinned and newest torch (2 GB each) and write its table
	$(BIN)/python -m tools.torches $(ARGS)

bench: $(TOOLED)  ## measure the bars of the project
	$(BIN)/python -m pytest -m bench --capture=no $(ARGS)

mutants: $(TOOLED)  ## print which tests kill which mutants: FILES="checks/node/host/rules.py" ARGS="--sample 30"
	@$(BIN)/python -m tools.mutants $(FILES) $(if $(TESTS),--tests $(TESTS)) $(ARGS)

single-file: $(TOOLED)  ## make dist/ddp-doctor-*.pyz, for nodes that have Python and nothing else
	$(BIN)/python -m tools.single_file

docs: build/site/index.html  ## build the documentation site (build/site) and the manual page (build/ddp-doctor.1)

build/site/index.html: $(DOCS_VENV)/.installed-docs $(DOCUMENTED)
	$(DOCS_VENV)/bin/python -m tools.docs_site

picture: $(STAMP)  ## draw the pictures of the README again
	$(BIN)/python -m tools.picture

launchers: $(LAUNCHERS_VENV)/.installed-launchers  ## run real jobs below each launcher and print what the commands say (2 GB, an hour)
	$(LAUNCHERS_VENV)/bin/python -m tests.launchers.table $(ARGS)

release: $(TOOLED) docs  ## build sdist, wheel, single file and documentation, and try them; nothing is published
	$(BIN)/python -m tools.release

clean:  ## remove the environment and all that was built
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# An environment whose interpreter is gone (an upgrade of the system, say) is made anew.
ifneq ($(shell $(BIN)/python -c 'print("alive")' 2>/dev/null),alive)
.PHONY: $(STAMP) $(TOOLED)
endif

$(STAMP): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" tools/make_venv.sh "$(VENV)" test

$(TOOLED): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" tools/make_venv.sh "$(VENV)" dev

$(LAUNCHERS_VENV)/.installed-launchers: pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" tools/make_venv.sh "$(LAUNCHERS_VENV)" launchers

$(DOCS_VENV)/.installed-docs: pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" tools/make_venv.sh "$(DOCS_VENV)" docs
