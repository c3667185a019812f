"""The program that measures the reference: transformers on torch."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from models.families import FAMILIES
from toolkit.commands.bench.serve import RunFn, serve_orders
from toolkit.commands.bench.workload import ADAMW, MAX_GRAD_NORM, TEXTS, TOKENIZER, Workload
from toolkit.parity.job.family_part import family_part
from toolkit.parity.reference import environment
from toolkit.parity.reference.optimizer import decayed_parameters


def prepare(workload: Workload) -> RunFn:
    """Return a function that runs a workload once with the reference.

    Args:
        workload: model, sizes and computation to measure.
    """
    if workload.work == "tokenize":
        return _prepare_tokenization(workload)
    torch.set_num_threads(workload.threads)
    model, batch = _load_model(workload)
    if workload.generates:
        model.eval()
        settings: dict[str, Any] = {
            "max_new_tokens": workload.new_tokens,
            "do_sample": False,
            "use_cache": workload.work == "generate",
            "eos_token_id": None,
        }

        def generate() -> float:
            with torch.no_grad():
                return float(model.generate(batch["input_ids"], **settings)[0, -1])

        return generate
    optimizer = torch.optim.AdamW(
        _parameter_groups(model),
        lr=ADAMW["learning_rate"],
        betas=(ADAMW["beta1"], ADAMW["beta2"]),
        eps=ADAMW["epsilon"],
    )

    def step() -> float:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def _prepare_tokenization(workload: Workload) -> RunFn:
    """Return a function that tokenizes the texts of a workload and returns the number of tokens.

    ``AutoTokenizer`` chooses the tokenizer, which is the compiled tokenizer if there is one. It is new, so it has not
    cached any text.

    Args:
        workload: model, sizes and computation to measure.
    """
    from transformers import AutoTokenizer

    folder = Path(workload.folder)
    texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder / TOKENIZER)
    return lambda: float(sum(map(len, tokenizer(texts)["input_ids"])))


def _load_model(workload: Workload) -> tuple[nn.Module, dict[str, torch.Tensor]]:
    """Return the reference's model in training mode, and the batch.

    Args:
        workload: model, sizes and computation to measure.
    """
    family = family_part(workload.model, "reference").STEP
    folder = Path(workload.folder)
    config = family.configuration(None, workload.config)  # with the defaults of transformers, such as its cache
    config.use_cache = workload.work == "generate"
    model = family.heads[workload.head](config)
    tensors = load_file(folder / "model.safetensors")
    names = model.state_dict().keys()
    tensors.update(
        {alias: tensors[name] for alias, name in family.aliases.items() if alias in names and name in tensors}
    )
    model.load_state_dict(tensors, strict=True)
    model.train()
    return model, load_file(folder / "batch.safetensors")


def _parameter_groups(model: nn.Module) -> list[dict[str, Any]]:
    """Return the optimizer's parameter groups, one with weight decay and one without.

    Args:
        model: the reference's model.
    """
    decayed_names = set(decayed_parameters(model))
    return [
        {
            "params": [value for name, value in model.named_parameters() if (name in decayed_names) is has_decay],
            "weight_decay": rate,
        }
        for has_decay, rate in ((True, ADAMW["weight_decay"]), (False, 0.0))
    ]


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    for module in FAMILIES:  # imported before memory is measured, so that imports do not count
        family_part(module, "reference")
    with contextlib.suppress(KeyboardInterrupt):
        serve_orders(prepare, environment.read_versions())
