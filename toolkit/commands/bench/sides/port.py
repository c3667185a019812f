"""The port's side."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

from models import collector
from models.families import FAMILIES, family, part
from models.operations import kernels
from toolkit.commands.bench.serve import Measured, serve
from toolkit.commands.bench.workload import ADAMW, MAX_GRAD_NORM, TEXTS, TOKENIZER, Workload
from toolkit.machine import runtime

#: Rows and columns of the product by which the processor's peak is measured.
PEAK_SIZE = 2048


def prepare(workload: Workload) -> Measured:
    """Return the port's measurement of a workload."""
    return _tokenization(workload) if workload.work == "tokenize" else _computation(workload)


def _tokenization(workload: Workload) -> Measured:
    """Return a measurement of a new port tokenizer on the workload's texts; its value is the number of tokens."""
    folder = Path(workload.folder)
    texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    tokenizer = part(workload.model, "tokenizer").load_tokenizer(folder / TOKENIZER)
    return lambda: float(sum(map(len, tokenizer(texts)["input_ids"])))


def _computation(workload: Workload) -> Measured:
    import paddle
    from safetensors.numpy import load_file

    from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate
    from toolkit.training.optimizer import create

    folder = Path(workload.folder)
    kinds = part(workload.model, "modeling").CLASSES
    given = {"backward": workload.backward} if "backward" in family(workload.model).settings else {}
    config = part(workload.model, "config").CONFIG_CLASS(**{**workload.config, **given})
    model = kinds[workload.head](config)
    part(workload.model, "weights").load(model, load_file(folder / "weights.safetensors"))
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


def extra(workload: Workload, order: str) -> Any:
    """``peak``: highest operations per second of the processor's float32 matrix products."""
    import time

    import paddle

    assert order == "peak"
    a, b = paddle.randn([PEAK_SIZE, PEAK_SIZE]), paddle.randn([PEAK_SIZE, PEAK_SIZE])
    seconds = []
    for _ in range(8):
        start = time.perf_counter()
        float(paddle.matmul(a, b)[0, 0])
        seconds.append(time.perf_counter() - start)
    return 2 * PEAK_SIZE**3 / min(seconds)


if __name__ == "__main__":
    collector.in_a_command()  # as `toolkit finetune` is
    runtime.configure("cpu")
    loops = ("models.operations.loop_code",) if kernels.chosen() == kernels.COMPILED else ()
    # Memory is counted above what imports take.
    for name in FAMILIES:
        part(name, "modeling")
    for module in loops:
        importlib.import_module(module)
    serve(prepare, extra, runtime.versions())
