"""What the reference's tokenizers make of texts."""

from __future__ import annotations

import transformers


def tokens(spec: dict) -> list[dict]:
    """What the reference's tokenizer makes of every text of the job: ids, mask (padded on either side), decoded text.

    A text with a lone surrogate, which the reference cannot encode, gives ``{"error": ...}``; any other must not fail.
    """
    tokenizer = _TOKENIZERS[spec["kind"]](spec["path"])
    return [_tokens_of(tokenizer, text, spec["max_length"]) for text in spec["texts"]]


def _ctrl(folder: str) -> transformers.CTRLTokenizer:
    """The word pieces of Salesforce/ctrl, which has no token for padding and uses that for the unknown."""
    return transformers.CTRLTokenizer(f"{folder}/vocab.json", f"{folder}/merges.txt", pad_token="<unk>")


def _tokens_of(tokenizer, text: str, max_length: int) -> dict:
    try:
        ids = list(tokenizer([text])["input_ids"][0])
        result = {"ids": ids, "decoded": tokenizer.decode(ids)}
        for side in ("right", "left"):
            tokenizer.padding_side = side
            # As a batch of one: the reference leaves a lone empty text unpadded.
            padded = tokenizer([text], max_length=max_length, padding="max_length", truncation=True)
            result[side] = [list(padded["input_ids"][0]), list(padded["attention_mask"][0])]
        return result
    except (UnicodeError, TypeError, RuntimeError) as error:  # pybind's refusal of a lone surrogate is a RuntimeError
        if not any("\ud800" <= character <= "\udfff" for character in text):
            raise
        return {"error": f"{type(error).__name__}: {error}"}


class ByteReference:
    """The byte tokens of google/reformer-enwik8, by the functions of its model card: id = byte + 2, 0 is padding."""

    padding_side = "right"

    def __call__(self, texts: list[str], **options) -> dict:
        rows = [self._row(text, **options) for text in texts]
        return {key: [row[key] for row in rows] for key in ("input_ids", "attention_mask")}

    def _row(self, text: str, max_length: int | None = None, padding=False, truncation=False) -> dict:
        ids = [byte + 2 for byte in text.encode()][: max_length if truncation else None]
        fill = [0] * (max_length - len(ids) if padding else 0)
        mask = [1] * len(ids)
        if self.padding_side == "left":
            return {"input_ids": fill + ids, "attention_mask": [0] * len(fill) + mask}
        return {"input_ids": ids + fill, "attention_mask": mask + [0] * len(fill)}

    def decode(self, ids: list[int]) -> str:
        return bytes(index - 2 for index in ids if index > 1).decode()


#: By the kinds of :class:`toolkit.parity.request.GateRequest`.
_TOKENIZERS = {
    "bytes": lambda path: ByteReference(),
    "sentencepiece": lambda path: transformers.ReformerTokenizer(path, pad_token="<unk>"),
    "ctrl": _ctrl,
}
