"""What the port's tokenizers make of texts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from toolkit.parity.job.job import TokenizerJob
from toolkit.parity.job.results import Tokens


def tokens(job: TokenizerJob | None) -> list[Tokens] | None:
    """What the port's tokenizer makes of every text of the job; None where there is none to compare."""
    if job is None:
        return None
    tokenizer = _tokenizer(job)
    return [_tokens_of(tokenizer, text, job.max_length, job.offsets) for text in job.texts]


def _tokens_of(tokenizer: Any, text: str, max_length: int, offsets: bool) -> Tokens:
    ids = tokenizer.encode(text)
    right, left = (_padded(tokenizer, text, max_length, side) for side in ("right", "left"))
    result = Tokens(ids, tokenizer.decode(ids), right, left)
    if offsets:
        spans = zip(*tokenizer.encode_with_offsets(text), strict=True)
        result.offsets = [[index, *span] for index, span in spans]
    return result


def _padded(tokenizer: Any, text: str, max_length: int, side: str) -> list[list[int]]:
    padded = tokenizer([text], max_length=max_length, padding="max_length", padding_side=side)
    return [padded["input_ids"][0].tolist(), padded["attention_mask"][0].tolist()]


def _tokenizer(job: TokenizerJob) -> Any:
    path = Path(job.path or "")
    if job.kind == "ctrl":
        from models.ctrl.tokenizer import load_tokenizer

        return load_tokenizer(path)
    from models.reformer.tokenizer import ByteTokenizer, ReformerTokenizer

    return ByteTokenizer() if job.kind == "bytes" else ReformerTokenizer(path.read_bytes())
