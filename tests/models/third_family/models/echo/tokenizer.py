"""Its tokens are bytes."""

from __future__ import annotations

import os

from models.reformer.tokenizer import ByteTokenizer

#: Kinds that are trained on a recipe's text.
TRAINERS: dict = {}


def load_tokenizer(folder: str | os.PathLike) -> ByteTokenizer:
    """The tokenizer of a folder."""
    return ByteTokenizer()


def load_tokenizer_of_kind(kind: str, path: str | os.PathLike) -> ByteTokenizer:
    """The tokenizer of a recipe's ``tokenizer.kind``."""
    return ByteTokenizer()
