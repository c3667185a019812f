"""`toolkit generate RUN --prompts FILE --output FILE`: copy a file and add the text generated for each prompt.

Prompts with the same number of tokens form a batch, so that no prompt needs padding. Each row gets the same text as
with `--prompt`. When sampling, the seed of a row is the seed of the previous row plus 1.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from toolkit.commands.generate import check_generates_text, control_token, make_decoding, resolve_control
from toolkit.commands.label_file import AdvanceFn, append_columns, check_files, read_source
from toolkit.commands.predict import load_run, read_recipe
from toolkit.data.source_layout import describe_encoding_doubt, find_source_layout
from toolkit.errors import UserError
from toolkit.files.json_rows import TEXT_COLUMN
from toolkit.recipe.recipe import require_setting
from toolkit.tasks.interface import LabeledRows, Run
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate_together, max_text_length

if TYPE_CHECKING:
    from rich.console import Console

#: Name of the new column, which holds the text generated after the prompt.
GENERATED_COLUMN = "generated_text"
#: Descriptions of rows without generated text, for notes.
EMPTY_PROMPT, LONG_PROMPT = "a prompt of no tokens", "a prompt that leaves no room for --length new tokens in the model"


def generate_file(
    folder: Path,
    console: Console,
    source: Path | None,
    target: Path | None,
    column: str | None,
    layout: Mapping[str, str | None],
    control: str | None,
    *,
    overwrite: bool,
    spreadsheet_safe: bool,
    **options: Any,
) -> None:
    """Write the rows of a file, with the text that a run's language model generates after each prompt.

    Args:
        folder: folder of a finished run.
        console: console for the progress, the speed and notes.
        source: file with the prompts, of a kind in :data:`toolkit.files.kinds.KIND_BY_ENDING`.
        target: file to write, of any of these kinds except text.
        overwrite: whether an existing ``target`` may be replaced.
        column: name of the column with the prompts; None for ``prompt``.
        layout: layout of ``source``: ``encoding``, ``delimiter``, ``quote`` and ``columns``; None values are detected.
        spreadsheet_safe: whether csv cells that a spreadsheet would read as formulas get an apostrophe in front.
        control: control code of all texts; None for the first control code of the training data, if the model uses
            them.
        options: other arguments of :func:`.generate.make_decoding`.

    Raises:
        UserError: the run is not a language model's, or a file, a column or an option is wrong. Nothing is written.
    """
    recipe = read_recipe(folder)
    check_generates_text(folder, recipe)
    check_files(source, target, "prompts", overwrite=overwrite, spreadsheet_safe=spreadsheet_safe)
    assert source is not None and target is not None
    file_layout = find_source_layout(recipe, source, [column or "prompt"], **layout)
    if column is not None and file_layout.kind == "text":
        raise UserError(f"--prompt-column: {source} is text, with a prompt in each line; remove it")
    input_columns = {"prompt": TEXT_COLUMN if file_layout.kind == "text" else column or "prompt"}
    table = read_source(source, list(input_columns.values()), target, file_layout, console)
    run = load_run(folder)
    decoding = make_decoding(run, **options)
    code_tokens = control_token(run, resolve_control(run, control, console))
    if (note := describe_encoding_doubt(recipe, source, layout.get("encoding"))) is not None:
        console.print(f"note: {note}", soft_wrap=True)

    def label(text_columns: Mapping[str, list[str]], rows: list[int], advance: AdvanceFn) -> LabeledRows:
        return continue_prompts(
            run, code_tokens, text_columns["prompt"], [decoding.seed + row - 1 for row in rows], decoding, advance
        )

    writer_options = {"overwrite": overwrite, "escapes_formulas": spreadsheet_safe}
    append_columns(table, target, input_columns, {GENERATED_COLUMN: str}, label, console, writer_options)


def continue_prompts(
    run: Run, code_tokens: list[int], prompts: list[str], seeds: list[int], decoding: Decoding, advance: AdvanceFn
) -> LabeledRows:
    """Generate the text after each prompt.

    Args:
        run: finished run of a language model.
        code_tokens: token id of the control code in a list; empty for a model without control codes.
        prompts: texts to continue, N.
        seeds: random seed of each prompt, N.
        decoding: decoding settings.
        advance: callback that is called with the number of prompts that were newly finished.

    Returns:
        One column with the N new texts, and notes on the prompts that got None instead of a text.
    """
    tokens = [[*code_tokens, *run.tokenizer.encode(prompt)] for prompt in prompts]
    texts: list[str | None] = [None] * len(prompts)
    max_prompt_length = max_text_length(run.model) - decoding.length
    continuable = [index for index, prompt_tokens in enumerate(tokens) if 0 < len(prompt_tokens) <= max_prompt_length]
    notes = {
        EMPTY_PROMPT: [index for index, prompt_tokens in enumerate(tokens) if not prompt_tokens],
        LONG_PROMPT: [index for index, prompt_tokens in enumerate(tokens) if len(prompt_tokens) > max_prompt_length],
    }
    model = NextToken(run.model, vocab_size=run.tokenizer.vocab_size)

    def next_logits(sequences: np.ndarray, parents: np.ndarray | None) -> np.ndarray:
        advance(0)  # the callback may raise, which stops generation before any token
        return model(sequences, parents)

    size = require_setting(run.recipe.train.eval_batch_size)
    for _, same_length in groupby(
        sorted(continuable, key=lambda index: len(tokens[index])), lambda index: len(tokens[index])
    ):
        group = list(same_length)
        for start in range(0, len(group), size):
            indices = group[start : start + size]
            batch = [tokens[index] for index in indices], decoding, [seeds[index] for index in indices]
            for index, new_tokens in zip(indices, generate_together(next_logits, *batch), strict=True):
                texts[index] = run.tokenizer.decode_readable(new_tokens)
            advance(len(indices))
    return LabeledRows([texts], notes)
