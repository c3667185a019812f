"""The program that measures the port."""

from __future__ import annotations

import importlib
import json
import math
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np

from models import collector
from models.families import FAMILIES, family, part
from models.files.hub import stored_tensors
from models.operations import kernels
from toolkit.commands.bench.serve import RunFn, serve_orders
from toolkit.commands.bench.workload import ADAMW, MAX_GRAD_NORM, PART_OF, PRODUCTS, TEXTS, TOKENIZER, Workload
from toolkit.machine import runtime
from toolkit.machine.heap import reserve_small_blocks

#: Number of rows and columns of the matrix product that measures the peak speed of the processor.
PEAK_SIZE = 2048
#: Number of measurements of a speed; the fastest counts.
REPEATS = 8


def prepare(workload: Workload) -> RunFn:
    """Return a function that runs a workload once with the port.

    Args:
        workload: model, sizes and computation to measure.
    """
    return _prepare_tokenization(workload) if workload.work == "tokenize" else _prepare_computation(workload)


def _prepare_tokenization(workload: Workload) -> RunFn:
    """Return a function that tokenizes the workload's texts with a new tokenizer and returns the number of tokens.

    Args:
        workload: model, sizes and computation to measure.
    """
    folder = Path(workload.folder)
    texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    tokenizer = part(workload.model, "tokenizer").load_tokenizer(folder / TOKENIZER)
    return lambda: float(sum(map(len, tokenizer(texts)["input_ids"])))


def _prepare_computation(workload: Workload) -> RunFn:
    """Load the port and its inputs, and return a function that runs the workload once.

    Args:
        workload: model, sizes and computation to measure.
    """
    import paddle
    from safetensors.numpy import load_file

    from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate
    from toolkit.training.optimizer import create

    folder = Path(workload.folder)
    model_classes = part(workload.model, "modeling").CLASSES
    settings = {"backward": workload.backward} if "backward" in family(workload.model).settings else {}
    config = part(workload.model, "config").CONFIG_CLASS(**{**workload.config, **settings})
    model = model_classes[workload.head](config)
    part(workload.model, "weights").load(model, dict(stored_tensors(folder)))
    batch = {name: paddle.to_tensor(value) for name, value in load_file(folder / "batch.safetensors").items()}
    if workload.generates:
        model.eval()
        prompt = batch["input_ids"][0].tolist()
        decoding = Decoding(length=workload.new_tokens, repetition_penalty=1.0)
        next_logits = NextToken(model, use_cache=workload.work == "generate")
        return lambda: float(list(generate(next_logits, prompt, decoding))[-1])
    model.train()
    optimizer = create("adamw", model, max_grad_norm=MAX_GRAD_NORM, **ADAMW)

    def step() -> float:
        loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    return step


def amount(workload: Workload, run_once: RunFn) -> float:
    """Return the operations of the matrix products in one run, or the bytes of weights that all tokens read.

    Args:
        workload: model, sizes and computation to measure.
        run_once: function that runs the workload once.
    """
    if PART_OF[workload.work] == PRODUCTS:
        return count_operations(run_once)
    return workload.weight_bytes * workload.new_tokens


def speed(workload: Workload) -> float:
    """Return the peak speed of this processor for the part that limits a work.

    It is measured in operations per second of a large matrix product, or in bytes per second. Bytes are read by the
    threads of the workload, repeatedly from an array of the same size as the weights: a small model stays in the
    processor's caches.

    Args:
        workload: model, sizes and computation to measure.
    """
    if PART_OF[workload.work] == PRODUCTS:
        import paddle

        a, b = paddle.randn([PEAK_SIZE, PEAK_SIZE]), paddle.randn([PEAK_SIZE, PEAK_SIZE])
        return 2 * PEAK_SIZE**3 / _least_seconds(lambda: float(paddle.matmul(a, b)[0, 0]))
    parts = np.array_split(np.ones(workload.weight_bytes // 8, "int64"), workload.threads)
    with ThreadPoolExecutor(workload.threads) as threads:
        return workload.weight_bytes / _least_seconds(lambda: list(threads.map(np.bitwise_or.reduce, parts)))


def count_operations(run_once: RunFn) -> int:
    """Return the multiplications and additions of all matrix products in one run, forward and backward.

    The backward has one more product of the same size for each factor that gets a gradient.

    Args:
        run_once: function that runs the workload once.
    """
    import paddle

    from models.operations import compiled

    ops, total = paddle._C_ops, 0
    paddle_products = ops.matmul, ops.linear

    def count(product, x, y, inner):
        nonlocal total
        factors = [factor for factor in (x, y) if not (product.stop_gradient or factor.stop_gradient)]
        total += 2 * math.prod(product.shape) * inner * (1 + len(factors))
        return product

    def matmul(x, y, transpose_x=False, transpose_y=False):
        return count(paddle_products[0](x, y, transpose_x, transpose_y), x, y, x.shape[-2 if transpose_x else -1])

    def linear(x, weight, bias=None):
        return count(paddle_products[1](x, weight, bias), x, weight, x.shape[-1])

    ops.matmul, ops.linear = matmul, linear
    try:
        with compiled.compose_loops(["attention"]):  # products inside a compiled loop cannot be counted
            run_once()
    finally:
        ops.matmul, ops.linear = paddle_products
    return total


def _least_seconds(run_once: Callable[[], object]) -> float:
    """Return the smallest time of several calls of a function, in seconds.

    Args:
        run_once: function that runs the workload once.
    """
    seconds = []
    for _ in range(REPEATS):
        start = time.perf_counter()
        run_once()
        seconds.append(time.perf_counter() - start)
    return min(seconds)


if __name__ == "__main__":
    collector.skip_collection_at_exit()  # as `toolkit finetune` is
    runtime.configure_paddle("cpu")
    loops = ("models.operations.loop_code",) if kernels.chosen_kernels() == kernels.COMPILED else ()
    # All modules are imported before memory is measured, so that imports do not count.
    for name in FAMILIES:
        part(name, "modeling")
    for module in loops:
        importlib.import_module(module)
    reserve_small_blocks()  # as training does
    serve_orders(prepare, runtime.installed_versions(), amount, speed)
