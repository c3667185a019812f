"""What the port's tokenizers make of texts."""

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
    """The tokens alone."""
    return CandidateResult(
        tokens=tokens(job.tokenizer, job.model), tokenizer_places=tokenizer_places(job.tokenizer, job.model)
    )


def tokens(job: TokenizerJob | None, model: str) -> list[Tokens] | None:
    """Output of the port's tokenizer for every text of the job; None if there is none to compare."""
    if job is None:
        return None
    kind, reader = _tokenizer(job, model)
    tokenizer = getattr(kind, reader)(job.path or "")
    return [
        _tokens_of(tokenizer, text, job.max_length if padded else 0, job.offsets) for text, padded in job.numbered()
    ]


def tokenizer_places(job: TokenizerJob | None, model: str) -> dict[str, Place]:
    """The port's tokenizer method for each compared result, ``tokenizer:ids`` and so on."""
    if job is None:
        return {}
    kind, _ = _tokenizer(job, model)
    found = {}
    for what, name in METHODS.items():
        made = place_of_code(f"{kind.__name__}.{name}", getattr(kind, name))
        found[f"tokenizer:{what}"] = Place(made.kind, f"{made.where}, class at {line_of(kind, '')}")
    return found


def _tokens_of(tokenizer: Tokenizer, text: str, max_length: int, offsets: bool) -> Tokens:
    """Padded to ``max_length``, if there is one."""
    spans = None
    try:
        ids = tokenizer.encode(text)
        result = Tokens(text, ids, tokenizer.decode(ids))
        if max_length:
            result.right, result.left = (_padded(tokenizer, text, max_length, side) for side in ("right", "left"))
        if offsets:
            spans = tokenizer.encode_with_offsets(text)
            result.offsets = [[index, *span] for index, span in zip(*spans, strict=True)]
    except Exception as error:  # a text that the port cannot read is a finding, not the end of the gate
        return Tokens(text, error=f"{type(error).__name__}: {error}")
    if len(text) > LONG_TEXT:
        with contextlib.suppress(Exception):  # it is for the report alone
            result.starts = [start for start, _ in (spans or tokenizer.encode_with_offsets(text))[1]]
    return result


def _padded(tokenizer: Tokenizer, text: str, max_length: int, side: str) -> list[list[int]]:
    padded = tokenizer([text], max_length=max_length, padding="max_length", padding_side=side)
    return [padded["input_ids"][0].tolist(), padded["attention_mask"][0].tolist()]


def _tokenizer(job: TokenizerJob, model: str) -> tuple[type[Tokenizer], str]:
    """The port's class, and its method that reads the files."""
    known = next(one for one in ported(model).tokenizers if one.kind == job.kind)
    return getattr(part(model, "tokenizer"), known.name), known.reader
