"""Inspect unlabelled texts, and draft the recipe that pretrains on them for a labelled one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.commands.recipe_new import choose
from toolkit.commands.recipe_new.columns import spread, text_columns
from toolkit.commands.recipe_new.folders import named
from toolkit.commands.recipe_new.look import DataFiles, code_of, look
from toolkit.commands.recipe_new.write import Line
from toolkit.errors import UserError
from toolkit.tasks.language_modeling.documents import DOCUMENT_LENGTH


@dataclass(frozen=True)
class Unlabelled:
    """Attributes:
    found: the files; of a table, those of its training split.
    column: of a table's texts; None for plain text.
    texts: a sample.
    documents: number of rows, or about that of documents in plain text.
    size: of all texts, in bytes.
    weights: the folder in which the pretraining run leaves its model.
    """

    found: DataFiles
    column: str | None
    texts: Sequence[str]
    documents: int
    size: int
    weights: str

    @property
    def corpus(self) -> tuple[Sequence[str], int]:
        """As :func:`.choose.tokens_of` takes it."""
        return self.texts, self.size

    def source(self, write: Callable[[Path], str]) -> list[Line]:
        """The lines of ``data`` that name plain text."""
        sources: list[Line] = [
            (name, named(paths, write), f"{len(paths):,} file{'s' * (len(paths) > 1)}")
            for name, paths in self.found.files.items()
        ]
        return [("dataset", "text", "plain text"), ("sources", sources, "")]


def unlabelled(given: Sequence[Path], wanted: Sequence[str], weights: str) -> Unlabelled:
    """Look at the texts to pretrain on.

    Args:
        given: files and folders of plain text, or one table.
        wanted: the columns of the labelled table's texts, if the user named them.

    Raises:
        UserError: one is not there, or is something else.
    """
    looked = [(path, look(path, as_text=True)) for path in given]
    for path, found in looked:
        if found.questions or (found.kind != "text" and len(given) > 1):
            kind = "holds questions" if found.questions else "is a table"
            raise UserError(f"{path}: {kind}; --pretrain takes text files and folders of them, or one table")
    path, found = looked[0]
    if found.kind != "text":
        return _table(path, found, wanted, weights)
    if len({one.encoding for _, one in looked}) > 1:
        raise UserError(f"{path}: the texts of --pretrain are in several encodings; convert them to one")
    files: dict[str, list[Path]] = {}
    for _, one in looked:
        for paths in one.files.values():
            key = code_of(paths[0]) if len(paths) == 1 else code_of(paths[0].parent)
            files[key if key not in files else f"{key}{len(files) + 1}"] = paths
    size = sum(path.stat().st_size for paths in files.values() for path in paths)
    encoding = found.encoding or "utf-8"
    sample = [line for paths in files.values() for text in choose.beginnings(paths, encoding)
              for line in text.splitlines()]  # fmt: skip
    found = replace(found, files=files, classes=False, rows=None)
    return Unlabelled(found, None, sample, max(2, size // DOCUMENT_LENGTH), size, weights)


def _table(path: Path, found: DataFiles, wanted: Sequence[str], weights: str) -> Unlabelled:
    rows = found.rows
    assert rows is not None
    sample = rows.select(spread(len(rows)))
    known = [name for name in wanted if name in rows.column_names]
    column = (known or text_columns(str(path), sample, ())[0])[0]
    texts = [str(text or "") for text in sample.select_columns([column])[:][column]]
    size = round(sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) / len(texts) * len(rows))
    found = replace(found, files={"train": found.files["train"]})
    return Unlabelled(found, column, texts, len(rows), size, weights)
