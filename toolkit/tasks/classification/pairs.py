"""Text pairs, classified as one joined text: neither family's tokenizer has a separator token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

    from toolkit.recipe.recipe import Recipe

#: Separates the two. `transformers` puts nothing between a pair if a tokenizer has no separator token.
SEPARATOR = "\n"


def joined(text: str, pair: str) -> str:
    """Join two texts to the one the model reads."""
    return f"{text}{SEPARATOR}{pair}"


def joined_columns(rows: Dataset, columns: Sequence[str]) -> Dataset:
    """Join the texts of these columns in one column ``text``; none may be missing."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets import Dataset

    if len(columns) == 1:
        return rows.select_columns(list(columns)).rename_columns({columns[0]: "text"})
    table = rows.with_format("arrow")[:]
    separator = pa.scalar(SEPARATOR, pa.large_string())
    parts = [table[column].cast(pa.large_string()) for column in columns]
    return Dataset(pa.table({"text": pc.binary_join_element_wise(*parts, separator)}))


def given_texts(recipe: Recipe, given: Sequence[str | tuple[str, str]]) -> list[str]:
    """Return what the model reads for the texts, or pairs, of the command line.

    Raises:
        UserError: a pair for a run that reads one text, or the other way round.
    """
    columns = recipe.data.text_columns
    two = len(columns) > 1
    if any(isinstance(text, tuple) != two for text in given):
        if two:
            raise UserError(f"--text-pair: missing; the run reads two texts, {columns[0]} and {columns[1]}")
        raise UserError(f"--text-pair: the run reads one text, {columns[0]}; remove it")
    return [text if isinstance(text, str) else joined(*text) for text in given]
