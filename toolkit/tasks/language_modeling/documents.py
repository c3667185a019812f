"""Text, with or without control codes: cut into documents, divided into splits, packed into blocks of tokens. No text
is lost, except white space that the tokenizer drops, and none is predicted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from toolkit.data.batches import IGNORED_LABEL

#: The least length of a document that is cut out of a longer text, in characters.
DOCUMENT_LENGTH = 4000

PARAGRAPH_END = re.compile(r"\n[ \t]*\n+")
LINE_END = re.compile(r"\n")
#: A document of more than so many times its least length is cut at its lines as well.
LONG = 10


def documents_of(text: str, length: int = DOCUMENT_LENGTH) -> list[str]:
    """Cut a text into documents: at blank lines (:func:`cut`). A text that these do not cut, and a part of much more
    than `length` characters, is cut at its line ends in the same way."""
    documents = cut(text, length)
    longest = 0 if len(documents) == 1 else LONG * length
    return [part for whole in documents for part in (cut(whole, length, LINE_END) if len(whole) > longest else [whole])]


def cut(text: str, length: int = DOCUMENT_LENGTH, end: re.Pattern[str] = PARAGRAPH_END) -> list[str]:
    """Cut a text at blank lines into documents of at least `length` characters; joined, they are the text again.

    The last one may be shorter. A text without a blank line is one document.

    Args:
        end: where to cut, if not at blank lines.
    """
    documents, start = [], 0
    for gap in end.finditer(text):
        if gap.end() - start >= length:
            documents.append(text[start : gap.end()])
            start = gap.end()
    rest = text[start:]
    return [*documents, rest] if rest.strip() or not documents else [*documents[:-1], documents[-1] + rest]


def divide(rows: Any, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Divide documents into splits by the seed: each split gets its share of the characters of every control code.

    Args:
        rows: columns ``text`` (the documents; equal ones come into the same split) and ``control`` (their codes).
        shares: split -> its share of the text; the rest is ``train``.

    Returns:
        Split -> the indices of its documents, in their order. Each document is in one split.

    Raises:
        ValueError: a control code has too few documents for each split to get one.
    """
    texts, codes = rows["text"][:], rows["control"][:]
    found: dict[str, list[int]] = {split: [] for split in ("train", *shares)}
    for number, code in enumerate(dict.fromkeys(codes)):
        alike: dict[str, list[int]] = {}
        for place in (place for place, other in enumerate(codes) if other == code):
            alike.setdefault(texts[place], []).append(place)
        groups = list(alike.values())
        if len(groups) < len(found):
            raise ValueError(f"{code or 'the text'} has {len(groups)} documents, too few for {', '.join(found)}")
        order = np.random.default_rng([seed, 3, number]).permutation(len(groups))
        size = {split: share * sum(len(texts[place]) for group in groups for place in group)
                for split, share in shares.items()}  # fmt: skip
        queue = list(order)
        for done, split in enumerate(shares):
            begun = False
            while len(queue) > len(shares) - done:  # one is left for each split to come
                length = sum(len(texts[place]) for place in groups[queue[-1]])
                if begun and length / 2 > size[split]:
                    break
                found[split] += groups[queue.pop()]
                size[split] -= length
                begun = True
        found["train"] += [place for index in queue for place in groups[index]]
    return {split: sorted(places) for split, places in found.items()}


class Blocks:
    """Streams of tokens as blocks of one length. Each begins with its stream's control code or, if there are no codes,
    with the token before it.

    A block is ``input_ids`` [T], ``attention_mask`` [T] and ``labels`` [T], int64: the control code, or the last token
    of the block before, then the next tokens of the stream. The last block of a stream may be shorter; the rest is
    padded on the right, with a mask of 0 and labels of -100. So every token of a stream is predicted once, except the
    very first if there are no codes. A control code is never predicted.

    Args:
        streams: control code, or the name of a group of texts -> its tokens, [N] each.
        code_ids: control code -> its token; None for groups without.
        length: the most tokens of a block, 2 or more.
        pad_token_id: fills blocks up.
        padded: T; None for `length` itself.

    Attributes:
        codes: the control codes or groups, in order.
        code_of: [blocks], the index in `codes` for each block.
        length: T.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[int]],
        code_ids: Mapping[str, int] | None,
        length: int,
        pad_token_id: int,
        padded: int | None = None,
    ) -> None:
        self.codes = list(streams)
        self.length = padded or length
        self.first = {code: stream[:1] for code, stream in streams.items() if code_ids is None}
        rows, lengths, code_of = [], [], []
        for index, (code, stream) in enumerate(streams.items()):
            tokens = np.asarray(stream, dtype=np.int32)
            first: Any
            if code_ids is None:
                first, tokens = tokens[: -1 : length - 1], tokens[1:]
            else:
                first = code_ids[code]
            count = -(-len(tokens) // (length - 1))
            body = np.full((count, length - 1), pad_token_id, dtype=np.int32)
            body.reshape(-1)[: len(tokens)] = tokens
            block = np.insert(body, 0, first, axis=1)
            rows.append(np.pad(block, ((0, 0), (0, self.length - length)), constant_values=pad_token_id))
            lengths += [length] * max(0, count - 1)
            lengths += [len(tokens) - (length - 1) * (count - 1) + 1] if count else []
            code_of += [index] * count
        self.input_ids = np.concatenate(rows)  # (blocks, T)
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.code_of = np.asarray(code_of, dtype=np.int64)

    def __len__(self) -> int:
        return len(self.input_ids)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        ids = self.input_ids[index].astype(np.int64)
        kept = np.arange(self.length) < self.lengths[index]
        return {
            "input_ids": ids,
            "attention_mask": kept.astype(np.int64),
            "labels": np.where(kept, ids, IGNORED_LABEL),
        }

    def stream(self, code: str) -> np.ndarray:
        """Return the tokens of a control code or group, as they went in."""
        first = np.asarray(self.first.get(code, ()), dtype=np.int32)
        return np.concatenate([first, self.predicted(code)])

    def predicted(self, code: str) -> np.ndarray:
        """Return the predicted tokens: all, or without a control code all but the first."""
        chosen = np.flatnonzero(self.code_of == self.codes.index(code))
        return np.concatenate([self.input_ids[i, 1 : self.lengths[i]] for i in chosen] or [np.zeros(0, np.int32)])

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        return int((self.lengths - 1).sum())


def unigram_perplexity(train: Blocks, other: Blocks, vocab_size: int) -> float:
    """Return the perplexity on `other` of the token frequencies in `train`: that of the best model without context."""
    surprise = -log_frequencies(np.concatenate([train.stream(code) for code in train.codes]), vocab_size)
    return float(np.exp(np.mean(surprise[np.concatenate([other.predicted(code) for code in other.codes])])))


def log_frequencies(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return the log of each token's frequency, with add-one smoothing."""
    counts = np.bincount(tokens, minlength=vocab_size) + 1.0
    return np.log(counts / counts.sum())


def streams(rows: Any, codes: Iterable[str], tokenizer: Any) -> dict[str, list[int]]:
    """Control code or group -> the tokens of its documents, one after another.

    Args:
        rows: a split with the columns ``text`` and ``control``.
    """
    found: dict[str, list[int]] = {code: [] for code in codes}
    for code, ids in tokenized(rows, tokenizer):
        found[code] += ids
    return found


def tokenized(rows: Any, tokenizer: Any) -> Iterator[tuple[str, list[int]]]:
    """Yield the control code or group of each document, and its tokens."""
    with tqdm(total=len(rows), desc="tokenizing documents", unit=" texts", delay=2, leave=False) as bar:
        for batch in rows.iter(32):
            yield from zip(batch["control"], tokenizer.encode_batch(batch["text"]), strict=True)
            bar.update(len(batch["text"]))
