"""The built-in corpus of language modelling: the Python Language Reference, which ships with Python.

`pydoc_data.topics` holds it for `help()`, by topic. Its topics overlap (the text on "if" stands under "if", under
"else" and within "compound"), so a document here is a *section*, from one underlined heading to the next, or part of a
long one. A section or paragraph that occurred before is dropped: what is measured on validation and test was never
seen in training.

A section's control code is the chapter of the reference that its topic belongs to.
"""

from __future__ import annotations

import re
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from toolkit.tasks.language_modeling.documents import cut

if TYPE_CHECKING:
    from datasets import DatasetDict

#: Chapter -> its topics. A topic that another release of Python adds belongs to ``Language``.
CHAPTERS = {
    "Statements": (
        "assert", "assignment", "async", "augassign", "break", "class", "compound", "continue", "del", "else", "for",
        "function", "global", "if", "import", "nonlocal", "pass", "raise", "return", "try", "while", "with", "yield",
    ),
    "Expressions": (
        "atom-identifiers", "atom-literals", "attribute-references", "await", "binary", "bitwise", "booleans", "calls",
        "comparisons", "conversions", "dict", "exprlists", "in", "lambda", "lists", "operator-summary", "power",
        "shifting", "slicings", "subscriptions", "unary",
    ),
    "Objects": (
        "attribute-access", "callable-types", "context-managers", "customization", "numeric-types", "objects",
        "sequence-types", "specialnames", "types",
    ),
    "Literals": (
        "floating", "formatstrings", "id-classes", "identifiers", "imaginary", "integers", "numbers", "strings",
    ),
    "Types": (
        "bltin-code-objects", "bltin-ellipsis-object", "bltin-null-object", "bltin-type-objects", "specialattrs",
        "string-methods", "truth", "typesfunctions", "typesmapping", "typesmethods", "typesmodules", "typesseq",
        "typesseq-mutable",
    ),
    "Execution": ("debugger", "dynamic-features", "exceptions", "execmodel", "naming"),
}  # fmt: skip
OTHER = "Language"

#: A line of text, underlined with a row of one of these.
HEADING = re.compile(r"^(?=\S[^\n]*\n([*=\-~])\1{3,}\n)", re.MULTILINE)

#: A longer section is cut at blank lines into documents of about this many characters.
SECTION_LENGTH = 1500

#: A paragraph with fewer characters than this may stand in several sections.
SHORT_PARAGRAPH = 60

#: The option that a ``ValueError`` of :func:`load` is about.
CHECKED_OPTION = "chapters"
#: Keys of a recipe's data section -> their values for this corpus: none, its columns have their own names.
COLUMNS: dict[str, str] = {}
#: Only ``train``; others are held out of it.
HAS_SPLITS = False


class Options(BaseModel):
    """``data.options`` of a recipe with ``dataset: python_docs``.

    Attributes:
        chapters: the control codes whose text is taken.
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    chapters: list[str] = list(CHAPTERS)


def check(options: Options) -> None:
    """Refuse what :func:`load` cannot use, without making the corpus.

    Raises:
        ValueError: an unknown chapter, or none.
    """
    known = [*CHAPTERS, OTHER]
    strange = [chapter for chapter in options.chapters if chapter not in known]
    if strange or not options.chapters:
        raise ValueError(f"{', '.join(strange) or 'none'} given; the chapters are {', '.join(known)}")


def load(options: Options) -> DatasetDict:
    """The corpus: a split ``train`` with columns ``text`` (a section) and ``control`` (its chapter).

    Raises:
        ValueError: an unknown chapter, or none.
    """
    from datasets import Dataset, DatasetDict

    check(options)
    rows = [(text, chapter) for text, chapter in sections() if chapter in options.chapters]
    texts, chapters = zip(*rows, strict=True)
    return DatasetDict({"train": Dataset.from_dict({"text": list(texts), "control": list(chapters)})})


def sections() -> list[tuple[str, str]]:
    """Text and chapter of every section, each paragraph once."""
    chapter_of = {topic: chapter for chapter, names in CHAPTERS.items() for topic in names}
    seen: set[str] = set()
    found = []
    for topic in sorted(
        topics, key=lambda name: (len(topics[name]), name)
    ):  # the special topics before the collections
        for section in HEADING.split(topics[topic])[0::2]:
            fresh = []
            for paragraph in re.split(r"\n{2,}", section.strip("\n")):
                words = " ".join(paragraph.split())
                if words and words not in seen:
                    fresh.append(paragraph)
                if len(words) >= SHORT_PARAGRAPH:
                    seen.add(words)
            if len("".join(fresh)) >= SHORT_PARAGRAPH:
                parts = cut("\n\n".join(fresh) + "\n\n", SECTION_LENGTH)
                found += [(part, chapter_of.get(topic, OTHER)) for part in parts]
    return found
