"""Shared by the families' tokenizers: truncation, padding, attention masks, and the settings file.

Needs neither Paddle nor torch.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.files.plain import read_object
from models.files.writing import write_json

#: A token's span of the text, in characters: ``text[start:end]``.
Span = tuple[int, int]

#: A blank between ASCII letters or digits: no normalisation joins its two sides.
BLANK = re.compile(r"(?<=[A-Za-z0-9])(?= [A-Za-z0-9])")
#: Characters of a text that are encoded first: per wanted token (twice as many as an English token has), and the
#: minimum in all.
CHARACTERS_OF_TOKEN, FEWEST_CHARACTERS = 8, 2**12

CONFIG_FILE, SPECIAL_TOKENS_FILE = "tokenizer_config.json", "special_tokens_map.json"


class Tokenizer(ABC):
    """The base of all: truncation, padding, attention masks.

    Attributes:
        vocab_size: how many ids the model's embedding must hold.
        pad_token_id: the padding id. It is masked, so that it may also be a real token's id.
        unk_token_id: the id of unknown tokens; None if the vocabulary covers everything.
        mask_token_id: an id that no text has, to mask tokens with; None if there is none.
        in_transformers: what a model card says of its use there, with ``{cut}`` and ``{length}`` to be filled in.
        is_slow: whether transformers has to be asked for its slow tokenizer.
        has_separator: whether it has a separator token there.
    """

    vocab_size: int
    pad_token_id = 0
    unk_token_id: int | None = None
    mask_token_id: int | None = None
    in_transformers = ""
    is_slow = False
    has_separator = False

    def __call__(
        self,
        texts: Sequence[str],
        max_length: int | None = None,
        padding: str | bool = False,
        truncation: bool = True,
        padding_side: str = "right",
    ) -> dict[str, Any]:
        """Encode texts.

        Args:
            max_length: T; with truncation, the most ids of a text.
            padding: ``"max_length"`` fills every text up to T, False leaves them as they are.
            padding_side: ``"right"`` or ``"left"``.

        Returns:
            ``input_ids`` and ``attention_mask`` (1 for a token, 0 for padding): int64 arrays [B, T] when padded, else
            lists of B lists.

        Raises:
            ValueError: padding without max_length, or a text longer than max_length that may not be cut.
        """
        if isinstance(texts, str):
            raise TypeError("expected a list of texts, got one text")
        if padding not in ("max_length", False) or padding_side not in ("left", "right"):
            raise ValueError(
                f"padding={padding!r}, padding_side={padding_side!r}: 'max_length' or False, 'left' or 'right'"
            )
        rows = self.encode_batch(texts) if max_length is None or not truncation else self.beginnings(texts, max_length)
        if not padding:
            return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
        if max_length is None:
            raise ValueError("padding='max_length' needs max_length")
        return pad(rows, max_length, self.pad_token_id, padding_side)

    def encode(self, text: str) -> list[int]:
        """The ids of one text."""
        return self.encode_batch([text])[0]

    def beginnings(self, texts: Sequence[str], count: int) -> list[list[int]]:
        """Return the first ids of each text, ``count`` at most, equal to those of the whole text.

        Text far beyond them is not encoded: the ids of a text of 50 million characters take gigabytes.
        """
        size = max(FEWEST_CHARACTERS, CHARACTERS_OF_TOKEN * count)
        rows = self.encode_batch([text[: self.cut(text, size)] for text in texts])
        for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
            more = size
            while len(row) < count and self.cut(text, more) < len(text):
                more *= 8
                row = self.encode(text[: self.cut(text, more)])
            rows[index] = row[:count]
        return rows

    def cut(self, text: str, size: int) -> int:
        """The first place after ``size`` characters where a cut changes no ids before it; else the text's end."""
        found = BLANK.search(text, size, size + 2**16) if size < len(text) else None
        return found.start() if found and self.parts_at(text, found.start()) else len(text)

    def parts_at(self, text: str, place: int) -> bool:
        """Whether cutting a text at this blank between letters leaves the ids before it unchanged."""
        return False

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """The ids of each text, uncut."""

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of one text, and the span of characters of each."""

    @abstractmethod
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """The text of ids."""

    def begins_word(self) -> np.ndarray:
        """Whether each id begins a word: bool [vocab_size]."""
        raise NotImplementedError

    def readable(self, ids: Sequence[int]) -> str:
        """Decode ids for a human reader, without blanks or marks that only the vocabulary needs."""
        return self.decode(ids)

    @abstractmethod
    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        """Write into an existing folder what :meth:`from_folder` and `transformers`' ``AutoTokenizer`` need.
        ``max_length`` is the model's most tokens (``model_max_length``); None if unknown."""

    @classmethod
    @abstractmethod
    def from_folder(cls, folder: str | os.PathLike) -> Tokenizer:
        """Load a tokenizer of :meth:`save` or Hugging Face."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a SHA-256, equal for two tokenizers if and only if all their ids are equal."""


def pad(
    rows: Sequence[Sequence[int]], length: int, pad_token_id: int = 0, side: str = "right"
) -> dict[str, np.ndarray]:
    """Pad to ``input_ids`` and ``attention_mask`` [B, length] int64. Raises ValueError if a row is longer."""
    longest = max(map(len, rows), default=0)
    if longest > length:
        raise ValueError(f"a text has {longest} tokens, more than {length}, and was not to be cut")
    input_ids = np.full((len(rows), length), pad_token_id, dtype=np.int64)
    attention_mask = np.zeros((len(rows), length), dtype=np.int64)
    for index, row in enumerate(rows):
        place = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        input_ids[index, place] = row
        attention_mask[index, place] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def representable(text: str) -> str:
    """Replace each lone surrogate by U+FFFD, so that UTF-8 can encode it; keep the length."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def read_config(folder: str | os.PathLike) -> dict[str, Any]:
    """The settings in a tokenizer's folder; none where there is no such file. Raises ValueError if it is not a JSON
    object, and OSError if it cannot be read."""
    path = Path(folder, CONFIG_FILE)
    return read_object(path) if os.path.lexists(path) else {}


def special_token(config: dict[str, Any], key: str) -> str | None:
    """Return a special token of a folder's settings, stored as text or with flags; None if not set. Raises ValueError
    if it is something else."""
    token = config.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    if token is not None and not isinstance(token, str):
        raise ValueError(f"{CONFIG_FILE}: {key} should be a text, not {token!r:.60}")
    return token or None


def added_tokens(config: dict[str, Any]) -> list[dict[str, Any]]:
    """The entries of ``added_tokens_decoder``, each with its ``content``. Raises ValueError if they are something
    else."""
    entries = config.get("added_tokens_decoder") or {}
    found = list(entries.values()) if isinstance(entries, dict) else [entries]
    for entry in found:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise ValueError(f"{CONFIG_FILE}: added_tokens_decoder should hold tokens with their content")
    return found


def write_config(folder: str | os.PathLike, config: dict[str, Any], max_length: int | None) -> None:
    """Write the settings into an existing folder: one file for all, one for only the special tokens.

    Args:
        config: the tokenizer's own settings; the common ones are added.
        max_length: ``model_max_length``; None: not known.
    """
    common = {
        "model_input_names": ["input_ids", "attention_mask"],  # by default also token_type_ids, which no port takes
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        **({} if max_length is None else {"model_max_length": max_length}),
    }
    tokens = {key: value for key, value in config.items() if key.endswith("_token")}
    for name, content in ((CONFIG_FILE, {**config, **common}), (SPECIAL_TOKENS_FILE, tokens)):
        write_json(folder, name, content)
