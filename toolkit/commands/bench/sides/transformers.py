"""The side of transformers, on torch."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file

from models.families import FAMILIES
from toolkit.commands.bench.serve import Measured, serve
from toolkit.commands.bench.workload import ADAMW, MAX_GRAD_NORM, TEXTS, TOKENIZER, Workload
from toolkit.parity.job.family_part import family_part
from toolkit.parity.reference import environment
from toolkit.parity.reference.optimizer import decayed_parameters


def prepare(workload: Workload) -> Measured:
    """The reference on the workload's weights and batch."""
    if workload.work == "tokenize":
        return _tokenization(workload)
    torch.set_num_threads(workload.threads)
    model, batch = _loaded(workload)
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
        _groups(model), lr=ADAMW["learning_rate"], betas=(ADAMW["beta1"], ADAMW["beta2"]), eps=ADAMW["epsilon"]
    )

    def step() -> float:
        loss = model(**batch).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()
        return float(loss.detach())

    return step


def _tokenization(workload: Workload) -> Measured:
    """The tokenizer that ``AutoTokenizer`` gives a user, compiled if there is one; it has seen no text yet."""
    from transformers import AutoTokenizer

    folder = Path(workload.folder)
    texts = json.loads((folder / TEXTS).read_text(encoding="utf-8"))
    tokenizer = AutoTokenizer.from_pretrained(folder / TOKENIZER)
    return lambda: float(sum(map(len, tokenizer(texts)["input_ids"])))


def _loaded(workload: Workload) -> tuple[torch.nn.Module, dict[str, torch.Tensor]]:
    """The reference's model in training mode, and the batch."""
    family = family_part(workload.model, "reference").STEP
    folder = Path(workload.folder)
    config = family.configuration(None, workload.config)  # as a user of transformers has it: with its cache
    config.use_cache = workload.work == "generate"
    model = family.heads[workload.head](config)
    values = load_file(folder / "model.safetensors")
    held = model.state_dict().keys()
    values.update({alias: values[name] for alias, name in family.aliases.items() if alias in held and name in values})
    model.load_state_dict(values, strict=True)
    model.train()
    return model, load_file(folder / "batch.safetensors")


def _groups(model: torch.nn.Module) -> list[dict[str, Any]]:
    """Split parameters into those with weight decay and the others."""
    decayed = set(decayed_parameters(model))
    return [
        {
            "params": [value for name, value in model.named_parameters() if (name in decayed) is decays],
            "weight_decay": rate,
        }
        for decays, rate in ((True, ADAMW["weight_decay"]), (False, 0.0))
    ]


if __name__ == "__main__":
    import transformers

    transformers.logging.set_verbosity_error()
    for module in FAMILIES:  # memory is counted above what imports take
        family_part(module, "reference")
    with contextlib.suppress(KeyboardInterrupt):
        serve(prepare, environment.versions())
