"""Description of the port that the gate judges for a run, as the run itself describes its model.

The gate compares both descriptions (:mod:`toolkit.training.trainer_description`).
"""

from __future__ import annotations

from pathlib import Path

from models.operations import precision
from toolkit.machine import runtime
from toolkit.parity.candidate.step import make_step
from toolkit.parity.exchange import files
from toolkit.parity.exchange.results import JudgedTrainer
from toolkit.parity.job.job import Job
from toolkit.training.trainer_description import describe_trainer, digest_step


def of_run(job: Job, folder: Path) -> JudgedTrainer | None:
    """Return the description of the run's port and trainer, and of one step with the generators' own draws.

    The result is None if no run follows the gate, or if the model is so large that another step would take minutes.

    Args:
        job: description of the comparison.
        folder: folder of the job.
    """
    if not job.own_examples or job.brief:
        return None
    from toolkit.parity.candidate.training import examples_of, make_finetuner  # it imports pandas

    uses_mixed_precision = "bfloat16" in job.dtypes
    step = make_step(job, folder, "bfloat16" if uses_mixed_precision else "float32")
    labels = files.read_tensors(folder / "labels.safetensors")
    fields = describe_trainer(
        make_finetuner(
            step.model, job, examples_of(labels), folder / "candidate", uses_mixed_precision=uses_mixed_precision
        )
    )
    examples = min(job.own_examples, job.training.batch_size)
    batch = {name: value[:examples] for name, value in step.batch.items()}
    step.model.leaves_out_unread = True  # as in a run
    runtime.seed_everything(job.seed)
    with precision.cast_to_bfloat16(step.lowered):
        loss = step.compute(batch).loss
        loss.backward()
    length = int(batch["input_ids"].shape[1])
    return JudgedTrainer(runtime.current_device(), job.threads, examples, length, fields, digest_step(step.model, loss))
