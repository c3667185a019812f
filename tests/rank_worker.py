"""Trains small recipes one after another, alone or as a rank of several, and leaves what came out:

python rank_worker.py JOBS.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

from toolkit import ranks, runtime
from toolkit.assembly import assemble
from toolkit.console import LiteralConsole
from toolkit.quiet import silence_startup
from toolkit.recipe import load_recipe
from toolkit.train import load_model, make_trainer, measure_best


def train(recipe: str, overrides: list[str], folder: str, dtype: str) -> dict[str, Any]:
    """Train a recipe's model in a dtype; returns the losses of its steps, the weights after the last one, and the
    metrics of the best model."""
    settings = load_recipe(recipe, [*overrides, f"train.output_dir={folder}"])
    Path(folder).mkdir(parents=True, exist_ok=True)
    runtime.seed_everything(settings.seed)
    job = assemble(settings)
    model = load_model(settings, job)
    if dtype == "float64":
        model.to(dtype="float64")
    trainer = make_trainer(settings, Path(folder), job.task, model, LiteralConsole(quiet=True), job.prepared)
    losses: list[float] = []
    trainer.record = lambda split, numbers: losses.append(numbers["loss"]) if split == "train" else None
    trainer.fit()
    weights = {name: value.numpy().copy() for name, value in model.state_dict().items()}
    metrics, _ = measure_best(trainer, job.prepared)
    return {"losses": losses, "weights": weights, "metrics": metrics}


def main(jobs: Path) -> None:
    silence_startup()
    runtime.configure("cpu", 1)
    ranks.join()
    for job in json.loads(jobs.read_text()):
        found = train(**job)
        if runtime.is_first_process():
            folder = Path(job["folder"])
            np.savez(folder / "weights.npz", **found.pop("weights"))
            (folder / "found.json").write_text(json.dumps(found))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    ranks.leave(0)  # as the command does
