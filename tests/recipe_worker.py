"""Check recipes in a process, and train accepted recipes for one step: one JSON line in, one JSON line out.

The parent process (:class:`recipe_fuzz.Worker`) detects a recipe that ends this process or hangs.
"""

from __future__ import annotations

import io
import json
import os
import shutil
import sys
import traceback
from pathlib import Path

from rich.console import Console

from toolkit.errors import ToolkitError
from toolkit.finetune.memory import memory_of_recipe
from toolkit.finetune.model_config import check_model
from toolkit.machine.runtime import configure_paddle
from toolkit.recipe.load import load_recipe
from toolkit.terminal.quiet import silence_startup

#: Overrides of a recipe that is trained for one step.
ONE_STEP = ("train.epochs=null", "train.max_steps=1", "train.output_dir=run", "runtime.threads=null")


def answer(text: bytes, overrides: list[str], train: bool) -> dict:
    """Return the result of a recipe: ``refused`` with the message, ``accepted``, or ``traceback``."""
    Path("x.yaml").write_bytes(text)
    try:
        recipe = load_recipe("x.yaml", overrides)
        from toolkit.commands.recipe_check import check_data

        check_model(recipe)
        check_data(recipe)
        memory_of_recipe(recipe)
    except ToolkitError as problem:
        return {"refused": str(problem), "status": problem.exit_status}
    except Exception:
        return {"traceback": traceback.format_exc()}
    return one_step(overrides) if train else {"accepted": None}


def one_step(overrides: list[str]) -> dict:
    from toolkit.finetune.finetune import finetune

    shutil.rmtree("run", ignore_errors=True)
    try:
        finetune(load_recipe("x.yaml", [*overrides, *ONE_STEP]), "fuzzed", Console(file=io.StringIO()))
    except ToolkitError as problem:
        return {"accepted": None, "stopped": str(problem), "status": problem.exit_status}
    except Exception:
        return {"accepted": None, "traceback": traceback.format_exc()}
    return {"accepted": None, "trained": True}


def main() -> None:
    requests, responses = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # the output of libraries is not a response
    silence_startup()
    configure_paddle("cpu", 1)
    for line in requests:
        case = json.loads(line)
        response = answer(bytes.fromhex(case["text"]), case["overrides"], case["train"])
        responses.write(json.dumps(response) + "\n")
        responses.flush()


if __name__ == "__main__":
    sys.exit(main())
