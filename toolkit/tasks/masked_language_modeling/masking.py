"""Mask some tokens of blocks (Devlin et al. 2019, "BERT", section 3.1)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from toolkit.data.batches import IGNORED_LABEL

#: Shares of the chosen tokens that become the mask token, and a random token. The rest stays unchanged.
MASK_SHARE, RANDOM_SHARE = 0.8, 0.1


@dataclass(frozen=True)
class Masking:
    """Settings that choose and mask tokens.

    Attributes:
        mask_token_id: id of the mask token.
        vocab_size: number of tokens; random tokens are below it.
        fraction: share of a block's tokens that is chosen; at least one token is.
        begins_word: whether each token starts a word, (vocab_size,): words are chosen as a whole; None to choose
            tokens.
    """

    mask_token_id: int
    vocab_size: int
    fraction: float
    begins_word: np.ndarray | None = None

    def mask(self, token_ids: np.ndarray, generator: np.random.RandomState) -> tuple[np.ndarray, np.ndarray]:
        """Mask the tokens of a block, (n,) int64; return the model's input and the labels, (n,) each.

        Args:
            token_ids: token ids of a block, (n,) int64.
            generator: random generator.
        """
        positions = self._choose_tokens(token_ids, generator)
        draws, random_ids = (
            generator.random_sample(len(positions)),
            generator.randint(self.vocab_size, size=len(positions)),
        )
        input_ids, labels = token_ids.copy(), np.full_like(token_ids, IGNORED_LABEL)
        labels[positions] = token_ids[positions]
        input_ids[positions] = np.where(
            draws < MASK_SHARE,
            self.mask_token_id,
            np.where(draws < MASK_SHARE + RANDOM_SHARE, random_ids, token_ids[positions]),
        )
        return input_ids, labels

    def _choose_tokens(self, token_ids: np.ndarray, generator: np.random.RandomState) -> np.ndarray:
        """Return the positions of the chosen tokens; whole words while they fit, and at least one word.

        Args:
            token_ids: token ids of a block, (n,) int64.
            generator: random generator.
        """
        num_tokens = max(1, round(self.fraction * len(token_ids)))
        if self.begins_word is None:
            return generator.permutation(len(token_ids))[:num_tokens]
        words = np.split(np.arange(len(token_ids)), np.flatnonzero(self.begins_word[token_ids[1:]]) + 1)
        positions: list[int] = []
        for word in (words[index] for index in generator.permutation(len(words))):
            if not positions or len(positions) + len(word) <= num_tokens:
                positions += word.tolist()
        return np.array(positions)


class MaskedBlocks:
    """Documents cut into blocks of tokens, with new masks in each epoch (Liu et al. 2019, "RoBERTa", section 4.1).

    The masks of a block depend only on the seed, the epoch and the block's number, and come from NumPy's legacy
    generator, whose stream is frozen. A resumed run, or another number of processes, therefore gets the same masks.

    A block is ``input_ids`` (T,), ``attention_mask`` (T,) and ``labels`` (T,), int64; labels are -100 except for the
    chosen tokens.

    Args:
        documents: token ids of each document.
        length: maximum number of tokens of a block. The last block of a document may have fewer, and is padded.
        padded_length: T.
        pad_token_id: id of the token that pads blocks.
        masking: settings of the masks.
        seed: seed of the masks: numbers below 2**32.
    """

    def __init__(
        self,
        documents: Iterable[Sequence[int]],
        length: int,
        padded_length: int,
        pad_token_id: int,
        masking: Masking,
        seed: Sequence[int],
    ) -> None:
        blocks = [
            token_ids[start : start + length] for token_ids in documents for start in range(0, len(token_ids), length)
        ]
        self.lengths = np.array([len(block) for block in blocks], np.int64)
        self.tokens = np.full((len(blocks), padded_length), pad_token_id, np.int32)
        for row, block in zip(self.tokens, blocks, strict=True):
            row[: len(block)] = block
        self.masking, self.seed, self.epoch = masking, list(seed), 0

    def set_epoch(self, epoch: int) -> None:
        """Switch to the masks of another epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, np.ndarray]:
        num_tokens = self.lengths[index]
        token_ids = self.tokens[index].astype(np.int64)
        labels = np.full_like(token_ids, IGNORED_LABEL)
        generator = np.random.RandomState([*self.seed, self.epoch, index])
        token_ids[:num_tokens], labels[:num_tokens] = self.masking.mask(token_ids[:num_tokens], generator)
        return {
            "input_ids": token_ids,
            "attention_mask": (np.arange(len(token_ids)) < num_tokens).astype(np.int64),
            "labels": labels,
        }

    def stream(self) -> np.ndarray:
        """Return all tokens, one block after the other."""
        return self.tokens[np.arange(self.tokens.shape[1]) < self.lengths[:, None]]

    def chosen_tokens(self) -> np.ndarray:
        """Return the original tokens at the masked positions, which the model predicts."""
        labels = np.concatenate([self[index]["labels"] for index in range(len(self))])
        return labels[labels != IGNORED_LABEL]
