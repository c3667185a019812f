"""Cut text into documents, divide them into splits, and pack them into blocks of tokens.

No text is lost, except white space that the tokenizer drops, and no token is predicted twice.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from tqdm import tqdm

from toolkit.data.batches import IGNORED_LABEL

#: Minimum length of a document that is cut from a longer text, in characters.
DOCUMENT_LENGTH = 4000

PARAGRAPH_END = re.compile(r"\n[ \t]*\n+")
LINE_END = re.compile(r"\n")
#: A document is also cut at line ends if it is longer than this multiple of the minimum length.
MAX_LENGTH_RATIO = 10


def documents_of(text: str, length: int = DOCUMENT_LENGTH) -> list[str]:
    """Cut a text into documents at blank lines, and long documents at line ends.

    A document is cut at line ends if the text has no blank lines to cut at, or if it is much longer than `length`
    characters.
    """
    documents = cut_text(text, length)
    max_length = 0 if len(documents) == 1 else MAX_LENGTH_RATIO * length
    return [
        part
        for document in documents
        for part in (cut_text(document, length, LINE_END) if len(document) > max_length else [document])
    ]


def cut_text(text: str, length: int = DOCUMENT_LENGTH, boundary: re.Pattern[str] = PARAGRAPH_END) -> list[str]:
    """Cut a text at blank lines into documents of at least `length` characters; joined, they are the text again.

    The last document may be shorter. A text without a blank line is one document.

    Args:
        text: text to cut.
        length: minimum number of characters of a document.
        boundary: pattern of the places to cut at.
    """
    documents, start = [], 0
    for match in boundary.finditer(text):
        if match.end() - start >= length:
            documents.append(text[start : match.end()])
            start = match.end()
    rest = text[start:]
    return [*documents, rest] if rest.strip() or not documents else [*documents[:-1], documents[-1] + rest]


def divide_documents(rows: Any, shares: Mapping[str, float], seed: int) -> dict[str, list[int]]:
    """Divide documents into splits by the seed: each split gets its share of the characters of every control code.

    Args:
        rows: documents with columns ``text`` and ``control`` (control code). Equal documents go to the same split.
        shares: share of the text of each split except ``train``, which gets the remaining text.
        seed: seed of the draws.

    Returns:
        Indices of the documents of each split, in their order. Each document is in one split.

    Raises:
        ValueError: a control code has fewer documents than there are splits.
    """
    texts, codes = rows["text"][:], rows["control"][:]
    indices_by_split: dict[str, list[int]] = {split_name: [] for split_name in ("train", *shares)}
    for number, code in enumerate(dict.fromkeys(codes)):
        groups_by_text: dict[str, list[int]] = {}
        for index in (index for index, other_code in enumerate(codes) if other_code == code):
            groups_by_text.setdefault(texts[index], []).append(index)
        groups = list(groups_by_text.values())
        if len(groups) < len(indices_by_split):
            raise ValueError(
                f"{code or 'the text'} has {len(groups)} documents, too few for {', '.join(indices_by_split)}"
            )
        order = np.random.default_rng([seed, 3, number]).permutation(len(groups))
        missing_characters = {split_name: share * sum(len(texts[index]) for group in groups for index in group)
                for split_name, share in shares.items()}  # fmt: skip
        remaining_groups = list(order)
        for num_filled_splits, split_name in enumerate(shares):
            has_group = False
            while len(remaining_groups) > len(shares) - num_filled_splits:  # leave a group for each later split
                length = sum(len(texts[index]) for index in groups[remaining_groups[-1]])
                if has_group and length / 2 > missing_characters[split_name]:
                    break
                indices_by_split[split_name] += groups[remaining_groups.pop()]
                missing_characters[split_name] -= length
                has_group = True
        indices_by_split["train"] += [index for group_index in remaining_groups for index in groups[group_index]]
    return {split_name: sorted(indices) for split_name, indices in indices_by_split.items()}


class Blocks:
    """Streams of tokens as blocks of one length, each starting with the control code or with the token before it.

    A block is ``input_ids`` (T,), ``attention_mask`` (T,) and ``labels`` (T,), int64: the control code, or the last
    token of the block before, then the next tokens of the stream. The last block of a stream may be shorter; it is
    padded on the right, with a mask of 0 and labels of -100. So every token of a stream is predicted once, except the
    first token if there are no codes. A control code is never predicted.

    Args:
        streams: tokens by control code, or by the name of a group of texts, (N,) each.
        code_ids: token id of each control code; None for groups without codes.
        length: maximum number of tokens of a block, 2 or more.
        pad_token_id: id of the token that pads blocks.
        padded_length: T; None for `length` itself.

    Attributes:
        codes: control codes or groups, in order.
        code_of: index in `codes` of each block, (blocks,).
        length: T.
    """

    def __init__(
        self,
        streams: Mapping[str, Sequence[int]],
        code_ids: Mapping[str, int] | None,
        length: int,
        pad_token_id: int,
        padded_length: int | None = None,
    ) -> None:
        self.codes = list(streams)
        self.length = padded_length or length
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
        token_ids = self.input_ids[index].astype(np.int64)
        is_token = np.arange(self.length) < self.lengths[index]
        return {
            "input_ids": token_ids,
            "attention_mask": is_token.astype(np.int64),
            "labels": np.where(is_token, token_ids, IGNORED_LABEL),
        }

    def stream(self, code: str) -> np.ndarray:
        """Return the tokens of a control code or group, in their original order."""
        first = np.asarray(self.first.get(code, ()), dtype=np.int32)
        return np.concatenate([first, self.predicted_tokens(code)])

    def predicted_tokens(self, code: str | None = None) -> np.ndarray:
        """Return the predicted tokens of a control code or group, block after block; None for all blocks.

        These are all its tokens, or all except the first if there are no control codes.
        """
        block_indices = (
            np.arange(len(self.lengths)) if code is None else np.flatnonzero(self.code_of == self.codes.index(code))
        )
        return np.concatenate(
            [self.input_ids[i, 1 : self.lengths[i]] for i in block_indices] or [np.zeros(0, np.int32)]
        )

    @property
    def tokens(self) -> int:
        """Number of predicted tokens."""
        return int((self.lengths - 1).sum())


def log_frequencies(tokens: np.ndarray, vocab_size: int) -> np.ndarray:
    """Return the log of each token's frequency, with add-one smoothing."""
    counts = np.bincount(tokens, minlength=vocab_size) + 1.0
    return np.log(counts / counts.sum())


def streams_by_code(rows: Any, codes: Iterable[str], tokenizer: Any) -> dict[str, list[int]]:
    """Return the tokens of each control code or group, one document after another.

    Args:
        rows: split with the columns ``text`` and ``control``.
        codes: control codes or groups, in order.
        tokenizer: tokenizer of the model.
    """
    tokens_by_code: dict[str, list[int]] = {code: [] for code in codes}
    for code, token_ids in tokenize_documents(rows, tokenizer):
        tokens_by_code[code] += token_ids
    return tokens_by_code


def tokenize_documents(rows: Any, tokenizer: Any) -> Iterator[tuple[str, list[int]]]:
    """Yield the control code or group of each document, and its tokens."""
    with tqdm(total=len(rows), desc="tokenizing documents", unit=" texts", delay=2, leave=False, disable=None) as bar:
        for batch in rows.iter(32):
            yield from zip(batch["control"], tokenizer.encode_batch(batch["text"]), strict=True)
            bar.update(len(batch["text"]))
