"""Two texts that are classified together, as one: neither family's tokenizer has a token that parts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

    from toolkit.recipe.recipe import Recipe

#: What stands between the two. `transformers` joins a pair by nothing where a tokenizer has no such token.
SEPARATOR = "\n"


def joined(text: str, pair: str) -> str:
    """The text that the model reads of two."""
    return f"{text}{SEPARATOR}{pair}"


def joined_columns(rows: Dataset, columns: Sequence[str]) -> Dataset:
    """One column ``text``, of the texts in these columns; none of which may be missing."""
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
    """What the model reads of the texts, or pairs of them, of the command line.

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
