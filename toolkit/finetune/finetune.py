"""Fine-tuning: prove the port equal, then train, evaluate and save. What one `toolkit finetune` does, in order.

Nothing but the ledger and the gate's report is written before the gate has passed. After that the run folder fills up:

    recipe.yaml       the recipe with every default, as it was run      versions.json   what it ran on
    identity.json     the SHA-256s of its data, tokenizer and first weights; the run that it continues
    metrics.jsonl     a line per step and per evaluation                metrics.csv     the same as a table
    parity/           the gate's report; why it was skipped            checkpoints/    only while training
    model/            the best weights, as transformers reads them      README.md       the model card
    report.html       all of it on a page that a browser shows     predictions-test.csv, predictions-validation.csv
    samples.md        of a language model: samples of its text          adapter.safetensors    with train.lora
    metrics.json      the final numbers; written last: a folder that has it is a finished run
    .toolkit-run.json the ledger, which marks the folder as a run's (:mod:`toolkit.files.ownership`); written first
"""

from __future__ import annotations

import contextlib
import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from toolkit.data.source_names import check_source
from toolkit.errors import UserError
from toolkit.files.digest import digest
from toolkit.files.whole import write_text
from toolkit.finetune.assembly import Assembled, assemble, reference_python
from toolkit.finetune.backward import settle_backward
from toolkit.finetune.checks import THREADS, check_device, check_room, describe, note_on_processes
from toolkit.finetune.continued import take_over_moments
from toolkit.finetune.gate import pass_gate
from toolkit.finetune.identity import check_identity, write_identity
from toolkit.finetune.judged import see_judged
from toolkit.finetune.memory import missing_memory
from toolkit.finetune.model import load_model, make_trainer
from toolkit.finetune.passed_gate import handed_over, take_gate, to_hand_over, verdict_of
from toolkit.finetune.results import finish, measure_best, show_results, tracked
from toolkit.machine import runtime
from toolkit.recipe.recipe import Recipe
from toolkit.recipe.revisions import resolve_commits
from toolkit.run_folder import checkpoint
from toolkit.run_folder.checkpoint import Checkpoints
from toolkit.run_folder.folder import differing_keys, lock_run_folder, record_start
from toolkit.run_folder.read import read_json
from toolkit.run_folder.tracking import check_trackers
from toolkit.tasks import task_of
from toolkit.terminal.console import LiteralConsole
from toolkit.terminal.quiet import silence_startup
from toolkit.training import ranks

if TYPE_CHECKING:
    from toolkit.training.trainer import Finetuner


@dataclass(frozen=True)
class Tried:
    """What makes a run a trial of a search: it ends after its training. The same run without this ends as others do.

    Attributes:
        watch: called before training and after each validation; what it raises ends the trial.
        like: the folder of another trial, whose gate is taken for this one's; None to run the gate.
    """

    watch: Callable[[Finetuner], None]
    like: Path | None = None


def finetune(
    recipe: Recipe, skip_parity: str | None, console: Console, tried: Tried | None = None, verbose: bool = False
) -> Path:
    """Run a recipe, or resume its interrupted run; return the run folder.

    Args:
        skip_parity: why the gate is not run, or None to run it.

    Raises:
        UserError: the data, the weights or the run folder do not fit the recipe.
        ParityDrift: the port differs from the reference; only the report was written.
        Inconclusive: the gate could not decide.
        KeyboardInterrupt: Ctrl-C; the same call resumes the run.
    """
    check_trackers(recipe)
    if not runtime.is_first_process():
        return _follow(recipe)
    with lock_run_folder(recipe) as folder:
        return _finetune_in(folder, recipe, skip_parity, console, tried, verbose)


def prove(
    folder: Path, recipe: Recipe, skip_parity: str | None, console: Console, processes: int, verbose: bool = False
) -> dict[str, Any]:
    """Do all that comes before training, for processes that are started after it.

    Returns:
        What the first of them is to be told (:mod:`toolkit.finetune.passed_gate`).

    Raises:
        As :func:`finetune`.
    """
    device = _set_up(recipe, processes)
    recipe, job, verdict = _prepare(folder, recipe, skip_parity, device, console, None, processes, None, verbose)
    begun_with = Checkpoints(folder / "checkpoints").begun_with() or processes
    return to_hand_over(recipe, job, folder, device, begun_with, verdict)


def _set_up(recipe: Recipe, processes: int) -> str:
    """Import Paddle on the recipe's device; returns which that is."""
    silence_startup()
    device = runtime.configure(recipe.runtime.device, recipe.runtime.threads)
    check_device(recipe, device, processes)
    return device


def _prepare(
    folder: Path,
    recipe: Recipe,
    skip_parity: str | None,
    device: str,
    console: Console,
    told: Mapping[str, Any] | None,
    processes: int,
    like: Path | None,
    verbose: bool,
) -> tuple[Recipe, Assembled, str | None]:
    """Load what the run is made of, and pass the gate.

    Args:
        told: by the process that started this one; it has printed all that this would.
        like: of :class:`Tried`.

    Returns:
        The recipe with its backward settled, what the run is made of, and the gate's verdict (None: skipped).
    """
    loud, console = console, console if told is None else LiteralConsole(quiet=True)
    if skip_parity is None:
        reference_python(recipe)
    runtime.seed_everything(recipe.seed)
    check_source(recipe, task_of(recipe).CORPORA)
    recipe.found.commits.update(told["commits"] if told else {})
    recipe.found.continues.update(told["continues"] if told else {})
    notes = [] if told else resolve_commits(recipe, folder)
    job = assemble(recipe)
    recipe, backward = settle_backward(recipe, job, folder, device, processes, told["backward"] if told else None)
    if not told:
        describe(job, recipe, [*notes, *job.notes, *filter(None, [backward])], device, console)
    if note := check_identity(recipe, folder, job.identity):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)
    begun_with = Checkpoints(folder / "checkpoints").begun_with() or processes
    check_room(recipe, folder, job, begun_with)
    if lacking := missing_memory(recipe, job.config, job.fit.length, device, len(job.prepared.train)):
        console.print(f"note   {lacking}", highlight=False, soft_wrap=True)
    if skip_parity is None and (verdict := verdict_of(told, recipe, job, folder, device, begun_with)):
        return recipe, job, verdict
    if skip_parity is None and like is not None:
        return recipe, job, take_gate(like, folder)
    if skip_parity is None:
        console = loud
    return recipe, job, pass_gate(recipe, job, skip_parity, folder, device, console, begun_with, verbose)


def _follow(recipe: Recipe) -> Path:
    """In each process but the first: train and measure with it; write nothing."""
    _set_up(recipe, runtime.processes())
    ranks.join()
    told = ranks.await_first()
    recipe.found.commits.update(told["commits"])
    recipe = recipe.with_values({"model.backward": told["backward"]})
    runtime.seed_everything(recipe.seed)
    job = assemble(recipe)
    _agree(recipe, job)
    folder, console = recipe.output_dir, LiteralConsole(quiet=True)
    model = load_model(recipe, job)
    job.let_go()
    trainer = make_trainer(recipe, folder, job.task, model, console, job.prepared, told["begun_with"])
    take_over_moments(told["moments"], trainer, console)
    trainer.fit(Path(told["resume_from"]) if told["resume_from"] else None)
    measure_best(trainer, job.prepared)
    return folder


def _agree(recipe: Recipe, job: Assembled) -> None:
    """Check that all processes have the same to train on. Raises UserError if they have not."""
    ranks.agree("the keys of the recipe", digest(recipe.model_dump_json()))
    made_of = {key: job.identity[key] for key in ("splits", "tokenizer", "checkpoint")}
    ranks.agree("the data, tokenizer or starting checkpoint", digest(json.dumps(made_of, sort_keys=True)))


def _finetune_in(
    folder: Path, recipe: Recipe, skip_parity: str | None, console: Console, tried: Tried | None, verbose: bool
) -> Path:
    told, like, processes = handed_over(), tried.like if tried else None, runtime.processes()
    device = _set_up(recipe, processes)
    ranks.join()
    recipe, job, verdict = _prepare(folder, recipe, skip_parity, device, console, told, processes, like, verbose)
    resume_from = open_run(recipe, folder, console)
    continues = write_identity(recipe, folder, job.identity)
    moments = None if resume_from else continues.get("optimizer")
    begun = checkpoint.read_state(resume_from) if resume_from else {}
    last_step, begun_with = begun.get("step", 0), begun.get("processes", 1 if begun else runtime.processes())
    ranks.announce(
        {
            "commits": dict(recipe.found.commits),
            "backward": recipe.model.backward,
            "resume_from": resume_from and str(resume_from.absolute()),
            "moments": moments,
            "begun_with": begun_with,
        }
    )
    _agree(recipe, job)
    model = load_model(recipe, job)
    trainer = make_trainer(recipe, folder, job.task, model, console, job.prepared, begun_with)
    take_over_moments(moments, trainer, console)
    if verdict is not None and like is None:
        see_judged(recipe, job, trainer, folder, console)
    job.let_go()
    record_start(folder, last_step, verdict, skip_parity)

    with tracked(trainer, recipe, folder, last_step, begun.get("left", False), console):
        try:
            if tried is not None:
                trainer.watch = tried.watch
                tried.watch(trainer)
            trainer.fit(resume_from)
            if tried is not None:
                return folder
            results = finish(recipe, folder, job, trainer)
        except KeyboardInterrupt:
            if tried is None:
                _say_what_is_saved(trainer, folder, console)
            raise
    show_results(results, recipe, folder, console)
    return folder


def open_run(recipe: Recipe, folder: Path, console: Console) -> Path | None:
    """Write what identifies the run; returns the checkpoint to resume from, or None to start."""
    folder.mkdir(parents=True, exist_ok=True)
    here = {**runtime.versions(), "flags": runtime.flags()}
    versions = folder / "versions.json"
    found = Checkpoints(folder / "checkpoints").newest(
        lambda damage: console.print(f"skipping {damage}", highlight=False)
    )
    if found is not None:
        step = checkpoint.read_state(found)["step"]
        console.print(f"resuming {folder} after step {step}", highlight=False, soft_wrap=True)
        differences: list[str] = []
        with contextlib.suppress(UserError):  # it is written again below
            differences = differing_keys(json.dumps(read_json(versions, "")), json.dumps(here))
        if note := note_on_processes(found):
            console.print(f"note   {note}", highlight=False, soft_wrap=True)
            differences = [key for key in differences if not key.startswith(THREADS)]
        if differences:
            examples = "; ".join(differences[:3])
            console.print(
                f"note   {examples}: the result may differ in its last digits from an uninterrupted run",
                highlight=False,
            )
    write_text(folder / "recipe.yaml", recipe.to_yaml())
    write_text(versions, json.dumps(here, indent=1) + "\n")
    return found


def _say_what_is_saved(trainer: Finetuner, folder: Path, console: Console) -> None:
    step = trainer.checkpoints.last_step()
    if step is not None:
        ends = f"toolkit finish {shlex.quote(str(folder))} ends it with its best weights so far"
        console.print(f"saved at step {step}; the same command resumes it; {ends}", highlight=False, soft_wrap=True)
