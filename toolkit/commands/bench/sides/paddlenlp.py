"""The side of PaddleNLP's own model, as Paddle starts by default."""

from __future__ import annotations

import importlib.metadata
from pathlib import Path

import paddle
from paddlenlp import transformers
from safetensors.numpy import load_file

from toolkit.commands.bench.serve import Measured, serve
from toolkit.commands.bench.workload import ADAMW, MAX_GRAD_NORM, Workload
from toolkit.commands.bench.workloads import benched


def prepare(workload: Workload) -> Measured:
    """A step of PaddleNLP's model with new weights on the batch."""
    given = {**workload.config, "pad_token_id": workload.config.get("pad_token_id") or 0}
    config, model_class, *known = benched(workload.model).paddlenlp
    made = getattr(transformers, config)(**{key: given[key] for key in known})
    model = getattr(transformers, model_class)(made)
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
    serve(prepare, {name: importlib.metadata.version(name) for name in names})
