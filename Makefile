# Everything a newcomer needs: `make demo`, `make test`. Nothing is installed outside .venv.
#
#   PYTHON=python3.12     the interpreter that .venv is made of (CPython 3.10 to 3.12)
#   PADDLE=gpu            install paddlepaddle-gpu in place of paddlepaddle
#   PIP_ARGS="..."        passed to every pip install, for example to take torch's CPU build:
#                         PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#   PYTEST_ARGS="..."     passed to pytest, for example a file
#   WORKERS=2             processes that run the tests side by side; 0: this one alone, as a debugger wants it

PYTHON   ?= python3
PADDLE   ?= cpu
PIP_ARGS ?=
VENV     := .venv
BIN      := $(VENV)/bin
WORKERS  ?= 2
# Files of tests go to the next free process. Each computes in one thread: two of two on two cores wait for each other.
PYTEST   := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope
INSTALLED := $(VENV)/.installed-$(PADDLE)

.PHONY: help install demo test test-slow lint parity ci clean

help:  ## what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED)  ## set up .venv from the pins in constraints.txt

$(INSTALLED): setup.cfg constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
	  || { echo "make: $(PYTHON) is not CPython 3.10 to 3.12; name one that is: make PYTHON=python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[$(PADDLE),reference,demo,tracking,dev]'
	$(BIN)/python -m pip check
	@touch $@

demo: install  ## fine-tune Reformer on text of many languages, behind the parity gate; again: runs/reformer_cls-2
	$(BIN)/toolkit finetune recipes/reformer_cls.yaml --new

test: install  ## the fast lane of tests: at most 8 minutes on two cores
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: install  ## the other lane: all faults of the catalogues, sweeps, limits
	$(PYTEST) -m slow $(PYTEST_ARGS)

lint: install  ## ruff (errors, imports, formatting), types, and which module may import which
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

parity: install  ## the parity gates, on every device the machine has
	$(BIN)/toolkit parity --model reformer --dtype both --device all --output runs/parity/reformer
	$(BIN)/toolkit parity --model ctrl --dtype both --device all --output runs/parity/ctrl --layers 4 \
	  n_embd=320 dff=1024 vocab_size=5000

ci: lint test test-slow parity  ## all of it

clean:  ## remove what was built; runs/ stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
