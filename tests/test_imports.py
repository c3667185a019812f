"""Test that a command imports only the large packages that it needs; no test asserts a duration."""

from __future__ import annotations

import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]

#: Packages whose import takes a tenth of a second or more, or that the toolkit does not use.
HEAVY = (
    "paddle", "paddlenlp", "torch", "transformers", "datasets", "pandas", "pyarrow", "sklearn", "scipy.stats",
    "scipy.optimize", "fastapi", "aiohttp", "visualdl", "wandb", "seqeval", "narwhals", "matplotlib", "onnx",
    "babel.dates", "numba",
)  # fmt: skip
#: `datasets` and its own imports.
DATA = {"datasets", "pandas", "pyarrow", "aiohttp"}
RUN_COMMAND = "from toolkit import cli; cli.main({!r})"
ON_THE_CPU = "from toolkit.machine import runtime; runtime.configure_paddle('cpu'); "

#: Action -> its Python code, and the heavy packages that it may import.
ACTIONS: dict[str, tuple[str, set[str]]] = {
    "--help": (RUN_COMMAND.format(["--help"]), set()),
    "parity --help": (RUN_COMMAND.format(["parity", "--help"]), set()),
    "bench --help": (RUN_COMMAND.format(["bench", "--help"]), set()),
    "recipe check of built-in texts": (RUN_COMMAND.format(["recipe", "check", "recipes/reformer_cls.yaml"]), set()),
    "recipe check of built-in questions": (RUN_COMMAND.format(["recipe", "check", "recipes/reformer_qa.yaml"]), set()),
    "recipe check of built-in documents": (RUN_COMMAND.format(["recipe", "check", "recipes/ctrl_lm.yaml"]), set()),
    "recipe show": (RUN_COMMAND.format(["recipe", "show", "recipes/reformer_cls.yaml"]), set()),
    "compare": ("import toolkit.commands.compare", set()),
    # The commands without their actual work.
    "predict": (
        f"{ON_THE_CPU}import toolkit.commands.predict, toolkit.commands.generate, models.reformer.modeling, "
        "models.reformer.tokenizer",
        {"paddle", "paddlenlp"},
    ),
    "a run's gate that is cached": ("import toolkit.parity.gate", set()),
    "the port's process of a gate": (
        f"{ON_THE_CPU}import toolkit.parity.candidate.__main__, models.reformer.modeling, "
        "toolkit.parity.candidate.result",
        {"paddle", "paddlenlp"},
    ),
    "the process that measures": (
        "import toolkit.parity.comparator.__main__, toolkit.parity.comparator.result, toolkit.parity.comparator.stages",
        set(),
    ),
    "the Trainer, as the gate has it": (f"{ON_THE_CPU}import toolkit.training.trainer", {"paddle", "paddlenlp"}),
    "training": (
        f"{ON_THE_CPU}import toolkit.finetune.finetune, toolkit.data.load, models.reformer.modeling, "
        "toolkit.training.trainer",
        {"paddle", "paddlenlp", *DATA},
    ),
    "metrics of a classifier": (
        "import numpy as np; from toolkit.tasks import metrics; metrics.text_metrics(np.eye(2), np.arange(2)); "
        "metrics.text_metrics(np.eye(2), np.eye(2)); import toolkit.tasks.classification.report",
        set(),
    ),
}


@pytest.mark.parametrize("action", ACTIONS)
def test_a_command_imports_only_heavy_packages_that_it_needs(action):
    code, allowed_packages = ACTIONS[action]
    program = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code, end\n"
        f"print('IMPORTED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]
    marker, *imported_packages = result.stdout.splitlines()[-1].split()
    assert marker == "IMPORTED" and not (unexpected_packages := set(imported_packages) - allowed_packages), (
        f"{action} imports {', '.join(sorted(unexpected_packages))}"
    )


@pytest.mark.slow
def test_paddlenlp_by_the_short_import_has_all_its_names():
    """Compare names and classes with a plain import, since the user's code may use any of them."""
    code = (
        "import models.reformer.modeling, sys\n"
        "import toolkit.training.trainer\n"
        "assert 'fastapi' not in sys.modules and 'datasets' not in sys.modules\n"
        "import paddlenlp, paddlenlp.trainer\n"
        "from paddlenlp.trainer.trainer import Trainer\n"
        "from paddlenlp.prompt import AutoTemplate\n"
        "from paddlenlp.transformers import PretrainedModel\n"
        "assert paddlenlp.trainer.Trainer is Trainer and models.port.base.PretrainedModel is PretrainedModel\n"
        "assert paddlenlp.__version__ and not hasattr(paddlenlp, 'nothing_of_this_name')\n"
        "assert paddlenlp.Taskflow.__module__ == 'paddlenlp.taskflow.taskflow'\n"
        "assert 'fastapi' in sys.modules\n"
        "from datasets import Dataset\n"
        "assert sys.modules['paddlenlp.trainer.trainer'].datasets.Dataset is Dataset\n"
    )
    result = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert result.returncode == 0, result.stderr[-2000:]


def test_no_module_imports_itself_through_other_modules():
    """Find import cycles, including imports inside functions and imports for types."""
    graph = grimp.build_graph("toolkit", "models", cache_dir=None)
    imported_modules = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imported_modules).prepare()  # raises CycleError, which names the modules
