"""The command line. Only click is imported here; a command imports what it needs, so that --help is instant."""

from __future__ import annotations

import contextlib
import json
import os
import shlex
import sys
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from models import collector
from toolkit import __version__
from toolkit.commands.bench.bench import bench
from toolkit.commands.group import TwoWords
from toolkit.errors import ToolkitError, UserError
from toolkit.machine import interruption
from toolkit.machine.home import set_writable_home
from toolkit.machine.install import REFERENCE_PYTHON
from toolkit.parity.command import COMMANDS, console
from toolkit.terminal.escape import escape_line, shorten_middle, visible
from toolkit.terminal.failure import UNFORESEEN, describe, keep_traceback
from toolkit.terminal.finite_range import FiniteRange
from toolkit.terminal.path_argument import PathArgument

PATH = PathArgument()
#: Maximum number of characters of an error's line. A longer line quotes a value of a damaged file or of an option.
MAX_ERROR_LENGTH = 1000
KINDS = "a csv, tsv, xlsx, jsonl, json, parquet, arrow or txt (one text per line) file"
OVERRIDES_HELP = "KEY=VALUE pairs change keys of the recipe for this run, for example train.batch_size=4."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `toolkit` and exit with a status.

    The status is 0 after success, 1 after drift or a failure, 2 after wrong usage, 3 if the gate is inconclusive, 70
    after an unforeseen failure, and 130, 143 or 129 after Ctrl-C, SIGTERM or SIGHUP.
    """
    begun = False
    try:
        begun = interruption.begin_handling()
        status = _run(arguments)
    except KeyboardInterrupt:  # it was waiting, or came while something else was said
        status = _interrupted()
    if arguments is None:  # it is the program
        interruption.end_process(status)
    if begun:
        interruption.end_handling()
    sys.exit(status)


def _run(arguments: Sequence[str] | None) -> int:
    """Run a command; returns the exit status."""
    if sys.stdout is None:  # closed by the shell (>&-)
        sys.stdout = open(os.devnull, "a")  # noqa: SIM115 - until the end
    if hasattr(sys.stdout, "reconfigure"):  # a terminal that lacks a character is shown its number
        sys.stdout.reconfigure(errors="backslashreplace")
    collector.skip_collection_at_exit()
    settings = Settings()
    try:
        status = toolkit.main(arguments, standalone_mode=False, obj=settings) or 0
        sys.stdout.flush()
        return status
    except click.exceptions.Exit as leave:
        return leave.exit_code
    except click.ClickException as problem:
        if problem.message:  # the message of a missing argument is empty
            problem.message = escape_line(problem.message)  # type: ignore[misc]  # nothing else reads it
        problem.show()
        return problem.exit_code
    except ToolkitError as problem:
        if interruption.has_signal():  # reading a file failed by it
            return _interrupted()
        for line in filter(None, problem.args):  # a process leaves its message to the process that started it
            click.echo(f"error: {shorten_middle(escape_line(str(line)), MAX_ERROR_LENGTH)}", err=True)
        return problem.exit_status
    except (KeyboardInterrupt, click.Abort):
        return _interrupted()
    except Exception as problem:  # some libraries make another one of an interrupt
        return _interrupted() if interruption.has_signal() else _unforeseen(problem, debug=settings.debug)


def _interrupted() -> int:
    """Say so; returns the exit status."""
    begun = "\n" if sys.stderr.isatty() else ""  # a terminal shows ^C
    with contextlib.suppress(OSError):  # nobody reads it
        click.echo(begun + interruption.interruption_message(), err=True)
    return interruption.exit_status()


@dataclass
class Settings:
    """The options that stand before the command.

    Attributes:
        debug: show the traceback of an unforeseen failure.
    """

    debug: bool = False


def _unforeseen(problem: Exception, *, debug: bool) -> int:
    """Say in one line what went wrong; returns the exit status."""
    if isinstance(problem, BrokenPipeError) or _stdout_failed():
        with contextlib.suppress(OSError, ValueError):  # or Python complains at its end, when it flushes
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(problem, BrokenPipeError):  # `toolkit ... | head`: nobody reads on
        return 1
    if debug:
        click.echo(visible("".join(traceback.format_exception(problem))), err=True, nl=False)
        return UNFORESEEN
    click.echo(f"error: {describe(problem)}; {keep_traceback(problem)}", err=True)
    return UNFORESEEN


def _stdout_failed() -> bool:
    """Return whether standard output can no longer be written, for example because the reader of a pipe has ended."""
    try:
        sys.stdout.flush()
    except OSError:
        return True
    return False


def complete_key(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """Return the completions of a key of the recipe."""
    from toolkit.recipe.load import all_keys

    return [f"{key}=" for key in all_keys() if key.startswith(begun)]


RUN = click.argument("run", type=PATH)
RECIPE = click.argument("recipe", type=PATH)
BASELINE = click.option(
    "--baseline",
    is_flag=True,
    help="Use the simple method that RUN has kept because it was at least as good as the model.",
)
#: Changes of a recipe's keys.
OVERRIDES = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_key)


@click.group(
    cls=TwoWords, context_settings={"help_option_names": ["-h", "--help"], "show_default": True}, no_args_is_help=True
)
@click.version_option(__version__, message="%(prog)s %(version)s")
@click.option("--debug", is_flag=True, help="Show the traceback of an unforeseen failure.")
@click.pass_obj
def toolkit(settings: Settings, *, debug: bool) -> None:
    """Fine-tune Paddle ports of Reformer and CTRL, each run behind a parity gate against the PyTorch reference."""
    settings.debug = debug
    set_writable_home()


@toolkit.command(epilog=OVERRIDES_HELP)
@RECIPE
@OVERRIDES
@click.option("--skip-parity", metavar="REASON", help="Train without the gate. The run records this reason.")
@click.option(
    "--continue",
    "continued",
    metavar="RUN",
    type=PATH,
    help="Begin with the weights and the tokenizer of RUN, finished or interrupted, in a new run folder.",
)
@click.option("--new", is_flag=True, help="If the run folder is taken, use the next free one: runs/x-2, runs/x-3, ...")
@click.option("--processes", type=click.IntRange(1), metavar="N", help="Train with N processes on this machine's CPUs.")
@click.option("--gpus", metavar="0,1", help="Train with one process on each of these GPUs.")
@click.option(
    "--seeds",
    type=click.IntRange(2),
    metavar="N",
    help="Run with N seeds; show mean and spread of the metrics.",
)
@click.option("--verbose", is_flag=True, help="Print the gate's table and notes also if it passes.")
def finetune(
    recipe: Path,
    overrides: tuple[str, ...],
    skip_parity: str | None,
    continued: Path | None,
    processes: int | None,
    gpus: str | None,
    seeds: int | None,
    *,
    new: bool,
    verbose: bool,
) -> int:
    """Check the port against the reference, then train as RECIPE says.

    The results are in the recipe's train.output_dir, by default in runs/ under the name of the recipe. The same command
    resumes an interrupted run; `toolkit finish` ends it with its best weights so far.
    """
    from toolkit.recipe.load import load_recipe

    _check_reason(skip_parity)
    if seeds is not None:
        if continued is not None or new or processes is not None or gpus is not None:
            raise UserError("--seeds: cannot be combined with --continue, --new, --processes or --gpus")
        with collector.pause_garbage_collection():
            from toolkit.commands.seeds import finetune_with_seeds

        finetune_with_seeds(recipe, overrides, seeds, skip_parity, console(), verbose=verbose)
        return 0
    checked = load_recipe(recipe, overrides)
    if continued is not None:
        from toolkit.finetune.continued_run import continue_from, note_of
        from toolkit.machine import runtime

        settings, facts = continue_from(checked, _run_folder(continued), console())
        overrides = (*overrides, *settings)
        checked = load_recipe(recipe, overrides)
        checked.findings.continues.update(facts)
        checked.findings.note(note_of(facts))
        new = new or runtime.num_processes() == 1
    if new:
        checked = _in_next_folder(checked)
    if processes is not None or gpus is not None:
        from toolkit.finetune.launch import Team, finetune_together

        here = [key for key in overrides if not (new and key.startswith("train.output_dir="))]
        folder = [f"train.output_dir={json.dumps(str(checked.output_dir))}"] if new else []
        reason = [] if skip_parity is None else ["--skip-parity", skip_parity]
        arguments = [*reason, *["--verbose"] * verbose, "--", str(recipe), *here, *folder]
        return finetune_together(checked, skip_parity, Team.of(processes, gpus), arguments, console(), verbose=verbose)

    with collector.pause_garbage_collection():
        from toolkit.finetune.finetune import finetune as run

    run(checked, skip_parity, console(), verbose=verbose)
    return 0


@toolkit.command(epilog=OVERRIDES_HELP.replace("this run", "all trials"))
@RECIPE
@OVERRIDES
@click.option(
    "--over",
    metavar="KEY=VALUES",
    multiple=True,
    help="What to try for a key of model or train: LOW..HIGH or A,B,C. May be given several times. Default: the "
    "learning rate, the epochs and the dropout around the recipe's own.",
)
@click.option("--trials", type=click.IntRange(1), default=20, help="The number of trials.")
@click.option("--skip-parity", metavar="REASON", help="Train without the gate. The runs record this reason.")
def search(
    recipe: Path, overrides: tuple[str, ...], over: tuple[str, ...], trials: int, skip_parity: str | None
) -> None:
    """Train RECIPE with several settings, and end the run that is best on the validation split.

    Only that run is measured on the test split. Each trial has a folder in runs/NAME-search, beside search.json, with
    all trials, and best.yaml, the best one's recipe. A trial that is worse than most is pruned. The same command
    resumes an interrupted search, or goes on with more --trials.
    """
    _check_reason(skip_parity)
    with collector.pause_garbage_collection():
        from toolkit.commands.search.search import run_search

    run_search(recipe, overrides, over, trials, skip_parity, console())


@toolkit.command()
@RUN
def finish(run: Path) -> None:
    """End the interrupted run RUN with its best weights so far. Nothing trains.

    It measures and saves the model of the best validation so far, or the newest one if there was no validation yet, as
    a run does at its end. To train on instead: toolkit finetune RUN/recipe.yaml.
    """
    with collector.pause_garbage_collection():
        from toolkit.finetune.finish_early import finish_early

    finish_early(_run_folder(run), console())


for command in (*COMMANDS, bench):
    toolkit.add_command(command)


@toolkit.command()
@click.argument("run", type=PATH, required=False)
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", help="The split to measure.")
@BASELINE
@click.option(
    "--squad",
    type=(PATH, PATH),
    metavar="DATASET PREDICTIONS",
    help="Instead of RUN, score a predictions file against a data set, both in SQuAD's format.",
)
def evaluate(run: Path | None, split: str, squad: tuple[Path, Path] | None, *, baseline: bool) -> None:
    """Measure the best model of the run folder RUN, or any system's answers to SQuAD."""
    if run is None and squad is not None:
        _evaluate_squad(*squad)
        return
    if run is None or squad is not None:
        raise UserError("specify RUN, a run folder, or --squad DATASET.json PREDICTIONS.json")
    from toolkit.commands.predict import evaluate as measure
    from toolkit.commands.predict import evaluate_baseline

    (evaluate_baseline if baseline else measure)(_run_folder(run), console(), split)


#: Options for the layout of a table.
LAYOUT = {
    "encoding": ("ENCODING", "The encoding"),
    "delimiter": ("CHARACTER", "What parts the columns"),
    "quote": ("QUOTE", "What stands round a text, \" or ' or none,"),
    "columns": ("NAME,NAME", "The names of the columns, if no header has them,"),
}


def _layout_options(file: str, otherwise: str) -> Callable[[Any], Any]:
    """Return a decorator that adds the options of :data:`LAYOUT`."""

    def add(command: Any) -> Any:
        for name, (value, what) in reversed(LAYOUT.items()):
            help = f"{what} of {file}. Default: {otherwise}."
            command = click.option(f"--{name}", metavar=value, help=help)(command)
        return command

    return add


@toolkit.command()
@RUN
@click.option("--text", "texts", multiple=True, help="A text to classify. May be given several times.")
@click.option("--text-pair", "pairs", multiple=True, help="The second text for each --text, if the run reads two.")
@click.option("--question", help="A question. Needs --context.")
@click.option("--context", metavar="FILE", help="The text file to find the answer in, or - for the standard input.")
@BASELINE
@click.option("--input", "source", metavar="FILE", type=PATH, help=f"Label each row of {KINDS}.")
@click.option("--output", "target", metavar="FILE", type=PATH, help="The file to write the labeled rows to.")
@click.option("--text-column", help="The column to label. Default: the recipe's data.text.")
@click.option("--text-pair-column", help="The column of the second texts. Default: the recipe's data.text.")
@click.option("--question-column", help="The column of the questions. Default: the recipe's data.question.")
@click.option("--context-column", help="The column of the contexts. Default: the recipe's data.context.")
@_layout_options("--input", "the recipe's")
@click.option("--overwrite", is_flag=True, help="Replace --output if it exists.")
@click.option(
    "--spreadsheet-safe", is_flag=True, help="Put ' before csv cells that spreadsheets would run as formulas."
)
def predict(
    run: Path,
    texts: tuple[str, ...],
    pairs: tuple[str, ...],
    question: str | None,
    context: str | None,
    *,
    baseline: bool,
    **of_a_file: Any,
) -> None:
    """Predict with the best model of RUN, for the given texts or for each row of a file."""

    if any(of_a_file.values()):
        of_a_file["layout"] = {name: of_a_file.pop(name) for name in LAYOUT}
        from toolkit.commands.label_file import label_file

        if texts or pairs or question or context:
            raise UserError("--input: cannot be combined with --text, --text-pair, --question or --context")
        label_file(_run_folder(run), console(), baseline=baseline, **of_a_file)
        return
    from toolkit.commands.predict import predict as ask

    if pairs and len(pairs) != len(texts):
        raise UserError(f"--text-pair: {len(pairs)} given for {len(texts)} --text; each text needs one")
    text = None if context is None else _read_text(context)
    given = list(zip(texts, pairs, strict=True)) if pairs else list(texts)
    ask(_run_folder(run), console(), baseline=baseline, texts=given, question=question, context=text)


@toolkit.command()
@RUN
@click.option("--control", metavar="CODE", help="The control code of the text. Default: the first of RUN.")
@click.option("--prompt", help="The text to continue.")
@click.option(
    "--prompts",
    "source",
    metavar="FILE",
    type=PATH,
    help=f"Continue the prompt in each row of {KINDS}. Needs --output.",
)
@click.option(
    "--output",
    "target",
    metavar="FILE",
    type=PATH,
    help="The file to write the rows of --prompts to, with a column generated_text.",
)
@click.option("--prompt-column", "column", help="The column of the prompts. Default: prompt.")
@_layout_options("--prompts", "the recipe's")
@click.option("--overwrite", is_flag=True, help="Replace --output if it exists.")
@click.option(
    "--spreadsheet-safe", is_flag=True, help="Put ' before csv cells that spreadsheets would run as formulas."
)
@click.option("--length", type=click.IntRange(1), default=100, help="The maximum number of new tokens.")
@click.option(
    "--temperature",
    type=FiniteRange(0, min_open=True),
    help="Sample at this temperature; below 1 favors probable tokens.",
)
@click.option("--top-k", type=click.IntRange(1), help="Sample from this many of the most probable tokens.")
@click.option(
    "--top-p",
    type=FiniteRange(0, 1, min_open=True),
    help="Sample from the most probable tokens that together have this probability.",
)
@click.option(
    "--repetition-penalty",
    type=FiniteRange(0, min_open=True),
    help="Make repeated tokens less probable. Default: the model's own.",
)
@click.option("--beams", type=click.IntRange(1, 1000), default=1, help="The number of beams of beam search.")
@click.option("--stop", metavar="WORD", help="End the text at this token.")
@click.option(
    "--seed",
    type=click.IntRange(0),
    default=0,
    help="The seed of the sampling. Each row of --prompts has the next one.",
)
def generate(run: Path, prompt: str | None, **options: Any) -> None:
    """Continue a prompt, or each prompt of a file, with the language model of RUN.

    It writes under a control code, if it knows any, and takes the most probable token each time, unless --temperature,
    --top-k or --top-p asks for samples.
    """
    names = ("source", "target", "column", *LAYOUT, "overwrite", "spreadsheet_safe")
    of_a_file = {name: options.pop(name) for name in names}
    if any(of_a_file.values()):
        of_a_file["layout"] = {name: of_a_file.pop(name) for name in LAYOUT}
        from toolkit.commands.generate_file import generate_file

        if prompt is not None:
            raise UserError("--prompts: cannot be combined with --prompt")
        generate_file(_run_folder(run), console(), **of_a_file, **options)
        return
    from toolkit.commands.generate import generate_text

    generate_text(_run_folder(run), console(), prompt=prompt or "", **options)


@toolkit.command()
@RUN
@click.option("--host", default="127.0.0.1", help="The address to listen on. 0.0.0.0 lets all in.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, help="0 takes a free one.")
@click.option(
    "--timeout",
    metavar="SECONDS",
    type=FiniteRange(0, min_open=True),
    default=60,
    help="How long a request may wait and be computed.",
)
@BASELINE
def serve(run: Path, host: str, port: int, timeout: float, *, baseline: bool) -> None:
    """Answer a page and programs with the best model of RUN, until Ctrl-C.

    The page at / is for trying it. Programs POST JSON to /predict or, for language models, /generate.
    """
    from toolkit.commands.serve.serve import serve_run

    serve_run(_run_folder(run), console(), host, port, timeout, baseline=baseline)


@toolkit.command()
@RUN
@click.option("--output", metavar="FILE", type=PATH, help="A new file to write. Default: report.html in RUN.")
def report(run: Path, output: Path | None) -> None:
    """Write report.html of the run folder RUN again: curves, mistakes, recipe and versions.

    If the folder lacks predictions of the best model, they are computed and written too.
    """
    from toolkit.commands.report import remake_report

    remake_report(_run_folder(run), console(), output)


@toolkit.command()
@click.argument("runs", metavar="RUN RUN...", nargs=-1, required=True, type=PATH)
@click.option(
    "--output",
    metavar="FILE.html",
    type=PATH,
    help="Also write a page of it, with the learning curves of all runs. A new file.",
)
def compare(runs: tuple[Path, ...], output: Path | None) -> None:
    """Show what differs between run folders: recipes, data, versions; and their metrics, the best marked.

    An unfinished run counts with its best validation so far. Only files are read; nothing is computed again.
    """
    from toolkit.commands.compare import compare_runs

    compare_runs([_run_folder(run) for run in runs], console(), output)


@toolkit.command()
@RUN
@click.option(
    "--format",
    "form",
    type=click.Choice(["hf", "paddle", "onnx"]),
    required=True,
    help="hf: a folder for transformers. paddle: a static graph for Paddle Inference. onnx: a file for ONNX Runtime.",
)
@click.option("--output", metavar="FOLDER", type=PATH, help="The folder to write. Default: RUN/export/FORMAT.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier export.")
def export(run: Path, form: str, output: Path | None, *, overwrite: bool) -> None:
    """Export the best model of RUN, if the export gives the port's logits.

    export.json beside the export lists the inputs, the outputs and the distance from the port.
    """
    from toolkit.commands.export.export import export_run

    export_run(_run_folder(run), form, output, console(), overwrite=overwrite)


@toolkit.command()
@RUN
@click.argument("repository", metavar="OWNER/NAME")
@click.option("--private", is_flag=True, help="Make a new repository private.")
@click.option("--revision", metavar="BRANCH", help="The branch to push to, created if missing. Default: main.")
@click.option("--message", help="The message of the commit on the hub. Default: Add and RUN's name.")
@click.option("--with-report", is_flag=True, help="Also upload report.html and the parity report. They quote the data.")
@click.option("--despite-skipped-parity", is_flag=True, help="Push a run whose gate was skipped. Its card says so.")
def push(run: Path, repository: str, **options: Any) -> None:
    """Upload the best model of RUN and its card to the Hugging Face hub. Data and checkpoints stay here."""
    from toolkit.commands.push import push_run

    for line in push_run(_run_folder(run), repository, **options):
        click.echo(visible(line))


@toolkit.group()
def recipe() -> None:
    """List, copy, write, check and show recipes."""


@recipe.command("list")
def list_recipes() -> None:
    """List the shipped recipes, what each does and what it needs."""
    from rich.table import Column, Table

    from toolkit.recipe.shipped_recipes import shipped_recipes

    table = Table(Column("recipe", no_wrap=True), "what it does", "needs")
    for file in shipped_recipes():
        table.add_row(file.name, file.does, file.needs)
    console().print(table)
    click.echo("next: toolkit recipe copy NAME; for your own data: toolkit recipe new FILE")


@recipe.command("copy")
@click.argument("name")
@click.argument("target", type=PATH, required=False)
def copy_recipe(name: str, target: Path | None) -> None:
    """Copy the shipped recipe NAME to TARGET, a new file or a folder. Default: the current folder."""
    from toolkit.recipe.shipped_recipes import copy_recipe as copy

    path = copy(name, target)
    click.echo(visible(f"wrote {path}; next: toolkit recipe check {shlex.quote(str(path))}"))


@recipe.command("new")
@click.argument("data", type=PATH)
@click.option("--output", "-o", type=PATH, help="A new file. Default: DATA's name in the current folder.")
@click.option(
    "--task",
    type=click.Choice(["classification", "question_answering", "language_modeling", "token_classification"]),
    help="The task. Default: what fits the data.",
)
@click.option(
    "--text", metavar="COLUMN", multiple=True, help="The column of the texts, for classification; twice for two texts."
)
@click.option(
    "--label", metavar="COLUMN", multiple=True, help="The column of the labels; several for columns of 0 and 1."
)
@click.option(
    "--problem-type",
    type=click.Choice(["single_label", "multi_label", "regression"]),
    help="What the labels are. Default: what they look like.",
)
@click.option(
    "--missing-labels",
    type=click.Choice(["drop", "keep"]),
    help="Leave out rows without a label, or keep a word such as nan as one. Default: refuse them.",
)
@click.option(
    "--pretrain",
    metavar="TEXTS",
    multiple=True,
    type=PATH,
    help="Texts without labels: files or folders of plain text, or a table. A second recipe pretrains on them.",
)
@_layout_options("DATA", "what fits")
@click.option("--header/--no-header", default=None, help="Whether the first row is a header. Default: by its look.")
def new_recipe(data: Path, **options: Any) -> None:
    """Write a recipe for DATA.

    DATA is a table (csv, json, parquet; SQuAD's json), a text file, or a folder of them.
    """
    from toolkit.commands.recipe_new.recipe_new import new_recipe as new

    options["layout"] = {name: options.pop(name) for name in LAYOUT}
    made = new(data, **options)
    for line in made.assumed:
        click.echo(visible(f"  {line}"))
    *before, path = (shlex.quote(str(path)) for path in made.paths)
    for first in before:
        click.echo(visible(f"wrote {first}; first: toolkit finetune {first}"))
    click.echo(visible(f"wrote {made.paths[-1]}; next: toolkit finetune {path}"))


@recipe.command("check", epilog=OVERRIDES_HELP)
@click.argument("path", metavar="RECIPE", type=PATH)
@OVERRIDES
def check_recipe(path: Path, overrides: tuple[str, ...]) -> None:
    """Check RECIPE without downloading anything.

    It checks the keys, the model's configuration, and the columns and labels of local data. It also estimates the
    memory of a run.
    """
    from toolkit.commands.recipe_check import check_data
    from toolkit.finetune.memory import memory_of_recipe, unfit_here
    from toolkit.finetune.model_config import check_model
    from toolkit.recipe.load import load_recipe

    checked = load_recipe(path, overrides)
    for note in (*checked.findings.notes, *check_model(checked), *check_data(checked)):
        click.echo(visible(f"note: {note}"))
    for line in memory_of_recipe(checked):
        click.echo(visible(f"memory: {line}"))
    reasons = "; ".join(unfit_here(checked))
    click.echo(visible(f"{path}: {f'valid, but this machine cannot train it: {reasons}' if reasons else 'ok'}"))


@recipe.command("show", epilog=OVERRIDES_HELP)
@click.argument("path", metavar="RECIPE", type=PATH)
@OVERRIDES
def show_recipe(path: Path, overrides: tuple[str, ...]) -> None:
    """Print RECIPE with every default filled in."""
    from toolkit.recipe.load import load_recipe

    click.echo(load_recipe(path, overrides).to_yaml(), nl=False)


@toolkit.group(invoke_without_command=True)
@click.pass_context
def cache(context: click.Context) -> None:
    """Show the cache: the tokens, tokenizers, rows and verdicts of gates that later runs use again.

    It is in $TOOLKIT_CACHE, or in .cache of the current folder.
    """
    if context.invoked_subcommand is None:
        from toolkit.commands.cache import show_cache
        from toolkit.machine.runtime import configured_cache_folder

        show_cache(configured_cache_folder(), console())


@cache.command("clear")
@click.option(
    "--older-than", metavar="DAYS", type=FiniteRange(0), help="Remove only what was not used for this many days."
)
def clear_cache(older_than: float | None) -> int:
    """Remove the toolkit's cache, except what a run is using.

    The hub's downloads are elsewhere and stay.
    """
    from toolkit.commands.cache import clear_cache as clear
    from toolkit.commands.cache import report_clear_result
    from toolkit.machine.runtime import configured_cache_folder

    return report_clear_result(clear(configured_cache_folder(), older_than), configured_cache_folder(), console())


@toolkit.command()
@click.option("--network", is_flag=True, help="Also ask whether the hub answers. Otherwise no network is used.")
@click.option(
    "--reference-python", metavar="PATH", envvar=REFERENCE_PYTHON, help="The Python that has torch. Default: this one."
)
def doctor(reference_python: str | None, *, network: bool) -> int:
    """Check this installation and this machine, and say how to fix what is wrong.

    Exit status: 0 nothing would stop a run, 1 a fault would.
    """
    from toolkit.commands.doctor.doctor import print_diagnosis

    return print_diagnosis(reference_python, network=network)


def _evaluate_squad(dataset_path: Path, predictions: Path) -> None:
    """Print exact match and F1 of a predictions file as one JSON object, and nothing else on the standard output."""
    from toolkit.tasks.question_answering.scoring import score_files

    scores, missing = score_files(dataset_path, predictions)
    if missing:
        click.echo(f"note: {missing} questions have no prediction and count as wrong", err=True)
    click.echo(json.dumps(scores))


def _check_reason(skip_parity: str | None) -> None:
    """Reject an empty reason of ``--skip-parity``."""
    if skip_parity is not None and not skip_parity.strip():
        raise UserError("--skip-parity: needs a reason, for example --skip-parity 'no torch on this machine'")


def _read_text(path: str) -> str:
    """Return the text of the file that ``--context`` names; ``-`` is standard input."""
    try:
        with click.open_file(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or "is not UTF-8 text"
        raise UserError(f"--context {path}: {reason}") from None


def _in_next_folder(recipe: Any) -> Any:
    """Return the recipe with the first free run folder, and name that folder if it is another."""
    from toolkit.machine.runtime import num_processes
    from toolkit.run_folder.folder import in_next_folder

    if num_processes() > 1:  # each would look for itself
        raise UserError("--new: several processes train together; set train.output_dir to a folder of their own")
    found = in_next_folder(recipe)
    if found.output_dir != recipe.output_dir:
        click.echo(visible(f"note   {recipe.output_dir} is taken; this run is in {found.output_dir}"))
    return found


def _run_folder(run: Path) -> Path:
    """Return the path of a run folder; raise UserError if it is not a folder."""
    if not run.is_dir():
        raise UserError(f"{run}: is not a run folder; `toolkit finetune` prints the one it made")
    return run


if __name__ == "__main__":
    main()
