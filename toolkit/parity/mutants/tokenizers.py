"""Faults of tokenizers, of whatever kind."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from toolkit.parity.mutants.fault import Modules, Mutant, around

Changes = list[tuple[Any, str, Any]]


def reading(kind: type, change: Callable) -> Changes:
    """Change every text before it is encoded."""
    return around(kind, "encode_batch", lambda encode, self, texts: encode(self, [change(text) for text in texts]))


def padding(port: Modules, change: Callable) -> Changes:
    """Change the rows, ids and masks of padded texts."""
    pad = port.tokenization.pad
    return [(port.tokenization, "pad", lambda *args: change(pad, *args))]


def masked_nowhere(pad, *args):
    padded = pad(*args)
    return {**padded, "attention_mask": padded["attention_mask"] * 0 + 1}


def right_alone(pad, rows, length, pad_token_id, side):
    """Pad on the right, whatever the side."""
    return pad(rows, length, pad_token_id)


def cut_on_the_left(kind: type) -> Changes:
    def ends(plain, self, texts, count):
        return [ids[-count:] for ids in self.encode_batch(texts)]

    return around(kind, "beginnings", ends)


def one_line(text: str) -> str:
    """Read line breaks as blanks."""
    return text.replace("\n", " ")


class Faults:
    """Makes the faults of a family's tokenizer.

    Attributes:
        kind: takes the modules, gives the tokenizer's class.
    """

    def __init__(self, family: str, kind: Callable[[Modules], type]) -> None:
        self.family, self.kind = family, kind

    def fault(self, name: str, what: str, expected: str, apply: Callable[[Modules], Changes], **more: Any) -> Mutant:
        """Return a fault."""
        return Mutant(name, what, expected, apply, self.family, tokenizer=True, **more)

    def of_class(self, name: str, what: str, expected: str, apply: Callable[[type], Changes], **more: Any) -> Mutant:
        """Return a fault of the tokenizer's class."""
        return self.fault(name, what, expected, lambda port: apply(self.kind(port)), **more)

    def misread(self, name: str, what: str, change: Callable[[str], str]) -> Mutant:
        """Return a fault that changes every text before it is encoded."""
        return self.of_class(name, what, "tokenizer:ids", lambda kind: reading(kind, change))

    def shared(self, prefix: str) -> tuple[Mutant, ...]:
        """Return the faults that every family's tokenizer may have; ``prefix`` is of their names."""
        return (
            self.misread(f"{prefix}lower-case", "texts in lower case", str.lower),
            self.fault(
                f"{prefix}pad-side", "padding always on the right", "tokenizer:left", lambda p: padding(p, right_alone)
            ),
            self.fault(
                f"{prefix}padding-not-masked",
                "padding is attended to",
                "tokenizer:right",
                lambda p: padding(p, masked_nowhere),
            ),
            self.of_class(
                f"{prefix}cut-on-the-left", "long texts lose their beginning", "tokenizer:right", cut_on_the_left
            ),
            self.misread(
                f"{prefix}special-before-blank-lost",
                "special pieces not recognised before white space",  # white space in front is read as part of one
                lambda text: re.sub(r"<(unk|/s)>(?=\s)", r"<\1 >", text),
            ),
            self.misread(f"{prefix}control-dropped", "a control character dropped", lambda t: t.replace("\x80", "")),
        )
