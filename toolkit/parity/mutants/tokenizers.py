"""Faults of the tokenizers."""

from __future__ import annotations

import re
import unicodedata
from functools import partial
from types import SimpleNamespace

from toolkit.parity.mutants.fault import Mutant, around, result


def _port() -> SimpleNamespace:
    from models.ctrl import tokenizer as ctrl
    from models.port import tokenization
    from models.reformer import tokenizer as reformer

    return SimpleNamespace(
        tokenization=tokenization, reformer=reformer.ReformerTokenizer, ctrl=ctrl.CTRLTokenizer, ctrl_module=ctrl
    )


def _reading(kind: type, change):
    """Change every text before it is encoded."""
    return around(kind, "encode_batch", lambda encode, self, texts: encode(self, [change(text) for text in texts]))


def _ids(kind: type, change):
    return result(kind, "encode_batch", lambda rows: [change(row) for row in rows])


def _padding(port, change):
    """Change the rows, ids and masks of padded texts."""
    pad = port.tokenization.pad
    return [(port.tokenization, "pad", lambda *args: change(pad, *args))]


def _masked_nowhere(pad, *args):
    padded = pad(*args)
    return {**padded, "attention_mask": padded["attention_mask"] * 0 + 1}


def _cut_on_the_left(kind: type):
    def ends(plain, self, texts, count):
        return [ids[-count:] for ids in self.encode_batch(texts)]

    return around(kind, "beginnings", ends)


def _offsets(kind: type, change):
    def moved(found):
        ids, spans = found
        return ids, [change(span) for span in spans]

    return result(kind, "encode_with_offsets", moved)


def _cached_across_texts(port):
    """Cache words by their first three letters: right until two words begin alike."""

    def pieces(plain, self, word):
        known = self.__dict__.setdefault("_by_beginning", {})
        return known.setdefault(word[:3], plain(self, word))

    return around(port.ctrl, "pieces", pieces)


_fault = partial(Mutant, port=_port, tokenizer=True)


def _misread(kind: str, name: str, fault: str, change) -> Mutant:
    """Return a fault that changes every text before it is encoded."""
    return _fault(name, fault, "tokenizer:ids", lambda port: _reading(getattr(port, kind), change))


def _special_not_before_blanks(kind: str, name: str) -> Mutant:
    """Read white space before a special piece as part of it, so that it no longer is one."""
    return _misread(
        kind,
        name,
        "special pieces not recognised before white space",
        lambda text: re.sub(r"<(unk|/s)>(?=\s)", r"<\1 >", text),
    )


#: Faults of SentencePiece.
REFORMER_TOKENIZER: tuple[Mutant, ...] = (
    _fault("lower-case", "texts in lower case", "tokenizer:ids", lambda p: _reading(p.reformer, str.lower)),
    _fault(
        "line-breaks-as-blanks",
        "line breaks read as blanks",
        "",
        lambda p: _reading(p.reformer, _one_line),
        harmless="SentencePiece's normalisation makes blanks of line breaks itself",
    ),
    _fault(
        "end-added", "an end token after every text", "tokenizer:ids", lambda p: _ids(p.reformer, lambda ids: [*ids, 2])
    ),
    _fault(
        "ids-shifted",
        "ids one too large, the last one 0",
        "tokenizer:ids",
        lambda p: _ids(p.reformer, lambda ids: [(i + 1) % 300 for i in ids]),
    ),
    _fault(
        "special-tokens-unknown",
        "special tokens taken for words",
        "tokenizer:ids",
        lambda p: around(p.reformer, "__init__", _without_special),
    ),
    _fault(
        "pad-side",
        "padding always on the right",
        "tokenizer:left",
        lambda p: _padding(p, lambda pad, r, n, i, s: pad(r, n, i)),
    ),
    _fault(
        "pad-id", "padding with id 1", "tokenizer:right", lambda p: _padding(p, lambda pad, r, n, i, s: pad(r, n, 1, s))
    ),
    _fault("padding-not-masked", "padding is attended to", "tokenizer:right", lambda p: _padding(p, _masked_nowhere)),
    _fault(
        "cut-on-the-left", "long texts lose their beginning", "tokenizer:right", lambda p: _cut_on_the_left(p.reformer)
    ),
    _fault(
        "decoded-with-marks",
        "SentencePiece's marks left in decoded text",
        "tokenizer:decoded",
        lambda p: result(p.reformer, "decode", lambda text: text.replace(" ", "\u2581")),
    ),
    _fault(
        "offsets-by-one",
        "offsets one character late",
        "tokenizer:offsets",
        lambda p: _offsets(p.reformer, lambda span: (span[0] + 1, span[1] + 1)),
    ),
    _fault(
        "offsets-in-bytes",
        "offsets in bytes, not in characters",
        "tokenizer:offsets",
        lambda p: around(
            p.reformer,
            "_character_spans",
            lambda plain, self, part, spans, start: [(start + first, start + past) for first, past in spans],
        ),
    ),
    _fault(
        "offsets-with-blanks",
        "a word's offsets begin at the blank in front of it",
        "tokenizer:offsets",
        lambda p: result(p.reformer, "_blank", lambda blank: False),
    ),
    _fault(
        "offsets-with-controls",
        "a control character in front of a word belongs to it",
        "tokenizer:offsets",
        lambda p: around(
            p.reformer,
            "_blank",
            lambda plain, self, one: one.isspace() if one.isascii() else plain(self, one),
        ),
    ),
    _fault(
        "trailing-line-break-lost",
        "a line break at the end of a text stripped",
        "",
        lambda p: _reading(p.reformer, lambda text: text.removesuffix("\n")),
        harmless="SentencePiece's normalisation strips blanks at the end itself, and makes one of a line break",
    ),
    _misread("reformer", "vertical-tab-as-blank", "vertical tab taken for a space", lambda t: t.replace("\v", " ")),
    _special_not_before_blanks("reformer", "special-before-blank-lost"),
    _misread(
        "reformer",
        "separators-as-blanks",
        "words parted at U+001C to U+001F",
        lambda text: re.sub("[\x1c-\x1f]", " ", text),
    ),
    _misread("reformer", "next-line-kept", "U+0085 taken for a letter", lambda text: text.replace("\x85", "x")),
    _misread("reformer", "control-dropped", "a control character dropped", lambda text: text.replace("\x80", "")),
    _misread(
        "reformer",
        "special-doubled-merged",
        "of two equal special pieces in a row one is lost",
        lambda text: re.sub(r"(<unk>|</s>)\1", r"\1", text),
    ),
    _misread("reformer", "soft-hyphen-as-hyphen", "soft hyphen read as a hyphen", lambda t: t.replace("\xad", "-")),
    _misread(
        "reformer",
        "case-beyond-ascii",
        "letters beyond ASCII in lower case",
        lambda text: re.sub(r"[^\x00-\x7f]+", lambda found: found[0].lower(), text),
    ),
    _misread("reformer", "full-width-lost", "full-width forms dropped", lambda t: re.sub("[\uff01-\uff5e]", "", t)),
)

#: Faults of byte-pair pieces.
CTRL_TOKENIZER: tuple[Mutant, ...] = (
    _fault("ctrl-lower-case", "texts in lower case", "tokenizer:ids", lambda p: _reading(p.ctrl, str.lower)),
    _fault("ctrl-one-line", "line breaks are no tokens", "tokenizer:ids", lambda p: _reading(p.ctrl, _one_line)),
    _fault(
        "ctrl-merges-reversed",
        "the last merge first",
        "tokenizer:ids",
        lambda p: around(p.ctrl, "__init__", _with_ranks_reversed),
    ),
    _fault(
        "ctrl-first-merge-lost",
        "the first merge read as a heading",
        "tokenizer:ids",
        lambda p: around(p.ctrl, "__init__", _with_first_rank_lost),
    ),
    _fault("ctrl-words-confused", "words remembered by their beginning", "tokenizer:ids", _cached_across_texts),
    _fault(
        "ctrl-unknown-dropped",
        "unknown pieces left away",
        "tokenizer:ids",
        lambda p: around(
            p.ctrl, "_encode", lambda plain, self, text: [i for i in plain(self, text) if i != self._unknown]
        ),
    ),
    _fault(
        "ctrl-pad-side",
        "padding always on the right",
        "tokenizer:left",
        lambda p: _padding(p, lambda pad, r, n, i, s: pad(r, n, i)),
    ),
    _fault(
        "ctrl-padding-not-masked", "padding is attended to", "tokenizer:right", lambda p: _padding(p, _masked_nowhere)
    ),
    _fault(
        "ctrl-cut-on-the-left", "long texts lose their beginning", "tokenizer:right", lambda p: _cut_on_the_left(p.ctrl)
    ),
    _fault(
        "ctrl-joined",
        "decoded text keeps the marks of pieces that go on",
        "tokenizer:decoded",
        lambda p: [(p.ctrl, "decode", lambda self, ids: " ".join(self._pieces.get(i, "<unk>") for i in ids))],
    ),
    _misread(
        "ctrl",
        "ctrl-trailing-line-break-lost",
        "a line break at the end of a text stripped",
        lambda text: text.removesuffix("\n"),
    ),
    _misread("ctrl", "ctrl-vertical-tab-kept", "vertical tab taken for a letter", lambda t: t.replace("\v", "x")),
    _special_not_before_blanks("ctrl", "ctrl-special-before-blank-lost"),
    _misread(
        "ctrl",
        "ctrl-separators-part-words",
        "words parted at U+001C to U+001F",
        lambda text: re.sub("[\x1c-\x1f]", " ", text),
    ),
    _misread("ctrl", "ctrl-composed", "texts composed (NFC)", partial(unicodedata.normalize, "NFC")),
    _misread("ctrl", "ctrl-control-dropped", "a control character dropped", lambda text: text.replace("\x80", "")),
    _misread("ctrl", "ctrl-crlf", "CR LF read as LF", lambda text: text.replace("\r\n", "\n")),
    _misread("ctrl", "ctrl-no-break-space-kept", "no-break space taken for a letter", lambda t: t.replace("\xa0", "x")),
    _misread(
        "ctrl",
        "ctrl-special-doubled-merged",
        "of two equal special pieces in a row one is lost",
        lambda text: text.replace("<unk><unk>", "<unk>"),
    ),
    _misread("ctrl", "ctrl-soft-hyphen-lost", "soft hyphens left away", lambda text: text.replace("\xad", "")),
    _misread("ctrl", "ctrl-byte-order-mark-lost", "a byte-order mark stripped", lambda t: t.removeprefix("\ufeff")),
)


def _one_line(text: str) -> str:
    return text.replace("\n", " ")


def _without_special(plain, self, *args, **options) -> None:
    plain(self, *args, **options)
    self._special = {}


def _with_ranks_reversed(plain, self, *args, **options) -> None:
    plain(self, *args, **options)
    self._ranks = {pair: -rank for pair, rank in self._ranks.items()}


def _with_first_rank_lost(plain, self, *args, **options) -> None:
    plain(self, *args, **options)
    self._ranks.pop(next(iter(self._ranks)))
