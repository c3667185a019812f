"""Join text pairs into one text for classification, because neither family's tokenizer has a separator token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from toolkit.errors import UserError

if TYPE_CHECKING:
    from datasets import Dataset

    from toolkit.recipe.recipe import Recipe

#: Separator of the two texts. `transformers` puts nothing between a pair if a tokenizer has no separator token.
SEPARATOR = "\n"


def join_pair(text: str, pair: str) -> str:
    """Join the two texts of a pair into the text that the model reads."""
    return f"{text}{SEPARATOR}{pair}"


def join_columns(rows: Dataset, columns: Sequence[str]) -> Dataset:
    """Join the texts of the columns in one column ``text``. No text may be missing."""
    import pyarrow as pa
    import pyarrow.compute as pc
    from datasets import Dataset

    if len(columns) == 1:
        return rows.select_columns(list(columns)).rename_columns({columns[0]: "text"})
    table = rows.with_format("arrow")[:]
    separator = pa.scalar(SEPARATOR, pa.large_string())
    parts = [table[column].cast(pa.large_string()) for column in columns]
    return Dataset(pa.table({"text": pc.binary_join_element_wise(*parts, separator)}))


def model_texts(recipe: Recipe, texts: Sequence[str | tuple[str, str]]) -> list[str]:
    """Return the text that the model reads for each text, or pair, of the command line.

    Raises:
        UserError: a pair for a run that reads one text, or a single text for a run that reads pairs.
    """
    columns = recipe.data.text_columns
    has_pairs = len(columns) > 1
    if any(isinstance(text, tuple) != has_pairs for text in texts):
        if has_pairs:
            raise UserError(f"--text-pair: missing; the run reads two texts, {columns[0]} and {columns[1]}")
        raise UserError(f"--text-pair: the run reads one text, {columns[0]}; remove it")
    return [text if isinstance(text, str) else join_pair(*text) for text in texts]
