"""Whole words: about the boundaries of Unicode Standard Annex 29, and spans of a text widened to them.

The annex takes "Manning's", "l’eau", "example.com" and a missing blank ("end.Next") for one word each; answers do not:
of the 34,726 in SQuAD's development set 244 begin or end inside a word of the annex, 86 where these marks part words.
"3.5" and "1,000" are a word each, since half a number is another one.

Where a script writes no spaces (Han, Hiragana, Thai, Lao, Khmer, Burmese), the annex makes each character a word of its
own, with the marks that belong to it, so that a span there stays as it is but for a character that it would cut.
"""

from __future__ import annotations

import functools

import numpy as np
import regex

#: Word boundaries (UAX 29, section 4), and grapheme clusters: what a reader takes for one character (section 3).
BOUNDARY, GRAPHEME = regex.compile(r"(?w)\b"), regex.compile(r"\X")
#: Marks between letters that the annex has inside of words.
INNER_MARK = regex.compile(r"(?<=[\p{L}\p{M}])['’.:](?=\p{L})")


@functools.lru_cache(maxsize=8)  # questions about one context follow each other
def boundaries(text: str) -> np.ndarray:
    """Where the words of a text begin and end, in characters, int64, ascending; what stands between two words, such as
    a blank, is bounded too. No boundary lies inside of a grapheme cluster."""
    words = [match.start() for match in BOUNDARY.finditer(text)]
    words += [place for match in INNER_MARK.finditer(text) for place in match.span()]
    if text.isascii() and "\r" not in text:  # each character is a cluster
        return np.unique(np.asarray(words, dtype=np.int64))
    graphemes = [0, *(match.end() for match in GRAPHEME.finditer(text))]
    return np.intersect1d(words, graphemes).astype(np.int64)


def whole_words(text: str, start: int, end: int) -> tuple[int, int]:
    """The least span of whole words that holds ``text[start:end]``, which is not empty."""
    places = boundaries(text)
    first = np.searchsorted(places, start, side="right") - 1
    last = np.searchsorted(places, end, side="left")
    return int(places[first]), int(places[last])
