"""Texts that reveal differences of tokenizers: written by hand, built from every kind of character, and random.

Faults of real ports mostly concern one character in one position: white space that does not end a word, a control
character that is dropped, a special piece that is not recognized next to either. So every character with a special rule
is tried in every position that may have one: alone, twice, first and last in a text, between letters, between blanks,
before and after a special piece.
"""

from __future__ import annotations

import random
import re

#: Texts that were written by hand.
ADVERSARIAL = (
    "",
    " ",
    "  two  spaces, and more   ",
    "\ttabs\tand\r\nline\nbreaks\u2028\u2029",
    "a\u0301 e\u0308 n\u0303 \u1e9b\u0323 combining marks, decomposed",
    "\u00e1 \u00eb \u00f1 composed",
    "\ufb01 \u2460 \u00bd \u212b \uff21\uff22 compatibility forms",
    "\U0001f469\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f1eb\U0001f1ee \U0001f44d\U0001f3fd emoji",
    "\u05e9\u05dc\u05d5\u05dd \u0645\u0631\u062d\u0628\u0627 right to \u202eleft\u202c",
    "\u4f60\u597d\uff0c\u4e16\u754c \u3053\u3093\u306b\u3061\u306f \uc548\ub155 \u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35",
    "\x00\x01\x07\x1b[0m\x7f control characters",
    "\u200b\u200c\u2060\ufeff zero width",
    "x" * 2000,
    "Donaudampfschifffahrtsgesellschaftskapit\u00e4n" * 10,
    "</s> <unk> <pad> <s> written out, text</s>text <unk><unk> </s>",
    "\u2581underline of SentencePiece \u2581\u2581",
    "1234567890 3.14159 1,000,000 0x1F",
    "UPPER lower MiXeD \u00df \u1e9e \u0130 \u0131",
    "!?.,;:-_()[]{}<>/\\|@#$%^&*+=~`'\"",
    "\U00010348 \U000e0041 \U0010ffff rare planes",
    "a\ud800b lone surrogate",
)
#: Pieces with a special meaning to tokenizers.
SPECIAL = ("</s>", "<unk>", "<pad>", "<s>", "</w>", "@@", "\u2581")
#: The control characters of Unicode.
CONTROLS = tuple(map(chr, (*range(0x20), *range(0x7F, 0xA0))))
#: The white space of Unicode, without control characters.
WHITE = tuple(
    " \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a\u2028\u2029\u202f\u205f\u3000"
)
#: Several characters of each general category except controls, white space and surrogates. If the category has them,
#: they include a character that normalization or a change of case maps to another, and a character beyond the basic
#: plane.
OF_CATEGORIES = (
    *("A", "\u00c5", "\u0130", "\u212b", "\U00010400"),  # Lu
    *("z", "\u00df", "\u0131", "\u03c2", "\ufb01", "\U00010428"),  # Ll
    *("\u01c5", "\u1f88"),  # Lt
    *("\u02b0", "\u3005"),  # Lm
    *("\u00aa", "\u05d0", "\u4e00", "\uf900", "\uff76", "\U00020000"),  # Lo
    *("\u0301", "\u0323", "\ufe0f", "\u3099", "\U000e0100"),  # Mn
    *("\u0903", "\u093e"),  # Mc
    *("\u0488", "\u20dd"),  # Me
    *("7", "\u0663", "\uff11", "\U0001d7d8"),  # Nd
    *("\u2167", "\u3007"),  # Nl
    *("\u00bd", "\u2460"),  # No
    *("_", "\u203f"),  # Pc
    *("-", "\u2011", "\u2014"),  # Pd
    *("(", "\uff08"),  # Ps
    *(")", "\uff09"),  # Pe
    *("\u00ab", "\u201c"),  # Pi
    *("\u00bb", "\u2019"),  # Pf
    *("'", "\u2026", "\u3002"),  # Po
    *("<", "\u2212"),  # Sm
    *("$", "\u20ac"),  # Sc
    *("`", "\u00a8", "\U0001f3fd"),  # Sk
    *("\u2122", "\ufffd", "\U0001f600"),  # So
    *("\u00ad", "\u200b", "\u200d", "\u200e", "\u2060", "\ufeff", "\U000e0041"),  # Cf
    *("\ue000", "\U0010fffd"),  # Co
    *("\u0378", "\ufffe", "\U0010ffff"),  # Cn
)
#: Sequences of characters that people read as a single character: line breaks, letters with marks, syllables, emoji.
SEQUENCES = (
    "\r\n",
    "e\u0301",
    "a\u0302\u0323",
    "\u1100\u1161\u11a8",
    "\U0001f469\u200d\U0001f467",
    "\U0001f1eb\U0001f1ee",
)
#: Texts around a character ``{0}``. A text may have the character in several positions, since all tokens are compared.
PLACES = ("{0}", "{0}{0}", "{0}a{0}b{0}{0}c{0}", " {0} a {0} ", "</s>{0}<unk>{0}{0}<pad>{0}a{0}</s> {0} <unk>")
#: Largest number of units (characters or special pieces) in a random text. All parts of such a text can be tried in one
#: run.
MAX_UNITS = 10


def texts_of_characters() -> list[str]:
    """Return texts with each character of the lists above in each text of :data:`PLACES`."""
    characters = [*CONTROLS, *WHITE, *OF_CATEGORIES, *SEQUENCES, *SPECIAL]
    return list(dict.fromkeys(place.format(character) for character in characters for place in PLACES))


def random_texts(seed: int, count: int) -> list[str]:
    """Return short random texts of letters, characters of the lists above and special pieces.

    Args:
        seed: seed of the texts. The first texts of a seed do not depend on ``count``.
        count: number of texts.
    """
    draw = random.Random(seed)
    kinds = ("abcB", CONTROLS, WHITE, OF_CATEGORIES, SEQUENCES, SPECIAL)
    random_strings = (
        "".join(draw.choice(draw.choice(kinds)) for _ in range(draw.randint(1, MAX_UNITS))) for _ in range(count)
    )
    return ["".join(_split_units(text)[:MAX_UNITS]) for text in random_strings]


def parts_of(text: str) -> list[str]:
    """Return all texts that remain of a random text after some of its units are removed, including the text itself.

    A unit is a special piece or a single character.
    """
    units = _split_units(text)
    masks = range(1, 1 << len(units))
    return list(dict.fromkeys("".join(u for place, u in enumerate(units) if mask >> place & 1) for mask in masks))


def _split_units(text: str) -> list[str]:
    """Return the units of a text: its special pieces, and the single characters between them."""
    return re.findall("|".join([*map(re.escape, SPECIAL), "."]), text, re.DOTALL)
