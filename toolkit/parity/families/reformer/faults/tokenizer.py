"""Faults of Reformer's SentencePiece."""

from __future__ import annotations

import re

from toolkit.parity.mutants.fault import Mutant, around, result
from toolkit.parity.mutants.tokenizers import Faults, one_line, padding, reading

_of = Faults("reformer", lambda p: p.tokenizer.ReformerTokenizer)


def _ids(kind: type, change):
    return result(kind, "encode_batch", lambda rows: [change(row) for row in rows])


def _offsets(kind: type, change):
    def moved(found):
        ids, spans = found
        return ids, [change(span) for span in spans]

    return result(kind, "encode_with_offsets", moved)


def _without_special(plain, self, *args, **options) -> None:
    plain(self, *args, **options)
    self._special = {}


TOKENIZER: tuple[Mutant, ...] = (
    *_of.shared(""),
    _of.of_class(
        "line-breaks-as-blanks",
        "line breaks read as blanks",
        "",
        lambda kind: reading(kind, one_line),
        harmless="SentencePiece's normalisation makes blanks of line breaks itself",
    ),
    _of.of_class(
        "end-added", "an end token after every text", "tokenizer:ids", lambda kind: _ids(kind, lambda ids: [*ids, 2])
    ),
    _of.of_class(
        "ids-shifted",
        "ids one too large, the last one 0",
        "tokenizer:ids",
        lambda kind: _ids(kind, lambda ids: [(i + 1) % 300 for i in ids]),
    ),
    _of.of_class(
        "special-tokens-unknown",
        "special tokens taken for words",
        "tokenizer:ids",
        lambda kind: around(kind, "__init__", _without_special),
    ),
    _of.fault(
        "pad-id", "padding with id 1", "tokenizer:right", lambda p: padding(p, lambda pad, r, n, i, s: pad(r, n, 1, s))
    ),
    _of.of_class(
        "decoded-with-marks",
        "SentencePiece's marks left in decoded text",
        "tokenizer:decoded",
        lambda kind: result(kind, "decode", lambda text: text.replace(" ", "\u2581")),
    ),
    _of.of_class(
        "offsets-by-one",
        "offsets one character late",
        "tokenizer:offsets",
        lambda kind: _offsets(kind, lambda span: (span[0] + 1, span[1] + 1)),
    ),
    _of.of_class(
        "offsets-in-bytes",
        "offsets in bytes, not in characters",
        "tokenizer:offsets",
        lambda kind: around(
            kind,
            "_character_spans",
            lambda plain, self, part, spans, start: [(start + first, start + past) for first, past in spans],
        ),
    ),
    _of.of_class(
        "offsets-with-blanks",
        "a word's offsets begin at the blank in front of it",
        "tokenizer:offsets",
        lambda kind: result(kind, "_blank", lambda blank: False),
    ),
    _of.of_class(
        "offsets-with-controls",
        "a control character in front of a word belongs to it",
        "tokenizer:offsets",
        lambda kind: around(
            kind, "_blank", lambda plain, self, one: one.isspace() if one.isascii() else plain(self, one)
        ),
    ),
    _of.of_class(
        "trailing-line-break-lost",
        "a line break at the end of a text stripped",
        "",
        lambda kind: reading(kind, lambda text: text.removesuffix("\n")),
        harmless="SentencePiece's normalisation strips blanks at the end itself, and makes one of a line break",
    ),
    _of.misread("vertical-tab-as-blank", "vertical tab taken for a space", lambda t: t.replace("\v", " ")),
    _of.misread(
        "separators-as-blanks",
        "words parted at U+001C to U+001F",
        lambda text: re.sub("[\x1c-\x1f]", " ", text),
    ),
    _of.misread("next-line-kept", "U+0085 taken for a letter", lambda text: text.replace("\x85", "x")),
    _of.misread(
        "special-doubled-merged",
        "of two equal special pieces in a row one is lost",
        lambda text: re.sub(r"(<unk>|</s>)\1", r"\1", text),
    ),
    _of.misread("soft-hyphen-as-hyphen", "soft hyphen read as a hyphen", lambda t: t.replace("\xad", "-")),
    _of.misread(
        "case-beyond-ascii",
        "letters beyond ASCII in lower case",
        lambda text: re.sub(r"[^\x00-\x7f]+", lambda found: found[0].lower(), text),
    ),
    _of.misread("full-width-lost", "full-width forms dropped", lambda t: re.sub("[\uff01-\uff5e]", "", t)),
)
