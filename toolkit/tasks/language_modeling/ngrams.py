"""What a count of token n-grams reaches as a language model: a baseline that takes seconds.

Interpolated Kneser-Ney smoothing (Kneser and Ney 1995; Chen and Goodman 1999, section 2.7) of three orders, with one
discount for each, n1 / (n1 + 2 n2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Tokens that are counted: some ten seconds and 2 GB.
MOST_TOKENS = 10_000_000
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _Order:
    """Counts of one order.

    Attributes:
        grams, counts: each n-gram as a number, sorted, and its count.
        contexts, totals, kinds: each context, sorted, the sum of its counts, and how many n-grams it has.
        discount: subtracted from each count.
    """

    grams: np.ndarray
    counts: np.ndarray
    contexts: np.ndarray
    totals: np.ndarray
    kinds: np.ndarray
    discount: float


class KneserNey:
    """A trigram model of rows of tokens.

    Args:
        rows: int64 (N, T) of token ids.
        lengths: (N,) tokens of each row; the rest is padding.
        vocab_size: number V of tokens; V^3 must fit 63 bits.
    """

    def __init__(self, rows: np.ndarray, lengths: np.ndarray, vocab_size: int) -> None:
        self.size = vocab_size
        pairs, triples = (np.unique(_grams(rows, lengths, order, vocab_size), return_counts=True) for order in (2, 3))
        # A lower order counts how many contexts an n-gram has, not how often it occurs.
        words = np.unique(pairs[0] % vocab_size, return_counts=True)
        inner = np.unique(triples[0] % vocab_size**2, return_counts=True)
        counts = np.ones(len(pairs[0]), np.int64)  # the first pair of a row has no context, and is not unknown
        counts[np.searchsorted(pairs[0], inner[0])] = inner[1]
        found = (words, (pairs[0], counts), triples)
        self.orders = [_counted(grams, number, vocab_size) for grams, number in found]

    def surprise(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return -log p (nats) of every token but the first of each row."""
        whole = np.arange(rows.shape[1]) < lengths[:, None]
        predicted = self._probability(1, rows[:, 1:], np.full(rows[:, 1:].shape, 1 / self.size))
        predicted = self._probability(2, rows[:, :-1] * self.size + rows[:, 1:], predicted)
        threes = (rows[:, :-2] * self.size + rows[:, 1:-1]) * self.size + rows[:, 2:]
        predicted[:, 1:] = self._probability(3, threes, predicted[:, 1:])
        return -np.log(predicted[whole[:, 1:]])

    def _probability(self, order: int, grams: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Return p(last token | those before it), given the lower order's."""
        held = self.orders[order - 1]
        counts = _looked_up(held.grams, held.counts, grams)
        totals, kinds = (_looked_up(held.contexts, one, grams // self.size) for one in (held.totals, held.kinds))
        known = totals > 0
        total = np.where(known, totals, 1)
        found = np.maximum(counts - held.discount, 0) / total + held.discount * kinds / total * lower
        return np.where(known, found, lower)


def perplexity(train: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray], vocab_size: int) -> float:
    """Return the perplexity of rows by the n-grams of others, at most :data:`MOST_TOKENS`, evenly spaced. Each is
    (N, T) token ids and (N,) lengths."""
    every = -(-train[0].size // MOST_TOKENS)
    counted = KneserNey(train[0][::every].astype(np.int64), train[1][::every], vocab_size)
    rows, lengths = other
    starts = range(0, len(rows), ROWS_AT_ONCE)
    found = [
        counted.surprise(rows[start : start + ROWS_AT_ONCE].astype(np.int64), lengths[start : start + ROWS_AT_ONCE])
        for start in starts
    ]
    return float(np.exp(np.mean(np.concatenate(found))))


def _grams(rows: np.ndarray, lengths: np.ndarray, order: int, size: int) -> np.ndarray:
    """Return the n-grams of all rows, each as one number."""
    width = rows.shape[1] - order + 1
    whole = np.arange(order - 1, rows.shape[1]) < lengths[:, None]
    found = np.zeros((len(rows), max(0, width)), np.int64)
    for place in range(order):
        found = found * size + rows[:, place : place + found.shape[1]]
    return found[whole[:, : found.shape[1]]]


def _counted(grams: np.ndarray, counts: np.ndarray, size: int) -> _Order:
    contexts, first = np.unique(grams // size, return_index=True)
    totals = np.add.reduceat(counts, first) if len(first) else counts
    once, twice = (np.count_nonzero(counts == number) for number in (1, 2))
    discount = once / (once + 2 * twice) if once and twice else 0.5
    return _Order(grams, counts, contexts, totals, np.diff(np.append(first, len(grams))), discount)


def _looked_up(keys: np.ndarray, values: np.ndarray, wanted: np.ndarray) -> np.ndarray:
    """Return the value of each key, 0 of one that is not there."""
    if not len(keys):
        return np.zeros(wanted.shape, np.int64)
    places = np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)
    return np.where(keys[places] == wanted, values[places], 0)
