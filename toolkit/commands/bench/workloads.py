"""The workloads of the command line: a configuration for a length and a depth, with weights and a batch on disk."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.families import part
from models.files.tensor_file import write_tensors
from models.port.lengths import LengthError
from models.port.schema import ConfigError
from toolkit.commands.bench.workload import TEXTS, TOKENIZER, Work, Workload
from toolkit.errors import UserError
from toolkit.parity import SyntheticWeights
from toolkit.recipe.yaml_source import parse_pairs

#: Reformers as they are trained on a CPU: local and LSH attention alternate.
REFORMER = {
    "hidden_size": 256,
    "num_attention_heads": 4,
    "attention_head_size": 64,
    "feed_forward_size": 512,
    "axial_pos_embds_dim": [64, 192],
    "hidden_dropout_prob": 0.05,
    "local_attention_probs_dropout_prob": 0.05,
    "lsh_attention_probs_dropout_prob": 0.05,
    "vocab_size": 320,
}
#: A small CTRL; its shape at full width is n_embd=1280 dff=8192 n_layer=48 vocab_size=246534.
CTRL = {"n_embd": 320, "n_head": 4, "dff": 1280, "vocab_size": 5000, "pad_token_id": 0}
#: By family: head, layers, batch size, tokens.
DEFAULTS = {"reformer": ("sequence_classification", 6, 4, 1024), "ctrl": ("causal_lm", 4, 4, 128)}
#: Vocabulary sizes of the tokenizers trained for a measurement; Reformer's is that of the published one.
VOCAB_SIZE = {"reformer": 320, "ctrl": 2000}
SEED = 0


def make_workload(
    folder: Path,
    *,
    model: str,
    layers: int | None,
    length: int | None,
    batch_size: int | None,
    work: Work,
    new_tokens: int,
    threads: int,
    backward: str,
    overrides: Sequence[str],
) -> Workload:
    """Make the workload of the options; write its weights and batch to ``folder``.

    Raises:
        UserError: the configuration is impossible.
    """
    head, depth, rows, tokens = DEFAULTS[model]
    generates = work in ("generate", "generate-without-cache")
    if generates and model != "ctrl":
        raise UserError(f"--work {work}: is for ctrl, which keeps the keys and values of earlier tokens")
    layers, length = layers or depth, length or tokens
    rows = 1 if generates else batch_size or rows
    config, length = _configuration(model, layers, length, new_tokens if generates else 0, overrides)
    if work == "tokenize":
        texts = _write_texts(folder, model)
        return Workload(model, head, config, rows, length, work, 0, threads, backward, str(folder), texts)
    write_tensors(folder / "weights.safetensors", dict(SyntheticWeights(config, head, SEED, "random", model)))
    write_tensors(folder / "batch.safetensors", _batch(config, head, rows, length))
    return Workload(model, head, config, rows, length, work, new_tokens, threads, backward, str(folder))


def _configuration(
    model: str, layers: int, length: int, more: int, overrides: Sequence[str]
) -> tuple[dict[str, Any], int]:
    """Return the resolved configuration for ``length`` tokens and ``more`` new ones, and the length that fits it."""
    config: dict[str, Any]
    if model == "reformer":
        config = {**REFORMER, "attn_layers": ["local" if layer % 2 == 0 else "lsh" for layer in range(layers)]}
    else:
        config = {**CTRL, "n_layer": layers, "n_positions": max(256, length + more)}
    config.update(parse_pairs(overrides, "hidden_dropout_prob=0"))
    try:
        schema = part(model, "schema")
        fit = part(model, "lengths").fit(schema.resolve(config), length, config)
        if "max_position_embeddings" in fit.keys:
            config["max_position_embeddings"] = fit.length
        return schema.resolve({**fit.keys, **config}), fit.length
    except LengthError as problem:
        raise UserError(f"--length {length}: {problem}") from None
    except ConfigError as problem:
        raise UserError(str(problem)) from None


def _write_texts(folder: Path, model: str) -> int:
    """Write the sections of the Python Language Reference, and a tokenizer trained on them in the files that
    ``AutoTokenizer`` reads; return the number of texts."""
    from toolkit.tasks.corpora import python_docs

    texts = [text for text, _ in python_docs.sections()]
    module = part(model, "tokenizer")
    (folder / "trained").mkdir()
    if model == "ctrl":
        module.train_bpe(texts, VOCAB_SIZE[model], folder / "trained", [])
    else:
        module.train_sentencepiece(texts, VOCAB_SIZE[model], folder / "trained")
    (folder / TOKENIZER).mkdir()
    module.load_tokenizer(folder / "trained").save(folder / TOKENIZER)
    (folder / TEXTS).write_text(json.dumps(texts), encoding="utf-8")
    return len(texts)


def _batch(config: dict[str, Any], head: str, rows: int, length: int) -> dict[str, np.ndarray]:
    """Draw texts without padding, and their labels."""
    draw = np.random.default_rng(SEED)
    tokens = draw.integers(1, config["vocab_size"], (rows, length))
    labels = draw.integers(0, config["num_labels"] or 2, rows) if head == "sequence_classification" else tokens
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "labels": labels}
