"""Reformer's two tokenizers: bytes (google/reformer-enwik8) and SentencePiece (google/reformer-crime-and-punishment).

Neither adds special tokens. Texts are cut on the right and padded with id 0. The module needs neither Paddle nor torch.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from models.files.plain import read_bytes, read_object
from models.files.writing import write_file, write_json
from models.port.tokenization import (
    Span,
    Tokenizer,
    read_added_tokens,
    read_special_token,
    read_tokenizer_config,
    replace_surrogates,
    write_tokenizer_config,
)
from models.reformer.byte_file import PAD, is_byte_file, tokenizer_file
from models.reformer.pieces_file import check_pieces

MODEL_FILE, BYTE_FILE = "spiece.model", "tokenizer.json"


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: id = byte + 2, as the model card of google/reformer-enwik8 defines it; 0 pads, 1 is not used.

    The model card encodes with ``str.encode``, which refuses lone surrogates. Here they become their three bytes
    (``surrogatepass``), so that no text of a data set can stop a run.
    """

    vocab_size = 258
    mask_token_id = 1
    has_separator = True
    usage_note = """\
The tokens are bytes: `input_ids = [byte + 2 for byte in text.encode()]`, {cut}padded with 0 on the right to {length}
tokens, `attention_mask` 1 for text and 0 for padding (as the model card of google/reformer-enwik8).
"""

    def begins_word(self) -> np.ndarray:
        """Return whether each id is a white-space character, the beginning of a word as in SentencePiece."""
        return np.array([chr(max(0, index - 2)).isspace() and index < 130 for index in range(self.vocab_size)])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text: its UTF-8 bytes plus 2."""
        return [[byte + 2 for byte in text.encode("utf-8", "surrogatepass")] for text in texts]

    def find_safe_cut(self, text: str, size: int) -> int:
        """Return the largest position up to ``size`` where a cut of the text changes no ids before it."""
        return min(size, len(text))  # any position between two characters is safe

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of one text and their spans; every byte of a character has the span of the character."""
        widths = [len(character.encode("utf-8", "surrogatepass")) for character in text]
        spans = [(index, index + 1) for index, width in enumerate(widths) for _ in range(width)]
        return self.encode(text), spans

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids without the ids 0 and 1; bytes that are not UTF-8 become U+FFFD."""
        encoded_text = bytes(index - 2 for index in map(int, ids) if index > 1)
        try:
            return encoded_text.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return encoded_text.decode("utf-8", "replace")

    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        """Write the files of the tokenizer as transformers reads them.

        Args:
            folder: folder for the files.
            max_length: maximum number of tokens of a text, for the configuration; None for no maximum.
        """
        write_json(folder, BYTE_FILE, tokenizer_file())
        # With split_special_tokens, "<pad>" in a text is five bytes and not the token.
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "split_special_tokens": True}
        write_tokenizer_config(folder, settings, max_length)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> ByteTokenizer:
        """Return the tokenizer; no file is read, since it has no vocabulary."""
        return cls()

    def fingerprint(self) -> str:
        """Return a SHA-256 digest, in hexadecimal, that is the same for all byte tokenizers."""
        return hashlib.sha256(b"bytes + 2").hexdigest()


class ReformerTokenizer(Tokenizer):
    """SentencePiece as ``transformers.ReformerTokenizer`` does it, id for id.

    ``</s>`` and ``<unk>`` in a text are special tokens, and each part of the text between them is encoded in isolation.
    The reference has no padding token. Here it is id 0, the model's ``pad_token_id``, whose embedding is never attended
    to. The reference raises an error for lone surrogates. Here they become U+FFFD.

    Args:
        model: content of the SentencePiece model's file.
        eos_token: token of the end of a text.
        unk_token: token of unknown pieces.

    Raises:
        ValueError: the content is not a SentencePiece model, or a special token is not one of its pieces.
    """

    is_slow = True
    usage_note = """\
The tokens are SentencePiece's. `use_fast=False` asks transformers 4 for that library; the tokenizer that it would
convert the file into, as version 5 always does, gives other ids for some rare characters and for `<s>`.
"""

    def __init__(self, model_bytes: bytes, eos_token: str = "</s>", unk_token: str = "<unk>") -> None:
        self.model = model_bytes
        self.eos_token, self.unk_token = eos_token, unk_token
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model_bytes)
        except (RuntimeError, ValueError):
            raise ValueError("not a SentencePiece model") from None
        self.vocab_size = self._pieces.get_piece_size() if model_bytes else 0
        if not self.vocab_size:
            raise ValueError("not a SentencePiece model: it is empty")
        self._special = {token: self._pieces.piece_to_id(token) for token in (eos_token, unk_token)}
        for token, index in self._special.items():
            if self._pieces.id_to_piece(index) != token:
                raise ValueError(f"the special token {token!r} is not one of the model's {self.vocab_size} pieces")
        self.unk_token_id = self._special[unk_token]
        longest_first = sorted(self._special, key=len, reverse=True)
        self._vanishing: dict[str, bool] = {}
        pieces = self._pieces.id_to_piece(list(range(self.vocab_size)))
        free_ids = (i for i, piece in enumerate(pieces) if self._pieces.is_control(i) and piece not in self._special)
        self.mask_token_id = next(free_ids, None)  # <s>, since the text "<s>" is encoded by other pieces
        self._pieces_end_at_spaces = not any(re.search(r".[\s\u2581]", piece, re.DOTALL) for piece in pieces)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def begins_word(self) -> np.ndarray:
        """Whether each piece of the vocabulary begins a word, bool (vocabulary,)."""
        pieces = self._pieces.id_to_piece(list(range(self.vocab_size)))
        return np.array([piece.startswith("\u2581") for piece in pieces])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the token ids of each text."""
        parts = [[part for part in self._split.split(replace_surrogates(text)) if part] for text in texts]
        plain_parts = [part for row in parts for part in row if part not in self._special]
        if len(plain_parts) > 1:
            pieces = iter(self._pieces.encode(plain_parts, out_type=str))
        else:  # for a list, even with one text, SentencePiece starts a thread on each processor
            pieces = iter([self._pieces.encode(part, out_type=str) for part in plain_parts])
        return [[index for part in row for index in self._part_ids(part, pieces)] for row in parts]

    def is_safe_cut(self, text: str, position: int) -> bool:
        """Return whether no piece and no rule of the model's normalization spans the space at ``position``."""
        before = replace_surrogates(text[max(0, position - 32) : position])
        after = replace_surrogates(text[position : position + 32])
        parts = self._pieces.normalize(before) + self._pieces.normalize(after)
        return self._pieces_end_at_spaces and parts == self._pieces.normalize(before + after)

    def _part_ids(self, part: str, pieces: Iterator[list[str]]) -> list[int]:
        """Return the ids of one part of a text.

        Ids are looked up by piece as in the reference, since an unknown piece can be spelled like a control token.

        Args:
            part: special token, or the text between two special tokens.
            pieces: pieces of each part that is not a special token; the next item is used.
        """
        return [self._special[part]] if part in self._special else list(self._pieces.piece_to_id(next(pieces)))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """Return the ids of one text and their spans, without the space before a word.

        A character that is normalized to several characters, such as a ligature, belongs to the last of their pieces.
        """
        ids: list[int] = []
        spans: list[Span] = []
        start = 0
        for part in self._split.split(replace_surrogates(text)):
            if part in self._special:
                ids.append(self._special[part])
                spans.append((start, start + len(part)))
            elif part:
                pieces = self._pieces.encode(part, out_type="proto").pieces
                ids += self._pieces.piece_to_id([piece.piece for piece in pieces])
                spans += self._character_spans(part, [(piece.begin, piece.end) for piece in pieces], start)
            start += len(part)
        return ids, spans

    def _character_spans(self, part: str, byte_spans: Sequence[Span], start: int) -> list[Span]:
        """Return the spans of characters in the text, without the space before a word.

        Args:
            part: text between two special tokens.
            byte_spans: spans of bytes in the part.
            start: index of the part's first character in the text.
        """
        position = np.zeros(len(part.encode()) + 1, dtype=np.int64)
        widths = [len(character.encode()) for character in part]
        position[np.cumsum(widths)] = 1
        position = np.cumsum(position).tolist()  # number of characters that end at or before each byte
        spans = []
        for begin, end in byte_spans:
            first, last = position[begin], position[end]
            while first < last and self._vanishes(part[first]):
                first += 1
            spans.append((start + first, start + last))
        return spans

    def _vanishes(self, character: str) -> bool:
        """Return whether normalization replaces a character, such as a control character, by a space or nothing."""
        if character not in self._vanishing:
            self._vanishing[character] = not self._pieces.normalize(character).strip(" \u2581")
        return self._vanishing[character]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Return the text of ids without white space at its ends, with or without special tokens.

        Raises:
            ValueError: an id is outside of the vocabulary.
        """
        text, pieces = "", []
        for index in map(int, ids):
            if not 0 <= index < self.vocab_size:
                raise ValueError(f"id {index} is not one of {self.vocab_size} pieces")
            if (piece := self._pieces.id_to_piece(index)) not in self._special:
                pieces.append(piece)
            elif not skip_special_tokens:
                text += self._pieces.decode(pieces) + piece
                pieces = []
        return (text + self._pieces.decode(pieces)).strip()

    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        """Write the SentencePiece model and the tokenizer's configuration as transformers reads them.

        Args:
            folder: folder for the files.
            max_length: maximum number of tokens of a text, for the configuration; None for no maximum.
        """
        write_file(folder, MODEL_FILE, self.model)
        pad_piece = self._pieces.id_to_piece(self.pad_token_id)
        # transformers needs a special token for padding; any other piece would become special in texts.
        pad_token = pad_piece if pad_piece in self._special else self.unk_token
        special_tokens = {"eos_token": self.eos_token, "unk_token": self.unk_token, "pad_token": pad_token}
        write_tokenizer_config(folder, {"tokenizer_class": "ReformerTokenizer", **special_tokens}, max_length)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> ReformerTokenizer:
        """Load the tokenizer of a Hugging Face folder: ``spiece.model`` and optional settings.

        Raises:
            ValueError: a setting is not supported, or the model is invalid.
            OSError: ``spiece.model`` is missing.
        """
        return cls(_read_model(Path(folder, MODEL_FILE)), **_read_special_tokens(read_tokenizer_config(folder)))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> ReformerTokenizer:
        """Load the tokenizer of a SentencePiece model's file. Errors: see :meth:`from_folder`."""
        return cls(_read_model(path))

    def fingerprint(self) -> str:
        """Return a SHA-256 digest of all data that decides about the tokens, in hexadecimal."""
        special = json.dumps([self.eos_token, self.unk_token]).encode()
        return hashlib.sha256(special + b"\0" + self.model).hexdigest()


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Load the tokenizer of a model's folder, bytes or SentencePiece.

    Raises:
        ValueError: the folder has no tokenizer, or a tokenizer that is not supported.
    """
    if has_byte_tokenizer(folder):
        return ByteTokenizer.from_folder(folder)
    if not os.path.lexists(Path(folder, MODEL_FILE)):
        raise ValueError(
            f"{folder} holds no tokenizer: there is neither {MODEL_FILE} nor a byte tokenizer's {BYTE_FILE}"
        )
    return ReformerTokenizer.from_folder(folder)


def load_tokenizer_of_kind(kind: str, path: str | os.PathLike) -> Tokenizer:
    """Load the tokenizer of a recipe's ``tokenizer.kind``.

    Args:
        kind: ``bytes``, ``sentencepiece`` or ``checkpoint``.
        path: folder of the tokenizer for ``checkpoint``, or the file of the SentencePiece model.
    """
    if kind == "bytes":
        return ByteTokenizer()
    return load_tokenizer(path) if kind == "checkpoint" else ReformerTokenizer.from_file(path)


def has_byte_tokenizer(folder: str | os.PathLike) -> bool:
    """Return whether a folder has the byte tokenizer, also in the older form without a ``tokenizer.json``.

    Raises:
        ValueError: a file of the tokenizer is not JSON.
        OSError: a file of the tokenizer cannot be read.
    """
    if read_tokenizer_config(folder).get("tokenizer_class") == "ByteTokenizer":
        return True
    path = Path(folder, BYTE_FILE)
    return os.path.lexists(path) and is_byte_file(read_object(path))


def train_sentencepiece(texts: Iterable[str], vocab_size: int, folder: str | os.PathLike) -> ReformerTokenizer:
    """Train a SentencePiece BPE model on texts and write it to a folder. Equal texts give an equal model.

    Args:
        texts: training texts.
        vocab_size: number of pieces; <unk>, <s> and </s> have the ids 0, 1 and 2 as in the published model.
        folder: folder of the tokenizer, created if it does not exist.

    Raises:
        ValueError: the texts have too few pieces for this size, or too many characters.
    """
    model = io.BytesIO()
    lines = (line for text in texts for line in replace_surrogates(text).splitlines() if line.strip())
    if (first := next(lines, None)) is None:
        raise ValueError("cannot train pieces on these texts: they are empty")
    sentencepiece.set_random_generator_seed(0)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain([first], lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            max_sentence_length=1 << 24,  # by default, lines of more than 4192 bytes are dropped without a warning
            input_sentence_size=1_000_000,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as error:
        raise ValueError(f"cannot train {vocab_size} pieces on these texts: {_error_sentence(error)}") from None
    tokenizer = ReformerTokenizer(model.getvalue())
    Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


#: Function that trains the tokenizer of each kind on a recipe's texts.
TRAINERS = {"sentencepiece": train_sentencepiece}


def _read_model(path: str | os.PathLike) -> bytes:
    """Return the content of an untrusted SentencePiece model's file, which is checked before the library loads it."""
    model = read_bytes(path)
    check_pieces(model)
    return model


def _read_special_tokens(config: Mapping[str, Any]) -> dict[str, str]:
    """Return ``eos_token`` and ``unk_token`` of a folder's settings, if they are set.

    Raises:
        ValueError: a setting that is not supported would change ids.
    """
    optional_tokens = {key: read_special_token(config, key) for key in ("eos_token", "unk_token")}
    tokens = {key: token for key, token in optional_tokens.items() if token is not None}
    if config.get("additional_special_tokens"):
        raise ValueError("additional_special_tokens are not supported by this port of ReformerTokenizer")
    supported_tokens = {"</s>", "<unk>", *tokens.values()}
    for entry in read_added_tokens(config):
        flags = [flag for flag in ("lstrip", "rstrip", "single_word", "normalized") if entry.get(flag)]
        if entry["content"] not in supported_tokens or flags:
            raise ValueError(f"the added token {entry['content']!r} {flags or ''} is not supported by this port")
    return tokens


def _error_sentence(error: Exception) -> str:
    """Return the sentence of a SentencePiece error without the source location before it."""
    return " ".join(str(error).split()).rpartition("] ")[2]
