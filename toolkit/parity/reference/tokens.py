"""Tokenize texts as the reference does. Its tokenizers stand in ``reference_tokens`` of the family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job, TokenizerJob
from toolkit.parity.job.results import ReferenceResult, Tokens


def run(job: Job, folder: Path) -> ReferenceResult:
    """The tokens alone."""
    return ReferenceResult(tokens=tokens(job.tokenizer, job.model))


def tokens(job: TokenizerJob | None, model: str) -> list[Tokens] | None:
    """Tokenize every text of the job by the reference's tokenizer; None if there is none to compare.

    A text with a lone surrogate, which the reference cannot encode, gives an error; any other must not fail.
    """
    if job is None:
        return None
    known = family_part(model, "reference_tokens")
    tokenizer = known.TOKENIZERS[job.kind](job.path or "")
    offsets = known.offsets if job.offsets else None
    return [
        _tokens_of(tokenizer, text, job.max_length if padded else 0, offsets) for text, padded in job.numbered_texts()
    ]


def _tokens_of(tokenizer: Any, text: str, max_length: int, offsets: Callable[[Any, str], list] | None) -> Tokens:
    """Pad to ``max_length`` if it is not 0."""
    try:
        ids = list(tokenizer([text])["input_ids"][0])
        result = Tokens(text, ids, tokenizer.decode(ids))
        if max_length:
            result.right, result.left = (_padded(tokenizer, text, max_length, side) for side in ("right", "left"))
        result.offsets = offsets(tokenizer, text) if offsets else None
        return result
    except (UnicodeError, TypeError, RuntimeError) as error:  # pybind's refusal of a lone surrogate is a RuntimeError
        if not any("\ud800" <= character <= "\udfff" for character in text):
            raise
        return Tokens(text, error=f"{type(error).__name__}: {error}")


def _padded(tokenizer: Any, text: str, max_length: int, side: str) -> list[list[int]]:
    """Ids and mask; as a batch of one, since the reference leaves a lone empty text unpadded."""
    tokenizer.padding_side = side
    padded = tokenizer([text], max_length=max_length, padding="max_length", truncation=True)
    return [list(padded["input_ids"][0]), list(padded["attention_mask"][0])]
