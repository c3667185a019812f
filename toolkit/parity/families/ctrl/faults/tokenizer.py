"""Faults of CTRL's byte-pair pieces."""

from __future__ import annotations

import re
import unicodedata
from functools import partial

from toolkit.parity.mutants.fault import Mutant, around
from toolkit.parity.mutants.tokenizers import Faults, one_line

_of = Faults("ctrl", lambda p: p.tokenizer.CTRLTokenizer)


def _cached_across_texts(kind: type):
    """Cache words by their first three letters: right until two words begin alike."""

    def pieces(plain, self, word):
        known = self.__dict__.setdefault("_by_beginning", {})
        return known.setdefault(word[:3], plain(self, word))

    return around(kind, "pieces", pieces)


def _with_ranks_reversed(plain, self, *args, **options) -> None:
    plain(self, *args, **options)
    self._ranks = {pair: -rank for pair, rank in self._ranks.items()}


def _with_first_rank_lost(plain, self, *args, **options) -> None:
    plain(self, *args, **options)
    self._ranks.pop(next(iter(self._ranks)))


TOKENIZER: tuple[Mutant, ...] = (
    *_of.shared("ctrl-"),
    _of.misread("ctrl-one-line", "line breaks are no tokens", one_line),
    _of.of_class(
        "ctrl-merges-reversed",
        "the last merge first",
        "tokenizer:ids",
        lambda kind: around(kind, "__init__", _with_ranks_reversed),
    ),
    _of.of_class(
        "ctrl-first-merge-lost",
        "the first merge read as a heading",
        "tokenizer:ids",
        lambda kind: around(kind, "__init__", _with_first_rank_lost),
    ),
    _of.of_class("ctrl-words-confused", "words remembered by their beginning", "tokenizer:ids", _cached_across_texts),
    _of.of_class(
        "ctrl-unknown-dropped",
        "unknown pieces left away",
        "tokenizer:ids",
        lambda kind: around(
            kind, "_encode", lambda plain, self, text: [i for i in plain(self, text) if i != self._unknown]
        ),
    ),
    _of.of_class(
        "ctrl-joined",
        "decoded text keeps the marks of pieces that go on",
        "tokenizer:decoded",
        lambda kind: [(kind, "decode", lambda self, ids: " ".join(self._pieces.get(i, "<unk>") for i in ids))],
    ),
    _of.misread(
        "ctrl-trailing-line-break-lost",
        "a line break at the end of a text stripped",
        lambda text: text.removesuffix("\n"),
    ),
    _of.misread("ctrl-vertical-tab-kept", "vertical tab taken for a letter", lambda t: t.replace("\v", "x")),
    _of.misread(
        "ctrl-separators-part-words", "words parted at U+001C to U+001F", lambda text: re.sub("[\x1c-\x1f]", " ", text)
    ),
    _of.misread("ctrl-composed", "texts composed (NFC)", partial(unicodedata.normalize, "NFC")),
    _of.misread("ctrl-crlf", "CR LF read as LF", lambda text: text.replace("\r\n", "\n")),
    _of.misread("ctrl-no-break-space-kept", "no-break space taken for a letter", lambda t: t.replace("\xa0", "x")),
    _of.misread(
        "ctrl-special-doubled-merged",
        "of two equal special pieces in a row one is lost",
        lambda text: text.replace("<unk><unk>", "<unk>"),
    ),
    _of.misread("ctrl-soft-hyphen-lost", "soft hyphens left away", lambda text: text.replace("\xad", "")),
    _of.misread("ctrl-byte-order-mark-lost", "a byte-order mark stripped", lambda t: t.removeprefix("\ufeff")),
)
