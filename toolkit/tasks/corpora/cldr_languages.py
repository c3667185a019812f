"""Built-in corpus to identify languages: real text in 52 languages that every installation already holds.

The Unicode CLDR, which Babel carries, records the names of territories, languages, currencies and scripts as each
language writes them. A document is a shuffled list of such names in one language. The hash of a name puts it in one
split for all languages it occurs in: training has no name of validation or test.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

if TYPE_CHECKING:
    from datasets import DatasetDict

CATEGORIES = ("territories", "languages", "currencies", "scripts")
SEPARATOR = ", "

#: Out of twenty names, thirteen are for training.
SPLITS = {"train": range(13), "validation": range(13, 16), "test": range(16, 20)}

#: CLDR codes of languages with 900 names or more: many scripts, and neighbors that are hard to distinguish.
LANGUAGES = (
    "am", "ar", "az", "bg", "bn", "ca", "cs", "cy", "da", "de", "el", "en", "es",
    "et", "eu", "fa", "fi", "fr", "ga", "gu", "he", "hi", "hu", "hy", "id", "is",
    "it", "ja", "ka", "kk", "km", "kn", "ko", "lo", "lt", "lv", "ml", "mr", "my",
    "nl", "pl", "pt", "ro", "ru", "sw", "ta", "te", "th", "tr", "uk", "vi", "zh",
)  # fmt: skip

Count = Annotated[int, Field(gt=0)]


#: The option that a ``ValueError`` of :func:`load` is about.
CHECKED_OPTION = "languages"
#: Keys of a recipe's data section -> their values for this corpus.
COLUMNS = {"text": "text", "label": "label", "problem_type": "single_label"}
#: It has its own splits: nothing is held out of ``train``.
HAS_SPLITS = True


class Options(BaseModel):
    """``data.options`` of a recipe with ``dataset: cldr_languages``.

    Attributes:
        languages: CLDR codes, two or more; each is a label.
        train, validation, test: how many documents of each language a split holds.
        min_bytes, max_bytes: a document's length is drawn uniformly between them (UTF-8 bytes).
        seed: draws the documents; which names a split may use does not depend on it.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    languages: Annotated[list[str], Field(min_length=2)] = list(LANGUAGES)
    train: Count = 200
    validation: Count = 10
    test: Count = 10
    min_bytes: Annotated[int, Field(ge=64)] = 128
    max_bytes: Annotated[int, Field(ge=64)] = 512
    seed: Annotated[int, Field(ge=0)] = 0


def check(options: Options) -> None:
    """Raise what :func:`load` would for unusable options, without making the corpus."""
    if len(set(options.languages)) < len(options.languages):
        raise ValueError(f"a language is listed twice: {', '.join(options.languages)}")
    for code in options.languages:
        if code not in LANGUAGES:  # which are known to have enough names
            names_by_split(code)


def load(options: Options) -> DatasetDict:
    """The corpus: columns ``text`` and ``label`` (the language), splits train, validation and test, shuffled.

    Raises:
        ValueError: a language is listed twice, is not in CLDR, or has too few names there.
    """
    from datasets import ClassLabel, Dataset, DatasetDict, Features, Value

    check(options)
    names = {code: names_by_split(code) for code in options.languages}
    features = Features({"text": Value("string"), "label": ClassLabel(names=list(options.languages))})
    corpus = DatasetDict()
    for split_name in SPLITS:
        count = getattr(options, split_name)
        rows = [
            (make_document(names[code][split_name], generator(options.seed, split_name, code, index), options), label)
            for label, code in enumerate(options.languages)
            for index in range(count)
        ]
        order = generator(options.seed, split_name).permutation(len(rows))
        columns = {"text": [rows[i][0] for i in order], "label": [rows[i][1] for i in order]}
        corpus[split_name] = Dataset.from_dict(columns, features=features)
    return corpus


def names_by_split(code: str) -> dict[str, list[str]]:
    """Return the names that CLDR records in one language, sorted, by split.

    Raises:
        ValueError: the language is not in CLDR, or has fewer than 20 names in a split.
    """
    from babel import Locale, UnknownLocaleError

    try:
        locale = Locale.parse(code)
    except (UnknownLocaleError, ValueError):
        raise ValueError(f"{code!r} is not a language of this machine's CLDR (Babel)") from None
    names = sorted({str(name) for category in CATEGORIES for name in getattr(locale, category).values()})
    names_of_splits = {
        split_name: [name for name in names if residue_of(name) in residues] for split_name, residues in SPLITS.items()
    }
    if min(map(len, names_of_splits.values())) < 20:
        raise ValueError(f"{code!r} has only {len(names)} names in this machine's CLDR (Babel): too few to split")
    return names_of_splits


def residue_of(name: str) -> int:
    """Return a number from 0 to 19 that decides the split of a name, ignoring its case."""
    return int.from_bytes(hashlib.sha256(name.casefold().encode()).digest()[:8], "big") % 20


def make_document(names: Sequence[str], random: np.random.Generator, options: Options) -> str:
    """Join names in random order: as many as fit the drawn length, at least one."""
    remaining_bytes = int(random.integers(min(options.min_bytes, options.max_bytes), options.max_bytes + 1))
    chosen_names: list[str] = []
    for index in random.permutation(len(names)):
        remaining_bytes -= len(names[index].encode()) + (len(SEPARATOR) if chosen_names else 0)
        if remaining_bytes < 0 and chosen_names:
            break
        chosen_names.append(names[index])
    return SEPARATOR.join(chosen_names)


def generator(seed: int, *key_parts: str | int) -> np.random.Generator:
    """Return a generator seeded by a key: a further language does not change the documents of the others."""
    digest = hashlib.sha256("/".join(map(str, (seed, *key_parts))).encode()).digest()
    return np.random.default_rng(np.frombuffer(digest, dtype=np.uint32))
