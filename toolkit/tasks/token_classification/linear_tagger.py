"""A linear model that tags each word from the word and its neighbors: the baseline of named entities.

The features are the word, its form, its beginning and its end, for the word and for two words on each side.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from toolkit.tasks.token_classification.tags import OUTSIDE

#: Name of the method in the results.
METHOD = "linear model of each word and its neighbors"
#: Number of words before and after a word that its features include.
WINDOW = 2
#: Maximum number of training words; further texts are not read.
MAX_WORDS = 500_000
#: Number of different features, a power of 2; features whose hashes agree are one.
NUM_FEATURES = 2**18


def tag_words(
    train_words: Sequence[Sequence[str]],
    train_tags: Sequence[Sequence[str]],
    words_by_split: Mapping[str, Sequence[Sequence[str]]],
) -> dict[str, list[list[str]]]:
    """Fit the model to training texts; return the predicted tags of each text, by split.

    Args:
        train_words: words of each training text.
        train_tags: tags of each training text.
        words_by_split: words of each text of the other splits.
    """
    from sklearn.feature_extraction import FeatureHasher
    from sklearn.linear_model import SGDClassifier

    total_words = np.cumsum([len(words) for words in train_words])
    num_texts = max(1, int(np.searchsorted(total_words, MAX_WORDS, side="right")))
    targets = [tag for tags in train_tags[:num_texts] for tag in tags]
    if len(set(targets)) < 2:
        tag = targets[0] if targets else OUTSIDE
        return {name: [[tag] * len(words) for words in texts] for name, texts in words_by_split.items()}
    hasher = FeatureHasher(NUM_FEATURES, input_type="string", dtype=np.float32)
    model = SGDClassifier(alpha=1e-5, max_iter=10, tol=None, average=True, random_state=0)
    model.fit(hasher.transform(_features_of_texts(train_words[:num_texts])), targets)
    predicted_tags = {}
    for name, texts in words_by_split.items():
        num_words = [len(words) for words in texts]
        tags = model.predict(hasher.transform(_features_of_texts(texts))) if sum(num_words) else np.zeros(0, str)
        predicted_tags[name] = [part.tolist() for part in np.split(tags, np.cumsum(num_words)[:-1])]
    return predicted_tags


def _features_of_texts(words_by_text: Sequence[Sequence[str]]) -> Iterator[list[str]]:
    """Yield the features of each word of each text."""
    for words in words_by_text:
        features_of_words = [_word_features(word) for word in words]
        for index in range(len(words)):
            features = ["bias"]
            for offset in range(-WINDOW, WINDOW + 1):
                neighbor = index + offset
                neighbor_features = features_of_words[neighbor] if 0 <= neighbor < len(words) else ["none"]
                features += [f"{offset}{feature}" for feature in neighbor_features]
            yield features


def _word_features(word: str) -> list[str]:
    """Return the word in lower case, its form (such as ``Xx`` or ``dd``), and its first and last three characters."""
    form = "".join("X" if c.isupper() else "x" if c.islower() else "d" if c.isdigit() else c for c in word)
    short_form = "".join(c for index, c in enumerate(form) if index == 0 or c != form[index - 1])
    lower = word.lower()
    return [f"word {lower}", f"form {short_form}", f"first {lower[:3]}", f"last {lower[-3:]}"]
