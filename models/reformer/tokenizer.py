"""Reformer's two tokenizers: bytes (google/reformer-enwik8) and SentencePiece (google/reformer-crime-and-punishment).

Needs neither Paddle nor torch. Both add no special tokens of their own; texts are cut on the right, padded with id 0.
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece

from models.files.plain import read_bytes, read_object
from models.files.writing import write_file, write_json
from models.port.tokenization import (
    Span,
    Tokenizer,
    added_tokens,
    read_config,
    representable,
    special_token,
    write_config,
)
from models.reformer.byte_file import PAD, is_byte_file, tokenizer_file
from models.reformer.pieces_file import check_pieces

MODEL_FILE, BYTE_FILE = "spiece.model", "tokenizer.json"


class ByteTokenizer(Tokenizer):
    """UTF-8 bytes: id = byte + 2, as the model card of google/reformer-enwik8 defines it; 0 pads, 1 is not used.

    The card encodes with ``str.encode``, which refuses lone surrogates; here they become their three bytes
    (``surrogatepass``), so that no text of a data set can stop a run.
    """

    vocab_size = 258
    mask_token_id = 1
    has_separator = True
    in_transformers = """\
The tokens are bytes: `input_ids = [byte + 2 for byte in text.encode()]`, {cut}padded with 0 on the right to {length}
tokens, `attention_mask` 1 for text and 0 for padding (as the model card of google/reformer-enwik8).
"""

    def begins_word(self) -> np.ndarray:
        """A word begins with the blank before it, as SentencePiece's do."""
        return np.array([chr(max(0, index - 2)).isspace() and index < 130 for index in range(self.vocab_size)])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        return [[byte + 2 for byte in text.encode("utf-8", "surrogatepass")] for text in texts]

    def cut(self, text: str, size: int) -> int:
        return min(size, len(text))  # between any two characters

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """As :meth:`Tokenizer.encode_with_offsets`; every byte of a character has the character's span."""
        widths = [len(character.encode("utf-8", "surrogatepass")) for character in text]
        spans = [(index, index + 1) for index, width in enumerate(widths) for _ in range(width)]
        return self.encode(text), spans

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Decode ids; 0 and 1 are dropped, bytes that are not UTF-8 become U+FFFD."""
        stored = bytes(index - 2 for index in map(int, ids) if index > 1)
        try:
            return stored.decode("utf-8", "surrogatepass")
        except UnicodeDecodeError:
            return stored.decode("utf-8", "replace")

    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        write_json(folder, BYTE_FILE, tokenizer_file())
        # "<pad>" in a text is five bytes, never the token.
        settings = {"tokenizer_class": "PreTrainedTokenizerFast", "pad_token": PAD, "split_special_tokens": True}
        write_config(folder, settings, max_length)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> ByteTokenizer:
        return cls()

    def fingerprint(self) -> str:
        return hashlib.sha256(b"bytes + 2").hexdigest()


class ReformerTokenizer(Tokenizer):
    """SentencePiece as ``transformers.ReformerTokenizer`` does it, id for id.

    ``</s>`` and ``<unk>`` in a text are those tokens, and the text between them is encoded part by part.
    The reference has no padding token; ours is id 0, the model's ``pad_token_id``, whose embedding is never attended
    to. The reference cannot encode lone surrogates (it raises); here each reads as U+FFFD.

    Raises:
        ValueError: the bytes are no SentencePiece model, or a special token is not among its pieces.
    """

    is_slow = True
    in_transformers = """\
The tokens are SentencePiece's. `use_fast=False` asks transformers 4 for that library; the tokenizer that it would
convert the file into, as version 5 always does, gives other ids for some rare characters and for `<s>`.
"""

    def __init__(self, model: bytes, eos_token: str = "</s>", unk_token: str = "<unk>") -> None:
        self.model = model
        self.eos_token, self.unk_token = eos_token, unk_token
        try:
            self._pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
        except (RuntimeError, ValueError):
            raise ValueError("not a SentencePiece model") from None
        self.vocab_size = self._pieces.get_piece_size() if model else 0
        if not self.vocab_size:
            raise ValueError("not a SentencePiece model: it is empty")
        self._special = {token: self._pieces.piece_to_id(token) for token in (eos_token, unk_token)}
        for token, index in self._special.items():
            if self._pieces.id_to_piece(index) != token:
                raise ValueError(f"the special token {token!r} is not one of the model's {self.vocab_size} pieces")
        self.unk_token_id = self._special[unk_token]
        longest_first = sorted(self._special, key=len, reverse=True)
        self._blanks: dict[str, bool] = {}
        pieces = self._pieces.id_to_piece(list(range(self.vocab_size)))
        spare = (i for i, piece in enumerate(pieces) if self._pieces.is_control(i) and piece not in self._special)
        self.mask_token_id = next(spare, None)  # <s>: the text "<s>" is spelt by other pieces
        self._pieces_end_at_blanks = not any(re.search(r".[\s\u2581]", piece, re.DOTALL) for piece in pieces)
        self._split = re.compile("(" + "|".join(map(re.escape, longest_first)) + ")")

    def begins_word(self) -> np.ndarray:
        pieces = self._pieces.id_to_piece(list(range(self.vocab_size)))
        return np.array([piece.startswith("\u2581") for piece in pieces])

    def encode_batch(self, texts: Sequence[str]) -> list[list[int]]:
        parts = [[part for part in self._split.split(representable(text)) if part] for text in texts]
        plain = [part for row in parts for part in row if part not in self._special]
        if len(plain) > 1:
            pieces = iter(self._pieces.encode(plain, out_type=str))
        else:  # for a list, even of one text, SentencePiece starts a thread per processor
            pieces = iter([self._pieces.encode(part, out_type=str) for part in plain])
        return [[index for part in row for index in self._ids(part, pieces)] for row in parts]

    def parts_at(self, text: str, place: int) -> bool:
        """Whether no piece spans a blank, and no rule of the model's normalisation spans this one."""
        before, behind = representable(text[max(0, place - 32) : place]), representable(text[place : place + 32])
        parted = self._pieces.normalize(before) + self._pieces.normalize(behind)
        return self._pieces_end_at_blanks and parted == self._pieces.normalize(before + behind)

    def _ids(self, part: str, pieces: Iterator[list[str]]) -> list[int]:
        """Return the ids of one part of a text, looked up by piece as in the reference: an unknown piece can be spelt
        like a control token."""
        return [self._special[part]] if part in self._special else list(self._pieces.piece_to_id(next(pieces)))

    def encode_with_offsets(self, text: str) -> tuple[list[int], list[Span]]:
        """As :meth:`Tokenizer.encode_with_offsets`, without the space before a word: ``text[start:end]`` is the
        piece's text. A character that normalises to several (a ligature) belongs to the last of them."""
        ids: list[int] = []
        spans: list[Span] = []
        start = 0
        for part in self._split.split(representable(text)):
            if part in self._special:
                ids.append(self._special[part])
                spans.append((start, start + len(part)))
            elif part:
                found = self._pieces.encode(part, out_type="proto").pieces
                ids += self._pieces.piece_to_id([piece.piece for piece in found])
                spans += self._character_spans(part, [(piece.begin, piece.end) for piece in found], start)
            start += len(part)
        return ids, spans

    def _character_spans(self, part: str, byte_spans: Sequence[Span], start: int) -> list[Span]:
        """Convert byte spans of a part to character spans of the text, without the space in front."""
        position = np.zeros(len(part.encode()) + 1, dtype=np.int64)
        width = [len(character.encode()) for character in part]
        position[np.cumsum(width)] = 1
        position = np.cumsum(position).tolist()  # the number of characters that end at or before this byte
        spans = []
        for begin, end in byte_spans:
            first, last = position[begin], position[end]
            while first < last and self._blank(part[first]):
                first += 1
            spans.append((start + first, start + last))
        return spans

    def _blank(self, character: str) -> bool:
        """Whether normalisation makes a character, such as a control one, a space or nothing."""
        if character not in self._blanks:
            self._blanks[character] = not self._pieces.normalize(character).strip(" \u2581")
        return self._blanks[character]

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = False) -> str:
        """Decode ids, stripped, with or without special tokens. Raises ValueError for an id without a piece."""
        text, plain = "", []
        for index in map(int, ids):
            if not 0 <= index < self.vocab_size:
                raise ValueError(f"id {index} is not one of {self.vocab_size} pieces")
            if (piece := self._pieces.id_to_piece(index)) not in self._special:
                plain.append(piece)
            elif not skip_special_tokens:
                text += self._pieces.decode(plain) + piece
                plain = []
        return (text + self._pieces.decode(plain)).strip()

    def save(self, folder: str | os.PathLike, max_length: int | None = None) -> None:
        write_file(folder, MODEL_FILE, self.model)
        first = self._pieces.id_to_piece(self.pad_token_id)
        # transformers needs a special token for padding; another piece would become special in texts.
        pad_token = first if first in self._special else self.unk_token
        special = {"eos_token": self.eos_token, "unk_token": self.unk_token, "pad_token": pad_token}
        write_config(folder, {"tokenizer_class": "ReformerTokenizer", **special}, max_length)

    @classmethod
    def from_folder(cls, folder: str | os.PathLike) -> ReformerTokenizer:
        """Load a Hugging Face folder's tokenizer: ``spiece.model``, and special tokens if a file names them. Raises
        ValueError for settings that this port lacks, by name, or as the constructor, and OSError without
        ``spiece.model``."""
        return cls(_read_pieces(Path(folder, MODEL_FILE)), **_special_tokens(read_config(folder)))

    @classmethod
    def from_file(cls, path: str | os.PathLike) -> ReformerTokenizer:
        """The tokenizer of a SentencePiece model file; raises as :meth:`from_folder`."""
        return cls(_read_pieces(path))

    def fingerprint(self) -> str:
        special = json.dumps([self.eos_token, self.unk_token]).encode()
        return hashlib.sha256(special + b"\0" + self.model).hexdigest()


def load_tokenizer(folder: str | os.PathLike) -> Tokenizer:
    """Load the tokenizer of a model's folder: bytes if its files say so, else SentencePiece. Raises ValueError if the
    folder holds no tokenizer, or one that this port cannot equal."""
    if holds_bytes(folder):
        return ByteTokenizer.from_folder(folder)
    if not os.path.lexists(Path(folder, MODEL_FILE)):
        raise ValueError(
            f"{folder} holds no tokenizer: there is neither {MODEL_FILE} nor a byte tokenizer's {BYTE_FILE}"
        )
    return ReformerTokenizer.from_folder(folder)


def of_kind(kind: str, path: str | os.PathLike) -> Tokenizer:
    """The tokenizer of a recipe's ``tokenizer.kind``, from its file, or its folder for ``checkpoint``."""
    if kind == "bytes":
        return ByteTokenizer()
    return load_tokenizer(path) if kind == "checkpoint" else ReformerTokenizer.from_file(path)


def holds_bytes(folder: str | os.PathLike) -> bool:
    """Whether a folder has the byte tokenizer: by its ``tokenizer.json``, or in the older form without one. Raises
    ValueError if a file in it is not JSON, and OSError if one cannot be read."""
    if read_config(folder).get("tokenizer_class") == "ByteTokenizer":
        return True
    path = Path(folder, BYTE_FILE)
    return os.path.lexists(path) and is_byte_file(read_object(path))


def train_sentencepiece(texts: Iterable[str], vocab_size: int, folder: str | os.PathLike) -> ReformerTokenizer:
    """Train a SentencePiece BPE on texts and write it to a folder. Equal texts give an equal model. Of ``vocab_size``
    pieces, <unk>, <s> and </s> are ids 0, 1 and 2, as in the published Reformer. Raises ValueError if the texts do not
    give that many pieces, or need more for their characters alone."""
    model = io.BytesIO()
    lines = (line for text in texts for line in representable(text).splitlines() if line.strip())
    if (first := next(lines, None)) is None:
        raise ValueError("cannot train pieces on these texts: they are empty")
    sentencepiece.set_random_generator_seed(0)
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=itertools.chain([first], lines),
            model_writer=model,
            model_type="bpe",
            vocab_size=vocab_size,
            max_sentence_length=1 << 24,  # by default, lines longer than 4192 bytes are silently dropped
            input_sentence_size=1_000_000,
            minloglevel=2,
        )
    except (RuntimeError, ValueError) as problem:
        raise ValueError(f"cannot train {vocab_size} pieces on these texts: {_reason(problem)}") from None
    tokenizer = ReformerTokenizer(model.getvalue())
    Path(folder).mkdir(parents=True, exist_ok=True)
    tokenizer.save(folder)
    return tokenizer


#: Kinds that are trained on a recipe's text.
TRAINED = {"sentencepiece": train_sentencepiece}


def _read_pieces(path: str | os.PathLike) -> bytes:
    """Read an untrusted SentencePiece model, checked before the library gets it."""
    model = read_bytes(path)
    check_pieces(model)
    return model


def _special_tokens(config: dict[str, Any]) -> dict[str, str]:
    """``eos_token`` and ``unk_token`` of Hugging Face settings. Raises ValueError for a setting that would change ids
    and that this port does not have."""
    named = {key: special_token(config, key) for key in ("eos_token", "unk_token")}
    tokens = {key: token for key, token in named.items() if token is not None}
    if config.get("additional_special_tokens"):
        raise ValueError("additional_special_tokens are not supported by this port of ReformerTokenizer")
    known = {"</s>", "<unk>", *tokens.values()}
    for entry in added_tokens(config):
        changes = [flag for flag in ("lstrip", "rstrip", "single_word", "normalized") if entry.get(flag)]
        if entry["content"] not in known or changes:
            raise ValueError(f"the added token {entry['content']!r} {changes or ''} is not supported by this port")
    return tokens


def _reason(problem: Exception) -> str:
    """The sentence of a SentencePiece error, without its source position."""
    return " ".join(str(problem).split()).rpartition("] ")[2]
