"""Requests for the gate, made from the options of `toolkit parity`."""

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
from models.port.weights import draw_values
from toolkit.errors import UserError
from toolkit.files.paddle_checkpoint import PADDLE_ENDING, get_hf_folder
from toolkit.machine import runtime
from toolkit.machine.model_memory import MIN_GATE_PARAMETER_BYTES, explain_too_large
from toolkit.parity.exchange.kernel_messages import KINDS as KERNELS
from toolkit.parity.inputs.synthetic import KINDS, SyntheticWeights, random_batch
from toolkit.parity.job.family import ported_family
from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.job.tokenizers import tokenizer_in
from toolkit.parity.processes.interpreter import interpreter_of
from toolkit.parity.processes.pickles import safetensors_folder
from toolkit.parity.request.build import LONG, is_streamed
from toolkit.parity.request.gate_options import GateOptions
from toolkit.parity.request.request import GateRequest, dtypes_of
from toolkit.parity.trials.mutation import trial_request, trial_tokenizer
from toolkit.parity.trials.sweep import random_request, vary_request
from toolkit.recipe.yaml_source import parse_pairs
from toolkit.terminal.quiet import silence_startup


def make_request(options: GateOptions) -> GateRequest:
    """Return the request for one of the toolkit's own ports, on the CPU.

    Raises:
        UserError: the configuration is invalid, or the weights do not fit it.
        Inconclusive: the reference's interpreter cannot run the reference.
    """
    assert options.model is not None and options.weights_from is not None
    model, seed, weights_from, attention = options.model, options.seed, options.weights_from, options.attention
    python = interpreter_of(options.reference_python, "reference")
    head = _resolve_head(model, options.head)
    model_family = ported_family(model)
    length = options.length or model_family.defaults.length
    if attention and attention not in model_family.attentions:
        raise UserError(f"--attention: {model} has one kind of attention only")
    if options.reference_reversible and not model_family.own_backward:
        raise UserError(f"--reference-reversible: {model} has no reversible backward")
    attention = attention or next(iter(model_family.attentions), "")
    full_config, fit = make_configuration(
        model, head, attention, options.layers, length, options.overrides, weights_from
    )
    config, length = {**full_config, **fit.cut}, fit.length
    batch_size = options.batch_size or _default_batch_size(model, length)
    _check_memory(model, full_config, head, length, batch_size)
    checkpoint = _resolve_checkpoint(weights_from)
    weights, tensors = load_weights(model, full_config, fit, head, seed, weights_from, checkpoint, python)
    commit = None if checkpoint is None else commit_of(checkpoint)
    tokenizer = None if checkpoint is None else _find_tokenizer(model, checkpoint, length, "--weights")
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
        checkpoint_config=full_config if fit.cut and tensors is not None else None,
        length_notes=fit.notes,
        origin=commit and f"{split_revision(weights_from)[0]} at {commit}",
        reference_python=python,
    )


def check_bfloat16(request: GateRequest) -> None:
    """Check that a model that is compared stage by stage is not judged in bfloat16. Raises UserError otherwise."""
    if "bfloat16" in request.dtypes and is_streamed(request):
        raise UserError(
            "--dtype: a model this large is compared stage by stage, in float64 and float32; for bfloat16 take fewer "
            "--layers, or a smaller configuration"
        )


def _default_batch_size(model: str, length: int) -> int:
    """Return the family's default batch size, or fewer texts if they are long.

    Long texts have at most half of :data:`.build.LONG` tokens together, but the batch has at least 2 texts.

    Args:
        model: name of the model family.
        length: number of tokens of each text.
    """
    return min(ported_family(model).defaults.batch_size, max(2, LONG // 2 // length))


def _check_memory(model: str, config: Mapping[str, Any], head: str, length: int, batch_size: int) -> None:
    """Raise UserError if a model does not fit this machine's memory. A model by stages is never held whole.

    Args:
        model: name of the model family.
        config: resolved configuration.
        head: head of the model.
        length: number of tokens of each text.
        batch_size: number of texts.
    """
    resolved_config = part(model, "schema").resolve(config)
    bytes_per_parameter = 0 if ported_family(model).is_compared_by_stages(config, head) else MIN_GATE_PARAMETER_BYTES
    if problem := explain_too_large(model, resolved_config, head, length, batch_size, bytes_per_parameter):
        raise UserError(f"the configuration, --length and --batch-size: {problem}")


def kernel_kinds(kernel_names: str | None) -> list[str]:
    """Return the kinds of kernels in the comma-separated text of ``--kernels``, or all kinds for None.

    Raises UserError for an unknown kind.
    """
    kinds = list(KERNELS) if kernel_names is None else kernel_names.split(",")
    for kind in kinds:
        if kind not in KERNELS:
            raise UserError(
                f"--kernels {kernel_names}: {kind or 'nothing'} is no kind of kernel; there are {', '.join(KERNELS)}"
            )
    return list(dict.fromkeys(kinds))


def trial_requests(options: GateOptions, device: str) -> list[GateRequest]:
    """Return the requests for the small model of the trials, one for each device.

    Raises UsageError for KEY=VALUE pairs, since the configuration of this model is fixed.
    """
    assert options.model is not None and options.weights_from is not None
    if options.overrides:
        message = f"Got unexpected extra argument ({options.overrides[0]})"
        raise click.UsageError(f"{message}: only a --port of yours has a config")
    python = interpreter_of(options.reference_python, "reference")
    return [
        trial_request(options.model, options.weights_from, options.seed, device_name, python, options.dtype)
        for device_name in select_devices(device)
    ]


def make_sweep_request(options: GateOptions, device: str) -> Callable[[int], GateRequest]:
    """Return a function that makes the request for each seed of a sweep.

    The model has a random shape, or it is a checkpoint's model with a random batch. Raises UserError for an option that
    random shapes do not have, and for a model that is too large to be compared as a whole.
    """
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
    first_request = make_request(replace(options, seed=0))
    if is_streamed(first_request):
        raise UserError("a model this large is not compared as a whole; gate it once, with toolkit parity")
    request = replace(first_request, device=device, tokenizer=None)  # its tokens would be the same for every seed
    fixed_keys = [override.partition("=")[0] for override in options.overrides]
    return lambda seed: vary_request(request, seed, fixed_keys)


def make_text_search(
    *, model: str, tokenizer_from: str | None, seed: int, reference_python: str | None, scratch: Path
) -> tuple[GateRequest, TokenizerJob]:
    """Return a request for a model, which is not run, and the tokenizer that is compared on random texts.

    Args:
        model: name of the family.
        tokenizer_from: Hugging Face folder, or ``bytes``; None to train a small tokenizer in ``scratch``.
        seed: seed of the request.
        reference_python: interpreter of the reference; None for this interpreter.
        scratch: folder for a new tokenizer.

    Raises:
        UserError: the folder has no tokenizer of the family.
    """
    request = trial_request(model, "random", seed, reference_python=interpreter_of(reference_python, "reference"))
    if tokenizer_from is None:
        return request, trial_tokenizer(model, scratch)
    for kind in ported_family(model).tokenizers:
        if kind.kind == tokenizer_from and not kind.files:
            return request, TokenizerJob(kind.kind, [], 0, offsets=kind.offsets)
    tokenizer = _find_tokenizer(model, Path(tokenizer_from), 0, "--tokenizer")
    if tokenizer is None:
        raise UserError(f"--tokenizer {tokenizer_from}: is no folder that holds a tokenizer of {model}")
    return request, tokenizer


def _find_tokenizer(model: str, folder: Path, max_length: int, option: str) -> TokenizerJob | None:
    """Return the tokenizer in a checkpoint's folder, with offsets if it has them, or None if there is no tokenizer.

    Args:
        model: name of the model family.
        folder: folder of the checkpoint.
        max_length: maximum number of tokens of a text.
        option: option that names the folder, for errors.
    """
    try:
        tokenizer = tokenizer_in(model, folder, [], max_length, offsets=ported_family(model).tokenizers[0].offsets)
        if tokenizer is not None:
            part(model, "tokenizer").load_tokenizer(folder)
    except ValueError as error:
        raise UserError(f"{option} {folder}: {error}") from None
    return tokenizer


def _resolve_head(model: str, head: str | None) -> str:
    """Return the head that the user chose, or the default head of the model family.

    Args:
        model: name of the model family.
        head: head that the user chose; None for the default.
    """
    heads = part(model, "weights").HEADS
    if head not in (None, *heads):
        raise UserError(f"--head {head}: {model} has {', '.join(heads)}")
    return head or ported_family(model).defaults.head


def make_configuration(
    model: str, head: str, attention: str, layers: int | None, length: int, overrides: Sequence[str], weights_from: str
) -> tuple[dict[str, Any], Fit]:
    """Return the keys of the configuration, and the length of the compared texts with the keys that it requires.

    The configuration is a checkpoint's own, or the family's synthetic layout, with overrides.

    Args:
        model: name of the family.
        head: head of the model.
        attention: kind of attention of a synthetic layout.
        layers: number of layers of a synthetic layout; None for the default.
        length: smallest number of tokens of a text.
        overrides: ``KEY=VALUE`` pairs.
        weights_from: kind of synthetic weights, Hugging Face folder or hub id.

    Raises:
        UserError: the configuration or the length is invalid, or the checkpoint cannot be read.
    """
    model_family, is_synthetic = ported_family(model), weights_from in KINDS
    if is_synthetic:
        config = model_family.make_synthetic_config(head, attention, layers or model_family.defaults.layers, length)
    else:
        silence_startup()  # the configuration's class imports Paddle
        runtime.configure_paddle("cpu")
        try:
            config = part(model, "config").CONFIG_CLASS.from_pretrained(_resolve_checkpoint(weights_from)).to_hf()
        except (OSError, ValueError) as error:  # a file that is missing or invalid
            raise UserError(f"--weights {weights_from}: {error}") from None
        if layers is not None:
            raise UserError("--layers: the checkpoint has its own; remove it, or take --weights random")
    config = model_family.with_head(config, head)
    config.update(parse_pairs(overrides, model_family.example))
    try:
        resolved_config = part(model, "schema").resolve(config)
        fit = part(model, "lengths").fit(resolved_config, length, config if is_synthetic else None)
    except LengthError as error:
        raise UserError(f"--length {length}: {error.key}: {error.advice({LENGTH: '--length'}, '')}") from None
    except ConfigError as error:
        raise UserError(str(error)) from None
    if is_synthetic:
        config.update({key: value for key, value in model_family.keys_of_length(fit.length).items() if key in fit.keys})
    return {**fit.keys, **config}, fit


def _resolve_checkpoint(weights_from: str) -> Path | None:
    """Return the Hugging Face folder of the checkpoint of ``--weights``, or None for synthetic weights."""
    if weights_from in KINDS:
        return None
    try:
        local_path = Path(weights_from)
        is_file = local_path.suffix == PADDLE_ENDING
        return get_hf_folder(local_path if is_file else resolve_folder(*split_revision(weights_from)))
    except (OSError, ValueError) as error:
        raise UserError(f"--weights {weights_from}: {error}") from None


def load_weights(
    model: str,
    config: Mapping[str, Any],
    fit: Fit,
    head: str,
    seed: int,
    weights_from: str,
    checkpoint: Path | None,
    python: str | None,
) -> tuple[Mapping[str, np.ndarray], Path | None]:
    """Return the weights of the model, and the folder of a checkpoint's safetensors.

    The weights are synthetic, or a checkpoint's weights with randomly initialized weights for a head that it lacks. The
    folder is None for synthetic weights.

    Args:
        model: name of the family.
        config: configuration of the whole model.
        fit: compared length, with the positions that it needs.
        head: head of the model.
        seed: seed of random weights.
        weights_from: value of ``--weights``.
        checkpoint: folder of the checkpoint; None for synthetic weights.
        python: interpreter with torch, for a pickled checkpoint; None for this interpreter.
    """
    resolved_config = part(model, "schema").resolve(config)
    if checkpoint is None:
        return SyntheticWeights({**resolved_config, **fit.cut}, head, seed, weights_from, model), None
    weights_module = part(model, "weights")
    try:
        folder = safetensors_folder(checkpoint, python)
        stored_weights = weights_module.select(stored_tensors(folder), resolved_config, head)
    except (OSError, ValueError) as error:  # a file, or tensors that do not fit
        raise UserError(f"--weights {weights_from}: {error}") from None
    table = weights_module.parameters(resolved_config, head)
    missing = {name: parameter for name, parameter in table.items() if name not in stored_weights}
    standard_deviations = weights_module.standard_deviations(resolved_config)
    all_weights = {**stored_weights, **dict(draw_values(missing, standard_deviations, seed))}
    return part(model, "positions").cut_weights(all_weights, fit.cut) if fit.cut else all_weights, folder


def select_devices(device: str) -> list[str]:
    """Return the devices to run on: ``all`` is the CPU, and the GPU if Paddle has one.

    Raises UserError if a GPU was requested and there is none.
    """
    if device == "cpu":
        return ["cpu"]
    configured_device = runtime.configure_paddle("auto" if device == "all" else device)
    return ["cpu", "gpu"][: 1 + (configured_device == "gpu")] if device == "all" else [configured_device]
