"""Check and describe a run before it starts: disk space, device, parts, and number of processes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from models import families
from toolkit.finetune.assembly import AssembledRun
from toolkit.machine import runtime
from toolkit.machine.disk import describe_missing_space, measure_folder_bytes
from toolkit.machine.model_memory import MOMENT_BYTES, WEIGHT_BYTES
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import hub_origin
from toolkit.run_folder import checkpoint
from toolkit.training.schedule import Schedule

#: Prefixes of the flags that depend on the number of processes that share the cores.
THREAD_FLAGS = ("flags.OMP_NUM_THREADS", "flags.FLAGS_paddle_num_threads")


def check_disk_space(recipe: Recipe, folder: Path, job: AssembledRun, processes: int = 1) -> None:
    """Check that the disk has space for the checkpoints of a run that was started with so many processes.

    A third checkpoint is written before the oldest is removed.

    Raises:
        UserError: the space is too small; the error contains the required size.
    """
    weights, trained_bytes = sum(value.nbytes for value in job.weights.values()), WEIGHT_BYTES * job.num_trained
    num_checkpoints = min(3, Schedule.of(recipe, len(job.prepared_data.train), processes).max_steps)
    moments = MOMENT_BYTES[recipe.train.optimizer] * job.num_trained
    required_bytes = num_checkpoints * 2 * (trained_bytes + moments) + weights  # of the step, and the best
    if missing_space := describe_missing_space(folder, required_bytes - measure_folder_bytes(folder / "checkpoints")):
        raise recipe.error("train.output_dir", f"{folder}: the run {missing_space}; make room, or name another folder")


def check_device(recipe: Recipe, device: str, processes: int) -> None:
    """Check that sharding works on this device with this many processes.

    Raises:
        UserError: it does not; the error contains a remedy.
    """
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


def print_description(job: AssembledRun, recipe: Recipe, notes: Sequence[str], device: str, console: Console) -> None:
    """Print a line each about the data, the model and files from the hub, and all notes."""
    console.print(f"data   {job.prepared_data.summary}", highlight=False, soft_wrap=True)
    layers = families.part(recipe.model.name, "weights").num_layers(job.config)
    origin = (
        "new weights" if len(job.new_weights) == len(job.weights) else f"new: {', '.join(job.new_weights) or 'none'}"
    )
    console.print(f"model  {layers} layers, {job.parameters:,} parameters ({origin}), on {device}", highlight=False)
    for section in recipe.findings.commits:
        console.print(f"hub    {hub_origin(recipe, section)}", highlight=False, soft_wrap=True)
    if device == "cpu" and recipe.train.precision == "bfloat16":
        notes = [*notes, "train.precision bfloat16: a CPU rounds as a GPU does, and is slower than in float32"]
    for note in (*recipe.findings.notes, *notes):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)


def process_count_note(checkpoint_dir: Path) -> str | None:
    """Return a note if another number of processes saved the checkpoint; None otherwise."""
    state = checkpoint.read_state(checkpoint_dir)
    num_before, num_now = len(state.get("random_states", [None])), runtime.num_processes()
    if num_before == num_now:
        return None
    return (
        f"saved by {num_before} processes and resumed with {num_now}: a step has the same examples as before, but its "
        "random draws (dropout, LSH) differ"
    )
