"""Read CoNLL files: a line for each token, with the token in the first column and its tag in the last column.

Columns are separated by tabs or blanks. A blank line separates sentences, and ``-DOCSTART-`` documents.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.tasks.token_classification.tags import OUTSIDE, TAG

DOCUMENT = "-DOCSTART-"
#: File name extensions that only CoNLL files have.
ENDINGS = (".conll", ".bio", ".iob", ".iob2")
#: Tokens and their tags.
Sentence = tuple[list[str], list[str]]


class ConllError(ValueError):
    """A line of the file is wrong. The message starts with the number of the line."""


def read_sentences(text: str) -> list[Sentence]:
    """Return the sentences of a file's text.

    Raises:
        ConllError: a line is not a token with a tag, or the tokens are consecutive numbers.
    """
    sentences = list(_sentences(text))
    has_numbers = all(token == str(number) for tokens, _ in sentences for number, token in enumerate(tokens, 1))
    if has_numbers and len(sentences) < sum(len(tokens) for tokens, _ in sentences):
        raise ConllError("1: the first column counts the tokens; the first should be the token, the last its tag")
    return sentences


def _sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences. A line that starts with ``#`` and does not end in a tag is a comment."""
    tokens: list[str] = []
    tags: list[str] = []
    for number, line in enumerate([*text.split("\n"), ""], 1):
        columns = line.split("\t") if "\t" in line.strip() else re.split(" +", line.strip())
        if not line.strip() or columns[0] == DOCUMENT:
            if tokens:
                yield tokens, tags
            tokens, tags = [], []
        elif len(columns) > 1 and TAG.fullmatch(tag := columns[-1].strip()):
            tokens.append(columns[0])
            tags.append(tag)
        elif not line.startswith("#"):
            last_column = repr(columns[-1][:40])
            problem = f"{last_column} is no tag" if len(columns) > 1 else f"{last_column} stands alone, without a tag"
            raise ConllError(f"{number}: {problem}; a line is a token and its tag: O, B-PER, I-PER (or IOB1, BIOES)")


def looks_tagged(text: str) -> bool:
    """Return whether the start of a file is in CoNLL's format and has entities."""
    try:
        return any(tag != OUTSIDE for _, tags in read_sentences(text) for tag in tags)
    except ConllError:
        return False
