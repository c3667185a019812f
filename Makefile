# Everything a newcomer needs: `make demo`, `make test`. Nothing is installed outside .venv.
#
#   PYTHON=python3.12     the interpreter that .venv is made of (CPython 3.10 to 3.12)
#   PADDLE=gpu            install paddlepaddle-gpu in place of paddlepaddle
#   PIP_ARGS="..."        passed to every pip install, for example to take torch's CPU build:
#                         PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

PYTHON   ?= python3
PADDLE   ?= cpu
PIP_ARGS ?=
RUFF     := --line-length 120 --target-version py310
VENV     := .venv
BIN      := $(VENV)/bin
INSTALLED := $(VENV)/.installed-$(PADDLE)

.PHONY: help install demo test lint parity ci clean

help:  ## what each target does
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED)  ## set up .venv from the pins in constraints.txt

$(INSTALLED): setup.cfg constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
	  || { echo "make: $(PYTHON) is not CPython 3.10 to 3.12; name one that is: make PYTHON=python3.11" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check $(PIP_ARGS) -c constraints.txt -e '.[$(PADDLE),reference,dev]'
	$(BIN)/python -m pip check
	@touch $@

demo: install  ## fine-tune Reformer on text of many languages, behind the parity gate
	$(BIN)/toolkit finetune recipes/reformer_cls.yaml

test: install  ## the tests
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: install  ## ruff: errors, imports, formatting
	$(BIN)/ruff check $(RUFF) --select E,F,W,I,B,UP,SIM,RUF --ignore RUF001,RUF002,RUF003,SIM108 .
	$(BIN)/ruff format $(RUFF) --check .

parity: install  ## the parity gates, on every device the machine has
	$(BIN)/toolkit parity --model reformer --dtype both --device all --output runs/parity/reformer
	$(BIN)/toolkit parity --model ctrl --dtype both --device all --output runs/parity/ctrl --layers 4 \
	  n_embd=320 dff=1024 vocab_size=5000

ci: lint test parity  ## all of it

clean:  ## remove what was built; runs/ stays
	rm -rf $(VENV) build *.egg-info .pytest_cache .ruff_cache
