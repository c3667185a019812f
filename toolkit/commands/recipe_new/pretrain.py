"""Inspect unlabeled texts, and draft the recipe that pretrains on them for a labeled one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from toolkit.commands.recipe_new import choose
from toolkit.commands.recipe_new.columns import find_text_columns, spread_indices
from toolkit.commands.recipe_new.look import DataFiles, inspect_data, make_control_code
from toolkit.errors import UserError
from toolkit.tasks.language_modeling.documents import DOCUMENT_LENGTH


@dataclass(frozen=True)
class UnlabeledTexts:
    """Texts without labels for pretraining.

    Attributes:
        data_files: the files; of a table, only the files of its training split.
        column: column with the texts of a table; None for plain text.
        texts: a sample of the texts.
        documents: number of rows of a table, or estimated number of documents in plain text.
        size: bytes of all texts.
        weights: folder into which the pretraining run writes its model.
    """

    data_files: DataFiles
    column: str | None
    texts: Sequence[str]
    documents: int
    size: int
    weights: str

    @property
    def corpus(self) -> tuple[Sequence[str], int]:
        """The sample and the total bytes, the argument `corpus` of :func:`.choose.choose_tokens`."""
        return self.texts, self.size


def inspect_unlabeled_texts(
    data_paths: Sequence[Path], text_columns: Sequence[str], weights_folder: str
) -> UnlabeledTexts:
    """Inspect the texts of a pretraining run.

    Args:
        data_paths: files and folders of plain text, or a single table.
        text_columns: text columns of the labeled table that the user named.
        weights_folder: folder into which the pretraining run will write its model.

    Raises:
        UserError: a path does not exist, or is neither plain text nor a single table.
    """
    inspected_data = [(path, inspect_data(path, as_text=True)) for path in data_paths]
    for path, data_files in inspected_data:
        if data_files.questions or (data_files.kind != "text" and len(data_paths) > 1):
            kind = "holds questions" if data_files.questions else "is a table"
            raise UserError(f"{path}: {kind}; --pretrain takes text files and folders of them, or one table")
    path, data_files = inspected_data[0]
    if data_files.kind != "text":
        return _inspect_table(path, data_files, text_columns, weights_folder)
    if len({other_files.encoding for _, other_files in inspected_data}) > 1:
        raise UserError(f"{path}: the texts of --pretrain are in several encodings; convert them to one")
    files: dict[str, list[Path]] = {}
    for _, other_files in inspected_data:
        for paths in other_files.files.values():
            key = make_control_code(paths[0]) if len(paths) == 1 else make_control_code(paths[0].parent)
            files[key if key not in files else f"{key}{len(files) + 1}"] = paths
    size = sum(path.stat().st_size for paths in files.values() for path in paths)
    encoding = data_files.encoding or "utf-8"
    sample = [line for paths in files.values() for text in choose.read_beginnings(paths, encoding)
              for line in text.splitlines()]  # fmt: skip
    data_files = replace(data_files, files=files, classes=False, rows=None)
    return UnlabeledTexts(data_files, None, sample, max(2, size // DOCUMENT_LENGTH), size, weights_folder)


def _inspect_table(
    path: Path, data_files: DataFiles, text_columns: Sequence[str], weights_folder: str
) -> UnlabeledTexts:
    """Return the facts about unlabeled texts of a table.

    Args:
        path: path that the user named.
        data_files: facts about the table.
        text_columns: columns of the texts that are preferred if they exist.
        weights_folder: pretrained weights for the recipe.
    """
    rows = data_files.rows
    assert rows is not None
    sample = rows.select(spread_indices(len(rows)))
    existing_columns = [name for name in text_columns if name in rows.column_names]
    column = (existing_columns or find_text_columns(str(path), sample, ())[0])[0]
    texts = [str(text or "") for text in sample.select_columns([column])[:][column]]
    size = round(sum(len(text.encode("utf-8", "surrogatepass")) for text in texts) / len(texts) * len(rows))
    data_files = replace(data_files, files={"train": data_files.files["train"]})
    return UnlabeledTexts(data_files, column, texts, len(rows), size, weights_folder)
