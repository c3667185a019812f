"""The program that measures PaddleNLP's own model, with Paddle's default settings."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import paddle
from paddlenlp import transformers
from safetensors.numpy import load_file

from toolkit.commands.bench.serve import RunFn, serve_orders
from toolkit.commands.bench.workload import ADAMW, MAX_GRAD_NORM, Workload
from toolkit.commands.bench.workloads import benchmark_of


def prepare(workload: Workload) -> RunFn:
    """Return a function that runs a training step of PaddleNLP's model with randomly initialized weights.

    Args:
        workload: model, sizes and computation to measure.
    """
    settings = {**workload.config, "pad_token_id": workload.config.get("pad_token_id") or 0}
    config, model_class, *keys = benchmark_of(workload.model).paddlenlp
    model_config = getattr(transformers, config)(**{key: settings[key] for key in keys})
    model = getattr(transformers, model_class)(model_config)
    batch = {
        name: paddle.to_tensor(value)
        for name, value in load_file(Path(workload.folder) / "batch.safetensors").items()
        if name in ("input_ids", "labels")
    }
    model.train()
    optimizer = paddle.optimizer.AdamW(
        parameters=model.parameters(), grad_clip=paddle.nn.ClipGradByGlobalNorm(MAX_GRAD_NORM), **ADAMW
    )

    def step() -> float:
        loss = model(**batch)[0]
        loss.backward()
        optimizer.step()
        optimizer.clear_grad()
        return float(loss)

    return step


if __name__ == "__main__":
    names = ("paddlepaddle", "paddlenlp")
    serve_orders(prepare, {name: importlib.metadata.version(name) for name in names})
