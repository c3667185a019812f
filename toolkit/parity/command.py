"""`toolkit parity` and the commands below it. Only click is imported at the top, so that --help is instant."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

from models.families import FAMILIES, default_family
from toolkit.machine.install import REFERENCE_PYTHON as VARIABLE
from toolkit.parity.job.family import ported_family
from toolkit.parity.request.gate_options import DEFAULT_WEIGHTS, GateOptions
from toolkit.terminal.finite_range import FiniteRange
from toolkit.terminal.path_argument import PathArgument

#: Kinds of synthetic weights, as in :mod:`toolkit.parity.inputs.synthetic`, which --help must not import.
KINDS = ("random", "heavy-tailed", "large-gains")
#: Counts fit 32 bits, and so do seeds, since NumPy accepts no larger seeds.
COUNT = click.IntRange(1, 2**31 - 1)
SEEDS = click.IntRange(0, 2**32 - 1)
MAX_LAYERS = 10_000
PATH = PathArgument()
#: Type of an option for a file of Python code or a module's name.
CODE_PATH = PathArgument(str)
HEADS = ("sequence_classification", "question_answering", "causal_lm", "masked_lm", "token_classification")
CONFIGURATION_HELP = (
    f"KEY=VALUE pairs set keys of the model's configuration, for example {ported_family(default_family()).example}."
)


class RecordedDtype(click.Choice):
    """The dtypes of a recorded reference. The error for bfloat16 gives the reason why it is not recorded."""

    def __init__(self) -> None:
        super().__init__(["float64", "float32", "both"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the dtype, and reject bfloat16, whose results a recorded reference does not contain."""
        if value in ("bfloat16", "all"):
            from toolkit.errors import UserError
            from toolkit.parity.bundle.bundle import NOT_RECORDED

            raise UserError(f"--dtype {value}: {NOT_RECORDED}")
        return super().convert(value, param, ctx)


#: Families with several kinds of attention, and these kinds.
WITH_ATTENTIONS = [name for name in FAMILIES if ported_family(name).attentions]
ATTENTIONS = dict.fromkeys(kind for name in WITH_ATTENTIONS for kind in ported_family(name).attentions)
MODEL = click.option("--model", type=click.Choice(FAMILIES), required=True, help="The port to judge.")
DTYPE_OR_BFLOAT16 = click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16", "both", "all"]),
    default="both",
    help="The dtypes to judge. both: float64 and float32; bfloat16: mixed precision, beside float64; all: the three.",
)
DEVICES = click.option(
    "--device", type=click.Choice(["cpu", "gpu", "all"]), default="cpu", help="The device to run on."
)
OUTPUT = click.option("--output", type=PATH, default=Path("runs/parity"), help="The folder for the reports.")


def _format_defaults(field: str) -> str:
    """Return the default of a field for each family, as text."""
    return ", ".join(f"{getattr(ported_family(name).defaults, field)} of {name}" for name in FAMILIES)


HEAD = click.option("--head", type=click.Choice(HEADS), help=f"The model's head. Default: {_format_defaults('head')}.")
LENGTH = click.option(
    "--length",
    type=COUNT,
    help=f"Tokens per text, rounded up to a length that fits. Default: {_format_defaults('length')}.",
)
SEED = click.option("--seed", type=SEEDS, default=0, help="The seed of the weights, the tokens and all draws.")
REFERENCE_PYTHON = click.option(
    "--reference-python",
    metavar="PATH",
    envvar=VARIABLE,
    help=f"Run the reference with this Python. It needs torch, not Paddle. Default: ${VARIABLE}, or this one.",
)
REFERENCE_REVERSIBLE = click.option(
    "--reference-reversible",
    is_flag=True,
    help="Also show the distance between the reference's reversible backward and its plain one.",
)


def complete_second_word(context: click.Context, parameter: click.Parameter, typed_text: str) -> list[str]:
    """Return the completions after ``toolkit parity``: the second words of its commands."""
    second_words = [command.name.partition(" ")[2] for command in COMMANDS if command.name] if not context.args else []
    return [word for word in second_words if word and word.startswith(typed_text)]


OVERRIDES = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_second_word)
#: Options for the model, the weights, the batch and the reference's process.
MODEL_OPTIONS = (
    MODEL,
    OVERRIDES,
    HEAD,
    click.option(
        "--layers",
        type=click.IntRange(1, MAX_LAYERS),
        help=f"The number of layers. Default: {_format_defaults('layers')}.",
    ),
    click.option(
        "--attention",
        type=click.Choice(list(ATTENTIONS)),
        help=f"The kinds of attention of {', '.join(WITH_ATTENTIONS)}. Default: the first.",
    ),
    LENGTH,
    click.option(
        "--batch-size",
        type=COUNT,
        help=f"Texts per batch. Default: {_format_defaults('batch_size')}; fewer if they are long, but at least 2.",
    ),
    click.option(
        "--weights",
        "weights_from",
        metavar="KIND|CHECKPOINT",
        default=DEFAULT_WEIGHTS,
        show_default=True,
        help=f"The weights: {', '.join(KINDS)}, a Hugging Face folder, or a hub id (ID or ID@REVISION).",
    ),
    SEED,
    REFERENCE_PYTHON,
)
#: Options of the commands that run trials on a small model.
TRIAL_OPTIONS = (
    MODEL,
    click.option(
        "--weights",
        "weights_from",
        type=click.Choice(KINDS),
        default=DEFAULT_WEIGHTS,
        show_default=True,
        help="The kind of weights.",
    ),
    SEED,
    DEVICES,
    REFERENCE_PYTHON,
)


MAP = click.option(
    "--map", "map_file", metavar="FILE", type=PATH, help="The map of parameters that toolkit parity map prints."
)
TIME_LIMIT = click.option(
    "--time-limit",
    type=FiniteRange(min=0, min_open=True),
    metavar="SECONDS",
    help="Time limit for each step of --port and --reference-model. Default: 1800.",
)
PORT_PYTHON = click.option(
    "--port-python", metavar="PATH", help="Run --port with this Python. It needs Paddle, not torch. Default: this one."
)
FORWARD_ONLY = click.option(
    "--forward-only",
    is_flag=True,
    help="Compare only the forward of --port in evaluation mode, without gradients and updates.",
)
ANY_FRAMEWORK = click.option(
    "--any-framework",
    is_flag=True,
    help="Record --reference-model for a port in any framework, which toolkit parity judge judges.",
)
SMALL = click.option(
    "--small",
    is_flag=True,
    help="Of --reference-model, record sums of large tensors in place of their values, and the weights beside BUNDLE.",
)
STEPS = click.option(
    "--steps",
    type=click.IntRange(1, 10_000),
    help="Then train --port and --reference-model this many steps, each by itself, and compare every step.",
)
#: Options of commands that also accept the user's own port, instead of MODEL.
PAIR_OPTIONS = (
    click.option("--model", type=click.Choice(FAMILIES), help="The port to judge, one of the toolkit's own."),
    click.option(
        "--port", metavar="FILE|MODULE", type=CODE_PATH, help="Your port: Python code that builds a Paddle layer."
    ),
    click.option(
        "--reference-model",
        metavar="FILE|MODULE",
        type=CODE_PATH,
        help="Its reference: Python code that builds the torch module.",
    ),
    TIME_LIMIT,
    PORT_PYTHON,
    MAP,
)


def add_options(*option_decorators: Callable) -> Callable[[Callable], Callable]:
    """Return a decorator that adds options to a command; its help shows them in this order."""

    def decorate(command: Callable) -> Callable:
        for add_option in reversed(option_decorators):
            command = add_option(command)
        return command

    return decorate


@click.command(
    "parity",
    epilog=f"{CONFIGURATION_HELP} Further commands: toolkit parity map, record, replay, judge, bitwise, mutants, "
    "sweep, limits, texts. Each has its own --help.",
)
@add_options(
    *PAIR_OPTIONS, FORWARD_ONLY, STEPS, *MODEL_OPTIONS[1:], DTYPE_OR_BFLOAT16, DEVICES, OUTPUT, REFERENCE_REVERSIBLE
)
@click.option("--trace", is_flag=True, help="Judge each operation by itself, even if nothing differs.")
@click.option(
    "--max-memory",
    metavar="GB",
    type=click.IntRange(1, 10**6),
    help="Memory that the gate may take: it compares fewer tokens, or less of a pair. Default: most of the machine's.",
)
def parity(device: str, output: Path, max_memory: float | None, *, trace: bool, **described: Any) -> int:
    """Compare a port with the reference on one training step.

    The port is --model's, or your own: --port and --reference-model name two Python files. Each file has build(config),
    one of them has batch(config, rng), and each may have loss(model, batch).

    Exit status: 0 parity, 1 drift, 2 wrong usage, 3 inconclusive.
    """
    from toolkit.parity import run_gate

    folders = _prepare_folders(output, device)
    request = replace(_gate_request(GateOptions(**described)), trace=trace, max_memory=max_memory)
    return max(run_gate(replace(request, device=p), folder, console()).exit_status for p, folder in folders)


@click.command("parity map", epilog="KEY=VALUE pairs are the config that build gets in both files.")
@add_options(*PAIR_OPTIONS[1:], OVERRIDES, SEED, REFERENCE_PYTHON)
@click.option("-o", "--output", metavar="FILE", type=PATH, help="A new file to write. Default: the standard output.")
def show_map(output: Path | None, **described: Any) -> None:
    """Print the map from your reference's parameters to your port's, as YAML.

    Correct wrong guesses, then use the file with `toolkit parity --map FILE`.
    """
    from toolkit.parity.pairs.describe import describe_sides as describe
    from toolkit.parity.pairs.map_file import text_of
    from toolkit.parity.request.build import scratch_job
    from toolkit.recipe.shipped_recipes import new_file

    if output is not None:
        new_file(output)
    request = _pair_request(GateOptions(**described))
    with scratch_job() as job:
        text = text_of(describe(request, job, console()))
    if output is None:
        click.echo(text, nl=False)
    else:
        from toolkit.files.whole import write_text

        write_text(output, text)


def _is_pair(options: GateOptions) -> bool:
    """Return whether the options name a port and a reference of the user.

    Raises:
        UsageError: they name neither a pair nor a model, or an option is only for a pair.
    """
    if options.port or options.reference_model or options.map_file:
        return True
    if options.model is None:
        raise click.UsageError("name a --model, or --port and --reference-model")
    for name in ("port_python", "time_limit", "forward_only", "any_framework", "small", "steps"):
        if getattr(options, name):
            raise click.UsageError(f"--{name.replace('_', '-')}: is for a --port and a --reference-model of yours")
    return False


def _check_no_family_options(options: GateOptions, *, allows_weights: bool = False) -> None:
    """Refuse options of the toolkit's own ports next to a pair. Raises UserError, which names the first."""
    from toolkit.errors import UserError

    names = ("model", "head", "layers", "attention", "length", "batch_size", "reference_reversible")
    family_options = [name for name in names if getattr(options, name)]
    if options.weights_from != DEFAULT_WEIGHTS and not allows_weights:
        family_options.append("weights")
    if family_options:
        raise UserError(
            f"--{family_options[0].replace('_', '-')}: is for --model; a pair's own files say what is compared"
        )


def _gate_request(options: GateOptions, *, only_reference: bool = False) -> Any:
    """Return the request for one of the toolkit's own ports, or for a pair.

    Args:
        options: options of the command line.
        only_reference: whether only the reference runs, so that a pair needs no port.

    Raises:
        UserError: the options describe no comparison.
    """
    from toolkit.errors import UserError
    from toolkit.parity.options import check_bfloat16, make_request

    if not _is_pair(options):
        request = make_request(options)
        check_bfloat16(request)
        return request
    if options.dtype in ("bfloat16", "all"):
        raise UserError("--dtype: a pair is judged in float64 and float32; in bfloat16 only the ports here are")
    _check_no_family_options(options)
    return _pair_request(options, only_reference=only_reference)


def _pair_request(options: GateOptions, *, only_reference: bool = False) -> Any:
    """Return the request for a pair. Raises UserError if its reference is missing, or a port that is to run."""
    from toolkit.errors import UserError
    from toolkit.parity.options import dtypes_of
    from toolkit.parity.pairs.options import pair_request
    from toolkit.recipe.yaml_source import parse_pairs

    if not options.port and not only_reference:
        raise UserError("--port is missing; a pair is a --port and a --reference-model")
    if not options.reference_model:
        raise UserError("--reference-model is missing; a pair is a --port and a --reference-model")
    return pair_request(
        port=options.port,
        reference_model=options.reference_model,
        model_config=parse_pairs(options.overrides, "hidden_size=32"),
        seed=options.seed,
        dtypes=dtypes_of(options.dtype),
        map_file=options.map_file,
        reference_python=options.reference_python,
        port_python=options.port_python,
        time_limit=options.time_limit,
        forward_only=options.forward_only,
        any_framework=options.any_framework,
        small=options.small,
        steps=options.steps or 0,
    )


@click.command("parity record", epilog=CONFIGURATION_HELP)
@add_options(*PAIR_OPTIONS[:-2], FORWARD_ONLY, ANY_FRAMEWORK, SMALL, *MODEL_OPTIONS[1:])
@click.option("--dtype", type=RecordedDtype(), default="both", help="The dtypes to record.")
@add_options(REFERENCE_REVERSIBLE)
@click.option(
    "--device", type=click.Choice(["cpu", "gpu"]), default="cpu", help="The device that the reference runs on."
)
@click.option("-o", "--output", metavar="BUNDLE", type=PATH, required=True, help="A new folder to write.")
def record(device: str, output: Path, **described: Any) -> None:
    """Run the reference alone and write a bundle for machines without torch.

    `toolkit parity replay BUNDLE` judges the port by it. With --reference-model, neither --port nor Paddle is needed:
    the port does not run.
    """
    from toolkit.parity.bundle import bundle
    from toolkit.parity.pairs.recording import record_pair

    request = replace(_gate_request(GateOptions(**described), only_reference=True), device=device)
    (record_pair if request.pair else bundle.record_reference)(request, output, console())


@click.command("parity replay")
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.option("--dtype", type=RecordedDtype(), help="The dtypes to judge. Default: all that BUNDLE has.")
@add_options(PAIR_OPTIONS[1], TIME_LIMIT, PORT_PYTHON, MAP, DEVICES, OUTPUT)
@click.option("--weights", metavar="FILE|FOLDER", type=PATH, help="The weights of a BUNDLE recorded with --small.")
def replay(
    bundle: Path,
    dtype: str | None,
    device: str,
    output: Path,
    weights: Path | None,
    port: str | None,
    map_file: Path | None,
    time_limit: float | None,
    port_python: str | None,
) -> int:
    """Judge the port by the reference that `toolkit parity record` wrote to BUNDLE.

    The port may run on another device than the reference. If the bundle is of a --reference-model, set --port.
    """
    from toolkit.parity import run_gate
    from toolkit.parity.bundle.bundle import open_recording
    from toolkit.parity.pairs.options import replay_request
    from toolkit.parity.request.request import dtypes_of

    folders = _prepare_folders(output, device)
    recording = open_recording(bundle, weights)
    request = replay_request(recording, port, map_file, time_limit, port_python)
    request = request if dtype is None else replace(request, dtypes=dtypes_of(dtype))
    return max(run_gate(replace(request, device=p), folder, console(), recording).exit_status for p, folder in folders)


@click.command("parity judge")
@click.argument("bundle", metavar="BUNDLE", type=PATH)
@click.argument("port", metavar="PORT", type=PATH)
@click.option("--port-python", metavar="PATH", help="Run PORT with this Python. Default: this one.")
@add_options(TIME_LIMIT, OUTPUT)
def judge(bundle: Path, port: Path, port_python: str | None, time_limit: float | None, output: Path) -> int:
    """Judge a port in any framework by the reference that `toolkit parity record` wrote to BUNDLE.

    PORT is a folder with what the port computed from BUNDLE's weights and batch, as float64 and float32 in .npz or
    .safetensors; or a Python file with forward(weights, batch, draws) in JAX; or an ONNX graph.
    """
    from toolkit.errors import UserError
    from toolkit.parity.bundle.bundle import open_recording
    from toolkit.parity.gate import judge_outputs
    from toolkit.parity.other_frameworks.run import PROGRAMS

    if not (port.is_dir() or (port.is_file() and port.suffix in PROGRAMS)):
        problem = "is no folder of tensors, no .py file in JAX and no .onnx graph" if port.exists() else "is not there"
        raise UserError(f"{port}: {problem}")
    ((_, folder),) = _prepare_folders(output, "cpu")
    return judge_outputs(open_recording(bundle), port, folder, console(), port_python, time_limit).exit_status


@click.command("parity bitwise", epilog=CONFIGURATION_HELP)
@add_options(*MODEL_OPTIONS, OUTPUT)
@click.option("--kernels", metavar="KIND[,KIND]...", help="Use only these kinds of kernels. Default: all.")
def bitwise(output: Path, kernels: str | None, **described: Any) -> int:
    """Run the port with the reference's kernels, and compare float32 bit by bit.

    Exit status: 0 equal to the last bit, 1 not.
    """
    from toolkit.parity.bitwise import run_bitwise
    from toolkit.parity.options import kernel_kinds, make_request

    [(_, folder)] = _prepare_folders(output, "cpu")
    kinds = kernel_kinds(kernels)
    return run_bitwise(make_request(GateOptions(**described, dtype="float32")), kinds, folder, console()).exit_status


@click.command("parity mutants")
@add_options(*PAIR_OPTIONS, OVERRIDES, *TRIAL_OPTIONS[1:])
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16"]),
    default="float64",
    help="The dtype, which decides the catalogue. float32: faults of compiled loops; bfloat16: of mixed precision.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Try only this fault. May be given several times.")
def mutants(only: tuple[str, ...], device: str, **described: Any) -> int:
    """Put each fault of a catalogue into a small model. The gate must catch it and name its place.

    With --port, the faults are made from the layers of your port.
    """
    from toolkit.errors import UserError
    from toolkit.parity.options import trial_requests
    from toolkit.parity.trials.mutation import (
        faults_of,
        head_trials,
        optimizer_trials,
        print_trials,
        smoothed_trials,
        try_mutants,
        weighted_trials,
    )

    options = GateOptions(**described)
    if not _is_pair(options):
        make_trials = (weighted_trials, smoothed_trials, optimizer_trials, head_trials)
        requests = [
            request
            for trial in trial_requests(options, device)
            for request in (trial, *(request for make_trial in make_trials for request in make_trial(trial)))
        ]
        fault_names = [{mutant.name for mutant in faults_of(request)} for request in requests]
        if unknown := set(only) - set().union(*fault_names):
            raise UserError(f"--only {min(unknown)}: this model has no such fault in this dtype")
        requests = [one for one, names in zip(requests, fault_names, strict=True) if not only or names & set(only)]
    else:
        family_options = options.model, options.weights_from, device, options.dtype, only
        if family_options != (None, DEFAULT_WEIGHTS, "cpu", "float64", ()):
            raise UserError("--model, --weights, --device, --dtype, --only: cannot be combined with --port")
        requests = [_pair_request(options)]
    all_passed = True
    for request in requests:
        trials = try_mutants(request, console(), only or None)
        print_trials(trials, console())
        all_passed = all_passed and all(trial.passed for trial in trials)
    return int(not all_passed)


@click.command("parity limits", epilog="KEY=VALUE pairs are the config of --port.")
@add_options(*PAIR_OPTIONS, OVERRIDES, *TRIAL_OPTIONS[1:])
def limits(device: str, **described: Any) -> int:
    """Measure the smallest change of each parameter that the gate catches, in a small model or in --port."""
    from toolkit.parity.options import select_devices, trial_requests
    from toolkit.parity.trials.limits import find_limits, is_sensitive, print_limits

    options = GateOptions(**described, dtype="float64")
    if _is_pair(options):
        _check_no_family_options(options)
        request = _pair_request(options)
        requests = [replace(request, device=device_name) for device_name in select_devices(device)]
    else:
        requests = trial_requests(options, device)
    all_sensitive = True
    for request in requests:
        parameter_limits = find_limits(request, console())
        print_limits(parameter_limits, console())
        all_sensitive = all_sensitive and all(map(is_sensitive, parameter_limits))
    return int(not all_sensitive)


@click.command(
    "parity sweep",
    epilog="KEY=VALUE, --head and --length are for a checkpoint's model. With --port, KEY=VALUE pairs are the config: "
    "a KEY that occurs several times takes one of its values in each gate.",
)
@add_options(*PAIR_OPTIONS, OVERRIDES)
@click.option("--gates", type=COUNT, metavar="N", required=True, help="The number of gates.")
@click.option(
    "--weights",
    "weights_from",
    metavar="KIND|CHECKPOINT",
    help=f"{', '.join(KINDS)}: random shapes with such weights. A Hugging Face folder or hub id: its model on N random "
    "batches. Default: random shapes with all three kinds.",
)
@add_options(HEAD, LENGTH, DTYPE_OR_BFLOAT16, SEED, DEVICES, REFERENCE_PYTHON)
def sweep(gates: int, device: str, **described: Any) -> int:
    """Gate N correct ports, operation by operation, and count false alarms.

    With --port, each gate takes another batch, kind of weights and setting of the optimizer.

    Exit status: 0 no false alarm, 1 at least one. With --port: 0 no drift, 1 at least one.
    """
    from toolkit.parity.options import make_sweep_request, select_devices
    from toolkit.parity.trials.sweep import run_sweep

    options = GateOptions(**described)
    has_pair = _is_pair(options)
    seeds = range(options.seed, options.seed + gates)
    alarms = 0
    for device_name in select_devices(device):
        if has_pair:
            pair_sweep = _make_pair_sweep(options, device_name)
            alarms += len(run_sweep(pair_sweep.make_request, seeds, console(), pair_sweep))
        else:
            alarms += len(run_sweep(make_sweep_request(options, device_name), seeds, console()))
    return int(bool(alarms))


def _make_pair_sweep(options: GateOptions, device: str) -> Any:
    """Return the sweep over a user's pair. Raises UserError if an option is only for a family."""
    from toolkit.errors import UserError
    from toolkit.parity.pairs.options import choices_of
    from toolkit.parity.trials.pair_sweep import PairSweep

    _check_no_family_options(options, allows_weights=True)
    kind = options.weights_from
    if kind not in (None, *KINDS):
        raise UserError(f"--weights {kind}: of a pair there are {', '.join(KINDS)}")
    request = _pair_request(replace(options, overrides=(), seed=0, dtype="both"))
    return PairSweep(replace(request, device=device), choices_of(options.overrides), kind)


@click.command("parity texts")
@add_options(MODEL)
@click.option("--texts", type=COUNT, metavar="N", default=2000, help="The number of texts.")
@click.option(
    "--tokenizer",
    "tokenizer_from",
    metavar="FOLDER|bytes",
    help="A Hugging Face folder, or bytes if the model reads bytes. Default: a small one, trained on Python's texts.",
)
@click.option("--seed", type=SEEDS, default=0, help="The seed of the texts.")
@add_options(REFERENCE_PYTHON)
def texts(model: str, texts: int, tokenizer_from: str | None, seed: int, reference_python: str | None) -> int:
    """Search for texts that the two tokenizers treat differently.

    Texts are random sequences of letters, control characters, white space, other characters and special pieces. For
    each kind of difference (ids, decoded text, padding, offsets), the shortest text found is shown.

    Exit status: 0 the tokenizers agree, 1 they differ.
    """
    from toolkit.machine.scratch import scratch_folder
    from toolkit.parity.options import make_text_search
    from toolkit.parity.trials.texts import search_texts

    with scratch_folder("tokenizer-") as scratch:
        request, tokenizer = make_text_search(
            model=model, tokenizer_from=tokenizer_from, seed=seed, reference_python=reference_python, scratch=scratch
        )
        return int(bool(search_texts(request, tokenizer, seed, texts, console())))


COMMANDS = (parity, show_map, record, replay, judge, bitwise, mutants, sweep, limits, texts)


def _prepare_folders(output: Path, device: str) -> list[tuple[str, Path]]:
    """Return each device with the folder of its report, after the reports of an earlier gate are removed.

    If this gate stops early, no earlier report can be mistaken for its own.
    """
    from toolkit.errors import UserError
    from toolkit.machine.disk import find_write_obstacle
    from toolkit.parity.options import select_devices
    from toolkit.parity.report.report import remove_report

    for device_name in ("cpu", "gpu") if device == "all" else (device,):
        remove_report(output / device_name)
    folders = [(device_name, output / device_name) for device_name in select_devices(device)]
    for _, folder in folders:
        if problem := find_write_obstacle(folder):
            raise UserError(f"--output {folder}: {problem}")
    return folders


def console() -> Any:
    """Return a console that prints all text literally. rich is imported on the first call."""
    from toolkit.terminal.console import LiteralConsole

    return LiteralConsole()
