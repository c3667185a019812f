"""The results of the port's tokenizers for the job's texts."""

from __future__ import annotations

import contextlib
from pathlib import Path

from models.families import part
from models.port.tokenization import Tokenizer
from toolkit.parity.candidate.places import line_of, place_of_code
from toolkit.parity.exchange.results import CandidateResult, Place, Tokens
from toolkit.parity.job.family import ported_family
from toolkit.parity.job.job import Job, TokenizerJob

#: Compared result of a tokenizer (an attribute of :class:`.results.Tokens`) -> method of the port that computes it.
METHODS = {
    "ids": "encode_batch",
    "decoded": "decode",
    "right": "__call__",
    "left": "__call__",
    "offsets": "encode_with_offsets",
}
#: Largest number of characters of a text that a report shows whole. Of a longer text it shows the part around the
#: difference.
LONG_TEXT = 60


def run(job: Job, folder: Path, sender: object = None, kernels: object = None) -> CandidateResult:
    """Run only the tokenizer, and return its tokens and source locations.

    Args:
        job: description of the comparison.
        folder: folder of the job.
        sender: connection to the comparator; not used.
        kernels: kernels of the reference; not used.
    """
    return CandidateResult(
        tokens=tokens(job.tokenizer, job.model), tokenizer_places=tokenizer_places(job.tokenizer, job.model)
    )


def tokens(job: TokenizerJob | None, model: str) -> list[Tokens] | None:
    """Return the port's tokens of every text of the job; None if no tokenizer is compared.

    Args:
        job: the tokenizer and the texts; None without a tokenizer to compare.
        model: name of the family, such as ``reformer``.
    """
    if job is None:
        return None
    kind, reader = _tokenizer(job, model)
    tokenizer = getattr(kind, reader)(job.path or "")
    return [
        _tokens_of(tokenizer, text, job.max_length if is_padded else 0, offsets=job.offsets)
        for text, is_padded in job.numbered_texts()
    ]


def tokenizer_places(job: TokenizerJob | None, model: str) -> dict[str, Place]:
    """Return the source location of the tokenizer method behind each result, by ``tokenizer:RESULT``.

    Example of a key: ``tokenizer:ids``. The result is empty if no tokenizer is compared.

    Args:
        job: the tokenizer; None without a tokenizer to compare.
        model: name of the family, such as ``reformer``.
    """
    if job is None:
        return {}
    kind, _ = _tokenizer(job, model)
    method_places = {}
    for what, name in METHODS.items():
        method_place = place_of_code(f"{kind.__name__}.{name}", getattr(kind, name))
        method_places[f"tokenizer:{what}"] = Place(
            method_place.kind, f"{method_place.where}, class at {line_of(kind, '')}"
        )
    return method_places


def _tokens_of(tokenizer: Tokenizer, text: str, max_length: int, *, offsets: bool) -> Tokens:
    """Return all compared results of a tokenizer for a text, or the error that it raises.

    Args:
        tokenizer: the port's tokenizer.
        text: the text.
        max_length: length that the ids are padded to; 0 without padding.
        offsets: whether to return the positions of the tokens in the text.
    """
    spans = None
    try:
        ids = tokenizer.encode(text)
        result = Tokens(text, ids, tokenizer.decode(ids))
        if max_length:
            result.right, result.left = (_pad_text(tokenizer, text, max_length, side) for side in ("right", "left"))
        if offsets:
            spans = tokenizer.encode_with_offsets(text)
            result.offsets = [[index, *span] for index, span in zip(*spans, strict=True)]
    except Exception as error:  # a text that the port cannot read is a finding, not the end of the gate
        return Tokens(text, error=f"{type(error).__name__}: {error}")
    if len(text) > LONG_TEXT:
        with contextlib.suppress(Exception):  # only the report shows it
            result.starts = [start for start, _ in (spans or tokenizer.encode_with_offsets(text))[1]]
    return result


def _pad_text(tokenizer: Tokenizer, text: str, max_length: int, side: str) -> list[list[int]]:
    """Return the ids and the attention mask of a text that is padded on one side, ``right`` or ``left``.

    Args:
        tokenizer: tokenizer of the port.
        text: text to encode.
        max_length: number of tokens after padding.
        side: side of the padding.
    """
    batch = tokenizer([text], max_length=max_length, padding="max_length", padding_side=side)
    return [batch["input_ids"][0].tolist(), batch["attention_mask"][0].tolist()]


def _tokenizer(job: TokenizerJob, model: str) -> tuple[type[Tokenizer], str]:
    """Return the port's tokenizer class, and the name of its method that reads the tokenizer's files.

    Args:
        job: name and folder of the tokenizer.
        model: name of the model family.
    """
    tokenizer_spec = next(one for one in ported_family(model).tokenizers if one.kind == job.kind)
    return getattr(part(model, "tokenizer"), tokenizer_spec.name), tokenizer_spec.reader
