"""The tokenizer that a folder holds, and the files that define its output."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.families import FAMILIES
from models.port.tokenization import CONFIG_FILE
from toolkit.parity.job.family import ported_family
from toolkit.parity.job.job import TokenizerJob


def tokenizer_in(
    model: str, folder: Path, texts: Sequence[str], max_length: int, *, offsets: bool = False
) -> TokenizerJob | None:
    """Return the job for the tokenizer in a Hugging Face folder; None if the folder holds none of the family.

    Args:
        model: name of the family.
        folder: the folder.
        texts: texts to compare.
        max_length: number of tokens that a text is padded or cut to.
        offsets: whether the characters that each token stands for are compared, too.

    Raises:
        ValueError: the settings of the tokenizer are not JSON.
    """
    for tokenizer_kind in (kind for kind in ported_family(model).tokenizers if kind.is_in(folder)):
        path = folder / tokenizer_kind.files[0] if len(tokenizer_kind.files) == 1 else folder
        return TokenizerJob(
            tokenizer_kind.kind, list(texts), max_length, str(path) if tokenizer_kind.files else None, offsets
        )
    return None


def files_of(tokenizer: TokenizerJob) -> list[Path]:
    """Return the existing files that define the output of a job's tokenizer."""
    if tokenizer.path is None:
        return []
    path = Path(tokenizer.path)
    if not path.is_dir():
        return [path]
    kinds = [kind for model in FAMILIES for kind in ported_family(model).tokenizers]
    files = next(kind.files for kind in kinds if kind.kind == tokenizer.kind)
    candidates = [path / name for name in (*files, CONFIG_FILE)]
    return [file for file in candidates if file.is_file()]
