"""The gate on trial: every fault of the catalogue must be caught and named, no right port stopped."""

from __future__ import annotations

import pydoc_data.topics
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from models.families import part
from toolkit.parity import bundle, doubt, trace
from toolkit.parity.culprit import first_at_fault
from toolkit.parity.gate import workers_of, write_job
from toolkit.parity.mutants import CATALOGUES, Mutant
from toolkit.parity.report import short_name
from toolkit.parity.request import OPTIMIZER, GateRequest
from toolkit.parity.stress import KINDS, StressWeights, random_batch, stir
from toolkit.parity.verdict import Verdict, judge
from toolkit.parity.workers import run_workers

#: A model in which each fault of the catalogue shows: square matrices, two hash rounds, more chunks than neighbours,
#: dropout everywhere, and an activation that does not commute with it.
REFORMER_TRIAL = {
    "attn_layers": ["local", "lsh", "local", "lsh"],
    "hidden_size": 32,
    "num_attention_heads": 2,
    "attention_head_size": 16,
    "feed_forward_size": 48,
    "axial_pos_shape": [8, 16],
    "axial_pos_embds_dim": [8, 24],
    "max_position_embeddings": 128,
    "local_attn_chunk_length": 16,
    "lsh_attn_chunk_length": 16,
    "num_hashes": 2,
    "hidden_act": "gelu",
    "hidden_dropout_prob": 0.1,
    "local_attention_probs_dropout_prob": 0.1,
    "lsh_attention_probs_dropout_prob": 0.1,
    "vocab_size": 64,
    "num_labels": 3,
}


#: Likewise of CTRL: square matrices in attention, and an epsilon of the last norm that is not that of the others.
CTRL_TRIAL = {
    "n_embd": 32,
    "n_head": 4,
    "dff": 48,
    "n_layer": 3,
    "n_positions": 64,
    "vocab_size": 96,
    "layer_norm_epsilon": 1e-5,
    "initializer_range": 0.1,
    "pad_token_id": 0,
}
#: Gates of a sweep that two processes do one after another, before they are shown.
AT_A_TIME = 20
#: By family: configuration, head, length.
TRIALS = {
    "reformer": (REFORMER_TRIAL, "sequence_classification", 128),
    "ctrl": (CTRL_TRIAL, "causal_lm", 48),
}


def trial_request(
    model: str, kind: str, seed: int, device: str = "cpu", reference_python: str | None = None
) -> GateRequest:
    """The gate on a family's :data:`TRIALS`: weights of a ``kind`` of :mod:`.stress`, a batch with much padding, an
    optimizer that decays visibly and clips each update."""
    config, head, length = TRIALS[model]
    return GateRequest(
        model=model,
        head=head,
        config=config,
        weights=StressWeights(part(model, "schema").resolve(config), head, seed, kind, model),
        batch=random_batch(config, head, 3, length, seed, model),
        dtypes=("float64",),
        device=device,
        seed=seed,
        optimizer={**OPTIMIZER, "weight_decay": 0.1, "max_grad_norm": 0.001},
        reference_python=reference_python,
    )


def trial_tokenizer(model: str, folder: Path) -> dict[str, Any]:
    """A small tokenizer of the family, learnt from text that comes with Python, and that text; it is left in
    ``folder``."""
    texts = list(pydoc_data.topics.topics.values())[:20]
    tokenizer = part(model, "tokenizer")
    if model == "reformer":
        tokenizer.train_sentencepiece(texts, 300, folder)
        spec = {"kind": "sentencepiece", "path": str(folder / tokenizer.MODEL_FILE), "offsets": True}
    else:
        tokenizer.train_bpe(texts, 400, folder)
        spec = {"kind": "ctrl", "path": str(folder)}
    return {**spec, "texts": texts, "max_length": 256}


@dataclass(frozen=True)
class Trial:
    """What the gate made of one mutant.

    Attributes:
        caught: whether anything was found.
        culprit: what it named, empty where nothing was found.
        verdict: by which verdict.
        margin: the culprit's error in units of its bound; None where it is no matter of size.
        operation: the first operation that is wrong by itself, with its line (see :mod:`.trace`); empty where there is
            none, None where no tensor of the step differs.
    """

    mutant: Mutant
    caught: bool
    culprit: str
    verdict: str
    margin: float | None
    operation: str | None = None

    @property
    def named(self) -> bool:
        if self.verdict == "structure" and self.operation is None:  # an epsilon, beside a variance of a million
            return self.mutant.expected in self.culprit
        return self.mutant.expected in self.culprit and self.mutant.operation in (self.operation or "")

    @property
    def passed(self) -> bool:
        """A fault must be caught and named; a harmless change must not be caught."""
        return not self.caught if self.mutant.harmless else self.caught and self.named


def try_mutants(request: GateRequest, console: Console, names: Sequence[str] | None = None) -> list[Trial]:
    """Run the gate once for each mutant of the catalogue (or those of ``names``), all on the same reference run."""
    mutants = [mutant for mutant in CATALOGUES[request.model] if names is None or mutant.name in names]
    with tempfile.TemporaryDirectory(prefix="mutants-") as scratch:
        job = Path(scratch) / "job"
        job.mkdir()
        if any(mutant.tokenizer for mutant in mutants):
            request = replace(request, tokenizer=trial_tokenizer(request.model, Path(scratch) / "tokenizer"))
        write_job(request, request.weights, job, [mutant.name for mutant in mutants])
        run_workers([job], console, workers_of(request))
        reference = bundle.read_json(job / "reference" / "result.json")
        candidate = bundle.read_json(job / "candidate" / "result.json")
        [(yardsticks, followed)] = trace.measure([job], console, workers_of(request))
        verdicts = {mutant.name: _verdict_on(mutant, reference, candidate) for mutant in mutants}
        if doubtful := [name for name, one in verdicts.items() if one is not None and doubt.is_doubtful(one)]:
            [more] = doubt.measure_again([job], console, workers_of(request)["reference"])
            settled = doubt.with_more_runs(reference, more)
            verdicts |= {m.name: _verdict_on(m, settled, candidate) for m in mutants if m.name in doubtful}
    order = list(reference["tensors"])
    return [
        _trial(mutant, verdicts[mutant.name], order, candidate, yardsticks, followed["mutants"][mutant.name])
        for mutant in mutants
    ]


def _verdict_on(mutant: Mutant, reference: dict, candidate: dict) -> Verdict | None:
    """None where the port did not get through the step with it."""
    measured = candidate["mutants"][mutant.name]
    others = {"dtypes": {}, "tokens": candidate["tokens"]}  # what is right is not judged again
    return None if "raised" in measured else judge(reference, {**candidate, **others, **measured})


def _trial(
    mutant: Mutant, verdict: Verdict | None, order: list[str], candidate: dict, yardsticks: dict, followed: dict
) -> Trial:
    if verdict is None:
        return Trial(mutant, True, candidate["mutants"][mutant.name]["raised"], "raised", None)
    culprit = first_at_fault(verdict, order)
    if culprit is None:
        return Trial(mutant, False, "", "", None)
    margins = {comparison.name: comparison.margin for comparison in verdict.comparisons}
    label = f"replay:{culprit.name}" if culprit.verdict == "replay" else culprit.name
    operation = None
    if trace.is_wanted(verdict):
        guilty = trace.summary(yardsticks, followed)["guilty"]
        operation = f"{guilty[0]['name']} {guilty[0]['where']}" if guilty else ""
    return Trial(mutant, True, label, culprit.verdict, margins.get(culprit.name), operation)


def sweep(model: str, count: int, first_seed: int, console: Console, reference_python: str | None = None) -> list[int]:
    """Gate ``count`` right ports of random shapes, heads and weights, and follow each; returns the seeds of those that
    were stopped, or of which an operation was said to be wrong."""
    alarms = []
    seeds = range(first_seed, first_seed + count)
    for some in (seeds[start : start + AT_A_TIME] for start in range(0, count, AT_A_TIME)):
        requests = {seed: replace(RANDOM[model](seed), reference_python=reference_python) for seed in some}
        judged = judge_all(list(requests.values()), console)
        for (seed, request), (verdict, followed) in zip(requests.items(), judged, strict=True):
            config = ", ".join(f"{key} {request.config[key]}" for key in SWEPT[model])
            wrong = [f"{one.name}: {one.message}" for one in verdict.findings]
            wrong += [trace.Guilty(**one).text() for one in followed["guilty"]]
            outcome = f"[red]ALARM[/] {escape(wrong[0])}" if wrong else "right"
            worst = max(comparison.margin for comparison in verdict.comparisons if comparison.informative)
            nearest = f"nearest {worst:.2f} of its bound, an operation by itself {followed['worst']:.2f}"
            console.print(f"{seed}: {outcome}, {nearest}; {config}", highlight=False, soft_wrap=True)
            if wrong:
                alarms.append(seed)
    console.print(f"{len(alarms)} false alarms in {count} gates", highlight=False)
    return alarms


def judge_all(requests: Sequence[GateRequest], console: Console) -> list[tuple[Verdict, dict[str, Any]]]:
    """The verdicts of many gates, whose jobs two processes do one after another, and what :func:`.trace.summary` says
    of each."""
    with tempfile.TemporaryDirectory(prefix="sweep-") as scratch:
        jobs = [Path(scratch, str(number)) for number in range(len(requests))]
        for request, job in zip(requests, jobs, strict=True):
            job.mkdir()
            write_job(request, stir(request.weights, request.seed)[0], job)
        run_workers(jobs, console, workers_of(requests[0]))
        references, candidates = (
            [bundle.read_json(job / side / "result.json") for job in jobs] for side in ("reference", "candidate")
        )
        first = [judge(*results) for results in zip(references, candidates, strict=True)]
        python = workers_of(requests[0])["reference"]
        references = doubt.settle(jobs, list(zip(references, first, strict=True)), console, python)
        followed = trace.measure(jobs, console, workers_of(requests[0]))
        return [
            (judge(reference, candidate), trace.summary(yardsticks, traced["dtypes"]))
            for reference, candidate, (yardsticks, traced) in zip(references, candidates, followed, strict=True)
        ]


#: What varies most from gate to gate in a sweep, for the line that reports it.
SWEPT = {
    "reformer": ("attn_layers", "hidden_size", "axial_pos_shape", "num_hashes", "hidden_dropout_prob"),
    "ctrl": ("n_layer", "n_embd", "n_head", "dff", "resid_pdrop"),
}


def random_reformer(seed: int) -> GateRequest:
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
        "num_hashes": one_of(1, 2, 4),
        "hidden_dropout_prob": one_of(0.0, 0.05, 0.3),
        "local_attention_probs_dropout_prob": one_of(0.0, 0.1),
        "lsh_attention_probs_dropout_prob": one_of(0.0, 0.1),
        "hidden_act": one_of("relu", "gelu", "gelu_new", "silu"),
        "is_decoder": head == "causal_lm",
        "vocab_size": one_of(32, 320),
        "num_labels": 2 if head == "question_answering" else one_of(2, 7),
    }
    return _request("reformer", head, config, shape[0] * shape[1], seed, one_of)


def random_ctrl(seed: int) -> GateRequest:
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
        "embd_pdrop": one_of(0.0, 0.1),
        "resid_pdrop": one_of(0.0, 0.1, 0.3),
        "layer_norm_epsilon": one_of(1e-6, 1e-5),
        "initializer_range": one_of(0.02, 0.2),
        "tie_word_embeddings": one_of(True, True, False),
        "num_labels": one_of(2, 7),
        "pad_token_id": 0,
    }
    return _request("ctrl", head, config, one_of(8, 33, 128), seed, one_of)


RANDOM = {"reformer": random_reformer, "ctrl": random_ctrl}


def _chooser(seed: int) -> tuple[Callable[..., Any], np.random.Generator]:
    """A function that picks one of its arguments, and the generator behind it."""
    draw = np.random.default_rng(seed)
    return (lambda *values: values[draw.integers(len(values))]), draw


def _request(
    model: str, head: str, config: dict[str, Any], length: int, seed: int, one_of: Callable[..., Any]
) -> GateRequest:
    resolved = part(model, "schema").resolve(config)
    return GateRequest(
        model=model,
        head=head,
        config=config,
        weights=StressWeights(resolved, head, seed, one_of(*KINDS), model),
        batch=random_batch(config, head, one_of(1, 2, 4), length, seed, model),
        seed=seed,
    )


def _to_be_named(mutant: Mutant) -> str:
    return "nothing" if mutant.harmless else " and ".join(filter(None, (mutant.expected, mutant.operation)))


def print_trials(trials: Sequence[Trial], console: Console) -> None:
    """A row for each mutant, then the score."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("mutant", "caught", "by", "named", "wrong by itself"):
        table.add_column(title, overflow="fold")
    table.add_column("error / bound", justify="right")
    for trial in trials:
        outcome = "harmless" if trial.mutant.harmless and not trial.caught else "yes" if trial.caught else "NO"
        margin = "" if trial.margin is None else f"{trial.margin:.1e}"
        name = short_name(trial.culprit) if trial.culprit else trial.mutant.harmless
        style = "" if trial.passed else "red"
        if trial.caught and not trial.passed:
            name += f", not {_to_be_named(trial.mutant)}"
        operation = escape(short_name(trial.operation or ""))
        table.add_row(trial.mutant.name, outcome, trial.verdict, escape(name), operation, margin, style=style)
    console.print(table)
    faults = [trial for trial in trials if not trial.mutant.harmless]
    harmless = [trial for trial in trials if trial.mutant.harmless]
    console.print(
        f"{sum(t.caught for t in faults)} of {len(faults)} faults caught, {sum(t.passed for t in faults)} named; "
        f"{sum(t.passed for t in harmless)} of {len(harmless)} harmless changes passed; "
        f"of {sum(t.mutant.operation != '' for t in faults)} the operation is known and was to be named, too",
        highlight=False,
    )
