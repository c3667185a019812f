"""`toolkit generate`: continue a prompt with a run's language model. Some model families need a control code first."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import families
from toolkit.commands.predict import MODEL_REMEDY, load_run, read_recipe
from toolkit.errors import UserError
from toolkit.recipe.yaml_source import suggest
from toolkit.run_folder.read import read_json, reading
from toolkit.tasks import task_of
from toolkit.tasks.interface import Run
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate, is_valid_penalty, max_text_length
from toolkit.tasks.language_modeling.task import PERPLEXITY_OF, has_control_codes

#: Last character of a decoded text whose last UTF-8 character is still incomplete.
INCOMPLETE_CHARACTER = "\ufffd"

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.recipe.recipe import Recipe


def trained_codes(run: Run) -> list[str]:
    """Return the control codes that a run was trained on."""
    path, remedy = run.folder / "metrics.json", "restore it from a copy, or train again"
    metrics = read_json(path, remedy)
    with reading(path, remedy):
        control_codes = [
            name.removeprefix(PERPLEXITY_OF) for name in metrics["validation"] if name.startswith(PERPLEXITY_OF)
        ]
        if not control_codes:
            raise ValueError("it names no control code")
    return control_codes


def control_token(run: Run, control: str | None) -> list[int]:
    """Return a list with the token id of a control code; an empty list if ``control`` is None.

    Raises:
        UserError: the model does not know the control code.
    """
    if control is None:
        return []
    try:
        return [run.tokenizer.control_code(control)]
    except ValueError as error:
        if control in (known_codes := trained_codes(run)):
            files = f"{run.folder / 'model'}: merges.txt or vocab.json is damaged"
            raise UserError(f"{files} ({error}, and the run was trained with it); {MODEL_REMEDY}") from None
        hint = f"the run was trained with {', '.join(known_codes)}{suggest(control, known_codes)}"
        raise UserError(f"--control: {error}; {hint}") from None


def encode_prompt(run: Run, control: str | None, prompt: str, length: int) -> list[int]:
    """Return the token ids to continue: the control code, if any, and the prompt.

    Args:
        run: finished run of a language model.
        control: control code; None for a model without control codes.
        prompt: text to continue.
        length: number of tokens to generate.

    Raises:
        UserError: the control code is unknown, there is nothing to continue, or the model has too few positions.
    """
    code, tokens = control_token(run, control), run.tokenizer.encode(prompt)
    if not code and not tokens:
        raise UserError("--prompt: missing; without control codes the model needs a text to go on from")
    description = f"{'the control code, ' if code else ''}a prompt of {len(tokens)} tokens"
    _check_positions(run, description, len(code) + len(tokens), length)
    return [*code, *tokens]


def _check_positions(run: Run, description: str, count: int, length: int) -> None:
    """Check that the model has positions for ``count`` tokens to continue and ``length`` new tokens.

    ``description`` names the tokens to continue in the error message.
    """
    if count + length > (max_tokens := max_text_length(run.model)):
        raise UserError(
            f"--length: {description} and {length} new ones are {count + length}, "
            f"but the model has {max_tokens} positions"
        )


def generate_text(folder: Path, console: Console, control: str | None, prompt: str, length: int, **options: Any) -> str:
    """Print the continuation of a prompt, and return it.

    Args:
        folder: folder of a finished run.
        console: console that shows each token as soon as it is chosen.
        control: control code; None for the first control code of the training data, if the model uses them.
        prompt: text to continue; may be empty if there is a control code.
        length: number of tokens to generate.
        options: other arguments of :func:`make_decoding`.

    Raises:
        UserError: the folder is not a finished run of a language model, or an option does not fit the model or another
            option.
    """
    check_generates_text(folder, read_recipe(folder))
    run = load_run(folder)
    decoding = make_decoding(run, length, **options)
    return stream_text(run, resolve_control(run, control, console), prompt, decoding, console)


def check_generates_text(folder: Path, recipe: Recipe) -> None:
    """Check that the task of a run generates text.

    Raises:
        UserError: the task does not; the message names the command to use instead.
    """
    task = task_of(recipe)
    if task.HEAD != "causal_lm":
        kind, command = task.DESCRIPTION.name, task.DESCRIPTION.command(folder, recipe)
        raise UserError(f"{folder}: is a run of {kind}, not of a language model: {command}")


def make_decoding(
    run: Run,
    length: int,
    temperature: float | None,
    top_k: int | None,
    top_p: float | None,
    beams: int,
    stop: str | None,
    repetition_penalty: float | None = None,
    **options: Any,
) -> Decoding:
    """Return the decoding settings for a run's model.

    Args:
        run: finished run of a language model.
        length: number of tokens to generate.
        temperature: sampling temperature; None for the default.
        top_k: number of most probable tokens to sample from; None for all.
        top_p: total probability of the tokens to sample from; None for 1.
        beams: number of beams of beam search.
        stop: text of exactly one token, after which generation stops; None never stops early.
        repetition_penalty: penalty of repeated tokens (:class:`.decoding.Decoding`); None for the model's default.
        options: other fields of :class:`.decoding.Decoding`.

    Raises:
        UserError: an option does not fit the model or another option.
    """
    uses_sampling = not (temperature is None and top_k is None and top_p is None)
    if uses_sampling and beams > 1:
        raise UserError("--beams: beam search does not sample; remove --temperature, --top-k and --top-p")
    stop_ids = [] if stop is None else run.tokenizer.encode(stop)
    if stop is not None and len(stop_ids) != 1:
        raise UserError(f"--stop: {stop!r} is {len(stop_ids)} tokens; it should be one")
    stop_id = stop_ids[0] if stop_ids else None
    penalty = run.model.repetition_penalty if repetition_penalty is None else repetition_penalty
    if not is_valid_penalty(penalty):
        raise UserError(f"--repetition-penalty: {penalty:g} is 0 or infinite in float32; use a number such as 1.2")
    return Decoding(
        length,
        beams,
        uses_sampling,
        temperature or 1.0,
        top_k,
        top_p,
        repetition_penalty=penalty,
        stop=stop_id,
        **options,
    )


def resolve_control(run: Run, control: str | None, console: Console) -> str | None:
    """Return the control code to use: ``control``, or by default the first control code of the run.

    Print a note if the run was not trained with ``control``. Return None for a model without control codes.

    Raises:
        UserError: ``control`` is set, and the model has no control codes or does not know it.
    """
    if not has_control_codes(run.recipe.model.name):
        if control is not None:
            title = families.family(run.recipe.model.name).title
            raise UserError(f"--control: {run.folder} is a run of a {title}, which knows no control codes; remove it")
        return None
    known_codes = trained_codes(run)
    if control is None:
        return known_codes[0]
    control_token(run, control)
    if control not in known_codes:
        hint = f"{', '.join(known_codes)}{suggest(control, known_codes)}"
        console.print(f"note   {control} is a word of the vocabulary, but the run was trained with {hint}")
    return control


def stream_text(run: Run, control: str | None, prompt: str, decoding: Decoding, console: Console) -> str:
    """Print the prompt and then each token as soon as it is chosen; return the new text.

    Args:
        run: finished run of a language model.
        control: control code; None for a model without control codes.
        prompt: text to continue.
        decoding: decoding settings.
        console: console to print to.
    """
    tokens = encode_prompt(run, control, prompt, decoding.length)
    prompt_tokens = tokens if control is None else tokens[1:]
    new_tokens: list[int] = []
    text = printed_text = run.tokenizer.decode_readable(prompt_tokens)
    console.print(printed_text, end="", soft_wrap=True)
    next_logits = NextToken(run.model, vocab_size=run.tokenizer.vocab_size)
    for token in generate(next_logits, tokens, decoding):
        new_tokens.append(token)
        text = run.tokenizer.decode_readable(prompt_tokens + new_tokens)
        if text.startswith(printed_text) and not text.endswith(INCOMPLETE_CHARACTER):
            console.print(text[len(printed_text) :], end="", soft_wrap=True)
            printed_text = text
    console.print(text.removeprefix(printed_text), soft_wrap=True)
    return run.tokenizer.decode_readable(new_tokens)
