"""The reference's tokenizers of a Reformer."""

from __future__ import annotations

import functools
import inspect
import itertools
from typing import Any

import transformers


def _sentencepiece(file: str) -> Any:
    """The reference's tokenizer on a SentencePiece model. It has no padding token; the unknown token serves as one.

    If ``ReformerTokenizer`` is no longer SentencePiece but a conversion of it (which splits some texts differently),
    the reference's general SentencePiece tokenizer replaces it, and decodes as it did.
    """
    if "vocab_file" in inspect.signature(transformers.ReformerTokenizer.__init__).parameters:
        return transformers.ReformerTokenizer(file, pad_token="<unk>")
    from transformers.tokenization_utils_sentencepiece import SentencePieceBackend

    class Pieces(SentencePieceBackend):
        def convert_tokens_to_string(self, tokens: list[str]) -> str:
            text = ""
            for special, group in itertools.groupby(tokens, key=self.all_special_tokens.__contains__):
                run = list(group)
                text += "".join(run) if special else self.sp_model.decode(run)
            return text.strip()

    return Pieces(vocab_file=file, eos_token="</s>", unk_token="<unk>", pad_token="<unk>")


def offsets(tokenizer: Any, text: str) -> list[list[int]]:
    """Each token's id and its characters, first and past the last.

    The reference's slow tokenizers give none. SentencePiece's own count bytes of the text between two special tokens,
    and include the blanks before a word, which belong to no token here.
    """
    if isinstance(tokenizer, ByteReference):
        return [[byte + 2, place, place + 1] for place, character in enumerate(text) for byte in character.encode()]
    is_blank = functools.cache(lambda character: not tokenizer.sp_model.normalize(character).strip(" \u2581"))
    found, start = [], 0
    for part in tokenizer.tokens_trie.split(text):
        if part in tokenizer.added_tokens_encoder:
            found.append([tokenizer.convert_tokens_to_ids(part), start, start + len(part)])
        else:
            ends = itertools.accumulate((len(character.encode()) for character in part), initial=0)
            characters = {end: index for index, end in enumerate(ends)}
            for piece in tokenizer.sp_model.encode(part, out_type="proto").pieces:
                first, past = characters[piece.begin], characters[piece.end]
                while first < past and is_blank(part[first]):
                    first += 1
                found.append([tokenizer.convert_tokens_to_ids(piece.piece), start + first, start + past])
        start += len(part)
    return found


class ByteReference:
    """The byte tokens of google/reformer-enwik8, by the functions of its model card: id = byte + 2, 0 is padding."""

    padding_side = "right"

    def __call__(self, texts: list[str], **options: Any) -> dict:
        rows = [self._row(text, **options) for text in texts]
        return {key: [row[key] for row in rows] for key in ("input_ids", "attention_mask")}

    def _row(self, text: str, max_length: int = 0, padding: bool | str = False, truncation: bool = False) -> dict:
        ids = [byte + 2 for byte in text.encode()][: max_length if truncation else None]
        fill = [0] * (max_length - len(ids) if padding else 0)
        mask = [1] * len(ids)
        if self.padding_side == "left":
            return {"input_ids": fill + ids, "attention_mask": [0] * len(fill) + mask}
        return {"input_ids": ids + fill, "attention_mask": mask + [0] * len(fill)}

    def decode(self, ids: list[int]) -> str:
        return bytes(index - 2 for index in ids if index > 1).decode()


#: By the kinds of :class:`toolkit.parity.job.job.TokenizerJob`.
TOKENIZERS = {"bytes": lambda path: ByteReference(), "sentencepiece": _sentencepiece}
