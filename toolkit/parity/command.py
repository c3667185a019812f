"""`toolkit parity` and the commands below it. Only click is imported at the top, so that --help is instant."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click

from models.families import FAMILIES, default
from toolkit.machine.install import REFERENCE_PYTHON as VARIABLE
from toolkit.parity.job.family import ported

#: Kinds of made-up weights; those of :mod:`toolkit.parity.job.synthetic`, which is not imported for a help text.
KINDS = ("random", "heavy-tailed", "large-gains")
#: What is kept in 32 bits, and what NumPy takes for a seed.
COUNT = click.IntRange(1, 2**31 - 1)
SEEDS = click.IntRange(0, 2**32 - 1)
MOST_LAYERS = 10_000
HEADS = ("sequence_classification", "question_answering", "causal_lm", "masked_lm")
CONFIGURATION_HELP = f"KEY=VALUE pairs set keys of the model's configuration, for example {ported(default()).example}."


class RecordedDtype(click.Choice):
    """The dtypes of a recorded reference; of bfloat16, which others have, it says why there is none."""

    def __init__(self) -> None:
        super().__init__(["float64", "float32", "both"])

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        if value in ("bfloat16", "all"):
            from toolkit.errors import UserError
            from toolkit.parity.job.bundle import NOT_RECORDED

            raise UserError(f"--dtype {value}: {NOT_RECORDED}")
        return super().convert(value, param, ctx)


#: Families with several kinds of attention, and the kinds.
WITH_ATTENTIONS = [name for name in FAMILIES if ported(name).attentions]
ATTENTIONS = dict.fromkeys(kind for name in WITH_ATTENTIONS for kind in ported(name).attentions)
MODEL = click.option("--model", type=click.Choice(FAMILIES), required=True, help="The port to judge.")
DTYPE_OR_BFLOAT16 = click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16", "both", "all"]),
    default="both",
    show_default=True,
    help="both: float64 and float32. bfloat16, mixed precision, is judged with float64; all: the three.",
)
DEVICES = click.option("--device", type=click.Choice(["cpu", "gpu", "all"]), default="cpu", show_default=True)
OUTPUT = click.option(
    "--output", type=click.Path(path_type=Path), default=Path("runs/parity"), show_default=True, help="Of the reports."
)


def _defaults(field: str) -> str:
    """What each family's default is, in words."""
    return ", ".join(f"{getattr(ported(name).defaults, field)} of {name}" for name in FAMILIES)


HEAD = click.option("--head", type=click.Choice(HEADS), help=f"Default: {_defaults('head')}.")
LENGTH = click.option(
    "--length",
    type=COUNT,
    help=f"Tokens a sequence, or the next length that fits; default: {_defaults('length')}.",
)
SEED = click.option(
    "--seed", type=SEEDS, default=0, show_default=True, help="Of the weights, the tokens and all draws."
)
REFERENCE_PYTHON = click.option(
    "--reference-python",
    metavar="PATH",
    envvar=VARIABLE,
    help=f"Run the reference with this Python, which needs torch, not Paddle; default: ${VARIABLE}, or this one.",
)
REFERENCE_REVERSIBLE = click.option(
    "--reference-reversible",
    is_flag=True,
    help="Also show how far the reference's own reversible backward lies from its plain one.",
)


def complete_second_word(context: click.Context, parameter: click.Parameter, begun: str) -> list[str]:
    """What a shell may go on with after ``toolkit parity``: the second words of the commands of two."""
    seconds = [command.name.partition(" ")[2] for command in COMMANDS if command.name] if not context.args else []
    return [word for word in seconds if word and word.startswith(begun)]


OVERRIDES = click.argument("overrides", metavar="[KEY=VALUE]...", nargs=-1, shell_complete=complete_second_word)
#: What describes the model, the weights and the batch that are compared, and how the reference runs.
DESCRIPTION = (
    MODEL,
    OVERRIDES,
    HEAD,
    click.option("--layers", type=click.IntRange(1, MOST_LAYERS), help=f"Default: {_defaults('layers')}."),
    click.option(
        "--attention", type=click.Choice(list(ATTENTIONS)), help=f"Of {', '.join(WITH_ATTENTIONS)}; default: the first."
    ),
    LENGTH,
    click.option("--batch-size", type=COUNT, help=f"Default: {_defaults('batch_size')}; fewer, but 2, of long texts."),
    click.option(
        "--weights",
        "weights_from",
        metavar="KIND|CHECKPOINT",
        default="heavy-tailed",
        show_default=True,
        help=f"{', '.join(KINDS)}; or a Hugging Face folder or hub id, with its revision as ID@REVISION.",
    ),
    SEED,
    REFERENCE_PYTHON,
)
#: Of a trial of the gate on a small model.
TRIAL = (
    MODEL,
    click.option(
        "--weights", "kind", type=click.Choice(KINDS), default="heavy-tailed", show_default=True, help="Their kind."
    ),
    SEED,
    DEVICES,
    REFERENCE_PYTHON,
)


MAP = click.option(
    "--map",
    "map_file",
    metavar="FILE",
    type=click.Path(path_type=Path),
    help="Which parameter is which, as toolkit parity map prints it.",
)
TIME_LIMIT = click.option(
    "--time-limit",
    type=click.FloatRange(min=0, min_open=True),
    metavar="SECONDS",
    help="What a --port and its --reference-model have for a step before they are ended; default: 1800.",
)
#: In place of MODEL where the port may also be the user's own.
PAIR = (
    click.option("--model", type=click.Choice(FAMILIES), help="The port to judge: one of those here."),
    click.option("--port", metavar="FILE|MODULE", help="Or yours: Python that builds a Paddle layer,"),
    click.option("--reference-model", metavar="FILE|MODULE", help="and Python that builds the torch module it ports."),
    TIME_LIMIT,
    MAP,
)


def takes(*options: Callable) -> Callable[[Callable], Callable]:
    """Give a command options, which its help shows in this order."""

    def decorate(command: Callable) -> Callable:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


@click.command(
    "parity",
    epilog=f"{CONFIGURATION_HELP} Further commands: toolkit parity map, record, replay, bitwise, mutants, sweep, "
    "limits, texts; each has a --help of its own.",
)
@takes(*PAIR, *DESCRIPTION[1:], DTYPE_OR_BFLOAT16, DEVICES, OUTPUT, REFERENCE_REVERSIBLE)
@click.option("--trace", is_flag=True, help="Judge every operation by itself, as is done anyway where one differs.")
@click.option(
    "--max-memory",
    metavar="GB",
    type=click.IntRange(1, 10**6),
    help="Compare the first tokens alone, if all would take more than this; by default, than most of the machine has.",
)
def parity(device: str, output: Path, trace: bool, max_memory: float | None, **description: Any) -> int:
    """Compare a port with the reference on one training step.

    The port is --model's, or --port and --reference-model name two Python files of yours: each has build(config), one
    has batch(config, rng), each may have loss(model, batch).

    Exit status: 0 parity, 1 drift, 2 wrong usage, 3 inconclusive.
    """
    from dataclasses import replace

    from toolkit.parity import run_gate

    places = _cleared(output, device)
    request = replace(_asked(description, max_memory), trace=trace, max_memory=max_memory)
    return max(run_gate(replace(request, device=p), folder, console()).exit_status for p, folder in places)


@click.command("parity map", epilog="KEY=VALUE pairs are the config that both files' build is given.")
@takes(*PAIR[1:], OVERRIDES, SEED, REFERENCE_PYTHON)
@click.option("-o", "--output", metavar="FILE", type=click.Path(path_type=Path), help="A new file. Default: shown.")
def show_map(output: Path | None, **described: Any) -> None:
    """Print which parameter of a reference of yours is which of your port, as YAML.

    Correct it where a guess is wrong, and give the file to `toolkit parity --map FILE`.
    """
    from toolkit.parity.job.build import scratch_job
    from toolkit.parity.pairs.describe import described as describe
    from toolkit.parity.pairs.map_file import text_of
    from toolkit.recipe.shipped import new_file

    if output is not None:
        new_file(output)
    request = _pair(described)
    with scratch_job() as job:
        text = text_of(describe(request, job, console()))
    if output is None:
        click.echo(text, nl=False)
    else:
        from toolkit.files.whole import write_text

        write_text(output, text)


def _asked(description: dict[str, Any], max_memory: float | None = None, recorded: bool = False) -> Any:
    """What the options of `toolkit parity` describe: one of the families here, or a pair.

    Args:
        recorded: the reference is to be recorded, so that a pair needs no port.

    Raises:
        UserError: neither, or options that are for the other.
    """
    from toolkit.errors import UserError
    from toolkit.parity.options import check_bfloat16, make_request

    pair = _pair_options(description)
    if pair is None:
        request = make_request(**description)
        check_bfloat16(request)
        return request
    of_families = ("model", "head", "layers", "attention", "length", "batch_size", "reference_reversible")
    wrong = [name for name in of_families if description[name]]
    wrong += ["max_memory"] if max_memory else []
    if description["weights_from"] != "heavy-tailed":
        wrong.append("weights")
    if description["dtype"] in ("bfloat16", "all"):
        raise UserError("--dtype: a pair is judged in float64 and float32; in bfloat16 only the ports here are")
    _check_none_of_families(wrong)
    others = ("overrides", "seed", "reference_python", "dtype")
    return _pair({**pair, **{key: description[key] for key in others}}, recorded)


def _pair_options(options: dict[str, Any]) -> dict[str, Any] | None:
    """Take the options of a pair out of a command's; None where there are none, so that a family is meant."""
    limit = options.pop("time_limit")
    pair = {key: options.pop(key) for key in ("port", "reference_model", "map_file")}
    if any(pair.values()):
        return {**pair, "time_limit": limit}
    if options["model"] is None:
        raise click.UsageError("name a --model, or --port and --reference-model")
    if limit:
        raise click.UsageError("--time-limit: is for a --port and a --reference-model of yours")
    return None


def _check_none_of_families(given: Sequence[str]) -> None:
    """Refuse options that are for the families here, beside those of a pair."""
    from toolkit.errors import UserError

    if given:
        raise UserError(f"--{given[0].replace('_', '-')}: is for --model; a pair's own files say what is compared")


def _pair(described: dict[str, Any], recorded: bool = False) -> Any:
    """What the options of a pair describe."""
    from toolkit.errors import UserError
    from toolkit.parity.options import dtypes_of
    from toolkit.parity.pairs.options import pair_request
    from toolkit.recipe.yaml_source import parse_pairs

    for option in ("reference_model",) if recorded else ("port", "reference_model"):
        if not described[option]:
            raise UserError(f"--{option.replace('_', '-')} is missing; a pair is a --port and a --reference-model")
    config = parse_pairs(described.pop("overrides"), "hidden_size=32")
    return pair_request(config=config, dtypes=dtypes_of(described.pop("dtype", "both")), **described)


@click.command("parity record", epilog=CONFIGURATION_HELP)
@takes(*PAIR[:-1], *DESCRIPTION[1:])
@click.option("--dtype", type=RecordedDtype(), default="both", show_default=True)
@takes(REFERENCE_REVERSIBLE)
@click.option("--device", type=click.Choice(["cpu", "gpu"]), default="cpu", show_default=True, help="The reference's.")
@click.option("-o", "--output", metavar="BUNDLE", type=click.Path(path_type=Path), required=True, help="A new folder.")
def record(device: str, output: Path, **description: Any) -> None:
    """Run the reference alone and leave a bundle, for machines without torch.

    `toolkit parity replay BUNDLE` judges the port by it. Of a --reference-model of yours, a --port is not run, and need
    not be named; Paddle need not be there.
    """
    from dataclasses import replace

    from toolkit.parity.job import bundle
    from toolkit.parity.pairs.recording import record_pair

    request = replace(_asked({**description, "map_file": None}, recorded=True), device=device)
    (record_pair if request.pair else bundle.record)(request, output, console())


@click.command("parity replay")
@click.argument("bundle", metavar="BUNDLE", type=click.Path(path_type=Path))
@click.option(
    "--dtype",
    type=RecordedDtype(),
    help="Default: what BUNDLE was recorded for.",
)
@takes(PAIR[1], TIME_LIMIT, MAP, DEVICES, OUTPUT)
def replay(bundle: Path, dtype: str | None, device: str, output: Path, **pair: Any) -> int:
    """Judge the port by a reference that `toolkit parity record` has left in BUNDLE.

    The port's device may be another than the reference's. Of a recorded --reference-model, --port is what is judged.
    """
    from dataclasses import replace

    from toolkit.parity import run_gate
    from toolkit.parity.job.bundle import open_recording
    from toolkit.parity.job.request import dtypes_of
    from toolkit.parity.pairs.options import replayed

    places = _cleared(output, device)
    recording = open_recording(bundle)
    request = replayed(recording, **pair)
    request = request if dtype is None else replace(request, dtypes=dtypes_of(dtype))
    return max(run_gate(replace(request, device=p), folder, console(), recording).exit_status for p, folder in places)


@click.command("parity bitwise", epilog=CONFIGURATION_HELP)
@takes(*DESCRIPTION, OUTPUT)
@click.option("--kernels", metavar="KIND[,KIND]...", help="Only these kinds of kernels; default: all of them.")
def bitwise(output: Path, kernels: str | None, **description: Any) -> int:
    """Give the port the reference's kernels: its float32 must then agree to the last bit.

    Exit status: 0 exact, 1 not.
    """
    from toolkit.parity.bitwise import run_bitwise
    from toolkit.parity.options import kernel_kinds, make_request

    [(_, folder)] = _cleared(output, "cpu")
    kinds = kernel_kinds(kernels)
    return run_bitwise(make_request(**description, dtype="float32"), kinds, folder, console()).exit_status


@click.command("parity mutants")
@takes(*PAIR, OVERRIDES, *TRIAL[1:])
@click.option(
    "--dtype",
    type=click.Choice(["float64", "float32", "bfloat16"]),
    default="float64",
    show_default=True,
    help="float32: the faults of compiled loops; bfloat16: those of mixed precision. No other dtype shows either.",
)
@click.option("--only", multiple=True, metavar="NAME", help="One fault of the catalogue; several times for several.")
def mutants(overrides: tuple[str, ...], only: tuple[str, ...], **trial: Any) -> int:
    """Try the gate on a catalogue of faults, in a small model: each must be caught and named.

    Of a --port of yours, the faults are made from its own layers.
    """
    from toolkit.errors import UserError
    from toolkit.parity.options import trial_requests
    from toolkit.parity.trials.mutation import faults_of, print_trials, try_mutants, weighted_trials

    if (pair := _pair_options(trial)) is None:
        _check_no_config(overrides)
        requests = [one for plain in trial_requests(**trial) for one in (plain, *weighted_trials(plain))]
        known = [{mutant.name for mutant in faults_of(request)} for request in requests]
        if unknown := set(only) - set().union(*known):
            raise UserError(f"--only {min(unknown)}: no fault of this model and dtype is called so")
        requests = [one for one, names in zip(requests, known, strict=True) if not only or names & set(only)]
    else:
        given = trial["model"], trial["kind"], trial["device"], trial["dtype"], only
        if given != (None, "heavy-tailed", "cpu", "float64", ()):
            raise UserError("--model, --weights, --device, --dtype, --only: are not for a pair, which has its own")
        requests = [_pair_on_trial(pair, overrides, trial)]
    passed = True
    for request in requests:
        trials = try_mutants(request, console(), only or None)
        print_trials(trials, console())
        passed = passed and all(trial.passed for trial in trials)
    return int(not passed)


def _check_no_config(overrides: Sequence[str]) -> None:
    if overrides:
        raise click.UsageError(f"Got unexpected extra argument ({overrides[0]}): only a --port of yours has a config")


def _pair_on_trial(pair: dict[str, Any], overrides: Sequence[str], trial: dict[str, Any]) -> Any:
    """The comparison of a pair whose port is given faults."""
    others = {key: trial[key] for key in ("seed", "reference_python")}
    return _pair({**pair, **others, "overrides": overrides, "dtype": "float64"})


@click.command("parity limits", epilog="KEY=VALUE pairs are the config of a --port of yours.")
@takes(*PAIR, OVERRIDES, *TRIAL[1:])
def limits(overrides: tuple[str, ...], **trial: Any) -> int:
    """Show how small a change of each parameter is caught, in a small model or in a --port of yours."""
    from dataclasses import replace

    from toolkit.parity.options import devices, trial_requests
    from toolkit.parity.trials.limits import find_limits, is_seen, print_limits

    if (pair := _pair_options(trial)) is None:
        _check_no_config(overrides)
        requests = list(trial_requests(**trial))
    else:
        _check_none_of_families(["model"] * bool(trial["model"]) + ["weights"] * (trial["kind"] != "heavy-tailed"))
        asked = _pair_on_trial(pair, overrides, trial)
        requests = [replace(asked, device=place) for place in devices(trial["device"])]
    passed = True
    for request in requests:
        found = find_limits(request, console())
        print_limits(found, console())
        passed = passed and all(map(is_seen, found))
    return int(not passed)


@click.command(
    "parity sweep",
    epilog="KEY=VALUE, --head and --length are for a checkpoint's model; of a --port of yours KEY=VALUE pairs are the "
    "config, and a KEY that is given several times has one of its values in each gate.",
)
@takes(*PAIR, OVERRIDES)
@click.option("--gates", type=COUNT, metavar="N", required=True, help="How many right ports are gated.")
@click.option(
    "--weights",
    "weights_from",
    metavar="KIND|CHECKPOINT",
    help=f"{', '.join(KINDS)}, on random shapes; or a Hugging Face folder or hub id, whose model is gated on N random "
    "batches. Default: random shapes with all three kinds.",
)
@takes(HEAD, LENGTH, DTYPE_OR_BFLOAT16, SEED, DEVICES, REFERENCE_PYTHON)
def sweep(gates: int, seed: int, device: str, **description: Any) -> int:
    """Gate right ports, none of which may be stopped, and trace each to the operation.

    Of a --port of yours, on N batches, with all three kinds of weights and other settings of the optimizer.

    Exit status: 0 no false alarm, 1 some.
    """
    from toolkit.parity.options import devices, sweep_maker
    from toolkit.parity.trials.sweep import sweep as run_sweep

    alarms = 0
    pair = _pair_options(description)
    for place in devices(device):
        if pair is None:
            alarms += len(run_sweep(sweep_maker(place, **description), range(seed, seed + gates), console()))
        else:
            of_pair = _sweep_of_pair(pair, place, **description)
            alarms += len(run_sweep(of_pair.make, range(seed, seed + gates), console(), of_pair))
    return int(bool(alarms))


def _sweep_of_pair(pair: dict[str, Any], device: str, overrides: Sequence[str], **description: Any) -> Any:
    """What a sweep of a pair does.

    Raises:
        UserError: options that are for a family.
    """
    from dataclasses import replace

    from toolkit.errors import UserError
    from toolkit.parity.pairs.options import choices_of
    from toolkit.parity.trials.pair_sweep import PairSweep

    _check_none_of_families([name for name in ("model", "head", "length") if description[name]])
    kind = description["weights_from"]
    if kind not in (None, *KINDS):
        raise UserError(f"--weights {kind}: of a pair there are {', '.join(KINDS)}")
    asked = _pair({**pair, "overrides": (), "seed": 0, "reference_python": description["reference_python"]})
    return PairSweep(replace(asked, device=device), choices_of(overrides), kind)


@click.command("parity texts")
@takes(MODEL)
@click.option(
    "--texts",
    type=COUNT,
    metavar="N",
    default=2000,
    show_default=True,
    help="How many texts are drawn.",
)
@click.option(
    "--tokenizer",
    "tokenizer_from",
    metavar="FOLDER|bytes",
    help="A Hugging Face folder; or, where they are tokens, bytes. Default: a small one, learnt from Python's texts.",
)
@click.option("--seed", type=SEEDS, default=0, show_default=True, help="Of the texts.")
@takes(REFERENCE_PYTHON)
def texts(texts: int, seed: int, **description: Any) -> int:
    """Search for texts of which the two tokenizers make something else.

    Texts are drawn of letters, control characters, white space, characters of every kind and special pieces. For each
    thing that differs (ids, decoded text, padding, offsets) the shortest text is shown to which one can be cut down.

    Exit status: 0 the tokenizers agree, 1 they differ.
    """
    from toolkit.machine.scratch import scratch_folder
    from toolkit.parity.options import text_search
    from toolkit.parity.trials.texts import search

    with scratch_folder("tokenizer-") as scratch:
        request, tokenizer = text_search(seed=seed, scratch=scratch, **description)
        return int(bool(search(request, tokenizer, seed, texts, console())))


COMMANDS = (parity, show_map, record, replay, bitwise, mutants, sweep, limits, texts)


def _cleared(output: Path, device: str) -> list[tuple[str, Path]]:
    """Each device with the folder of its reports, from which those of an earlier gate are removed before anything
    runs: whatever stops this one, none can be taken for its own."""
    from toolkit.errors import UserError
    from toolkit.machine.disk import check_writable
    from toolkit.parity.options import devices
    from toolkit.parity.report.report import remove_report

    for wanted in ("cpu", "gpu") if device == "all" else (device,):
        remove_report(output / wanted)
    places = [(found, output / found) for found in devices(device)]
    for _, folder in places:
        if refused := check_writable(folder):
            raise UserError(f"--output {folder}: {refused}")
    return places


def console() -> Any:
    """Return a console that shows what it is given as it is. rich is imported on the first call."""
    from toolkit.terminal.console import LiteralConsole

    return LiteralConsole()
