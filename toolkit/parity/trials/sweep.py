"""Right ports, none of which the gate may stop: of random shapes and weights, or a checkpoint's on random batches.

The specification's "How the gate is tried": false alarms.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from rich.console import Console
from rich.text import Text

from models.families import part
from toolkit.parity.followup import trace
from toolkit.parity.followup.remeasure import remeasure
from toolkit.parity.followup.trace import OperationTrace
from toolkit.parity.job.build import workers_of, write_request
from toolkit.parity.job.job import TrainingSettings
from toolkit.parity.job.processes import run_workers
from toolkit.parity.job.request import GateRequest
from toolkit.parity.job.results import read_results
from toolkit.parity.job.synthetic import KINDS, SyntheticWeights, random_batch, randomize_constants
from toolkit.parity.judge.verdict import Verdict, judge
from toolkit.scratch import scratch_folder

#: Gates of a sweep that two processes do one after another, before they are shown.
AT_A_TIME = 20
#: What varies most from gate to gate in a sweep, for the line that reports it.
SHOWN = {
    "reformer": ("attn_layers", "hidden_size", "axial_pos_shape", "num_hashes", "hidden_dropout_prob"),
    "ctrl": ("n_layer", "n_embd", "n_head", "dff", "resid_pdrop"),
}
#: What varies of any model, whatever its parameters.
VARIED = {
    "reformer": {
        "num_hashes": (1, 2, 4),
        "hidden_dropout_prob": (0.0, 0.05, 0.3),
        "local_attention_probs_dropout_prob": (0.0, 0.1),
        "lsh_attention_probs_dropout_prob": (0.0, 0.1),
    },
    "ctrl": {"embd_pdrop": (0.0, 0.1), "resid_pdrop": (0.0, 0.1, 0.3)},
}
#: Settings of the port, and how a run changes the parameters.
PORT: dict[str, dict[str, tuple]] = {
    "reformer": {"backward": ("reversible", "autograd"), "residual": ("wide", "plain")},
    "ctrl": {"recompute": (False, True)},
}
TRAINING: dict[str, tuple] = {
    "max_steps": (2, 12, 700),
    "batch_size": (1, 2),
    "gradient_accumulation_steps": (1, 2, 4),
    "lr_scheduler": ("linear", "cosine", "constant"),
    "warmup_ratio": (0.0, 0.1, 0.3),
    "weight_decay": (0.0, 0.01, 0.3),
    "max_grad_norm": (None, 1.0, 0.01),
}
BATCH_SIZES = (1, 2, 5)


class Gates(Protocol):
    """How right ports are judged, and what varies among them."""

    def judge_all(self, requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
        """As :func:`judge_all`."""

    def shown(self, request: GateRequest) -> str:
        """What varies, for the line that reports it."""


def sweep(
    make: Callable[[int], GateRequest], seeds: Sequence[int], console: Console, gates: Gates | None = None
) -> list[int]:
    """Gate the right port that ``make`` makes of each seed, and trace it to the operation.

    Args:
        gates: of a pair of the user's.

    Returns:
        The seeds of those that were stopped, or of which an operation was said to be wrong.
    """
    alarms, unmeasured = [], 0
    shown = gates.shown if gates else _shown
    for some in (seeds[start : start + AT_A_TIME] for start in range(0, len(seeds), AT_A_TIME)):
        requests = {seed: make(seed) for seed in some}
        judged = (gates.judge_all if gates else judge_all)(list(requests.values()), console)
        for (seed, request), (verdict, traced) in zip(requests.items(), judged, strict=True):
            wrong = [f"{one.name}: {one.message}" for one in verdict.findings]
            wrong += [one.text() for one in traced.faulty]
            outcome = [("ALARM", "red"), f" {wrong[0]}"] if wrong else ["right"]
            if verdict.inconclusive and not traced.faulty:
                outcome, wrong = [f"not to be measured: {wrong[0]}"], []
                unmeasured += 1
            worst = max(comparison.margin for comparison in verdict.comparisons if comparison.informative)
            nearest = f"nearest {worst:.2f} of its bound, an operation by itself {traced.worst:.2f}"
            console.print(Text.assemble(f"{seed}: ", *outcome, f", {nearest}; {shown(request)}"), soft_wrap=True)
            if wrong:
                alarms.append(seed)
    beside = f" ({unmeasured} of which the reference's own float64 is noise, and none is to pass)" if unmeasured else ""
    console.print(f"{len(alarms)} false alarms in {len(seeds)} gates{beside}", highlight=False)
    return alarms


def _shown(request: GateRequest) -> str:
    kind = getattr(request.weights, "kind", "given")
    settings = [f"{key} {value}" for key, value in request.port.items()]
    return ", ".join([f"{kind} weights", *(f"{key} {request.config[key]}" for key in SHOWN[request.model]), *settings])


def judge_all(requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, OperationTrace]]:
    """The verdicts of many gates, whose jobs two processes do one after another, and the operation trace of each."""
    workers = workers_of(requests[0])
    with scratch_folder("sweep-") as scratch:
        jobs = [scratch / str(number) for number in range(len(requests))]
        for request, job in zip(requests, jobs, strict=True):
            write_request(request, randomize_constants(request.weights, request.seed)[0], job)
        return judge_jobs(jobs, console, workers)


def judge_jobs(
    jobs: Sequence[Path], console: Console, workers: Mapping[str, str]
) -> list[tuple[Verdict, OperationTrace]]:
    """As :func:`judge_all`, of job folders that are filled."""
    run_workers(jobs, console, workers)
    results = [read_results(job) for job in jobs]
    first = [(reference, judge(reference, candidate)) for reference, candidate in results]
    references = remeasure(jobs, first, console, workers["reference"])
    traced = trace.measure(jobs, console, workers)
    return [
        (judge(reference, candidate), trace.summary(records, forced.dtypes))
        for reference, (_, candidate), (records, forced) in zip(references, results, traced, strict=True)
    ]


def varied(request: GateRequest, seed: int, fixed: Collection[str] = ()) -> GateRequest:
    """The same model with the same parameters on another batch, with other draws, dropout rates and hash rounds.

    Args:
        fixed: keys of the configuration that stay.
    """
    one_of, _ = _chooser(seed)
    drawn = {key: value for key, value in _varied(request.model, one_of).items() if key not in fixed}
    config = {**request.config, **drawn}
    length = request.batch["input_ids"].shape[1]
    batch = random_batch(config, request.head, one_of(*BATCH_SIZES), length, seed, request.model)
    return replace(request, config=config, batch=batch, seed=seed)


def random_reformer(seed: int, kind: str | None = None) -> GateRequest:
    """A right port of a random shape: depth, width, length, chunks, hash rounds, dropout, head and kind of weights."""
    one_of, draw = _chooser(seed)
    head = one_of(*part("reformer", "weights").HEADS)
    chunk, heads, size = one_of(8, 16, 32), one_of(1, 2, 3), one_of(8, 16, 24)
    hidden = one_of(24, 32, 64)
    shape = [chunk, one_of(1, 2, 4, 8)]
    config = {
        "attn_layers": [one_of("local", "lsh") for _ in range(one_of(1, 2, 3, 4, 8))],
        "hidden_size": hidden,
        "num_attention_heads": heads,
        "attention_head_size": size,
        "feed_forward_size": one_of(16, 48, 128),
        "axial_pos_embds": bool(draw.integers(4)),
        "axial_pos_shape": shape,
        "axial_pos_embds_dim": [8, hidden - 8],
        "max_position_embeddings": shape[0] * shape[1],
        "local_attn_chunk_length": chunk,
        "lsh_attn_chunk_length": one_of(chunk, 2 * chunk) if shape[1] % 2 == 0 else chunk,
        "local_num_chunks_after": 0 if head == "causal_lm" else one_of(0, 1),
        "lsh_num_chunks_after": 0 if head == "causal_lm" else one_of(0, 1),
        **_varied("reformer", one_of),
        "hidden_act": one_of("relu", "gelu", "gelu_new", "silu"),
        "is_decoder": head == "causal_lm",
        "vocab_size": one_of(32, 320),
        "num_labels": 2 if head == "question_answering" else one_of(2, 7),
    }
    return _request("reformer", head, config, shape[0] * shape[1], seed, kind, one_of)


def random_ctrl(seed: int, kind: str | None = None) -> GateRequest:
    """A right port of a random shape: depth, width, heads, length, dropout, tied or not, head and kind of weights."""
    one_of, _ = _chooser(seed)
    head = one_of(*part("ctrl", "weights").HEADS)
    heads = one_of(1, 2, 4)
    config = {
        "n_embd": heads * one_of(8, 16, 24),
        "n_head": heads,
        "dff": one_of(16, 48, 128),
        "n_layer": one_of(1, 2, 3, 6),
        "n_positions": 128,
        "vocab_size": one_of(32, 320),
        **_varied("ctrl", one_of),
        "layer_norm_epsilon": one_of(1e-6, 1e-5),
        "initializer_range": one_of(0.02, 0.2),
        "tie_word_embeddings": one_of(True, True, False),
        "num_labels": one_of(2, 7),
        "pad_token_id": 0,
    }
    return _request("ctrl", head, config, one_of(8, 33, 128), seed, kind, one_of)


RANDOM = {"reformer": random_reformer, "ctrl": random_ctrl}


def _chooser(seed: int) -> tuple[Callable[..., Any], np.random.Generator]:
    """A function that picks one of its arguments, and the generator behind it."""
    draw = np.random.default_rng(seed)
    return (lambda *values: values[draw.integers(len(values))]), draw


def _varied(model: str, one_of: Callable[..., Any]) -> dict[str, Any]:
    """A choice of each of :data:`VARIED`."""
    return _choices(VARIED[model], one_of)


def _choices(values: Mapping[str, tuple], one_of: Callable[..., Any]) -> dict[str, Any]:
    return {key: one_of(*several) for key, several in values.items()}


def _request(
    model: str,
    head: str,
    config: dict[str, Any],
    length: int,
    seed: int,
    kind: str | None,
    one_of: Callable[..., Any],
) -> GateRequest:
    drawn = one_of(*KINDS)  # whether it is wanted or not: a seed has the same shape with weights of any kind
    resolved = part(model, "schema").resolve(config)
    return GateRequest(
        model=model,
        head=head,
        config=config,
        weights=SyntheticWeights(resolved, head, seed, kind or drawn, model),
        batch=random_batch(config, head, one_of(*BATCH_SIZES), length, seed, model),
        seed=seed,
        port=_choices(PORT[model], one_of),
        training=TrainingSettings(**_choices(TRAINING, one_of)),
    )
