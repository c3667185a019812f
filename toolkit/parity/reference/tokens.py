"""Tokens of texts by the reference's tokenizers, which are defined in ``reference_tokens`` of each family."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from toolkit.parity.exchange.results import ReferenceResult, Tokens
from toolkit.parity.job.family_part import family_part
from toolkit.parity.job.job import Job, TokenizerJob


def run(job: Job, folder: Path) -> ReferenceResult:
    """Tokenize the texts of the job, and return a result that has only their tokens.

    Args:
        job: job with a tokenizer.
        folder: folder of the job, which is not used.
    """
    return ReferenceResult(tokens=tokenize_texts(job.tokenizer, job.model))


def tokenize_texts(job: TokenizerJob | None, model: str) -> list[Tokens] | None:
    """Return the tokens of a job's texts by the reference's tokenizer, in the order of the texts.

    The reference cannot encode a text with a lone surrogate. The tokens of such a text hold its error. An error in any
    other text is raised.

    Args:
        job: texts and tokenizer; None if no tokenizer is compared, which returns None.
        model: name of the family, whose ``reference_tokens`` loads the tokenizer.
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
    """Return the tokens of a text, and the same text padded on both sides.

    Args:
        tokenizer: the reference's tokenizer.
        text: text to encode.
        max_length: number of tokens that the text is padded or cut to; 0 for no padding.
        offsets: returns each token's id, first character and end, given the tokenizer and the text; None if offsets are
            not compared.
    """
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
    """Return the token ids and the attention mask of a text that is padded or cut to ``max_length`` tokens.

    The text is encoded as a batch of one text, since the reference does not pad a single empty string.

    Args:
        tokenizer: the reference's tokenizer.
        text: text to encode.
        max_length: number of tokens.
        side: side of the padding, ``right`` or ``left``.
    """
    tokenizer.padding_side = side
    encoding = tokenizer([text], max_length=max_length, padding="max_length", truncation=True)
    return [list(encoding["input_ids"][0]), list(encoding["attention_mask"][0])]
