"""What a run checks and says before it begins: room, device, what it is made of, and with how many processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from models import families
from toolkit.finetune.assembly import Assembled
from toolkit.finetune.training_memory import MOMENTS
from toolkit.machine import runtime
from toolkit.machine.disk import missing_room, size_of
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import hub_origin
from toolkit.run_folder import checkpoint
from toolkit.training.schedule import Schedule

#: Beginnings of the flags that follow from how many processes share the cores.
THREADS = ("flags.OMP_NUM_THREADS", "flags.FLAGS_paddle_num_threads")


def check_room(recipe: Recipe, folder: Path, job: Assembled, processes: int = 1) -> None:
    """Check that the disk has room for the checkpoints of a run that so many processes began. A third one is written
    before the oldest is removed. Raises UserError, which says how much is needed, if it has not."""
    weights, trained = sum(value.nbytes for value in job.weights.values()), 4 * job.trained
    at_once = min(3, Schedule.of(recipe, len(job.prepared.train), processes).max_steps)
    moments = MOMENTS[recipe.train.optimizer] * job.trained
    needed = at_once * 2 * (trained + moments) + weights  # of the step, and the best
    if lacking := missing_room(folder, needed - size_of(folder / "checkpoints")):
        raise recipe.error("train.output_dir", f"{folder}: the run {lacking}; make room, or name another folder")


def check_device(recipe: Recipe, device: str, processes: int) -> None:
    """Check that sharding works on this device with this many processes. Raises UserError, which says what to change,
    if it does not."""
    if recipe.train.sharding is None:
        return
    if device == "cpu":
        raise recipe.error("train.sharding", "needs several GPUs; on this CPU set null")
    if processes < 2:
        raise recipe.error(
            "train.sharding", "needs a process for each GPU: toolkit finetune RECIPE --gpus 0,1; on one GPU set null"
        )
    if (recipe.output_dir / "checkpoints").exists():
        folder = recipe.output_dir
        raise recipe.error("train.sharding", f"{folder}: such a run cannot be resumed; choose another folder")


def describe(job: Assembled, recipe: Recipe, notes: Sequence[str], device: str, console: Console) -> None:
    """Print a line each on the data, the model and what came from the hub, and the notes on the recipe and the data."""
    console.print(f"data   {job.prepared.summary}", highlight=False, soft_wrap=True)
    layers = families.part(recipe.model.name, "weights").depth(job.config)
    origin = (
        "new weights" if len(job.new_weights) == len(job.weights) else f"new: {', '.join(job.new_weights) or 'none'}"
    )
    console.print(f"model  {layers} layers, {job.parameters:,} parameters ({origin}), on {device}", highlight=False)
    for section in recipe.found.commits:
        console.print(f"hub    {hub_origin(recipe, section)}", highlight=False, soft_wrap=True)
    if device == "cpu" and recipe.train.precision == "bfloat16":
        notes = [*notes, "train.precision bfloat16: a CPU rounds as a GPU does, and is slower than in float32"]
    for note in (*recipe.found.notes, *notes):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)


def note_on_processes(saved: Path) -> str | None:
    """Note on resuming with another number of processes than saved the checkpoint."""
    state = checkpoint.read_state(saved)
    before, now = len(state.get("random_states", [None])), runtime.processes()
    if before == now:
        return None
    return (
        f"saved by {before} processes and resumed with {now}: a step has the same examples as before, but its "
        "random draws (dropout, LSH) differ"
    )
