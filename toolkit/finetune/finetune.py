"""Fine-tune a port: run the parity gate, then train, evaluate and save. This is the order of `toolkit finetune`.

Only the ledger and the gate's report are written before the gate has passed. After that the run folder fills up:

    recipe.yaml       the recipe with every default, as it was run      versions.json   versions and flags
    identity.json     the SHA-256s of its data, tokenizer and first weights; the run that it continues
    metrics.jsonl     a line per step and per evaluation                metrics.csv     the same as a table
    parity/           the gate's report; why it was skipped            checkpoints/    only while training
    model/            the best weights, as transformers reads them      README.md       the model card
    report.html       the results on a page for a browser          predictions-test.csv, predictions-validation.csv
    samples.md        of a language model: samples of its text          adapter.safetensors    with train.lora
    baseline/         the simple method, if it is at least as good as the model
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
from toolkit.files.digest import digest_parts
from toolkit.files.whole import write_text
from toolkit.finetune.assembly import AssembledRun, assemble, reference_python
from toolkit.finetune.backward import resolve_backward
from toolkit.finetune.checks import THREAD_FLAGS, check_device, check_disk_space, print_description, process_count_note
from toolkit.finetune.continued_run import load_continued_moments
from toolkit.finetune.gate import pass_gate
from toolkit.finetune.identity import check_identity, write_identity
from toolkit.finetune.judged_run import check_matches_gate
from toolkit.finetune.memory import missing_memory
from toolkit.finetune.model import load_model, make_trainer
from toolkit.finetune.passed_gate import make_handover, read_handover, reuse_gate, verified_verdict
from toolkit.finetune.results import finish, measure_best, show_results, track_metrics
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
class SearchTrial:
    """Settings of a run that is a trial of a search. A trial ends after its training, without results.

    Attributes:
        watch: called before training and after each validation; an error that it raises ends the trial.
        gate_source: run folder of another trial, whose gate is reused; None to run the gate.
    """

    watch: Callable[[Finetuner], None]
    gate_source: Path | None = None


def finetune(
    recipe: Recipe,
    skip_parity: str | None,
    console: Console,
    search_trial: SearchTrial | None = None,
    *,
    verbose: bool = False,
) -> Path:
    """Run a recipe, or resume its interrupted run; return the run folder.

    Args:
        recipe: recipe of the run.
        skip_parity: reason for skipping the gate, or None to run it.
        console: console for progress and results.
        search_trial: settings of a trial of a search; None for an ordinary run.
        verbose: whether to print the table of a gate that passes, too.

    Raises:
        UserError: the data, the weights or the run folder do not fit the recipe.
        ParityDrift: the port differs from the reference; only the report was written.
        Inconclusive: the gate could not decide.
        KeyboardInterrupt: Ctrl-C; the same call resumes the run.
    """
    check_trackers(recipe)
    if not runtime.is_first_process():
        return _train_other_process(recipe)
    with lock_run_folder(recipe) as folder:
        return _train_first_process(folder, recipe, skip_parity, console, search_trial, verbose=verbose)


def prepare_training(
    folder: Path, recipe: Recipe, skip_parity: str | None, console: Console, processes: int, *, verbose: bool = False
) -> dict[str, Any]:
    """Assemble a run and pass its gate, before the processes that train it are started.

    Args:
        folder: run folder.
        recipe: recipe of the run.
        skip_parity: reason for skipping the gate, or None to run it.
        console: console for messages.
        processes: number of processes that will train together.
        verbose: whether to print the table of a gate that passes, too.

    Returns:
        The message to the first process (:mod:`toolkit.finetune.passed_gate`).

    Raises:
        UserError: the data, the weights or the run folder do not fit the recipe.
        ParityDrift: the port differs from the reference; only the report was written.
        Inconclusive: the gate could not decide.
    """
    device = _set_up(recipe, processes)
    recipe, job, verdict = _prepare(
        folder, recipe, skip_parity, device, console, None, processes, None, verbose=verbose
    )
    num_initial_processes = Checkpoints(folder / "checkpoints").begun_with() or processes
    return make_handover(recipe, job, folder, device, num_initial_processes, verdict)


def _set_up(recipe: Recipe, processes: int) -> str:
    """Import Paddle on the recipe's device, and return the device."""
    silence_startup()
    device = runtime.configure_paddle(recipe.runtime.device, recipe.runtime.threads)
    check_device(recipe, device, processes)
    return device


def _prepare(
    folder: Path,
    recipe: Recipe,
    skip_parity: str | None,
    device: str,
    console: Console,
    handover: Mapping[str, Any] | None,
    processes: int,
    gate_source: Path | None,
    *,
    verbose: bool,
) -> tuple[Recipe, AssembledRun, str | None]:
    """Assemble the parts of a run, check them, and pass the gate.

    Args:
        folder: run folder.
        recipe: recipe of the run.
        skip_parity: reason for skipping the gate, or None to run it.
        device: device of the run.
        console: console for messages.
        handover: message of the launcher, which has printed the description already; None without a launcher.
        processes: number of processes that train together.
        gate_source: run folder of another trial, whose gate is reused; None to run the gate.
        verbose: whether to print the table of a gate that passes, too.

    Returns:
        The recipe with its backward resolved, the parts of the run, and the gate's verdict; None if it was skipped.
    """
    # The launcher has printed the same lines already.
    outer_console, console = console, console if handover is None else LiteralConsole(quiet=True)
    if skip_parity is None:
        reference_python(recipe)
    runtime.seed_everything(recipe.seed)
    check_source(recipe, task_of(recipe).CORPORA)
    recipe.findings.commits.update(handover["commits"] if handover else {})
    recipe.findings.continues.update(handover["continues"] if handover else {})
    notes = [] if handover else resolve_commits(recipe, folder)
    job = assemble(recipe)
    recipe, backward = resolve_backward(
        recipe, job, folder, device, processes, handover["backward"] if handover else None
    )
    if not handover:
        print_description(job, recipe, [*notes, *job.notes, *filter(None, [backward])], device, console)
    if note := check_identity(recipe, folder, job.identity):
        console.print(f"note   {note}", highlight=False, soft_wrap=True)
    num_initial_processes = Checkpoints(folder / "checkpoints").begun_with() or processes
    check_disk_space(recipe, folder, job, num_initial_processes)
    if memory_note := missing_memory(recipe, job.config, job.fit.length, device, len(job.prepared_data.train)):
        console.print(f"note   {memory_note}", highlight=False, soft_wrap=True)
    if skip_parity is None and (
        verdict := verified_verdict(handover, recipe, job, folder, device, num_initial_processes)
    ):
        return recipe, job, verdict
    if skip_parity is None and gate_source is not None:
        return recipe, job, reuse_gate(gate_source, folder)
    if skip_parity is None:
        console = outer_console
    return (
        recipe,
        job,
        pass_gate(recipe, job, skip_parity, folder, device, console, num_initial_processes, verbose=verbose),
    )


def _train_other_process(recipe: Recipe) -> Path:
    """Train and measure in a process other than the first, and write nothing; return the run folder."""
    _set_up(recipe, runtime.num_processes())
    ranks.join()
    message = ranks.await_first()
    recipe.findings.commits.update(message["commits"])
    recipe = recipe.with_values({"model.backward": message["backward"]})
    runtime.seed_everything(recipe.seed)
    job = assemble(recipe)
    _check_same_inputs(recipe, job)
    folder, console = recipe.output_dir, LiteralConsole(quiet=True)
    model = load_model(recipe, job)
    job.free_initial_weights()
    trainer = make_trainer(recipe, folder, job.task, model, console, job.prepared_data, message["begun_with"])
    load_continued_moments(message["moments"], trainer, console)
    trainer.fit(Path(message["resume_from"]) if message["resume_from"] else None)
    measure_best(trainer, job.prepared_data)
    return folder


def _check_same_inputs(recipe: Recipe, job: AssembledRun) -> None:
    """Check that all processes train with the same recipe, data, tokenizer and first weights.

    Raises:
        UserError: the inputs differ.
    """
    ranks.agree("the keys of the recipe", digest_parts(recipe.model_dump_json()))
    input_digests = {key: job.identity[key] for key in ("splits", "tokenizer", "checkpoint")}
    ranks.agree("the data, tokenizer or starting checkpoint", digest_parts(json.dumps(input_digests, sort_keys=True)))


def _train_first_process(
    folder: Path,
    recipe: Recipe,
    skip_parity: str | None,
    console: Console,
    search_trial: SearchTrial | None,
    *,
    verbose: bool,
) -> Path:
    """Pass the gate, train, and write the results, in the first process or in the only one; return the run folder."""
    handover = read_handover()
    gate_source = search_trial.gate_source if search_trial else None
    processes = runtime.num_processes()
    device = _set_up(recipe, processes)
    ranks.join()
    recipe, job, verdict = _prepare(
        folder, recipe, skip_parity, device, console, handover, processes, gate_source, verbose=verbose
    )
    resume_from = open_run(recipe, folder, console)
    continues = write_identity(recipe, folder, job.identity)
    moments = None if resume_from else continues.get("optimizer")
    saved_state = checkpoint.read_state(resume_from) if resume_from else {}
    last_step = saved_state.get("step", 0)
    # A checkpoint of a run in one process does not record the number.
    num_initial_processes = saved_state.get("processes", 1 if saved_state else runtime.num_processes())
    ranks.announce(
        {
            "commits": dict(recipe.findings.commits),
            "backward": recipe.model.backward,
            "resume_from": resume_from and str(resume_from.absolute()),
            "moments": moments,
            "begun_with": num_initial_processes,
        }
    )
    _check_same_inputs(recipe, job)
    model = load_model(recipe, job)
    trainer = make_trainer(recipe, folder, job.task, model, console, job.prepared_data, num_initial_processes)
    load_continued_moments(moments, trainer, console)
    # A reused gate leaves no report in this folder to compare with.
    if verdict is not None and gate_source is None:
        check_matches_gate(recipe, job, trainer, folder, console)
    job.free_initial_weights()
    record_start(folder, last_step, verdict, skip_parity)

    with track_metrics(
        trainer, recipe, folder, last_step, console, has_interrupted_validation=saved_state.get("left", False)
    ):
        try:
            if search_trial is not None:
                trainer.watch = search_trial.watch
                search_trial.watch(trainer)
            trainer.fit(resume_from)
            if search_trial is not None:
                return folder
            results = finish(recipe, folder, job, trainer)
        except KeyboardInterrupt:
            if search_trial is None:
                _print_saved_step(trainer, folder, console)
            raise
    show_results(results, recipe, folder, console)
    return folder


def open_run(recipe: Recipe, folder: Path, console: Console) -> Path | None:
    """Write the files that identify the run; return the checkpoint to resume from, or None to start."""
    folder.mkdir(parents=True, exist_ok=True)
    current_versions = {**runtime.installed_versions(), "flags": runtime.current_flags()}
    versions_path = folder / "versions.json"
    checkpoint_dir = Checkpoints(folder / "checkpoints").newest(
        lambda damage: console.print(f"skipping {damage}", highlight=False)
    )
    if checkpoint_dir is not None:
        step = checkpoint.read_state(checkpoint_dir)["step"]
        console.print(f"resuming {folder} after step {step}", highlight=False, soft_wrap=True)
        differences: list[str] = []
        with contextlib.suppress(UserError):  # a damaged file is written again below
            differences = differing_keys(json.dumps(read_json(versions_path, "")), json.dumps(current_versions))
        if note := process_count_note(checkpoint_dir):
            console.print(f"note   {note}", highlight=False, soft_wrap=True)
            differences = [key for key in differences if not key.startswith(THREAD_FLAGS)]
        if differences:
            examples = "; ".join(differences[:3])
            console.print(
                f"note   {examples}: the result may differ in its last digits from an uninterrupted run",
                highlight=False,
            )
    write_text(folder / "recipe.yaml", recipe.to_yaml())
    write_text(versions_path, json.dumps(current_versions, indent=1) + "\n")
    return checkpoint_dir


def _print_saved_step(trainer: Finetuner, folder: Path, console: Console) -> None:
    """Print the last saved step, and the commands that resume or finish the run."""
    step = trainer.checkpoints.last_step()
    if step is not None:
        hint = f"toolkit finish {shlex.quote(str(folder))} ends it with its best weights so far"
        console.print(f"saved at step {step}; the same command resumes it; {hint}", highlight=False, soft_wrap=True)
