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
from toolkit.commands.bench.workload import GENERATION, TEXTS, TOKENIZER, Work, Workload
from toolkit.errors import UserError
from toolkit.files.whole import write_text
from toolkit.parity import SyntheticWeights, ported
from toolkit.recipe.yaml_source import parse_pairs

SEED = 0


def benched(model: str) -> Any:
    """What is measured of a family."""
    known = ported(model).bench
    assert known is not None
    return known


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
    """Make the workload of the options; write its weights and batch to ``folder``. Raises UserError if the
    configuration is impossible."""
    head, depth, tokens, rows = benched(model).defaults
    generates = work in GENERATION
    layers, length = layers or depth, length or tokens
    if generates:
        head, rows = "causal_lm", 1
    else:
        rows = batch_size or rows
    config, length = _configuration(model, head, layers, length, new_tokens if generates else 0, overrides)
    if work == "tokenize":
        texts = _write_texts(folder, model)
        return Workload(model, head, config, rows, length, work, 0, threads, backward, str(folder), texts)
    write_tensors(folder / "model.safetensors", dict(SyntheticWeights(config, head, SEED, "random", model)))
    write_tensors(folder / "batch.safetensors", _batch(config, head, rows, length))
    return Workload(model, head, config, rows, length, work, new_tokens, threads, backward, str(folder))


def _configuration(
    model: str, head: str, layers: int, length: int, more: int, overrides: Sequence[str]
) -> tuple[dict[str, Any], int]:
    """Return the resolved configuration for ``length`` tokens and ``more`` new ones, and the length that fits it."""
    known = ported(model)
    config = known.with_head(known.benched(layers, length + more), head)
    config.update(parse_pairs(overrides, known.example))
    try:
        schema = part(model, "schema")
        fit = part(model, "lengths").fit(schema.resolve(config), length + more, config)
        config.update({key: value for key, value in known.keys_of_length(fit.length).items() if key in fit.keys})
        return schema.resolve({**fit.keys, **config}), fit.length - more
    except LengthError as error:
        raise UserError(f"--length {length}: {error}") from None
    except ConfigError as error:
        raise UserError(str(error)) from None


def _write_texts(folder: Path, model: str) -> int:
    """Write the sections of the Python Language Reference, and a tokenizer trained on them in the files that
    ``AutoTokenizer`` reads; return the number of texts."""
    from toolkit.tasks.corpora import python_docs

    texts = [text for text, _ in python_docs.sections()]
    module = part(model, "tokenizer")
    kind, pieces = benched(model).tokenizer
    (folder / "trained").mkdir()
    module.TRAINED[kind](texts, pieces, folder / "trained")
    (folder / TOKENIZER).mkdir()
    module.load_tokenizer(folder / "trained").save(folder / TOKENIZER)
    write_text(folder / TEXTS, json.dumps(texts))
    return len(texts)


def _batch(config: dict[str, Any], head: str, rows: int, length: int) -> dict[str, np.ndarray]:
    """Draw texts without padding, and their labels."""
    draw = np.random.default_rng(SEED)
    tokens = draw.integers(1, config["vocab_size"], (rows, length))
    labels = draw.integers(0, config["num_labels"] or 2, rows) if head == "sequence_classification" else tokens
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "labels": labels}
