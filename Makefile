# Everything a newcomer needs: `make demo`, `make test`. Nothing is installed outside .venv and .venv-reference.
#
#   PYTHON=python3.12     the interpreter that .venv is made of (CPython 3.10 to 3.12)
#   PADDLE=cpu            paddlepaddle, or with gpu paddlepaddle-gpu; by default gpu where an NVIDIA driver answers
#   PADDLE_CUDA=cu126     for gpu: Paddle's package index; by default the newest that the driver can run
#   PIP_ARGS="..."        passed to every pip install, for example to take torch's CPU build:
#                         PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"
#   TORCH_ARGS="..."      for gpu: passed to the pip install of the reference's own environment in place of PIP_ARGS,
#                         where the driver is too old for the CUDA of pypi.org's torch
#   PYTEST_ARGS="..."     passed to pytest, for example a file
#   WORKERS=2             processes that run the tests side by side; 0: this one alone, as a debugger wants it

PYTHON   ?= python3
PIP_ARGS ?=
TORCH_ARGS ?= $(PIP_ARGS)
VENV     := .venv
BIN      := $(VENV)/bin
WORKERS  ?= 2

# The CUDA version that the driver can run, `unknown` where it does not say, nothing where no driver answers.
DRIVER_CUDA := $(shell said=$$(timeout 30 nvidia-smi 2>/dev/null) && { printf '%s\n' "$$said" | \
  sed -nE 's/.*CUDA[A-Z ]* Version *: *([0-9]+\.[0-9]+).*/\1/p' | head -n 1 | grep . || echo unknown; })
ifeq ($(strip $(PADDLE)),)
override PADDLE := $(if $(DRIVER_CUDA),gpu,cpu)
endif
ifeq ($(filter cpu gpu,$(PADDLE)),)
$(error PADDLE=$(PADDLE): there are cpu and gpu)
endif

ifeq ($(PADDLE),gpu)
# The CUDA versions for which Paddle 3.3.1 is built, the newest first. pypi.org has no Paddle 3 for GPUs.
PADDLE_CUDAS := 13.0 12.9 12.6 11.8
ifeq ($(strip $(PADDLE_CUDA)),)
override PADDLE_CUDA := $(shell printf '%s\n' $(PADDLE_CUDAS) | awk -F. -v driver='$(DRIVER_CUDA)' \
  'BEGIN { split(driver, has, ".") } $$1 * 100 + $$2 <= has[1] * 100 + has[2] { print "cu" $$1 $$2; exit }')
endif
KIND     := gpu-$(PADDLE_CUDA)
# .venv has torch's CPU build, for the tests; the reference has an environment of its own: two CUDA builds share none.
INDEXES  := --extra-index-url https://www.paddlepaddle.org.cn/packages/stable/$(PADDLE_CUDA)/ \
  --extra-index-url https://download.pytorch.org/whl/cpu
REFERENCE := .venv-reference
REFERENCE_INSTALLED := $(REFERENCE)/.installed
# Whatever toolkit runs from here on takes it, in place of .venv's own Python.
export TOOLKIT_REFERENCE_PYTHON ?= $(abspath $(REFERENCE))/bin/python
NOT_GPU  := and not gpu
else
KIND     := cpu
INDEXES  :=
REFERENCE_INSTALLED :=
NOT_GPU  :=
endif
INSTALLED := $(VENV)/.installed-$(KIND)
# What another PADDLE or PADDLE_CUDA has left.
OTHERS   := $(filter-out $(INSTALLED),$(wildcard $(VENV)/.installed-*))
# Metadata of this distribution under its former name, which on PyPI is another project's.
FORMERLY_NAMED := $(wildcard $(VENV)/lib/python*/site-packages/toolkit-*.dist-info)

# Files of tests go to the next free process. Each computes in one thread: two of two on two cores wait for each other.
# Only the plugins that the tests need: of a package that has one, as this one has, pytest rewrites every module.
PYTEST   := OMP_NUM_THREADS=1 PYTEST_DISABLE_PLUGIN_AUTOLOAD=1 $(BIN)/python -m pytest -p xdist
# The order is that of tests/conftest.py; by itself --dist loadscope begins with the files that have the most tests.
PARALLEL := -n $(WORKERS) --dist loadscope --no-loadscope-reorder
# A folder for each lane's junit.xml. With a GPU its tests are a lane of their own, one after another.
REPORTS  := runs/ci
JUNIT     = --junitxml=$(REPORTS)/$@/junit.xml

.PHONY: help install demo test test-slow lint docs parity gpu ci rest clean

help:  ## what each target does
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(INSTALLED) $(REFERENCE_INSTALLED)  ## set up .venv from the pins in constraints.txt

$(INSTALLED): setup.cfg constraints.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, 12))' \
	  || { echo "make: $(PYTHON) is not CPython 3.10 to 3.12; name one that is: make PYTHON=python3.11" >&2; exit 2; }
ifeq ($(KIND),gpu-)
	@echo "make: which CUDA? Paddle is built for $(PADDLE_CUDAS), the driver runs $(or $(DRIVER_CUDA),none): update the" \
	  "driver, name one (make PADDLE_CUDA=cu126), or make PADDLE=cpu" >&2; exit 2
endif
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
# Both wheels own paddle/, and those for two CUDAs have the same version: pip would leave the old one.
ifneq ($(OTHERS),)
	$(BIN)/python -m pip uninstall --quiet --yes paddlepaddle paddlepaddle-gpu
	rm -f $(OTHERS)
endif
# Two distributions would own bin/toolkit. A folder of metadata in the sources hides the installed one from pip.
ifneq ($(FORMERLY_NAMED),)
	rm -rf toolkit.egg-info
	$(BIN)/python -m pip uninstall --quiet --yes toolkit
endif
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check $(INDEXES) $(PIP_ARGS) -c constraints.txt -e '.[$(PADDLE),reference,demo,tracking,dev]'
	$(BIN)/python -m pip check
# On all cores, as pip does not. Not on import: where PYTHONDONTWRITEBYTECODE is set, as in many images, every command
# would compile its modules anew. Some packages have templates that do not compile.
	@$(BIN)/python -m compileall -q -j 0 $(VENV)/lib >/dev/null 2>&1 || true
	$(BIN)/python -m compileall -q models toolkit
	@touch $@

ifneq ($(REFERENCE_INSTALLED),)
$(REFERENCE_INSTALLED): constraints.txt
	test -x $(REFERENCE)/bin/python || $(PYTHON) -m venv $(REFERENCE)
	$(REFERENCE)/bin/python -m pip install --quiet --disable-pip-version-check $(TORCH_ARGS) -c constraints.txt \
	  torch transformers sentencepiece protobuf numpy safetensors
	@touch $@
endif

demo: install  ## train Reformer to find answers in a text, behind the parity gate; again: runs/demo-2
	$(BIN)/toolkit finetune recipes/reformer_qa.yaml --new data.options.train=19200 train.output_dir=runs/demo

test: install  ## the tests that are not `slow`: about 9 minutes on two cores
	$(PYTEST) $(PARALLEL) -m "not slow $(NOT_GPU)" $(JUNIT) $(PYTEST_ARGS)

test-slow: install  ## the tests marked `slow`: catalogues, sweeps, limits, whole runs; SOAK=1 repeats them for hours
	$(PYTEST) $(PARALLEL) -m "slow $(NOT_GPU)" --durations=40 $(JUNIT) $(PYTEST_ARGS)

lint: install  ## ruff, types, contracts of imports, and the budgets of packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python .ci/budgets.py

docs: install  ## write into the documents what they quote of the code: counts, lists, tables
	@$(BIN)/python -W ignore .ci/docs.py

# Small enough for minutes, with every part that a large one has.
SMALL_CTRL := --layers 4 n_embd=320 dff=1024 vocab_size=5000

parity: install  ## the gates of both ports on every device; on the CPU also without Numba, and with Paddle's kernels
	$(BIN)/toolkit parity --model reformer --dtype both --device all --output runs/parity/reformer
	$(BIN)/toolkit parity --model ctrl --dtype both --device all --output runs/parity/ctrl $(SMALL_CTRL)
	TOOLKIT_KERNELS=composed $(BIN)/toolkit parity --model reformer --dtype float32 --output runs/parity/reformer-composed
	TOOLKIT_KERNELS=composed $(BIN)/toolkit parity --model ctrl --dtype float32 --output runs/parity/ctrl-composed $(SMALL_CTRL)
	TOOLKIT_KERNELS=paddle $(BIN)/toolkit parity --model reformer --dtype both --output runs/parity/reformer-kernels
	TOOLKIT_KERNELS=paddle $(BIN)/toolkit parity --model ctrl --dtype both --output runs/parity/ctrl-kernels $(SMALL_CTRL)

gpu: install  ## the tests marked `gpu`: operations, training in float32 and bfloat16, resuming
	$(PYTEST) -m gpu $(JUNIT) $(PYTEST_ARGS)

LANES    := test test-slow $(if $(NOT_GPU),gpu)

ci: test rest  ## lint, all tests, the gates; then what was skipped, by reason

rest: lint test-slow parity $(if $(NOT_GPU),gpu)
	@$(BIN)/python .ci/unseen.py $(LANES:%=$(REPORTS)/%/junit.xml)

clean:  ## remove what was built; runs/ stays
	rm -rf $(VENV) .venv-reference build *.egg-info .pytest_cache .ruff_cache .mypy_cache .import_linter_cache
