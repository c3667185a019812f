"""Find whole words: nearly the boundaries of Unicode Standard Annex 29, and text spans widened to them.

The annex reads "Manning's", "l’eau", "example.com" and a missing blank ("end.Next") as one word each, but answers do
not. Of the 34,726 answers in SQuAD's development set, 244 start or end inside a word of the annex, and 86 if these
marks separate words. "3.5" and "1,000" are a word each, because half a number is another number.

For scripts without spaces (Han, Hiragana, Thai, Lao, Khmer, Burmese), the annex makes each character, with its marks, a
separate word. A span there changes only if it would cut a character.
"""

from __future__ import annotations

import functools

import numpy as np
import regex

#: Word boundaries (UAX 29, section 4), and grapheme clusters: characters as a reader perceives them (section 3).
BOUNDARY, GRAPHEME = regex.compile(r"(?w)\b"), regex.compile(r"\X")
#: Marks between letters that the annex has inside words.
INNER_MARK = regex.compile(r"(?<=[\p{L}\p{M}])['’.:](?=\p{L})")


@functools.lru_cache(maxsize=8)  # questions about one context follow each other
def boundaries(text: str) -> np.ndarray:
    """Return the positions where a text's words start and end, in characters, int64, ascending.

    Text between words, such as a blank, has boundaries too. No boundary is inside a grapheme cluster.
    """
    words = [match.start() for match in BOUNDARY.finditer(text)]
    words += [place for match in INNER_MARK.finditer(text) for place in match.span()]
    if text.isascii() and "\r" not in text:  # each character is a cluster
        return np.unique(np.asarray(words, dtype=np.int64))
    graphemes = [0, *(match.end() for match in GRAPHEME.finditer(text))]
    return np.intersect1d(words, graphemes).astype(np.int64)


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """Return the smallest span of whole words that contains a non-empty ``text[start:end]``."""
    word_boundaries = boundaries(text)
    first = np.searchsorted(word_boundaries, start, side="right") - 1
    last = np.searchsorted(word_boundaries, end, side="left")
    return int(word_boundaries[first]), int(word_boundaries[last])
