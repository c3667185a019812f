"""Words of the names that ports and references give their parts, and how far two names are apart."""

from __future__ import annotations

import re
from difflib import SequenceMatcher

#: Words that ports write in different ways -> one of them.
SAME = {
    "q": "query", "k": "key", "v": "value", "o": "output", "out": "output", "attn": "attention", "h": "layer",
    "layers": "layer", "block": "layer", "blocks": "layer", "ln": "norm", "layernorm": "norm", "wi": "intermediate",
    "wo": "output", "wte": "word", "wpe": "position", "fc1": "intermediate", "fc2": "output", "linear1": "intermediate",
    "linear2": "output", "emb": "embedding", "embeddings": "embedding", "embed": "embedding", "positions": "position",
    "cls": "head", "lm": "head", "classifier": "head", "gamma": "weight", "beta": "bias", "scale": "weight",
    "variance": "var",
    # of torch's parametrizations: weight norm's g and v, spectral norm's weight
    "original0": "g", "original1": "value", "original": "orig",
}  # fmt: skip
#: Words without meaning for a match.
EMPTY = {"proj", "dense", "self", "model", "module", "net"}


def last_word(name: str) -> str:
    """Return the last word of a parameter's name, such as ``weight`` or ``bias``, in its common form."""
    last = re.split(r"[._]", name)[-1]
    return SAME.get(last, last)


def is_spelled_alike(first_name: str, second_name: str) -> bool:
    """Return whether the last words of two parameters' names are the same, and not only of one meaning.

    Args:
        first_name: name of a parameter.
        second_name: name of another parameter.
    """
    return re.split(r"[._]", first_name)[-1] == re.split(r"[._]", second_name)[-1]


def split_words(name: str) -> list[str]:
    """Return the words of a path in their common form, numbers included: `norm1` and `norm_1` are `norm` and `1`."""
    names = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+\d*|\d+", name)
    parts = [part for word in names for part in ([word] if word.lower() in SAME else re.findall(r"\D+|\d+", word))]
    common = [SAME.get(part.lower(), part.lower()) for part in parts]
    return [word for word in common if word not in EMPTY]


def name_distance(first_name: str, second_name: str) -> float:
    """Return the distance of two names: 0 for the same words, 1 without a common word, 1 more for other numbers.

    Names that share some of their numbers are nearer: a stage may have a number on one side, and a name on the other.

    Args:
        first_name: name of a parameter.
        second_name: name of another parameter.
    """
    a, b = split_words(first_name), split_words(second_name)
    numbers = [[word for word in side if word.isdigit()] for side in (a, b)]
    shared_numbers = SequenceMatcher(None, numbers[0], numbers[1], autojunk=False).ratio()
    similarity = SequenceMatcher(None, a, b, autojunk=False).ratio()
    shared_share = len({*a} & {*b}) / max(1, len({*a} | {*b}))
    return 1 - (similarity + shared_share) / 2 + 1 - shared_numbers
