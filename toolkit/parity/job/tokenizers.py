"""Which tokenizer a folder holds, and which of its files both sides read."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from models.reformer.tokenizer import holds_bytes
from models.tokenization import CONFIG_FILE
from toolkit.parity.job.job import TokenizerJob

#: By family, the kind that is known by its files, and these.
KINDS = {"reformer": ("sentencepiece", ("spiece.model",)), "ctrl": ("ctrl", ("vocab.json", "merges.txt"))}


def tokenizer_in(
    model: str, folder: Path, texts: Sequence[str], max_length: int, offsets: bool = False
) -> TokenizerJob | None:
    """What compares the tokenizer of a Hugging Face folder; None where the folder holds none of the family.

    Raises:
        ValueError: its settings are not JSON.
    """
    kind, files = KINDS[model]
    if all((folder / name).is_file() for name in files):
        path = folder / files[0] if len(files) == 1 else folder
        return TokenizerJob(kind, list(texts), max_length, str(path), offsets)
    if model == "reformer" and holds_bytes(folder):
        return TokenizerJob("bytes", list(texts), max_length, offsets=offsets)
    return None


def files_of(tokenizer: TokenizerJob) -> list[Path]:
    """The files that decide what a tokenizer makes of a text."""
    if tokenizer.path is None:
        return []
    path = Path(tokenizer.path)
    named = [path / name for name in (*KINDS["ctrl"][1], CONFIG_FILE)] if path.is_dir() else [path]
    return [file for file in named if file.is_file()]
