"""Comparison of both sides' tokenizers on the same texts (verdict 5). The shortest text shows each difference."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from toolkit.parity.exchange.results import Tokens

#: Compared result of a tokenizer (an attribute of :class:`.results.Tokens`) -> its name in a message, in order.
RESULTS = {
    "ids": "ids",
    "decoded": "decoded texts",
    "right": "ids or mask, padded on the right,",
    "left": "ids or mask, padded on the left,",
    "offsets": "offsets",
}
#: Largest number of characters of a value that a message shows whole. Of a longer value it shows this many characters
#: or tokens before and after the difference.
MAX_SHOWN, NUM_BEFORE, NUM_AFTER = 60, 10, 30


def find_differing_texts(theirs: Sequence[Tokens], ours: Sequence[Tokens]) -> dict[str, list[int]]:
    """Return the indices of the texts with different results, by key of :data:`RESULTS`, the shortest text first.

    Texts that the reference cannot encode are not compared. If only the port cannot encode a text, its ids differ.

    Args:
        theirs: results of the reference's tokenizer, one for each text.
        ours: results of the port's tokenizer, one for each text.
    """
    differing_texts = {}
    for key in RESULTS:
        indices = [
            index
            for index, (reference, port) in enumerate(zip(theirs, ours, strict=True))
            if reference.error is None and _differs(key, reference, port)
        ]
        if indices:
            differing_texts[key] = sorted(indices, key=lambda index: len(theirs[index].text))
    return differing_texts


def _differs(key: str, reference_tokens: Tokens, port_tokens: Tokens) -> bool:
    """Return whether a result of the two tokenizers differs for a text.

    Args:
        key: key of :data:`RESULTS`.
        reference_tokens: results of the reference's tokenizer.
        port_tokens: results of the port's tokenizer.
    """
    if port_tokens.error is not None:
        return key == "ids"
    return bool(getattr(reference_tokens, key) != getattr(port_tokens, key))


def find_token_faults(theirs: Sequence[Tokens], ours: Sequence[Tokens]) -> list[tuple[str, str]]:
    """Return the name and the message of a finding for each result that differs, such as ``tokenizer:ids``.

    The message shows the shortest text with a difference.

    Args:
        theirs: results of the reference's tokenizer, one for each text.
        ours: results of the port's tokenizer, one for each text.
    """
    return [
        (
            f"tokenizer:{key}",
            describe_difference(key, theirs[indices[0]], ours[indices[0]])
            + _describe_other_texts(len(indices) - 1, len(theirs)),
        )
        for key, indices in find_differing_texts(theirs, ours).items()
    ]


def describe_difference(key: str, reference_tokens: Tokens, port_tokens: Tokens) -> str:
    """Describe the first difference of two tokenizers' results for one text.

    Args:
        key: key of :data:`RESULTS`.
        reference_tokens: results of the reference's tokenizer.
        port_tokens: results of the port's tokenizer.
    """
    result, expected_value, value = RESULTS[key], getattr(reference_tokens, key), getattr(port_tokens, key)
    if port_tokens.error is not None:
        return f"{result} of {_excerpt(reference_tokens.text, 0)}: the port ends with {port_tokens.error}"
    if value is None:
        return f"{result} of {_excerpt(reference_tokens.text, 0)}: the port gives none"
    if key in ("right", "left"):  # ids and mask
        expected_value, value = next(pair for pair in zip(expected_value, value, strict=True) if pair[0] != pair[1])
    position = _first_difference(expected_value, value)
    text_position = (
        position if key == "decoded" else _start(port_tokens.starts, position) if key in ("ids", "offsets") else 0
    )
    where = "" if _is_short(expected_value) and _is_short(value) else f" from {position} on"
    values_text = f"{_excerpt(value, position)}, the reference gives {_excerpt(expected_value, position)}"
    return f"{result} of {_excerpt(reference_tokens.text, text_position)} differ{where}: {values_text}"


def _first_difference(expected_value: Sequence, value: Sequence) -> int:
    """Return the index of the first element that differs in two sequences."""
    pairs = enumerate(zip(expected_value, value, strict=False))
    return next((position for position, (one, other) in pairs if one != other), min(len(expected_value), len(value)))


def _start(starts: Sequence[int], token: int) -> int:
    """Return the position of the first character of a token in its text; 0 if it is unknown.

    It is unknown for a text that is shown whole.

    Args:
        starts: position of the first character of each token.
        token: index of the token.
    """
    return starts[min(token, len(starts) - 1)] if starts else 0


def _is_short(value: Any) -> bool:
    """Return whether a value is short enough for a message that shows it whole."""
    return len(repr(value)) <= MAX_SHOWN


def _excerpt(value: Sequence, position: int) -> str:
    """Return the repr of a text or list, or of its part around a position if it is long."""
    if _is_short(value):
        return repr(value)
    first, end = max(0, position - NUM_BEFORE), position + (NUM_AFTER if isinstance(value, str) else NUM_BEFORE)
    return "..." * (first > 0) + repr(value[first:end]) + "..." * (end < len(value))


def _describe_other_texts(count: int, texts: int) -> str:
    """Describe the number of further texts with the same kind of difference; empty if there are none."""
    return f"; those of {count} more of {texts} texts, too" if count else ""
