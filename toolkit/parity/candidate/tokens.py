"""The output of the port's tokenizers for texts."""

from __future__ import annotations

import contextlib
from pathlib import Path

from models.families import part
from models.port.tokenization import Tokenizer
from toolkit.parity.candidate.places import line_of, place_of_code
from toolkit.parity.job.family import ported
from toolkit.parity.job.job import Job, TokenizerJob
from toolkit.parity.job.results import CandidateResult, Place, Tokens

#: Method that makes each compared result.
METHODS = {
    "ids": "encode_batch",
    "decoded": "decode",
    "right": "__call__",
    "left": "__call__",
    "offsets": "encode_with_offsets",
}
#: Of a longer text a report shows only what stands around the difference.
LONG_TEXT = 60


def run(job: Job, folder: Path, sender: object = None, kernels: object = None) -> CandidateResult:
    """Run only the tokenizer and return its tokens."""
    return CandidateResult(
        tokens=tokens(job.tokenizer, job.model), tokenizer_places=tokenizer_places(job.tokenizer, job.model)
    )


def tokens(job: TokenizerJob | None, model: str) -> list[Tokens] | None:
    """Return the output of the port's tokenizer for every text of the job; None without a tokenizer to compare."""
    if job is None:
        return None
    kind, reader = _tokenizer(job, model)
    tokenizer = getattr(kind, reader)(job.path or "")
    return [
        _tokens_of(tokenizer, text, job.max_length if is_padded else 0, job.offsets)
        for text, is_padded in job.numbered_texts()
    ]


def tokenizer_places(job: TokenizerJob | None, model: str) -> dict[str, Place]:
    """Return the port's tokenizer method for each compared result, ``tokenizer:ids`` and so on."""
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


def _tokens_of(tokenizer: Tokenizer, text: str, max_length: int, offsets: bool) -> Tokens:
    """Padded to ``max_length``, if there is one."""
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
        with contextlib.suppress(Exception):  # it is for the report alone
            result.starts = [start for start, _ in (spans or tokenizer.encode_with_offsets(text))[1]]
    return result


def _pad_text(tokenizer: Tokenizer, text: str, max_length: int, side: str) -> list[list[int]]:
    batch = tokenizer([text], max_length=max_length, padding="max_length", padding_side=side)
    return [batch["input_ids"][0].tolist(), batch["attention_mask"][0].tolist()]


def _tokenizer(job: TokenizerJob, model: str) -> tuple[type[Tokenizer], str]:
    """Return the port's class, and its method that reads the files."""
    tokenizer_spec = next(one for one in ported(model).tokenizers if one.kind == job.kind)
    return getattr(part(model, "tokenizer"), tokenizer_spec.name), tokenizer_spec.reader
