"""What `toolkit generate` does: continue a prompt under a control code with a run's language model."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from toolkit.errors import UserError
from toolkit.predict import MEND, load_run
from toolkit.run_files import read_json, reading
from toolkit.tasks import Run
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate
from toolkit.tasks.language_modeling.samples import readable
from toolkit.tasks.language_modeling.task import PERPLEXITY_OF

if TYPE_CHECKING:
    from rich.console import Console


def trained_codes(run: Run) -> list[str]:
    """The control codes that a run was trained on."""
    path, remedy = run.folder / "metrics.json", "restore it from a copy, or train again"
    metrics = read_json(path, remedy)
    with reading(path, remedy):
        known = [name.removeprefix(PERPLEXITY_OF) for name in metrics["validation"] if name.startswith(PERPLEXITY_OF)]
        if not known:
            raise ValueError("it names no control code")
    return known


def encode_prompt(run: Run, control: str, prompt: str, length: int) -> list[int]:
    """The tokens to continue: the control code and the prompt.

    Raises:
        UserError: no such control code, or more tokens than the model has positions.
    """
    try:
        tokens = [run.tokenizer.control_code(control), *run.tokenizer.encode(prompt)]
    except ValueError as problem:
        if control in (known := trained_codes(run)):
            files = f"{run.folder / 'model'}: merges.txt or vocab.json is damaged"
            raise UserError(f"{files} ({problem}, and the run was trained with it); {MEND}") from None
        raise UserError(f"--control: {problem}; the run was trained with {', '.join(known)}") from None
    positions = run.model.config.n_positions
    if len(tokens) + length > positions:
        raise UserError(
            f"--length: the control code, a prompt of {len(tokens) - 1} tokens and {length} new ones are "
            f"{len(tokens) + length}, but the model has {positions} positions"
        )
    return tokens


def generate_text(
    folder: Path,
    console: Console,
    control: str | None,
    prompt: str,
    length: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    beams: int,
    stop: str | None,
    **options: Any,
) -> str:
    """Print the continuation of a prompt, and return it.

    Args:
        folder: a finished run.
        console: where the text is printed.
        control: the control code; None for the first that the run was trained with.
        prompt: the text to continue; may be empty.
        length: the most new tokens.
        temperature, top_k, top_p: see :class:`.decoding.Decoding`; any of them makes the model sample.
        beams: more than 1 for beam search.
        stop: a text of one token, after which generation stops.
        options: other settings of :class:`.decoding.Decoding`.

    Raises:
        UserError: the folder holds no finished run of a language model, or the options fit neither it nor each other.
    """
    run = load_run(folder)
    if run.model.head != "causal_lm":
        kind, command = run.task.DESCRIPTION.name, run.task.DESCRIPTION.command(folder)
        raise UserError(f"{folder}: is a run of {kind}, not of a language model: {command}")
    sample = not (temperature is None and top_k is None and top_p is None)
    if sample and beams > 1:
        raise UserError("--beams: beam search does not sample; remove --temperature, --top-k and --top-p")
    stop_ids = [] if stop is None else run.tokenizer.encode(stop)
    if stop is not None and len(stop_ids) != 1:
        raise UserError(f"--stop: {stop!r} is {len(stop_ids)} tokens; it should be one")
    stop_id = stop_ids[0] if stop_ids else None
    decoding = Decoding(length, beams, sample, temperature or 1.0, top_k, top_p, stop=stop_id, **options)
    return stream(run, control or trained_codes(run)[0], prompt, decoding, console)


def stream(run: Run, control: str, prompt: str, decoding: Decoding, console: Console) -> str:
    """Print the prompt and then each token as soon as it is chosen; returns the new text."""
    tokens = encode_prompt(run, control, prompt, decoding.length)
    if control not in (known := trained_codes(run)):
        console.print(f"note   {control} is a word of the vocabulary, but the run was trained with {', '.join(known)}")
    new: list[int] = []
    shown = readable(run.tokenizer, tokens[1:])
    console.print(shown, end="", soft_wrap=True)
    for token in generate(NextToken(run.model), tokens, decoding):
        new.append(token)
        text = readable(run.tokenizer, tokens[1:] + new)
        if text.startswith(shown):
            console.print(text[len(shown) :], end="", soft_wrap=True)
            shown = text
    console.print()
    return readable(run.tokenizer, new)
