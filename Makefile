# `make run` and `make test` do everything they need, from a fresh checkout on. ARGS="..." is handed on.

VENV   ?= .venv
ARGS   ?=
PYTHON ?=
RUNNER ?= python
BIN    := $(VENV)/bin
STAMP  := $(VENV)/.installed

.PHONY: help run test test-parallel test-serial check lint types imports coverage report fuzz lab lab-parallel lab-serial
.PHONY: lab-shell planted planted-all planted-torch gpu torches bench single-file docs clean
.NOTPARALLEL:
.DEFAULT_GOAL := help

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' $(MAKEFILE_LIST) | expand -t 10

run: $(STAMP)  ## test this machine: ddp-doctor run
	@$(BIN)/ddp-doctor run $(ARGS)

# Tests mostly wait for other processes, so there are three workers for each processor; those of the lab start several
# nodes each, so there are two. Each takes a row of neighbours, which share fixtures, and who has done his takes over
# from others.
PER_CPU  = 3
lab-parallel: PER_CPU = 2
planted: PER_CPU = 1
WORKERS ?= $(shell expr $(PER_CPU) '*' `nproc`)
AT_ONCE  = --numprocesses=$(WORKERS) --dist=worksteal
USUAL   := not lab and not planted and not planted_torch and not gpu and not bench and not fuzz
# What ARGS selects may all be serial, or none of it.
NONE_IS_FINE = $(if $(ARGS),|| [ $$? -eq 5 ])

# Tests start a hundred processes: without compiled modules, which an installation has, each spends a third of its start
# on compiling them.
test-parallel test-serial fuzz lab-parallel lab-serial bench: export PYTHONDONTWRITEBYTECODE =
test: test-parallel test-serial  ## run the tests that need no GPU, no root and no lab

test-parallel: $(STAMP) | tests/__pycache__
	$(BIN)/$(RUNNER) -m pytest $(AT_ONCE) -m '$(USUAL) and not serial' $(ARGS) $(NONE_IS_FINE)

# In a fresh clone each worker would rewrite the assertions of all tests, 5 s of processor time for each.
tests/__pycache__: | $(STAMP)
	@$(BIN)/python -m pytest --collect-only --quiet >/dev/null || true

test-serial: $(STAMP)
	$(BIN)/$(RUNNER) -m pytest -m '$(USUAL) and serial' $(ARGS) $(NONE_IS_FINE)

check: lint types imports test  ## lint, types, import contract, and the tests

lint: $(STAMP)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(STAMP)
	$(BIN)/mypy

imports: $(STAMP)
	$(BIN)/lint-imports

coverage: $(STAMP)  ## run the tests and say which lines ran
	$(BIN)/coverage erase
	$(MAKE) test RUNNER="coverage run"
	$(MAKE) report

report: $(STAMP)
	$(BIN)/coverage combine --quiet
	$(BIN)/coverage report

GUIDED ?= --seconds 20
fuzz: $(STAMP)  ## hand the parsers junk, then coverage-guided inputs: GUIDED="--seconds 20" for each
	$(BIN)/python -m pytest $(AT_ONCE) -m fuzz $(ARGS)
	$(BIN)/python -m tests.fuzz.guided $(GUIDED)

lab: lab-parallel lab-serial  ## run the tests that need root, network namespaces or other tools

lab-parallel: $(STAMP)
	$(BIN)/python -m pytest $(AT_ONCE) -m 'lab and not serial' $(ARGS) $(NONE_IS_FINE)

lab-serial: $(STAMP)
	$(BIN)/python -m pytest -m 'lab and serial' $(ARGS) $(NONE_IS_FINE)

lab-shell: $(STAMP)  ## hosts to try things on by hand (root; docs/how-to/lab.md)
	@$(BIN)/python -m tests.lab.shell $(ARGS)

planted: $(STAMP)  ## run two releases of the real NCCL on planted GPUs, and four on nccl.conf (root; 1.5 GB)
	$(BIN)/python -m pytest $(AT_ONCE) -m planted tests/planted $(ARGS)

planted-all: $(STAMP)  ## run the real NCCL on planted GPUs, all machines, faults, settings and releases (root; 1.5 GB): docs/reference/nccl-planted.md
	$(BIN)/python -m tests.planted.table docs/reference/nccl-planted.md

planted-torch: $(STAMP)  ## run torch's CUDA build and the doctor on planted GPUs (root; 7 GB) and write its table
	$(BIN)/python -m tests.planted.page $(ARGS)

gpu: $(STAMP)  ## run the tests that need an NVIDIA GPU
	$(BIN)/python -m pytest -m gpu $(ARGS)

torches: $(STAMP)  ## run a short set of tests with the oldest, pinned and newest torch (2 GB each) and write its table
	$(BIN)/python -m tools.torches $(ARGS)

bench: $(STAMP)  ## measure the bars of the project
	$(BIN)/python -m pytest -m bench --capture=no $(ARGS)

single-file: $(STAMP)  ## make dist/ddp-doctor-*.pyz, for nodes that have Python and nothing else
	$(BIN)/python -m tools.single_file

docs: $(STAMP)  ## write docs/reference and the pictures of the README from the code
	$(BIN)/python -m tools.generate_docs
	$(BIN)/python -m tools.picture

clean:  ## remove the environment and all that was built
	rm -rf $(VENV) build dist .coverage .coverage.* .hypothesis .import_linter_cache .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# An environment whose interpreter is gone (an upgrade of the system, say) is made anew.
ifneq ($(shell $(BIN)/python -c 'print("alive")' 2>/dev/null),alive)
.PHONY: $(STAMP)
endif

$(STAMP): pyproject.toml constraints.txt
	@PYTHON="$(PYTHON)" tools/make_venv.sh $(VENV)
