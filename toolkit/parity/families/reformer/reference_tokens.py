"""The reference's tokenizers for Reformer."""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Sequence
from typing import Any

import transformers


def _load_sentencepiece(file: str) -> Any:
    """Return the reference's tokenizer for a SentencePiece model, with the unknown token as padding.

    In newer versions of transformers, ``ReformerTokenizer`` is a conversion of SentencePiece, which splits some texts
    differently. Its general SentencePiece tokenizer then replaces it, with the decoding of the older version.

    Args:
        file: path of the SentencePiece model.
    """
    if "vocab_file" in inspect.signature(transformers.ReformerTokenizer.__init__).parameters:
        return transformers.ReformerTokenizer(file, pad_token="<unk>")
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    class Pieces(SentencePieceBackend):
        """SentencePiece tokenizer of transformers that decodes as in older versions."""

        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            """Return the text of tokens. Special tokens are inserted as they are written."""
            text = ""
            for special, group in itertools.groupby(tokens, key=self.all_special_tokens.__contains__):
                run = list(group)
                text += "".join(run) if special else self.sp_model.decode(run)
            return text.strip()

    return Pieces(vocab_file=file, eos_token="</s>", unk_token="<unk>", pad_token="<unk>")


def offsets(tokenizer: Any, text: str) -> list[list[int]]:
    """Return `[id, start, end]` for each token: its id, its first character and the character after its last.

    The reference's slow tokenizers do not return offsets. SentencePiece's own offsets count bytes of the text between
    two special tokens, and include the blanks before a word, which belong to no token here.

    Args:
        tokenizer: tokenizer of the reference.
        text: text to split.
    """
    if isinstance(tokenizer, ByteReference):
        return [
            [byte + 2, position, position + 1] for position, character in enumerate(text) for byte in character.encode()
        ]
    is_blank = functools.cache(lambda character: not tokenizer.sp_model.normalize(character).strip(" \u2581"))
    tokens, start = [], 0
    for part in tokenizer.tokens_trie.split(text):
        if part in tokenizer.added_tokens_encoder:
            tokens.append([tokenizer.convert_tokens_to_ids(part), start, start + len(part)])
        else:
            ends = itertools.accumulate((len(character.encode()) for character in part), initial=0)
            characters = {end: index for index, end in enumerate(ends)}
            for piece in tokenizer.sp_model.encode(part, out_type="proto").pieces:
                first, end = characters[piece.begin], characters[piece.end]
                while first < end and is_blank(part[first]):
                    first += 1
                tokens.append([tokenizer.convert_tokens_to_ids(piece.piece), start + first, start + end])
        start += len(part)
    return tokens


class ByteReference:
    """The byte tokenizer of google/reformer-enwik8, from the functions of its model card: id = byte + 2, 0 is padding.

    Attributes:
        padding_side: side of the padding, `right` or `left`.
    """

    padding_side = "right"

    def __call__(self, texts: Sequence[str], **options: Any) -> dict:
        """Return ``input_ids`` and ``attention_mask`` of texts, as lists of rows.

        Args:
            texts: texts to split.
            options: keyword arguments of transformers: ``max_length``, ``padding`` and ``truncation``.
        """
        rows = [self._row(text, **options) for text in texts]
        return {key: [row[key] for row in rows] for key in ("input_ids", "attention_mask")}

    def _row(self, text: str, max_length: int = 0, padding: bool | str = False, truncation: bool = False) -> dict:
        """Return ``input_ids`` and ``attention_mask`` of a text.

        Args:
            text: text to split.
            max_length: length of the padded row, and maximum length with truncation.
            padding: whether to pad to ``max_length``; a string such as `max_length` counts as True.
            truncation: whether to cut the tokens beyond ``max_length``.
        """
        ids = [byte + 2 for byte in text.encode()][: max_length if truncation else None]
        fill = [0] * (max_length - len(ids) if padding else 0)
        mask = [1] * len(ids)
        if self.padding_side == "left":
            return {"input_ids": fill + ids, "attention_mask": [0] * len(fill) + mask}
        return {"input_ids": ids + fill, "attention_mask": mask + [0] * len(fill)}

    def decode(self, ids: list[int]) -> str:
        """Return the text of token ids, without padding."""
        return bytes(index - 2 for index in ids if index > 1).decode()


#: Loader of each kind of tokenizer (:attr:`toolkit.parity.job.job.TokenizerJob.kind`).
TOKENIZERS = {"bytes": lambda path: ByteReference(), "sentencepiece": _load_sentencepiece}
