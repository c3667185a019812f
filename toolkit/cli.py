"""The command line. Only click is imported here; a command imports what it needs, so that --help is instant."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from toolkit.errors import ToolkitError, UserError

OVERRIDES_HELP = "key.path=value pairs change the recipe for this run, for example train.batch_size=4."


def main(arguments: Sequence[str] | None = None) -> None:
    """Run `toolkit` and exit: 0 done, 1 drift or failure, 2 wrong usage, 3 inconclusive, 130 interrupted."""
    try:
        sys.exit(toolkit.main(arguments, standalone_mode=False) or 0)
    except ToolkitError as problem:
        for line in str(problem).splitlines():
            click.echo(f"error: {line}", err=True)
        sys.exit(problem.exit_status)
    except click.exceptions.Exit as leave:
        sys.exit(leave.exit_code)
    except click.ClickException as problem:
        problem.show()
        sys.exit(problem.exit_code)
    except (KeyboardInterrupt, click.Abort):
        click.echo("interrupted", err=True)
        sys.exit(130)


class TwoWords(click.Group):
    """A group in which a command's name may be two words, the first of which is a command as well."""

    def resolve_command(self, context: click.Context, arguments: list[str]) -> tuple:
        name = " ".join(arguments[:2])
        if len(arguments) > 1 and name in self.commands:
            return name, self.commands[name], arguments[2:]
        return super().resolve_command(context, arguments)


@click.group(cls=TwoWords, context_settings={"help_option_names": ["-h", "--help"]}, no_args_is_help=True)
@click.version_option(package_name="toolkit", message="%(prog)s %(version)s")
def toolkit() -> None:
    """Fine-tune Paddle ports of Reformer and CTRL, each run behind a parity gate against the PyTorch reference."""


@toolkit.command(epilog=OVERRIDES_HELP)
@click.argument("recipe", type=click.Path(path_type=Path))
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
@click.option("--skip-parity", metavar="REASON", help="Train without the gate; the reason is recorded in the run.")
def finetune(recipe: Path, overrides: tuple[str, ...], skip_parity: str | None) -> None:
    """Prove the port equal, then train as RECIPE says."""
    from rich.console import Console

    from toolkit.recipe import load_recipe

    if skip_parity is not None and not skip_parity.strip():
        raise UserError("--skip-parity: needs a reason, for example --skip-parity 'no torch on this machine'")
    checked = load_recipe(recipe, overrides)

    from toolkit.train import finetune as run

    run(checked, skip_parity, Console())


#: What describes the model, the weights and the batch that are compared, and how the reference runs.
MODEL_OPTIONS = (
    click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1),
    click.option(
        "--head",
        type=click.Choice(["sequence_classification", "question_answering", "causal_lm", "masked_lm"]),
        help="Default: sequence_classification of reformer, causal_lm of ctrl.",
    ),
    click.option("--layers", type=click.IntRange(1), help="Default: 6 of reformer, all 48 of ctrl."),
    click.option("--attention", type=click.Choice(["mixed", "local", "lsh"]), help="Reformer's; default: mixed."),
    click.option("--length", type=click.IntRange(1), help="Tokens a sequence; default: 1024 of reformer, 256 of ctrl."),
    click.option("--batch-size", type=click.IntRange(1), help="Default: 2 of reformer, 1 of ctrl."),
    click.option(
        "--weights",
        "weights_from",
        metavar="KIND|CHECKPOINT",
        help="random, heavy-tailed or large-gains; or a Hugging Face folder or hub id. Default: heavy-tailed; of a "
        "sweep, all three.",
    ),
    click.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the weights, the tokens and all draws."
    ),
    click.option(
        "--reference-reversible",
        is_flag=True,
        help="Also show how far the reference's own reversible backward lies from its plain one.",
    ),
    click.option(
        "--reference-python", metavar="PATH", help="Run the reference with this Python, which needs torch, not Paddle."
    ),
)
SWEEP_HELP = "Gate N right ports of random shapes; or, of a checkpoint, its model on N random batches."
DTYPE = click.Choice(["float64", "float32", "both"])
CONFIGURATION_HELP = "KEY=VALUE pairs set keys of the model's configuration, for example num_hashes=4."


def describes_a_model(command: Callable) -> Callable:
    """Give a command :data:`MODEL_OPTIONS`."""
    for option in reversed(MODEL_OPTIONS):
        command = option(command)
    return command


@toolkit.command(epilog=f"{CONFIGURATION_HELP} `toolkit parity record` makes a BUNDLE.")
@click.option("--model", type=click.Choice(["reformer", "ctrl"]), help="The port to judge.")
@click.option("--reference", metavar="BUNDLE", type=click.Path(path_type=Path), help="Judge by a recorded reference.")
@click.option("--dtype", type=DTYPE, help="Default: both, or what BUNDLE was recorded for.")
@click.option("--device", type=click.Choice(["cpu", "gpu", "all"]), default="cpu", show_default=True)
@describes_a_model
@click.option("--output", type=click.Path(path_type=Path), default=Path("runs/parity"), show_default=True)
@click.option(
    "--ops",
    metavar="reference[:KIND,...]",
    help="Give the port the reference's kernels (or some kinds of them): float32 must then agree to the last bit.",
)
@click.option(
    "--trace", is_flag=True, help="Judge every operation by itself, as is done anyway where something differs."
)
@click.option("--mutants", is_flag=True, help="Try the gate on a catalogue of faults, in a small model.")
@click.option("--limits", is_flag=True, help="Show how small a change of each parameter is caught, in a small model.")
@click.option("--sweep", "sweeps", type=click.IntRange(1), metavar="N", help=SWEEP_HELP)
@click.pass_context
def parity(context: click.Context, reference: Path | None, **options: Any) -> int:
    """Compare a port with the reference on one training step.

    Exit status: 0 parity, 1 drift, 2 wrong usage, 3 inconclusive.
    """
    if reference is None and options["model"] is None:
        raise click.UsageError("Missing option '--model' (reformer or ctrl), or '--reference' BUNDLE.", context)
    from rich.console import Console

    from toolkit.parity import command

    given = _given(context)
    if reference is None:
        return command.command(**options, given=given, console=Console())
    taken = ("reference", "device", "dtype", "output")
    command.refuse_all_but(taken, given, "--reference", "whose bundle settles what is compared")
    return command.replay(reference, options["device"], options["dtype"], options["output"], Console())


def _given(context: click.Context) -> dict[str, str]:
    """Of the parameters that the user gave, by name, the option, or the whole of the arguments."""
    return {
        parameter.name: " ".join(context.params["overrides"]) if parameter.name == "overrides" else parameter.opts[0]
        for parameter in context.command.params
        if context.get_parameter_source(parameter.name) == ParameterSource.COMMANDLINE
    }


@toolkit.command("parity record", epilog=CONFIGURATION_HELP)
@click.option("--model", type=click.Choice(["reformer", "ctrl"]), required=True, help="The model to run.")
@click.option("--dtype", type=DTYPE, help="What a replay compares unless it says otherwise. Default: both.")
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True, help="The reference's.")
@describes_a_model
@click.option("-o", "--output", metavar="BUNDLE", type=click.Path(path_type=Path), required=True, help="A new folder.")
def record_parity(**options: Any) -> None:
    """Run the reference alone and leave a bundle, for machines without torch.

    `toolkit parity --reference BUNDLE` judges the port by it.
    """
    from rich.console import Console

    from toolkit.parity.command import record

    record(**options, console=Console())


@toolkit.command()
@click.argument("run", type=click.Path(path_type=Path), required=False)
@click.option("--split", type=click.Choice(["test", "validation"]), default="test", show_default=True)
@click.option(
    "--squad",
    type=(click.Path(path_type=Path), click.Path(path_type=Path)),
    metavar="DATASET PREDICTIONS",
    help="In place of RUN: score a predictions file against a data set, both in SQuAD's format.",
)
def evaluate(run: Path | None, split: str, squad: tuple[Path, Path] | None) -> None:
    """Measure the best model of the run folder RUN, or any system's answers to SQuAD."""
    if run is None and squad is not None:
        _evaluate_squad(*squad)
        return
    if run is None or squad is not None:
        raise UserError("specify RUN or --squad DATASET.json PREDICTIONS.json")
    from rich.console import Console

    from toolkit.predict import evaluate as measure

    measure(_run_folder(run), Console(), split)


@toolkit.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--text", "texts", multiple=True, help="A text to classify; may be given several times.")
@click.option("--question", help="A question, with --context.")
@click.option("--context", metavar="FILE", help="A text file that holds the answer, or - for the standard input.")
def predict(run: Path, texts: tuple[str, ...], question: str | None, context: str | None) -> None:
    """Ask the best model of RUN."""
    from rich.console import Console

    from toolkit.predict import predict as ask

    text = None if context is None else _read_text(context)
    ask(_run_folder(run), Console(), texts=list(texts), question=question, context=text)


@toolkit.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--control", metavar="CODE", help="The control code; by default the first that RUN was trained with.")
@click.option("--prompt", default="", help="The words to go on from.")
@click.option("--length", type=click.IntRange(1), default=100, show_default=True, help="New tokens, at most.")
@click.option("--temperature", type=click.FloatRange(0, min_open=True), help="Sample; below 1 prefers the probable.")
@click.option("--top-k", type=click.IntRange(1), help="Sample from the K most probable tokens.")
@click.option("--top-p", type=click.FloatRange(0, 1, min_open=True), help="Sample from the most probable share P.")
@click.option("--repetition-penalty", type=click.FloatRange(0, min_open=True), default=1.2, show_default=True)
@click.option("--beams", type=click.IntRange(1), default=1, show_default=True, help="Beam search with so many beams.")
@click.option("--stop", metavar="WORD", help="End the text at this token.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the samples.")
def generate(run: Path, **options: Any) -> None:
    """Let the language model of RUN go on from a control code and a prompt.

    Takes the most probable token each time, unless one of --temperature, --top-k, --top-p says to sample.
    """
    from rich.console import Console

    from toolkit.generate import generate_text

    generate_text(_run_folder(run), Console(), **options)


@toolkit.group()
def recipe() -> None:
    """Look at a recipe without running it."""


@recipe.command("check", epilog=OVERRIDES_HELP)
@click.argument("path", metavar="RECIPE", type=click.Path(path_type=Path))
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
def check_recipe(path: Path, overrides: tuple[str, ...]) -> None:
    """Find what is wrong with RECIPE, downloading nothing.

    Checks the keys, the model's configuration, and the columns and labels of local data.
    """
    from toolkit.data import check_data
    from toolkit.model_config import check_model
    from toolkit.recipe import load_recipe

    checked = load_recipe(path, overrides)
    for note in (*check_model(checked), *check_data(checked)):
        click.echo(f"note: {note}")
    click.echo(f"{path}: ok")


@recipe.command("show", epilog=OVERRIDES_HELP)
@click.argument("path", metavar="RECIPE", type=click.Path(path_type=Path))
@click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1)
def show_recipe(path: Path, overrides: tuple[str, ...]) -> None:
    """Print RECIPE with every default filled in."""
    from toolkit.recipe import load_recipe

    click.echo(load_recipe(path, overrides).to_yaml(), nl=False)


def _evaluate_squad(dataset: Path, predictions: Path) -> None:
    """Print exact match and F1 of a predictions file as one JSON object, and nothing else on the standard output."""
    import json

    from toolkit.tasks.question_answering.squad import score_files

    scores, missing = score_files(dataset, predictions)
    if missing:
        click.echo(f"note: {missing} questions have no prediction and count as wrong", err=True)
    click.echo(json.dumps(scores))


def _read_text(path: str) -> str:
    try:
        with click.open_file(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, UnicodeDecodeError) as problem:
        reason = getattr(problem, "strerror", None) or "is not UTF-8 text"
        raise UserError(f"--context {path}: {reason}") from None


def _run_folder(run: Path) -> Path:
    if not run.is_dir():
        raise UserError(f"{run}: is not a run folder; `toolkit finetune` prints the one it made")
    return run
