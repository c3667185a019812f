"""Train small recipes one after another, alone or as one of several ranks, and write the results:

python rank_worker.py JOBS.json
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import signal
import sys
from pathlib import Path
from typing import Any

import numpy as np

from models.operations import randomness
from toolkit.finetune.assembly import assemble
from toolkit.finetune.model import load_model, make_trainer
from toolkit.finetune.results import measure_best
from toolkit.machine import interruption, runtime
from toolkit.machine.interruption import SignalInterrupt
from toolkit.recipe.load import load_recipe
from toolkit.terminal.console import LiteralConsole
from toolkit.terminal.quiet import silence_startup
from toolkit.training import ranks
from toolkit.training.trainer import Finetuner, TrainerCallback

#: Minimum cells of a mask; two masks of this size are never equal by chance.
LARGE = 256


def train(
    recipe: str, overrides: list[str], folder: str, dtype: str, is_watched: bool = False, stop_at: int | None = None
) -> dict[str, Any]:
    """Train a recipe's model; return the losses of its steps, its final weights and the metrics of the best model.

    Args:
        is_watched: write the record of this rank into ``rank-N.json`` and ``rank-N.npz`` (:class:`Watch`).
        stop_at: stop after this step, as Ctrl-C does, and resume from the checkpoint with another trainer.
    """
    settings = load_recipe(recipe, [*overrides, f"train.output_dir={folder}"])
    Path(folder).mkdir(parents=True, exist_ok=True)
    job = assemble(settings)
    losses: list[float] = []
    watch = Watch()

    def create_trainer() -> Finetuner:
        runtime.seed_everything(settings.seed)
        model = load_model(settings, job)
        if dtype == "float64":
            model.to(dtype="float64")
        trainer = make_trainer(settings, Path(folder), job.task, model, LiteralConsole(quiet=True), job.prepared_data)
        trainer.record = lambda split, numbers: losses.append(numbers["loss"]) if split == "train" else None
        if is_watched:
            watch.follow(trainer)
        return trainer

    trainer = create_trainer()
    with randomness.use_rng(watch) if is_watched else contextlib.nullcontext():
        if stop_at is not None:
            trainer.add_callback(_StopAt(trainer, stop_at))
            with contextlib.suppress(SignalInterrupt):
                trainer.fit()
            ranks.wait_for_all()  # the first rank may still be writing the checkpoint
            trainer = create_trainer()
            trainer.fit(trainer.checkpoints.newest(on_damage=_no_damage))
        else:
            trainer.fit()
    if is_watched:
        watch.leave(Path(folder))
    weights = {name: value.numpy().copy() for name, value in trainer.model.state_dict().items()}
    metrics, _ = measure_best(trainer, job.prepared_data)
    return {"losses": losses, "weights": weights, "metrics": metrics}


def _no_damage(problem: Exception) -> None:
    raise problem


class _StopAt(TrainerCallback):
    def __init__(self, trainer: Finetuner, step: int) -> None:
        self.trainer, self.step = trainer, step

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        if state.global_step + 1 == self.step and runtime.is_first_process():
            signal.raise_signal(signal.SIGTERM)


class Watch(randomness.Generator):
    """Record each training step of this rank: digests of its examples and dropout masks, and its gradients."""

    def __init__(self) -> None:
        self.step: int | None = None
        self.examples: dict[int, list[str]] = {}
        self.masks: dict[int, list[str]] = {}
        self.gradients: dict[str, np.ndarray] = {}

    def follow(self, trainer: Finetuner) -> None:
        """Record a trainer from its next step on."""
        step, loss, watch = trainer.training_step, trainer.compute_loss, self

        def training_step(*arguments: Any, **options: Any) -> Any:
            watch.step = trainer.state.global_step + 1
            watch.examples[watch.step], watch.masks[watch.step] = [], []
            output = step(*arguments, **options)
            for name, parameter in trainer.model.named_parameters():
                if parameter.grad is not None:
                    watch.gradients[f"{watch.step} {name}"] = parameter.grad.numpy().copy()
            watch.step = None
            return output

        def compute_loss(model: Any, batch: Any, *arguments: Any, **options: Any) -> Any:
            assert watch.step is not None
            watch.examples[watch.step] += [digest_of(row) for row in batch["input_ids"].numpy()]
            return loss(model, batch, *arguments, **options)

        trainer.training_step, trainer.compute_loss = training_step, compute_loss

    def draw_mask(self, p: float, shape: Any) -> Any:
        mask = super().draw_mask(p, shape)
        if self.step is not None and mask.size >= LARGE:
            self.masks[self.step].append(digest_of(mask.numpy()))
        return mask

    def leave(self, folder: Path) -> None:
        """Write all records."""
        records = {"examples": self.examples, "masks": self.masks}
        (folder / f"rank-{runtime.process_rank()}.json").write_text(json.dumps(records))
        np.savez(folder / f"rank-{runtime.process_rank()}.npz", **self.gradients)


def digest_of(value: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(value).tobytes()).hexdigest()


def main(jobs: Path) -> None:
    silence_startup()
    runtime.configure_paddle("cpu", 1)
    ranks.join()
    for job in json.loads(jobs.read_text()):
        results = train(**job)
        if runtime.is_first_process():
            folder = Path(job["folder"])
            np.savez(folder / "weights.npz", **results.pop("weights"))
            (folder / "found.json").write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    interruption.end_process(0)  # as the command does
