"""What a command imports of the large packages: none that it does not need. No time is asserted."""

from __future__ import annotations

import graphlib
import subprocess
import sys
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[1]

#: Packages that take a tenth of a second or more to be imported, or that nothing here uses.
HEAVY = (
    "paddle", "paddlenlp", "torch", "transformers", "datasets", "pandas", "pyarrow", "sklearn", "scipy.stats",
    "scipy.optimize", "fastapi", "aiohttp", "visualdl", "wandb", "seqeval", "narwhals", "matplotlib", "onnx",
    "babel.dates", "numba",
)  # fmt: skip
#: `datasets` and what it imports.
DATA = {"datasets", "pandas", "pyarrow", "aiohttp"}
RUN_COMMAND = "from toolkit import cli; cli.main({!r})"
ON_THE_CPU = "from toolkit.machine import runtime; runtime.configure_paddle('cpu'); "

#: What is done -> Python that does it, and the heavy packages that it may import.
DONE: dict[str, tuple[str, set[str]]] = {
    "--help": (RUN_COMMAND.format(["--help"]), set()),
    "parity --help": (RUN_COMMAND.format(["parity", "--help"]), set()),
    "bench --help": (RUN_COMMAND.format(["bench", "--help"]), set()),
    "recipe check of built-in texts": (RUN_COMMAND.format(["recipe", "check", "recipes/reformer_cls.yaml"]), set()),
    "recipe check of built-in questions": (RUN_COMMAND.format(["recipe", "check", "recipes/reformer_qa.yaml"]), set()),
    "recipe check of built-in documents": (RUN_COMMAND.format(["recipe", "check", "recipes/ctrl_lm.yaml"]), set()),
    "recipe show": (RUN_COMMAND.format(["recipe", "show", "recipes/reformer_cls.yaml"]), set()),
    "compare": ("import toolkit.commands.compare", set()),
    # Each but for the work itself.
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


@pytest.mark.parametrize("what", DONE)
def test_a_command_imports_no_heavy_package_that_it_does_not_need(what):
    code, needed = DONE[what]
    program = (
        f"import sys\ntry:\n    {code}\nexcept SystemExit as end:\n    assert not end.code, end\n"
        f"print('IMPORTED', *[name for name in {HEAVY!r} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    said, *imported = done.stdout.splitlines()[-1].split()
    assert said == "IMPORTED" and not (odd := set(imported) - needed), f"{what} imports {', '.join(sorted(odd))}"


@pytest.mark.slow
def test_paddlenlp_that_is_entered_by_the_short_way_has_all_it_has():
    """A user's own code asks for what nobody here imports; names and classes are those of a plain import."""
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
    done = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]


def test_no_module_imports_itself_through_other_modules():
    """Imports inside functions and imports for types count too."""
    graph = grimp.build_graph("toolkit", "models", cache_dir=None)
    imported_modules = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    graphlib.TopologicalSorter(imported_modules).prepare()  # raises CycleError, which names the modules
