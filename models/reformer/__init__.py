"""Reformer in Paddle. The names below are imported when first used: the schema and the tokenizer need no Paddle."""

from __future__ import annotations

import importlib
from typing import Any

_HOME = {
    "ReformerConfig": "config",
    "ReformerModel": "modeling",
    "ReformerForSequenceClassification": "modeling",
    "ReformerForQuestionAnswering": "modeling",
    "ReformerForMaskedLM": "modeling",
    "ReformerModelWithLMHead": "modeling",
    "ByteTokenizer": "tokenizer",
    "ReformerTokenizer": "tokenizer",
}
__all__ = list(_HOME)


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)
