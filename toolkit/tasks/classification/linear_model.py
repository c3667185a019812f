"""A linear model of the words and characters of a text: TF-IDF features, and one weight per feature and label.

A feature is a word, a pair of neighboring words, or 2 to 5 neighboring characters of a word, each stored as a 64-bit
hash. NumPy computes the hashes of many texts at once. The files are arrays and JSON, so that reading them runs no code.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from safetensors.numpy import load_file

from models.files.tensor_file import write_tensors
from toolkit.files.whole import write_text
from toolkit.run_folder.read import read_json, reading
from toolkit.tasks.classification.pairs import SEPARATOR

if TYPE_CHECKING:
    from scipy.sparse import csr_matrix

#: Files of a saved model.
ARRAYS, SETTINGS = "model.safetensors", "config.json"
#: Advice in messages about a saved model that cannot be read.
REMEDY = "restore it from a copy, or train again"
#: Maximum number of word features and of character features: the most frequent are kept.
MAX_FEATURES = 50_000
#: Numbers of neighboring characters of a character feature.
CHARACTER_COUNTS = (2, 3, 4, 5)
#: Number of characters whose features are computed at once.
CHARACTERS_AT_ONCE = 1_000_000
#: Score of a label that no training text has, so that it is never predicted.
UNSEEN_SCORE = -100.0
#: Tolerance of the fit of a classifier. A lower tolerance takes longer and scores the same.
TOLERANCE = 0.1

#: Bases of the hashes; each is odd, and so has an inverse modulo 2**64.
BASE, BASE_OF_PAIRS = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
SPACE, END_OF_TEXT = ord(" "), ord("\n")


@dataclass(frozen=True)
class Vocabulary:
    """The features of a kind.

    Attributes:
        hashes: sorted hashes of the features, (F,) uint64.
        inverse_frequencies: logarithm of the inverse share of the training texts with each feature, (F,) float32.
    """

    hashes: np.ndarray
    inverse_frequencies: np.ndarray

    @classmethod
    def fit(cls, hashes_of_texts: Iterator[tuple[np.ndarray, np.ndarray, int]]) -> Vocabulary:
        """Choose the most frequent features of the training texts.

        Args:
            hashes_of_texts: for some of the texts at a time, the hash of each feature, the index of its text, and the
                number of the texts.
        """
        num_texts, parts = 0, []
        for hashes, text_indices, count in hashes_of_texts:
            num_texts += count
            parts.append(_count_features(hashes, text_indices))
        hashes, inverse = np.unique(np.concatenate([part[0] for part in parts]), return_inverse=True)
        occurrences, frequencies = (
            np.bincount(inverse, np.concatenate([part[column] for part in parts]), len(hashes)) for column in (1, 2)
        )
        indices = np.sort(np.argsort(-occurrences, kind="stable")[:MAX_FEATURES])
        return cls(hashes[indices], (np.log((1 + num_texts) / (1 + frequencies[indices])) + 1).astype(np.float32))

    def transform(self, hashes: np.ndarray, text_indices: np.ndarray, num_texts: int) -> csr_matrix:
        """Return the TF-IDF features of texts, (N, F) float32, each row of norm 1 or 0.

        Args:
            hashes: hash of each word or n-gram of the texts, (tokens,).
            text_indices: index of the text of each hash, (tokens,).
            num_texts: number of texts, N.
        """
        from scipy.sparse import csr_matrix

        if not len(self.hashes):
            return csr_matrix((num_texts, 0), dtype=np.float32)
        features = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_known = self.hashes[features] == hashes
        ones = np.ones(int(is_known.sum()), np.float32)
        shape = (num_texts, len(self.hashes))
        counts = csr_matrix((ones, (text_indices[is_known], features[is_known])), shape)
        counts.data = (1 + np.log(counts.data)) * self.inverse_frequencies[counts.indices]
        norms = np.sqrt(np.bincount(np.repeat(np.arange(num_texts), np.diff(counts.indptr)), counts.data**2, num_texts))
        counts.data /= np.repeat(np.where(norms > 0, norms, 1), np.diff(counts.indptr)).astype(np.float32)
        return counts


def _count_features(hashes: np.ndarray, text_indices: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct hashes, the number of occurrences of each, and the number of texts with it."""
    order = np.lexsort((text_indices, hashes))
    sorted_hashes, sorted_texts = hashes[order], text_indices[order]
    is_new_hash = np.append(True, sorted_hashes[1:] != sorted_hashes[:-1])[: len(order)]
    is_new_text = is_new_hash | np.append(True, sorted_texts[1:] != sorted_texts[:-1])[: len(order)]
    starts = np.flatnonzero(is_new_hash)
    if not len(starts):
        return sorted_hashes, np.zeros(0), np.zeros(0)
    return sorted_hashes[starts], np.diff(starts, append=len(order)), np.add.reduceat(is_new_text.astype(int), starts)


class Features:
    """TF-IDF features of words, of word pairs, and of 2 to 5 characters within words.

    Text pairs have the features of each text, their elementwise product, and their cosine.

    Args:
        has_pairs: whether a text is a pair joined by :data:`.pairs.SEPARATOR`.
        vocabularies: vocabulary of words and of characters; empty before :meth:`fit`.
    """

    def __init__(self, vocabularies: Sequence[Vocabulary] = (), *, has_pairs: bool) -> None:
        self.has_pairs = has_pairs
        self.vocabularies = list(vocabularies)

    def fit(self, texts: Sequence[str]) -> csr_matrix:
        """Learn the vocabularies of texts; return their features, (N, features)."""
        parts = [part for text in texts for part in self._parts(text)]
        self.vocabularies = [
            Vocabulary.fit((*hash_fn(chunk), len(chunk.starts)) for chunk in _chunks(parts))
            for hash_fn in (hash_words, hash_characters)
        ]
        return self.transform(texts)

    def transform(self, texts: Sequence[str]) -> csr_matrix:
        """Return the features of texts, (N, features)."""
        part_features = [self._transform_parts(column) for column in zip(*map(self._parts, texts), strict=True)]
        if not self.has_pairs:
            return part_features[0]
        from scipy.sparse import csr_matrix, hstack

        shared_features = part_features[0].multiply(part_features[1])
        cosine = csr_matrix(shared_features.sum(axis=1))  # the rows of TF-IDF have norm 1
        return hstack([*part_features, shared_features, cosine], format="csr")

    def _transform_parts(self, parts: Sequence[str]) -> csr_matrix:
        """Return the weighted counts of words and of character n-grams in each text, (texts, features)."""
        from scipy.sparse import hstack, vstack

        rows = []
        for chunk in _chunks(parts):
            kinds = zip(self.vocabularies, (hash_words, hash_characters), strict=True)
            rows.append(hstack([words.transform(*hash_fn(chunk), len(chunk.starts)) for words, hash_fn in kinds]))
        return vstack(rows, format="csr")

    def _parts(self, text: str) -> tuple[str, ...]:
        """Return a pair of texts as two parts, and any other text as one part."""
        if not self.has_pairs:
            return (text,)
        first, _, second = text.partition(SEPARATOR)
        return first, second


# -- hashes ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Chunk:
    """Some texts as one array of characters. Each text is ``" WORD WORD ... "`` and ends with a line break.

    Attributes:
        characters: code points, (C,) uint32.
        starts: index of the first character of each text, (N,).
        sums: sum of the hashes of the characters before each index, (C + 1,) uint64.
        inverse_powers: power of the inverse of :data:`BASE` for each index, (C + 1,) uint64.
    """

    characters: np.ndarray
    starts: np.ndarray
    sums: np.ndarray
    inverse_powers: np.ndarray

    @classmethod
    def of(cls, texts: Sequence[str]) -> Chunk:
        """Return the chunk of some texts in lower case, which keeps the start of each text."""
        lines = [" ".join(["", *text.lower().split(), ""]) + "\n" for text in texts]
        characters = np.frombuffer("".join(lines).encode("utf-32-le", "surrogatepass"), np.uint32)
        starts = np.cumsum([0, *map(len, lines)])[:-1]
        sums = np.zeros(len(characters) + 1, np.uint64)
        np.cumsum(_scramble(characters.astype(np.uint64)) * _powers(BASE, len(characters)), out=sums[1:])
        return cls(characters, starts, sums, _powers(pow(BASE, -1, 2**64), len(characters) + 1))

    def hashes(self, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
        """Return the hash of the characters from each start to the end, (S,) uint64."""
        return _scramble((self.sums[ends] - self.sums[starts]) * self.inverse_powers[starts])

    def text_indices(self, starts: np.ndarray) -> np.ndarray:
        """Return the index in the chunk of the text that contains each of the characters, (S,).

        Args:
            starts: positions of characters in the chunk, (S,).
        """
        return np.searchsorted(self.starts, starts, side="right") - 1


def _powers(base: int, count: int) -> np.ndarray:
    """Return the powers of a number modulo 2**64, from the power of 0.

    Args:
        base: number to raise.
        count: number of powers.
    """
    powers = np.full(count, base, np.uint64)
    powers[:1] = 1
    return np.cumprod(powers, dtype=np.uint64)


def _scramble(values: np.ndarray) -> np.ndarray:
    """Return a random-looking number for each number, always the same (splitmix64)."""
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def _chunks(texts: Sequence[str]) -> Iterator[Chunk]:
    """Yield the texts in chunks of about :data:`CHARACTERS_AT_ONCE` characters."""
    chunk, num_characters = [], 0
    for text in texts:
        chunk.append(text)
        num_characters += len(text)
        if num_characters >= CHARACTERS_AT_ONCE:
            yield Chunk.of(chunk)
            chunk, num_characters = [], 0
    if chunk:
        yield Chunk.of(chunk)


def hash_words(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of words and of pairs of neighboring words, and the index of the text of each.

    A word is a run of letters, digits and underscores, or any other single character.
    """
    code_points, inverse = np.unique(chunk.characters, return_inverse=True)
    is_letter = np.array([re.match(r"\w", chr(code_point)) is not None for code_point in code_points])[inverse]
    is_start = (chunk.characters != SPACE) & (chunk.characters != END_OF_TEXT)
    is_start &= ~(is_letter & np.append(False, is_letter[:-1]))
    starts = np.flatnonzero(is_start)
    run_ends = np.flatnonzero(is_letter & ~np.append(is_letter[1:], False)) + 1
    ends = starts + 1
    ends[is_letter[starts]] = run_ends
    hashes, text_indices = chunk.hashes(starts, ends), chunk.text_indices(starts)
    is_pair = text_indices[1:] == text_indices[:-1]
    pairs = _scramble(hashes[:-1] * np.uint64(BASE_OF_PAIRS) + hashes[1:])[is_pair]
    return np.concatenate([hashes, pairs]), np.concatenate([text_indices, text_indices[1:][is_pair]])


def hash_characters(chunk: Chunk) -> tuple[np.ndarray, np.ndarray]:
    """Return the hashes of 2 to 5 neighboring characters of a word, and the index of the text of each.

    The spaces before and after a word belong to it.
    """
    is_break = chunk.characters == END_OF_TEXT
    num_breaks = np.append(0, np.cumsum(is_break))
    num_spaces = np.append(0, np.cumsum(chunk.characters == SPACE))
    all_starts, all_ends = [], []
    for count in CHARACTER_COUNTS:
        starts = np.arange(max(0, len(chunk.characters) - count + 1))
        ends = starts + count
        is_inside_word = num_spaces[ends - 1] == num_spaces[starts + 1]
        is_inside_word &= num_breaks[ends] == num_breaks[starts]
        all_starts.append(starts[is_inside_word])
        all_ends.append(ends[is_inside_word])
    starts, ends = np.concatenate(all_starts), np.concatenate(all_ends)
    return chunk.hashes(starts, ends), chunk.text_indices(starts)


# -- the model ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class LinearModel:
    """A linear model of texts.

    Attributes:
        features: features of a text.
        weights: weight of each feature for each label, (features, L) float32.
        biases: score of each label without a feature, (L,) float32.
        calibration: parameters that convert scores to predictions (:mod:`.calibration`).
    """

    features: Features
    weights: np.ndarray
    biases: np.ndarray
    calibration: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def fit(
        cls,
        texts: Sequence[str],
        targets: np.ndarray,
        problem: str,
        num_labels: int,
        advance: Callable[[int], None] = lambda count: None,
        *,
        has_pairs: bool,
    ) -> LinearModel | None:
        """Fit a model; return None if there is nothing to fit, because no text has a word or all have one label.

        With several labels per text, a label that all training texts or none of them have gets a constant score.

        Args:
            texts: training texts.
            targets: labels: int64 (N,), float32 (N,) in regression, float32 (N, L) of 0 and 1 with several per text.
            problem: ``data.problem_type``.
            has_pairs: whether a text is a pair joined by :data:`.pairs.SEPARATOR`.
            num_labels: number of labels, L; 1 in regression.
            advance: called with 1 after the features, and after each label.
        """
        from sklearn.linear_model import Ridge
        from sklearn.svm import LinearSVC

        if (problem == "single_label" and len(set(targets.tolist())) < 2) or not any(map(str.strip, texts)):
            return None
        features = Features(has_pairs=has_pairs)
        train_features = features.fit(texts)
        advance(1)
        weights = np.zeros((train_features.shape[1], num_labels), np.float32)
        biases = np.full(num_labels, UNSEEN_SCORE, np.float32)
        if problem == "regression":
            ridge = Ridge(solver="lsqr").fit(train_features, targets)
            weights[:, 0], biases[0] = ridge.coef_, ridge.intercept_
            advance(1)
            return cls(features, weights, biases)
        for label in range(num_labels):
            has_label = targets == label if problem == "single_label" else targets[:, label] > 0
            if has_label.all():
                biases[label] = -UNSEEN_SCORE
            elif has_label.any():
                classifier = LinearSVC(random_state=0, tol=TOLERANCE).fit(train_features, has_label)
                weights[:, label], biases[label] = classifier.coef_[0], classifier.intercept_[0]
            advance(1)
        return cls(features, weights, biases)

    def score(self, texts: Sequence[str]) -> np.ndarray:
        """Return the scores of texts: logits (N, L), or numbers (N, 1) in regression."""
        return np.asarray(self.features.transform(texts) @ self.weights) + self.biases

    def save(self, folder: Path) -> None:
        """Write the model into a folder."""
        arrays = {"weights": self.weights, "biases": self.biases}
        for name, vocabulary in zip(("words", "characters"), self.features.vocabularies, strict=True):
            arrays[f"{name}.hashes"] = vocabulary.hashes
            arrays[f"{name}.inverse_frequencies"] = vocabulary.inverse_frequencies
        write_tensors(folder / ARRAYS, arrays)
        settings = {"has_pairs": self.features.has_pairs, "calibration": self.calibration}
        write_text(folder / SETTINGS, json.dumps(settings, indent=1) + "\n")

    @classmethod
    def load(cls, folder: Path) -> LinearModel:
        """Load a model that :meth:`save` has written.

        Raises:
            UserError: a file is missing or damaged.
        """
        settings = read_json(folder / SETTINGS, REMEDY)
        with reading(folder / ARRAYS, REMEDY):
            arrays = load_file(folder / ARRAYS)
            vocabularies = [
                Vocabulary(arrays[f"{name}.hashes"], arrays[f"{name}.inverse_frequencies"])
                for name in ("words", "characters")
            ]
            features = Features(vocabularies, has_pairs=bool(settings["has_pairs"]))
            num_features = sum(len(vocabulary.hashes) for vocabulary in vocabularies)
            num_rows = 3 * num_features + 1 if features.has_pairs else num_features
            if arrays["weights"].shape != (num_rows, *arrays["biases"].shape):
                raise ValueError(f"the weights have the shape {arrays['weights'].shape}")
            return cls(features, arrays["weights"], arrays["biases"], settings["calibration"])
