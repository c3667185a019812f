"""Options of `toolkit parity` turned into a model, its weights and batch, the interpreter and the devices."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np

from models.families import part
from models.files.hub import commit_of, resolve_folder, split_revision, stored_tensors
from models.port.lengths import LENGTH, Fit, LengthError
from models.port.schema import ConfigError
from models.port.weights import new_values
from toolkit.errors import UserError
from toolkit.files.paddle_checkpoint import PADDLE_ENDING, get_hf_folder
from toolkit.machine import runtime
from toolkit.machine.memory import COMPARED_BYTES, explain_too_large
from toolkit.parity.job.build import LONG, is_streamed
from toolkit.parity.job.family import ported
from toolkit.parity.job.gate_options import GateOptions
from toolkit.parity.job.interpreter import interpreter_of
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.job.kernel_messages import KINDS as KERNELS
from toolkit.parity.job.pickles import safetensors_folder
from toolkit.parity.job.request import GateRequest, dtypes_of
from toolkit.parity.job.synthetic import KINDS, SyntheticWeights, random_batch
from toolkit.parity.job.tokenizers import tokenizer_in
from toolkit.parity.trials.mutation import trial_request, trial_tokenizer
from toolkit.parity.trials.sweep import random_request, vary_request
from toolkit.recipe.yaml_source import parse_pairs
from toolkit.terminal.quiet import silence_startup


def make_request(options: GateOptions) -> GateRequest:
    """Return the request for one of the toolkit's own ports, on the CPU. Raises UserError for an invalid configuration
    or weights that do not fit, and Inconclusive if the reference's interpreter cannot run it."""
    assert options.model is not None and options.weights_from is not None
    model, seed, weights_from, attention = options.model, options.seed, options.weights_from, options.attention
    python = interpreter_of(options.reference_python, "reference")
    head = _head(model, options.head)
    known = ported(model)
    length = options.length or known.defaults.length
    if attention and attention not in known.attentions:
        raise UserError(f"--attention: {model} has one kind of attention only")
    if options.reference_reversible and not known.own_backward:
        raise UserError(f"--reference-reversible: {model} has no reversible backward")
    attention = attention or next(iter(known.attentions), "")
    whole, fit = configuration(model, head, attention, options.layers, length, options.overrides, weights_from)
    config, length = {**whole, **fit.cut}, fit.length
    batch_size = options.batch_size or _default_batch_size(model, length)
    _check_memory(model, whole, head, length, batch_size)
    checkpoint = _checkpoint(weights_from)
    weights, tensors = chosen_weights(model, whole, fit, head, seed, weights_from, checkpoint, python)
    commit = None if checkpoint is None else commit_of(checkpoint)
    tokenizer = None if checkpoint is None else _tokenizer_in(model, checkpoint, length, "--weights")
    return GateRequest(
        model=model,
        head=head,
        config=config,
        weights=weights,
        batch=random_batch(config, head, batch_size, length, seed, model),
        dtypes=dtypes_of(options.dtype),
        seed=seed,
        judge_reference_reversible=options.reference_reversible,
        tokenizer=tokenizer,
        checkpoint=None if tensors is None else str(tensors),
        checkpoint_config=whole if fit.cut and tensors is not None else None,
        length_notes=fit.notes,
        origin=commit and f"{split_revision(weights_from)[0]} at {commit}",
        reference_python=python,
    )


def check_bfloat16(request: GateRequest) -> None:
    """Check that the model can be judged in bfloat16 if asked. Raises UserError if it goes stage by stage, where
    operations are not judged singly."""
    if "bfloat16" in request.dtypes and is_streamed(request):
        raise UserError(
            "--dtype: a model this large is compared stage by stage, in float64 and float32; for bfloat16 take fewer "
            "--layers, or a smaller configuration"
        )


def _default_batch_size(model: str, length: int) -> int:
    """The family's; fewer for long texts, to hold at most half of :data:`.build.LONG` tokens, but at least 2."""
    return min(ported(model).defaults.batch_size, max(2, LONG // 2 // length))


def _check_memory(model: str, config: Mapping[str, Any], head: str, length: int, batch_size: int) -> None:
    """Refuse a model too large for this machine's memory. What goes stage by stage is never held whole."""
    resolved = part(model, "schema").resolve(config)
    each = 0 if ported(model).goes_by_stages(config, head) else COMPARED_BYTES
    if problem := explain_too_large(model, resolved, head, length, batch_size, each):
        raise UserError(f"the configuration, --length and --batch-size: {problem}")


def kernel_kinds(names: str | None) -> list[str]:
    """Return the comma-separated kinds of kernels of ``--kernels``; None means all. Raises UserError for an unknown
    kind."""
    kinds = list(KERNELS) if names is None else names.split(",")
    for kind in kinds:
        if kind not in KERNELS:
            raise UserError(
                f"--kernels {names}: {kind or 'nothing'} is no kind of kernel; there are {', '.join(KERNELS)}"
            )
    return list(dict.fromkeys(kinds))


def trial_requests(options: GateOptions, device: str) -> list[GateRequest]:
    """Return the requests for the small model that mutants and limits change, one on each device. Raises UsageError for
    a configuration, which only a pair has."""
    assert options.model is not None and options.weights_from is not None
    if options.overrides:
        words = f"Got unexpected extra argument ({options.overrides[0]})"
        raise click.UsageError(f"{words}: only a --port of yours has a config")
    python = interpreter_of(options.reference_python, "reference")
    return [
        trial_request(options.model, options.weights_from, options.seed, place, python, options.dtype)
        for place in devices(device)
    ]


def sweep_maker(options: GateOptions, device: str) -> Callable[[int], GateRequest]:
    """Return a function that makes a correct port from a seed: of random shapes, or a checkpoint's model on a random
    batch. Raises UserError for an option that random shapes do not have, and for a model too large to be compared as a
    whole."""
    model, kind = options.model, options.weights_from
    assert model is not None
    if kind in (None, *KINDS):
        if options.head or options.length or options.overrides:
            unused = "--head" if options.head else "--length" if options.length else " ".join(options.overrides)
            raise UserError(f"{unused}: is for a checkpoint's model (--weights FOLDER); random shapes have their own")
        python = interpreter_of(options.reference_python, "reference")
        dtypes = dtypes_of(options.dtype)
        return lambda seed: replace(
            random_request(model, seed, kind), device=device, reference_python=python, dtypes=dtypes
        )
    made = make_request(replace(options, seed=0))
    if is_streamed(made):
        raise UserError("a model this large is not compared as a whole; gate it once, with toolkit parity")
    request = replace(made, device=device, tokenizer=None)  # the same of every seed
    fixed = [override.partition("=")[0] for override in options.overrides]
    return lambda seed: vary_request(request, seed, fixed)


def text_search(
    *, model: str, tokenizer_from: str | None, seed: int, reference_python: str | None, scratch: Path
) -> tuple[GateRequest, TokenizerJob]:
    """Return the model, which is not run, and the tokenizer to be compared on drawn texts. ``tokenizer_from`` is a
    Hugging Face folder, or ``bytes``; None for a small one, which is put in ``scratch``. Raises UserError if there is
    no tokenizer of the family."""
    request = trial_request(model, "random", seed, reference_python=interpreter_of(reference_python, "reference"))
    if tokenizer_from is None:
        return request, trial_tokenizer(model, scratch)
    for kind in ported(model).tokenizers:
        if kind.kind == tokenizer_from and not kind.files:
            return request, TokenizerJob(kind.kind, [], 0, offsets=kind.offsets)
    tokenizer = _tokenizer_in(model, Path(tokenizer_from), 0, "--tokenizer")
    if tokenizer is None:
        raise UserError(f"--tokenizer {tokenizer_from}: is no folder that holds a tokenizer of {model}")
    return request, tokenizer


def _tokenizer_in(model: str, folder: Path, max_length: int, option: str) -> TokenizerJob | None:
    """Return the tokenizer of a checkpoint's folder, if any, with its tokens' offsets where it has them."""
    try:
        found = tokenizer_in(model, folder, [], max_length, offsets=ported(model).tokenizers[0].offsets)
        if found is not None:
            part(model, "tokenizer").load_tokenizer(folder)
    except ValueError as problem:
        raise UserError(f"{option} {folder}: {problem}") from None
    return found


def _head(model: str, head: str | None) -> str:
    known = part(model, "weights").HEADS
    if head not in (None, *known):
        raise UserError(f"--head {head}: {model} has {', '.join(known)}")
    return head or ported(model).defaults.head


def configuration(
    model: str, head: str, attention: str, layers: int | None, length: int, overrides: Sequence[str], weights_from: str
) -> tuple[dict[str, Any], Fit]:
    """Return the configuration keys, a checkpoint's own or the family's layout for ``length`` tokens, with overrides;
    and the compared length, at least ``length``, with the part of the model that it needs."""
    known, made_up = ported(model), weights_from in KINDS
    if made_up:
        config = known.made_up(head, attention, layers or known.defaults.layers, length)
    else:
        silence_startup()  # the configuration's class imports Paddle
        runtime.configure_paddle("cpu")
        try:
            config = part(model, "config").CONFIG_CLASS.from_pretrained(_checkpoint(weights_from)).to_hf()
        except (OSError, ValueError) as error:  # a file, or what it says
            raise UserError(f"--weights {weights_from}: {error}") from None
        if layers is not None:
            raise UserError("--layers: the checkpoint has its own; remove it, or take --weights random")
    config = known.with_head(config, head)
    config.update(parse_pairs(overrides, known.example))
    try:
        resolved = part(model, "schema").resolve(config)
        fit = part(model, "lengths").fit(resolved, length, config if made_up else None)
    except LengthError as error:
        raise UserError(f"--length {length}: {error.key}: {error.advice({LENGTH: '--length'}, '')}") from None
    except ConfigError as error:
        raise UserError(str(error)) from None
    if made_up:
        config.update({key: value for key, value in known.keys_of_length(fit.length).items() if key in fit.keys})
    return {**fit.keys, **config}, fit


def _checkpoint(weights_from: str) -> Path | None:
    """Return the Hugging Face folder of the checkpoint of ``--weights``; None for made-up weights."""
    if weights_from in KINDS:
        return None
    try:
        local = Path(weights_from)
        return get_hf_folder(local if local.suffix == PADDLE_ENDING else resolve_folder(*split_revision(weights_from)))
    except (OSError, ValueError) as error:
        raise UserError(f"--weights {weights_from}: {error}") from None


def chosen_weights(
    model: str,
    config: Mapping[str, Any],
    fit: Fit,
    head: str,
    seed: int,
    weights_from: str,
    checkpoint: Path | None,
    python: str | None,
) -> tuple[Mapping[str, np.ndarray], Path | None]:
    """Return made-up weights (:mod:`toolkit.parity.job.synthetic`), or a checkpoint's, with new ones for a head that it
    lacks; and the folder of its safetensors, None for made-up weights.

    Args:
        config: of the whole model, from which a checkpoint is read.
        fit: the positions that are compared.
        checkpoint: the folder of the checkpoint; None for made-up weights.
        python: the interpreter with torch, for a pickled checkpoint.
    """
    resolved = part(model, "schema").resolve(config)
    if checkpoint is None:
        return SyntheticWeights({**resolved, **fit.cut}, head, seed, weights_from, model), None
    weights = part(model, "weights")
    try:
        folder = safetensors_folder(checkpoint, python)
        found = weights.select(stored_tensors(folder), resolved, head)
    except (OSError, ValueError) as error:  # a file, or tensors that do not fit
        raise UserError(f"--weights {weights_from}: {error}") from None
    table = weights.parameters(resolved, head)
    missing = {name: parameter for name, parameter in table.items() if name not in found}
    whole = {**found, **dict(new_values(missing, weights.deviations(resolved), seed))}
    return part(model, "positions").cut_weights(whole, fit.cut) if fit.cut else whole, folder


def devices(wanted: str) -> list[str]:
    """The devices to run on: ``all`` is the CPU, and the GPU where Paddle sees one. Raises UserError if a GPU was named
    and there is none."""
    if wanted == "cpu":
        return ["cpu"]
    found = runtime.configure_paddle("auto" if wanted == "all" else wanted)
    return ["cpu", "gpu"][: 1 + (found == "gpu")] if wanted == "all" else [found]
