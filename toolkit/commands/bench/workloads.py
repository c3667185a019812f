"""Build the workload of the command line: a configuration for a length and a depth, with weights and a batch."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
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
from toolkit.parity import SyntheticWeights, ported_family
from toolkit.recipe.yaml_source import parse_pairs

SEED = 0


def benchmark_of(model: str) -> Any:
    """Return the benchmark settings of a family that has a benchmark.

    Args:
        model: name of the model family.
    """
    benchmark = ported_family(model).bench
    assert benchmark is not None
    return benchmark


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
    """Build the workload of the command line's options, and write its weights and batch.

    Args:
        folder: folder for the files.
        model: model family.
        layers: number of layers; None for the default of the family.
        length: number of tokens of each row; None for the default of the family.
        batch_size: number of rows; None for the default of the family.
        work: kind of work.
        new_tokens: number of tokens to generate.
        threads: number of CPU threads of each side.
        backward: backward of the port, ``reversible`` or ``autograd``.
        overrides: ``KEY=VALUE`` settings of the configuration.

    Raises:
        UserError: the configuration is impossible.
    """
    head, depth, tokens, rows = benchmark_of(model).defaults
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
    write_tensors(folder / "batch.safetensors", _random_batch(config, head, rows, length))
    return Workload(model, head, config, rows, length, work, new_tokens, threads, backward, str(folder))


def _configuration(
    model: str, head: str, layers: int, length: int, new_tokens: int, overrides: Sequence[str]
) -> tuple[dict[str, Any], int]:
    """Return a resolved configuration for ``length + new_tokens`` tokens, and the length of the texts before them.

    A Reformer accepts only some lengths, so the sum is rounded up. The returned length excludes the new tokens.

    Args:
        model: name of the model family.
        head: head of the model.
        layers: number of layers.
        length: number of tokens of each text.
        new_tokens: number of tokens to generate.
        overrides: ``key=value`` options of the configuration.
    """
    port = ported_family(model)
    config = port.with_head(port.bench_config(layers, length + new_tokens), head)
    config.update(parse_pairs(overrides, port.example))
    try:
        schema = part(model, "schema")
        fit = part(model, "lengths").fit(schema.resolve(config), length + new_tokens, config)
        config.update({key: value for key, value in port.keys_of_length(fit.length).items() if key in fit.keys})
        return schema.resolve({**fit.keys, **config}), fit.length - new_tokens
    except LengthError as error:
        raise UserError(f"--length {length}: {error}") from None
    except ConfigError as error:
        raise UserError(str(error)) from None


def _write_texts(folder: Path, model: str) -> int:
    """Write texts and a tokenizer that was trained on them, and return the number of texts.

    The texts are the sections of the Python Language Reference. ``AutoTokenizer`` can read the tokenizer.
    """
    from toolkit.tasks.corpora import python_docs

    texts = [text for text, _ in python_docs.sections()]
    module = part(model, "tokenizer")
    kind, pieces = benchmark_of(model).tokenizer
    (folder / "trained").mkdir()
    module.TRAINERS[kind](texts, pieces, folder / "trained")
    (folder / TOKENIZER).mkdir()
    module.load_tokenizer(folder / "trained").save(folder / TOKENIZER)
    write_text(folder / TEXTS, json.dumps(texts))
    return len(texts)


def _random_batch(config: Mapping[str, Any], head: str, rows: int, length: int) -> dict[str, np.ndarray]:
    """Return a random batch without padding: ``input_ids``, ``attention_mask`` (rows, length) and ``labels``."""
    generator = np.random.default_rng(SEED)
    tokens = generator.integers(1, config["vocab_size"], (rows, length))
    labels = generator.integers(0, config["num_labels"] or 2, rows) if head == "sequence_classification" else tokens
    return {"input_ids": tokens, "attention_mask": np.ones_like(tokens), "labels": labels}
