"""Which tokenizer a folder holds, and which of its files both sides read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.families import FAMILIES
from models.port.tokenization import CONFIG_FILE
from toolkit.parity.job.family import ported
from toolkit.parity.job.job import TokenizerJob


def tokenizer_in(
    model: str, folder: Path, texts: Sequence[str], max_length: int, offsets: bool = False
) -> TokenizerJob | None:
    """Return the job for the tokenizer of a Hugging Face folder; None if the folder holds none of the family. Raises
    ValueError if its settings are not JSON."""
    for tokenizer_kind in (kind for kind in ported(model).tokenizers if kind.is_in(folder)):
        path = folder / tokenizer_kind.files[0] if len(tokenizer_kind.files) == 1 else folder
        return TokenizerJob(
            tokenizer_kind.kind, list(texts), max_length, str(path) if tokenizer_kind.files else None, offsets
        )
    return None


def files_of(tokenizer: TokenizerJob) -> list[Path]:
    """Return the files that define a tokenizer's output."""
    if tokenizer.path is None:
        return []
    path = Path(tokenizer.path)
    if not path.is_dir():
        return [path]
    kinds = [kind for model in FAMILIES for kind in ported(model).tokenizers]
    files = next(kind.files for kind in kinds if kind.kind == tokenizer.kind)
    candidates = [path / name for name in (*files, CONFIG_FILE)]
    return [file for file in candidates if file.is_file()]
