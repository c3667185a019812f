"""`toolkit generate RUN --prompts FILE --output FILE`: rows in, the same rows with the text that follows each prompt.

Prompts of equally many tokens are continued together, so that none needs padding. Each row is continued as
`--prompt` would be; to sample, a row has the seed of the row before it plus 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.commands.generate import check_generates, control_token, decoding_of, settled_control
from toolkit.commands.label_file import Advance, append_columns, check_files, read_source
from toolkit.commands.predict import load_run, read_recipe
from toolkit.data.source_layout import doubt, source_layout
from toolkit.errors import UserError
from toolkit.files.tables import TEXT
from toolkit.recipe.recipe import settled
from toolkit.tasks.interface import Labelled, Run
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate_together, longest_text

if TYPE_CHECKING:
    from rich.console import Console

#: The new column: what follows the prompt.
GENERATED = "generated_text"
#: What is said of rows that get none.
EMPTY, NO_ROOM = "a prompt of no tokens", "a prompt that leaves no room for --length new tokens in the model"


def generate_file(
    folder: Path,
    console: Console,
    source: Path | None,
    target: Path | None,
    overwrite: bool,
    column: str | None,
    layout: Mapping[str, str | None],
    spreadsheet_safe: bool,
    control: str | None,
    **options: Any,
) -> None:
    """Write the rows of a file, with the text that a run's language model generates after each prompt.

    Args:
        folder: a finished run.
        console: shows the progress, and the speed and notes at the end.
        source: the prompts, in a file of one of :data:`toolkit.files.kinds.KINDS`.
        target: the file to write, of any of these kinds but text.
        overwrite: replace an existing file.
        column: of the prompts; None for ``prompt``.
        layout, spreadsheet_safe: as of :func:`.label_file.label_file`.
        control: the control code of all texts; None for the first one that the run was trained with, if any.
        options: of :func:`.generate.decoding_of`.

    Raises:
        UserError: the run is not of a language model, or a file, a column or an option is wrong. Nothing is written.
    """
    recipe = read_recipe(folder)
    check_generates(folder, recipe)
    check_files(source, target, "prompts", overwrite, spreadsheet_safe)
    assert source is not None and target is not None
    read = source_layout(recipe, source, [column or "prompt"], **layout)
    if column is not None and read.kind == "text":
        raise UserError(f"--prompt-column: {source} is text, with a prompt in each line; remove it")
    wanted = {"prompt": TEXT if read.kind == "text" else column or "prompt"}
    table = read_source(source, list(wanted.values()), target, read, console)
    run = load_run(folder)
    decoding = decoding_of(run, **options)
    code = control_token(run, settled_control(run, control, console))
    if (note := doubt(recipe, source, layout.get("encoding"))) is not None:
        console.print(f"note: {note}", soft_wrap=True)

    def label(texts: Mapping[str, list[str]], rows: list[int], advance: Advance) -> Labelled:
        return continued(run, code, texts["prompt"], [decoding.seed + row - 1 for row in rows], decoding, advance)

    safe = {"overwrite": overwrite, "quoted": spreadsheet_safe}
    append_columns(table, target, wanted, {GENERATED: str}, label, console, safe)


def continued(
    run: Run, code: list[int], prompts: list[str], seeds: list[int], decoding: Decoding, advance: Advance
) -> Labelled:
    """Return the new text after each prompt.

    Args:
        code: the token of the control code, if the model knows any.
        seeds: of the draws for each.
        advance: told of how many more are done.
    """
    tokens = [[*code, *run.tokenizer.encode(prompt)] for prompt in prompts]
    texts: list[str | None] = [None] * len(prompts)
    most = longest_text(run.model) - decoding.length
    fitting = [place for place, given in enumerate(tokens) if 0 < len(given) <= most]
    notes = {
        EMPTY: [place for place, given in enumerate(tokens) if not given],
        NO_ROOM: [place for place, given in enumerate(tokens) if len(given) > most],
    }
    model = NextToken(run.model, vocab_size=run.tokenizer.vocab_size)

    def next_logits(sequences: np.ndarray, parents: np.ndarray | None) -> np.ndarray:
        advance(0)  # so that it can be stopped at any token
        return model(sequences, parents)

    size = settled(run.recipe.train.eval_batch_size)
    for _, alike in groupby(sorted(fitting, key=lambda place: len(tokens[place])), lambda place: len(tokens[place])):
        group = list(alike)
        for first in range(0, len(group), size):
            places = group[first : first + size]
            chosen = [tokens[place] for place in places], decoding, [seeds[place] for place in places]
            for place, new in zip(places, generate_together(next_logits, *chosen), strict=True):
                texts[place] = run.tokenizer.readable(new)
            advance(len(places))
    return Labelled([texts], notes)
