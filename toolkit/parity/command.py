"""`toolkit parity`: the gate on a model of any size with weights of any kind, without a recipe or a data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from rich.console import Console

from models.hub import read_tensors, resolve_folder
from models.reformer import schema, weights
from toolkit import runtime
from toolkit.errors import UserError
from toolkit.parity.gate import GateRequest, run_gate
from toolkit.parity.judging import print_trials, sweep, trial_request, try_mutants
from toolkit.parity.stress import KINDS, random_batch, stress_weights

#: The layout of google/reformer-crime-and-punishment, with every kind of dropout switched on.
BASE = {
    "hidden_size": 256,
    "num_attention_heads": 2,
    "attention_head_size": 64,
    "feed_forward_size": 512,
    "axial_pos_embds_dim": [64, 192],
    "hidden_dropout_prob": 0.05,
    "local_attention_probs_dropout_prob": 0.05,
    "lsh_attention_probs_dropout_prob": 0.05,
}
ATTENTION = {"local": ["local"], "lsh": ["lsh"], "mixed": ["local", "lsh"]}


def command(
    *,
    dtype: str,
    device: str,
    head: str,
    attention: str,
    layers: int,
    length: int,
    batch_size: int,
    weights_from: str,
    seed: int,
    output: Path,
    overrides: Sequence[str],
    reference_reversible: bool,
    mutants: bool,
    sweeps: int | None,
    console: Console,
) -> int:
    """Run the gate on each device, or put the gate itself on trial; returns the exit status, the worst of them.

    Raises:
        UserError: a configuration that cannot be, weights that do not fit, a device that is not there.
    """
    if sweeps is not None:
        return int(bool(sweep(sweeps, seed, console)))
    if mutants:
        return max(_try_mutants(weights_from, seed, place, console) for place in devices(device))
    dtypes = ("float64", "float32") if dtype == "both" else (dtype,)
    config = configuration(head, attention, layers, length, overrides, weights_from)
    status = 0
    for place in devices(device):
        request = GateRequest(
            model="reformer",
            head=head,
            config=config,
            weights=chosen_weights(config, head, seed, weights_from),
            batch=random_batch(config, head, batch_size, length, seed),
            dtypes=dtypes,
            device=place,
            seed=seed,
            judge_reference_reversible=reference_reversible,
        )
        status = max(status, run_gate(request, output / place, console).exit_status)
    return status


def _try_mutants(kind: str, seed: int, device: str, console: Console) -> int:
    if kind not in KINDS:
        raise UserError(f"--mutants: runs on weights of its own, --weights {', '.join(KINDS)}; not {kind}")
    trials = try_mutants(trial_request(kind, seed, device), console)
    print_trials(trials, console)
    return int(not all(trial.passed for trial in trials))


def configuration(
    head: str, attention: str, layers: int, length: int, overrides: Sequence[str], weights_from: str
) -> dict[str, Any]:
    """Configuration keys: a checkpoint's own, else :data:`BASE` for ``length`` tokens, with overrides on top."""
    kinds = ATTENTION[attention]
    rows = next(f for f in range(int(length**0.5), 0, -1) if length % f == 0)
    config = {
        **BASE,
        "attn_layers": [kinds[index % len(kinds)] for index in range(layers)],
        "axial_pos_shape": [rows, length // rows],
        "max_position_embeddings": length,
    }
    if weights_from not in KINDS:
        from models.reformer.config import ReformerConfig

        try:
            config = ReformerConfig.from_pretrained(weights_from).to_hf()
        except (FileNotFoundError, schema.ConfigError) as error:
            raise UserError(f"--weights {weights_from}: {error}") from None
    config["is_decoder"] = head == "causal_lm"
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise UserError(f"{override}: expected KEY=VALUE, for example num_hashes=4")
        config[key] = yaml.safe_load(value)
    try:
        resolved = schema.resolve(config)
        schema.check_training_length(resolved, length)
    except schema.ConfigError as error:
        raise UserError(str(error)) from None
    return config


def chosen_weights(config: Mapping[str, Any], head: str, seed: int, weights_from: str) -> dict[str, np.ndarray]:
    """Weights of one of the kinds of :mod:`.stress`, or a checkpoint's (a head that it lacks gets new ones)."""
    resolved = schema.resolve(config)
    if weights_from in KINDS:
        return stress_weights(resolved, head, seed, weights_from)
    try:
        found = weights.select(read_tensors(resolve_folder(weights_from)), resolved, head)
    except (FileNotFoundError, weights.WeightsError) as error:
        raise UserError(f"--weights {weights_from}: {error}") from None
    return {**weights.initial_weights(resolved, head, seed), **found}


def devices(wanted: str) -> list[str]:
    """The devices to run on: ``all`` is the CPU, and the GPU where Paddle sees one.

    Raises:
        UserError: a GPU was asked for by name and there is none.
    """
    if wanted == "cpu":
        return ["cpu"]
    found = runtime.configure("auto" if wanted == "all" else wanted)
    return ["cpu", "gpu"][: 1 + (found == "gpu")] if wanted == "all" else [found]
