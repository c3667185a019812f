"""Base class of the families' tokenizers: truncation, padding, attention masks, and the settings file.

The module needs neither Paddle nor torch.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from models.files.plain import read_object
from models.files.writing import write_json

#: Characters of a text that belong to a token, ``text[start:end]``.
Span = tuple[int, int]

#: Position before a space between ASCII letters or digits, whose two sides no normalization joins.
SPACE = re.compile(r"(?<=[A-Za-z0-9])(?= [A-Za-z0-9])")
#: Number of characters that are encoded first for each required token: twice as many as an English token has.
CHARACTERS_PER_TOKEN = 8
#: Minimum number of characters that are encoded first.
MIN_CHARACTERS = 2**12

CONFIG_FILE, SPECIAL_TOKENS_FILE = "tokenizer_config.json", "special_tokens_map.json"


class Tokenizer(ABC):
    """Base class of all tokenizers, with truncation, padding and attention masks.

    Attributes:
        vocab_size: number of ids, and of rows of the model's embedding.
        pad_token_id: id of padding. Padding is masked, so that the id may also be the id of a token.
        unk_token_id: id of unknown tokens; None if the vocabulary covers every text.
        mask_token_id: id that replaces masked tokens and that no text has; None if no such id is free.
        usage_note: note of a model card on the use in ``transformers``, with placeholders ``{cut}`` and ``{length}``.
        is_slow: whether ``transformers`` needs ``use_fast=False``.
        has_separator: whether the tokenizer in ``transformers`` has a separator token.
    """

    vocab_size: int
    pad_token_id = 0
    unk_token_id: int | None = None
    mask_token_id: int | None = None
    usage_note = ""
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
        """Return the ids of texts, and their attention mask.

        Args:
            texts: B texts.
            max_length: maximum number of ids of a text with truncation, and their number with padding, T.
            padding: ``"max_length"`` pads every text to ``max_length`` ids; False does not pad.
            truncation: whether longer texts are cut.
            padding_side: ``"right"`` or ``"left"``.

        Returns:
            ``input_ids`` and ``attention_mask``, which is 1 for a token and 0 for padding: int64 arrays (B, T) with
            padding, and otherwise lists of B lists.

        Raises:
            ValueError: padding needs ``max_length``, or a text is longer and may not be cut.
        """
        if isinstance(texts, str):
            raise TypeError("expected a list of texts, got one text")
        if padding not in ("max_length", False) or padding_side not in ("left", "right"):
            raise ValueError(
                f"padding={padding!r}, padding_side={padding_side!r}: 'max_length' or False, 'left' or 'right'"
            )
        if max_length is None or not truncation:
            rows = self.encode_batch(texts)
        else:
            rows = self.encode_prefixes(texts, max_length)
        if not padding:
            return {"input_ids": rows, "attention_mask": [[1] * len(row) for row in rows]}
        if max_length is None:
            raise ValueError("padding='max_length' needs max_length")
        return pad(rows, max_length, self.pad_token_id, padding_side)

    def encode(self, text: str) -> list[int]:
        """Return the ids of one text."""
        return self.encode_batch([text])[0]

    def encode_prefixes(self, texts: Sequence[str], max_ids: int) -> list[list[int]]:
        """Return the first ids of each text, at most ``max_ids``, equal to the first ids of the whole text.

        Text far beyond them is not encoded, because the ids of a text of 50 million characters take gigabytes.
        """
        size = max(MIN_CHARACTERS, CHARACTERS_PER_TOKEN * max_ids)
        rows = self.encode_batch([text[: self.find_safe_cut(text, size)] for text in texts])
        for index, (text, row) in enumerate(zip(texts, rows, strict=True)):
            row_size = size
            while len(row) < max_ids and self.find_safe_cut(text, row_size) < len(text):
                row_size *= 8
                row = self.encode(text[: self.find_safe_cut(text, row_size)])
            rows[index] = row[:max_ids]
        return rows

    def find_safe_cut(self, text: str, size: int) -> int:
        """Return the first position after ``size`` characters where a cut changes no ids before it.

        The end of the text is such a position.
        """
        space = SPACE.search(text, size, size + 2**16) if size < len(text) else None
        return space.start() if space and self.is_safe_cut(text, space.start()) else len(text)

    def is_safe_cut(self, text: str, position: int) -> bool:
        """Return whether a cut before a space between letters changes no ids before it.

        Args:
            text: the whole text.
            position: index of the space.
        """
        return False

    @abstractmethod
    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return all ids of each text."""

    @abstractmethod
    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of one text, and the span of characters of each id."""

    @abstractmethod
    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids, with or without special tokens."""

    def begins_word(self) -> np.ndarray:
        """Return whether each id begins a word, bool (vocab_size,)."""
        raise NotImplementedError

    def decode_readable(self, ids: Sequence[int]) -> str:
        """Return the text of ids for a human reader, without spaces or marks that only the vocabulary needs."""
        return self.decode(ids)

    @abstractmethod
    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        """Write the files that :meth:`from_folder` and the ``AutoTokenizer`` of ``transformers`` read.

        Args:
            folder: existing folder.
            max_length: maximum number of tokens of the model's texts, ``model_max_length``; None if unknown.
        """

    @classmethod
    @abstractmethod
    def from_folder(cls, folder: str | os.PathLike) -> Tokenizer:
        """Load a tokenizer that :meth:`save` or Hugging Face wrote."""

    @abstractmethod
    def fingerprint(self) -> str:
        """Return a SHA-256 that two tokenizers share if and only if all their ids are equal."""


def pad(
    rows: Sequence[Sequence[int]], length: int, pad_token_id: int = 0, side: str = "right"
) -> dict[str, np.ndarray]:
    """Return the padded ``input_ids`` and their ``attention_mask``, int64 (B, length).

    Args:
        rows: ids of B texts.
        length: number of ids of each text after padding.
        pad_token_id: id of padding.
        side: side of the padding, ``"right"`` or ``"left"``.

    Raises:
        ValueError: a row has more than ``length`` ids.
    """
    max_row_length = max(map(len, rows), default=0)
    if max_row_length > length:
        raise ValueError(f"a text has {max_row_length} tokens, more than {length}, and was not to be cut")
    input_ids = np.full((len(rows), length), pad_token_id, dtype=np.int64)
    attention_mask = np.zeros((len(rows), length), dtype=np.int64)
    for index, row in enumerate(rows):
        columns = slice(0, len(row)) if side == "right" else slice(length - len(row), length)
        input_ids[index, columns] = row
        attention_mask[index, columns] = 1
    return {"input_ids": input_ids, "attention_mask": attention_mask}


def replace_surrogates(text: str) -> str:
    """Return the text with U+FFFD for each lone surrogate, so that UTF-8 can encode it. The length stays."""
    return re.sub("[\ud800-\udfff]", "\ufffd", text)


def read_tokenizer_config(folder: str | os.PathLike) -> dict[str, Any]:
    """Return the settings in a tokenizer's folder, empty without a settings file.

    Raises:
        ValueError: the file is not a JSON object.
        OSError: the file cannot be read.
    """
    path = Path(folder, CONFIG_FILE)
    return read_object(path) if os.path.lexists(path) else {}


def read_special_token(config: Mapping[str, Any], key: str) -> str | None:
    """Return a special token of a folder's settings, stored as text or with flags; None if it is not set.

    Raises:
        ValueError: the stored token is not a text.
    """
    token = config.get(key)
    token = token.get("content") if isinstance(token, dict) else token
    if token is not None and not isinstance(token, str):
        raise ValueError(f"{CONFIG_FILE}: {key} should be a text, not {token!r:.60}")
    return token or None


def read_added_tokens(config: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the entries of ``added_tokens_decoder`` in a folder's settings, each with its ``content``.

    Raises:
        ValueError: an entry has no ``content``.
    """
    decoder = config.get("added_tokens_decoder") or {}
    entries = list(decoder.values()) if isinstance(decoder, dict) else [decoder]
    for entry in entries:
        if not isinstance(entry, dict) or not isinstance(entry.get("content"), str):
            raise ValueError(f"{CONFIG_FILE}: added_tokens_decoder should hold tokens with their content")
    return entries


def write_tokenizer_config(folder: str | os.PathLike, config: Mapping[str, Any], max_length: int | None) -> None:
    """Write the settings file of a tokenizer, and a second file with only its special tokens.

    Args:
        folder: existing folder.
        config: settings of the tokenizer; the settings that all tokenizers share are added.
        max_length: maximum number of tokens of the model's texts, ``model_max_length``; None if unknown.
    """
    common_config = {
        "model_input_names": ["input_ids", "attention_mask"],  # by default also token_type_ids, which no port takes
        "padding_side": "right",
        "clean_up_tokenization_spaces": False,
        **({} if max_length is None else {"model_max_length": max_length}),
    }
    special_tokens = {key: value for key, value in config.items() if key.endswith("_token")}
    write_json(folder, CONFIG_FILE, {**config, **common_config})
    write_json(folder, SPECIAL_TOKENS_FILE, special_tokens)
