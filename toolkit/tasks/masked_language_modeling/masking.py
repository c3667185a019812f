"""Blocks of tokens, some of which are masked (Devlin et al. 2019, "BERT", section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.data.batches import IGNORED_LABEL

#: Of the chosen tokens, the shares that become the mask token, and one of the vocabulary; the rest stays as it is.
MASKED, RANDOM = 0.8, 0.1


@dataclass(frozen=True)
class Masking:
    """How tokens are masked.

    Attributes:
        mask_token_id: of the mask token.
        vocab_size: random tokens are below it.
        fraction: of a block's tokens that is chosen, at least one.
        begins_word: whether each token begins a word: words are chosen whole; None: tokens are.
    """

    mask_token_id: int
    vocab_size: int
    fraction: float
    begins_word: np.ndarray | None = None

    def mask(self, ids: np.ndarray, draw: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Mask the tokens of a block, int64 [n]; return what the model is given, and the labels."""
        chosen = self._chosen(ids, draw)
        kind, other = draw.random_sample(len(chosen)), draw.randint(self.vocab_size, size=len(chosen))
        given, labels = ids.copy(), np.full_like(ids, IGNORED_LABEL)
        labels[chosen] = ids[chosen]
        given[chosen] = np.where(
            kind < MASKED, self.mask_token_id, np.where(kind < MASKED + RANDOM, other, ids[chosen])
        )
        return given, labels

    def _chosen(self, ids: np.ndarray, draw: np.random.RandomState) -> np.ndarray:
        """Places of the chosen tokens; whole words as long as they fit, but for the first."""
        wanted = max(1, round(self.fraction * len(ids)))
        if self.begins_word is None:
            return draw.permutation(len(ids))[:wanted]
        words = np.split(np.arange(len(ids)), np.flatnonzero(self.begins_word[ids[1:]]) + 1)
        found: list[int] = []
        for word in (words[place] for place in draw.permutation(len(words))):
            if not found or len(found) + len(word) <= wanted:
                found += word.tolist()
        return np.array(found)


class MaskedBlocks:
    """Documents cut into blocks of tokens, with new masks in each epoch (Liu et al. 2019, "RoBERTa", section 4.1).

    The masks of a block are a function of the seed, the epoch and the block's number alone, by NumPy's legacy
    generator, whose stream is frozen: a resumed run has them again, and so has any number of processes.

    A block is ``input_ids`` [T], ``attention_mask`` [T] and ``labels`` [T], int64; labels are -100 but for the chosen
    tokens.

    Args:
        documents: tokens of each.
        length: the most tokens of a block; the last one of a document may have fewer, and is padded.
        padded: T.
        masking: how blocks are masked.
        seed: of the masks: numbers below 2**32.
    """

    def __init__(
        self,
        documents: Iterable[Sequence[int]],
        length: int,
        padded: int,
        pad_token_id: int,
        masking: Masking,
        seed: Sequence[int],
    ) -> None:
        blocks = [ids[start : start + length] for ids in documents for start in range(0, len(ids), length)]
        self.lengths = np.array([len(block) for block in blocks], np.int64)
        self.tokens = np.full((len(blocks), padded), pad_token_id, np.int32)
        for row, block in zip(self.tokens, blocks, strict=True):
            row[: len(block)] = block
        self.masking, self.seed, self.epoch = masking, list(seed), 0

    def set_epoch(self, epoch: int) -> None:
        """Take the masks of another epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        count = self.lengths[index]
        ids = self.tokens[index].astype(np.int64)
        labels = np.full_like(ids, IGNORED_LABEL)
        draw = np.random.RandomState([*self.seed, self.epoch, index])
        ids[:count], labels[:count] = self.masking.mask(ids[:count], draw)
        return {"input_ids": ids, "attention_mask": (np.arange(len(ids)) < count).astype(np.int64), "labels": labels}

    def stream(self) -> np.ndarray:
        """Return all tokens, one block after the other."""
        return self.tokens[np.arange(self.tokens.shape[1]) < self.lengths[:, None]]

    def chosen(self) -> np.ndarray:
        """Return the tokens that are to be predicted."""
        labels = np.concatenate([self[index]["labels"] for index in range(len(self))])
        return labels[labels != IGNORED_LABEL]
