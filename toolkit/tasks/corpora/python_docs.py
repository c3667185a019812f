"""The built-in corpus of language modeling: the Python Language Reference, which ships with Python.

`pydoc_data.topics` stores it for `help()`, by topic. Its topics overlap (the text on "if" occurs under "if", under
"else" and within "compound"), so a document here is a *section*, from one underlined heading to the next, or part of a
long section. A section or paragraph that occurred before is dropped, so training contains no text of validation and
test.

A section's control code is the chapter of the reference that its topic belongs to.
"""

from __future__ import annotations

import re
from pydoc_data.topics import topics
from typing import TYPE_CHECKING

from pydantic import BaseModel, ConfigDict

from toolkit.tasks.language_modeling.documents import cut_text

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
    """Reject options that :func:`load` cannot use, without building the corpus.

    Raises:
        ValueError: a chapter is unknown, or there is none.
    """
    chapters = [*CHAPTERS, OTHER]
    unknown_chapters = [chapter for chapter in options.chapters if chapter not in chapters]
    if unknown_chapters or not options.chapters:
        raise ValueError(f"{', '.join(unknown_chapters) or 'none'} given; the chapters are {', '.join(chapters)}")


def load(options: Options) -> DatasetDict:
    """Return the corpus: a split ``train`` with columns ``text`` (a section) and ``control`` (its chapter).

    Raises:
        ValueError: a chapter is unknown, or there is none.
    """
    from datasets import Dataset, DatasetDict

    check(options)
    rows = [(text, chapter) for text, chapter in sections() if chapter in options.chapters]
    texts, chapters = zip(*rows, strict=True)
    return DatasetDict({"train": Dataset.from_dict({"text": list(texts), "control": list(chapters)})})


def sections() -> list[tuple[str, str]]:
    """Return the text and chapter of every section, with each paragraph once."""
    chapter_of = {topic: chapter for chapter, names in CHAPTERS.items() for topic in names}
    seen_paragraphs: set[str] = set()
    sections_with_chapters = []
    for topic in sorted(
        topics, key=lambda name: (len(topics[name]), name)
    ):  # the special topics before the collections
        for section in HEADING.split(topics[topic])[0::2]:
            new_paragraphs = []
            for paragraph in re.split(r"\n{2,}", section.strip("\n")):
                normalized_paragraph = " ".join(paragraph.split())
                if normalized_paragraph and normalized_paragraph not in seen_paragraphs:
                    new_paragraphs.append(paragraph)
                if len(normalized_paragraph) >= SHORT_PARAGRAPH:
                    seen_paragraphs.add(normalized_paragraph)
            if len("".join(new_paragraphs)) >= SHORT_PARAGRAPH:
                parts = cut_text("\n\n".join(new_paragraphs) + "\n\n", SECTION_LENGTH)
                sections_with_chapters += [(part, chapter_of.get(topic, OTHER)) for part in parts]
    return sections_with_chapters
