# Everything a person types. `make` alone lists the targets.
# PYTHON chooses the interpreter (3.11 or newer), PIP_FLAGS is passed to pip install.

PYTHON ?= python3
PIP_FLAGS ?=
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed
# Of the tests that boot no guest, without trainers.
COVERAGE_PERCENT := 90
# Tests run side by side, a file at a time, with one process more than there are cores, because some
# wait. A guest kernel takes a core and up to 4 GB.
MAX_WORKERS := 4
WORKERS := $(shell expr $$(nproc) + 1)
# Kernels in real time, with deadlines in seconds: they have the machine to themselves.
ALONE := tests/testbed/test_kernels.py
SIDE_BY_SIDE := -n $(WORKERS) --maxprocesses $(MAX_WORKERS) --dist loadfile --no-loadscope-reorder

# How long `tests/test_fuzz.py` runs in `make test`, seconds. `make fuzz` runs it for an hour.
FUZZ_SECONDS := 120

.DEFAULT_GOAL := help
.PHONY: help setup packages guest-kernel run test check bench simulate reproduce-table clean coverage

help: ## this list
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

setup: $(STAMP) ## the Python environment, in .venv

run: setup packages guest-kernel compiled ## train GPT-XL on 64 virtual V100s in two universities; prints the table
	@$(BIN)/netbench run case3 || { [ $$? = 3 ] && \
	  echo "== finished; the last lines above say how far to trust these figures (exit code 3)"; }

test: setup packages ssh-packages browser-packages ## everything CI runs: lint, types, layers, all tests
	@$(MAKE) --no-print-directory -j3 lint guest-kernel compiled
	$(BIN)/python -m pytest $(ALONE)
	NETBENCH_FUZZ_SECONDS=$(FUZZ_SECONDS) $(BIN)/python -m pytest $(SIDE_BY_SIDE) --ignore $(ALONE)

coverage: setup ## the tests that boot no guest, slowly, and the lines they do not reach
	$(BIN)/python -m pytest -m "not guest and not browser" $(SIDE_BY_SIDE) \
	  --cov --cov-report=term --cov-fail-under=$(COVERAGE_PERCENT)

# The simulator and the searches, compiled; otherwise the first command that needs them waits.
.PHONY: compiled
compiled: $(VENV)/.compiled
$(VENV)/.compiled: $(STAMP) $(shell grep -rl '^@njit' netbench --include='*.py')
	@echo "== compiling the simulator and the searches: half a minute"
	@$(BIN)/netbench explain gpt3-small >/dev/null
	@$(BIN)/netbench schedule gpt3-small --evaluations 2 >/dev/null
	@touch $@

check: setup ## the quick ones: lint, types, layers, tests that need no guest kernel
	@$(MAKE) --no-print-directory lint
	$(BIN)/python -m pytest -q -m "not guest and not ssh and not browser"

.PHONY: fuzz
fuzz: FUZZ_SECONDS := 3600
fuzz: setup ## run commands on random wrong input for an hour; FUZZ_SECONDS=600 for ten minutes
	NETBENCH_FUZZ_SECONDS=$(FUZZ_SECONDS) NETBENCH_FUZZ_SEED=$$(date +%s)000 \
	  $(BIN)/python -m pytest -q -s -p no:cacheprovider tests/test_fuzz.py

.PHONY: lint
lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/check-jsonschema --builtin-schema vendor.github-workflows .github/workflows/*.yml
	@if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint Dockerfile .devcontainer/Dockerfile; fi

bench: setup packages guest-kernel ## ratios against peers, as one markdown table
	$(BIN)/python -m benchmarks

.PHONY: chaos
chaos: setup packages guest-kernel ssh-packages ## kill netbench at random moments; writes results/faults.md
	$(BIN)/python -m benchmarks.chaos

.PHONY: fidelity
fidelity: setup packages guest-kernel ## measure what each local testbed delivers; writes results/fidelity.md
	$(BIN)/python -m benchmarks.fidelity

simulate: setup ## simulate every published time and prediction again, then reproduce-table
	$(BIN)/netbench reproduce --simulate

define search-each-setting
	mkdir -p $(1)
	for case in 1 2 3 4 5; do for layers in 24 32 40; do for batch in 1024 2048 4096; do \
	  $(BIN)/netbench schedule case$$case --layers $$layers --batch $$batch $(2) \
	    -o $(1)/case$$case-L$$layers-B$$batch.json || exit 1; \
	done; done; done
endef

.PHONY: placements
placements: setup ## search a placement for each published setting again, for results/placements
	$(call search-each-setting,results/placements,--evaluations 2000)

.PHONY: layouts
layouts: setup ## search a plan for each published setting again, for results/placements/layouts
	$(call search-each-setting,results/placements/layouts,--layout auto --evaluations 64)

.PHONY: check-simulated
check-simulated: setup
	$(BIN)/netbench reproduce --simulate --check

reproduce-table: setup ## regenerate the pages of results/ from published, simulated and recorded times
	$(BIN)/netbench reproduce

packages: setup ## the Debian packages that runs need (ip, tc, ping); as root, installs them
	@$(BIN)/netbench doctor --install run

.PHONY: ssh-packages
ssh-packages: setup
	@$(BIN)/netbench doctor --install ssh

.PHONY: browser-packages
browser-packages: setup
	@$(BIN)/netbench doctor --install browser

guest-kernel: setup ## build the virtual-time guest kernel, once per user
	@$(BIN)/netbench kernel build --install

clean: ## remove .venv, caches and build output; runs and the guest kernel stay
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis \
	  .coverage .coverage.* coverage.xml
	find netbench tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

$(STAMP): pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "netbench needs Python 3.11 or newer; found: $$($(PYTHON) --version 2>&1). Try: make PYTHON=python3.11" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    echo "== apt-get install python3-venv (this Python cannot make virtual environments)"; \
	    { apt-get install -y -qq python3-venv || { apt-get update -qq && apt-get install -y -qq python3-venv; }; } \
	  else \
	    echo "This Python cannot make virtual environments. As root: apt-get install python3-venv" >&2; exit 1; \
	  fi; }
	@echo "== $(VENV): $$($(PYTHON) --version) environment with netbench and its dependencies (torch is the large one)"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --disable-pip-version-check --no-compile $(PIP_FLAGS) \
	  -c constraints.txt -e '.[dev]'
	@touch $@
