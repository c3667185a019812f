"""Measure a trigram language model: a baseline that takes seconds.

It is interpolated Kneser-Ney smoothing (Kneser and Ney 1995; Chen and Goodman 1999, section 2.7) of three orders, with
one discount for each order, n1 / (n1 + 2 n2).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

#: Maximum number of tokens that are counted; they take about ten seconds and 2 GB.
MAX_TOKENS = 10_000_000
ROWS_AT_ONCE = 4096


@dataclass(frozen=True)
class _NgramOrder:
    """Counts of the n-grams of one order.

    Attributes:
        grams, counts: n-grams as numbers, sorted, and the count of each.
        contexts, totals, kinds: contexts, sorted, the sum of the counts of each, and its number of distinct n-grams.
        discount: number subtracted from each count.
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
        rows: token ids, (N, T) int64.
        lengths: number of tokens of each row, (N,); the rest is padding.
        vocab_size: number V of tokens; V^3 must fit 63 bits.
    """

    def __init__(self, rows: np.ndarray, lengths: np.ndarray, vocab_size: int) -> None:
        self.size = vocab_size
        pairs, triples = (
            np.unique(_ngrams_of(rows, lengths, order, vocab_size), return_counts=True) for order in (2, 3)
        )
        # A lower order counts how many contexts an n-gram has, not how often it occurs.
        unigrams = np.unique(pairs[0] % vocab_size, return_counts=True)
        continuation_counts = np.unique(triples[0] % vocab_size**2, return_counts=True)
        counts = np.ones(len(pairs[0]), np.int64)  # the first pair of a row has no context, and is not unknown
        counts[np.searchsorted(pairs[0], continuation_counts[0])] = continuation_counts[1]
        orders = (unigrams, (pairs[0], counts), triples)
        self.orders = [_count_order(grams, number, vocab_size) for grams, number in orders]

    def surprise(self, rows: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return -log p (nats) of every token except the first of each row."""
        is_token = np.arange(rows.shape[1]) < lengths[:, None]
        probabilities = self._probability(1, rows[:, 1:], np.full(rows[:, 1:].shape, 1 / self.size))
        probabilities = self._probability(2, rows[:, :-1] * self.size + rows[:, 1:], probabilities)
        trigrams = (rows[:, :-2] * self.size + rows[:, 1:-1]) * self.size + rows[:, 2:]
        probabilities[:, 1:] = self._probability(3, trigrams, probabilities[:, 1:])
        return -np.log(probabilities[is_token[:, 1:]])

    def _probability(self, max_order: int, grams: np.ndarray, lower: np.ndarray) -> np.ndarray:
        """Return p(last token | tokens before it), interpolated with the probabilities of the lower order."""
        ngram_order = self.orders[max_order - 1]
        counts = _look_up(ngram_order.grams, ngram_order.counts, grams)
        totals, kinds = (
            _look_up(ngram_order.contexts, values, grams // self.size)
            for values in (ngram_order.totals, ngram_order.kinds)
        )
        is_known = totals > 0
        divisors = np.where(is_known, totals, 1)
        interpolated_probability = (
            np.maximum(counts - ngram_order.discount, 0) / divisors + ngram_order.discount * kinds / divisors * lower
        )
        return np.where(is_known, interpolated_probability, lower)


def perplexity(
    train: tuple[np.ndarray, np.ndarray], evaluated_rows: tuple[np.ndarray, np.ndarray], vocab_size: int
) -> float:
    """Return the perplexity of rows under the trigrams of other rows; see :func:`token_surprises`.

    Args:
        train: token ids (rows, length) and lengths of the rows whose n-grams are counted.
        evaluated_rows: token ids and lengths of the rows to evaluate.
        vocab_size: size of the vocabulary.
    """
    return float(np.exp(np.mean(token_surprises(train, evaluated_rows, vocab_size))))


def token_surprises(
    train: tuple[np.ndarray, np.ndarray], evaluated_rows: tuple[np.ndarray, np.ndarray], vocab_size: int
) -> np.ndarray:
    """Return -log p (nats) of every token except the first of each row, under the trigrams of other rows.

    At most :data:`MAX_TOKENS` tokens are counted, evenly spaced.

    Args:
        train: token ids (N, T) and lengths (N,) of the rows that are counted.
        evaluated_rows: the same of the rows that are evaluated.
        vocab_size: number of tokens.
    """
    stride = -(-train[0].size // MAX_TOKENS)
    trigram_model = KneserNey(train[0][::stride].astype(np.int64), train[1][::stride], vocab_size)
    rows, lengths = evaluated_rows
    starts = range(0, len(rows), ROWS_AT_ONCE)
    surprises = [
        trigram_model.surprise(
            rows[start : start + ROWS_AT_ONCE].astype(np.int64), lengths[start : start + ROWS_AT_ONCE]
        )
        for start in starts
    ]
    return np.concatenate(surprises)


def _ngrams_of(rows: np.ndarray, lengths: np.ndarray, ngram_order: int, size: int) -> np.ndarray:
    """Return the n-grams of all rows, each as one number.

    Args:
        rows: token ids, (rows, length).
        lengths: number of tokens of each row, (rows,).
        ngram_order: number of tokens of an n-gram.
        size: size of the vocabulary, the base of the numbers.
    """
    width = rows.shape[1] - ngram_order + 1
    is_token = np.arange(ngram_order - 1, rows.shape[1]) < lengths[:, None]
    ngrams = np.zeros((len(rows), max(0, width)), np.int64)
    for offset in range(ngram_order):
        ngrams = ngrams * size + rows[:, offset : offset + ngrams.shape[1]]
    return ngrams[is_token[:, : ngrams.shape[1]]]


def _count_order(grams: np.ndarray, counts: np.ndarray, size: int) -> _NgramOrder:
    """Return the counts of the n-grams of one order, by context, and the discount for smoothing.

    Args:
        grams: distinct n-grams, each as one integer: context * ``size`` + last token, sorted.
        counts: number of occurrences of each n-gram.
        size: size of the vocabulary.
    """
    contexts, first_indices = np.unique(grams // size, return_index=True)
    totals = np.add.reduceat(counts, first_indices) if len(first_indices) else counts
    num_once, num_twice = (np.count_nonzero(counts == number) for number in (1, 2))
    discount = num_once / (num_once + 2 * num_twice) if num_once and num_twice else 0.5
    return _NgramOrder(grams, counts, contexts, totals, np.diff(np.append(first_indices, len(grams))), discount)


def _look_up(ngram_keys: np.ndarray, values: np.ndarray, queries: np.ndarray) -> np.ndarray:
    """Return the value of each queried key, or 0 if the key does not exist."""
    if not len(ngram_keys):
        return np.zeros(queries.shape, np.int64)
    indices = np.minimum(np.searchsorted(ngram_keys, queries), len(ngram_keys) - 1)
    return np.where(ngram_keys[indices] == queries, values[indices], 0)
