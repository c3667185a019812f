"""CoNLL files: a line for each token, its first column the token and its last one the tag, parted by tabs or blanks; a
blank line between sentences, ``-DOCSTART-`` between documents."""

from __future__ import annotations

import re
from collections.abc import Iterator

from toolkit.tasks.token_classification.tags import OUTSIDE, TAG

DOCUMENT = "-DOCSTART-"
#: Files that are nothing else.
ENDINGS = (".conll", ".bio", ".iob", ".iob2")
#: Tokens and their tags.
Sentence = tuple[list[str], list[str]]


class ConllError(ValueError):
    """What is wrong, with the number of the line before it."""


def read(text: str) -> list[Sentence]:
    """Return the sentences of a file's text.

    Raises:
        ConllError: a line is no token with a tag, or all tokens are numbers that count them.
    """
    found = list(_sentences(text))
    numbered = all(token == str(place) for tokens, _ in found for place, token in enumerate(tokens, 1))
    if numbered and len(found) < sum(len(tokens) for tokens, _ in found):
        raise ConllError("1: the first column counts the tokens; the first should be the token, the last its tag")
    return found


def _sentences(text: str) -> Iterator[Sentence]:
    """Yield the sentences. A line that begins with ``#`` and ends in no tag is a comment."""
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
            shown = repr(columns[-1][:40])
            wrong = f"{shown} is no tag" if len(columns) > 1 else f"{shown} stands alone, without a tag"
            raise ConllError(f"{number}: {wrong}; a line is a token and its tag: O, B-PER, I-PER (or IOB1, BIOES)")


def looks_tagged(text: str) -> bool:
    """Whether the beginning of a file is one of CoNLL with entities in it."""
    try:
        return any(tag != OUTSIDE for _, tags in read(text) for tag in tags)
    except ConllError:
        return False
