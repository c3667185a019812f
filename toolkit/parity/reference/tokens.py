"""Tokenize texts with the reference's tokenizers, which are defined in ``reference_tokens`` of each family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job, TokenizerJob
from toolkit.parity.job.results import ReferenceResult, Tokens


def run(job: Job, folder: Path) -> ReferenceResult:
    """Run only the tokenizer, and return its tokens."""
    return ReferenceResult(tokens=tokenize_texts(job.tokenizer, job.model))


def tokenize_texts(job: TokenizerJob | None, model: str) -> list[Tokens] | None:
    """Tokenize the texts of a job with the reference's tokenizer; None without a job.

    The reference cannot encode a text with a lone surrogate, whose result is an error. No other text may fail.
    """
    if job is None:
        return None
    reference_tokens = family_part(model, "reference_tokens")
    tokenizer = reference_tokens.TOKENIZERS[job.kind](job.path or "")
    offsets = reference_tokens.offsets if job.offsets else None
    return [
        _tokenize(tokenizer, text, job.max_length if is_padded else 0, offsets)
        for text, is_padded in job.numbered_texts()
    ]


def _tokenize(tokenizer: Any, text: str, max_length: int, offsets: Callable[[Any, str], list] | None) -> Tokens:
    """Tokenize a text, and pad it on both sides to ``max_length`` if that is not 0."""
    try:
        ids = list(tokenizer([text])["input_ids"][0])
        result = Tokens(text, ids, tokenizer.decode(ids))
        if max_length:
            result.right, result.left = (_pad_text(tokenizer, text, max_length, side) for side in ("right", "left"))
        result.offsets = offsets(tokenizer, text) if offsets else None
        return result
    except (UnicodeError, TypeError, RuntimeError) as error:  # pybind's refusal of a lone surrogate is a RuntimeError
        if not any("\ud800" <= character <= "\udfff" for character in text):
            raise
        return Tokens(text, error=f"{type(error).__name__}: {error}")


def _pad_text(tokenizer: Any, text: str, max_length: int, side: str) -> list[list[int]]:
    """Return the padded ids and mask of a text. A batch is used, since the reference does not pad an empty string."""
    tokenizer.padding_side = side
    encoding = tokenizer([text], max_length=max_length, padding="max_length", truncation=True)
    return [list(encoding["input_ids"][0]), list(encoding["attention_mask"][0])]
