"""`toolkit generate`: continue a prompt with a run's language model, in some families after a control code."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from models import families
from toolkit.commands.predict import MEND, load_run, read_recipe
from toolkit.errors import UserError
from toolkit.recipe.yaml_source import suggest
from toolkit.run_folder.read import read_json, reading
from toolkit.tasks import task_of
from toolkit.tasks.interface import Run
from toolkit.tasks.language_modeling.decoding import Decoding, NextToken, generate, is_valid_penalty, longest_text
from toolkit.tasks.language_modeling.task import PERPLEXITY_OF, has_control_codes

#: A text decoded from bytes ends with it while its last character is incomplete.
UNKNOWN_CHARACTER = "\ufffd"

if TYPE_CHECKING:
    from rich.console import Console

    from toolkit.recipe.recipe import Recipe


def trained_codes(run: Run) -> list[str]:
    """Return the control codes that a run was trained on."""
    path, remedy = run.folder / "metrics.json", "restore it from a copy, or train again"
    metrics = read_json(path, remedy)
    with reading(path, remedy):
        known = [name.removeprefix(PERPLEXITY_OF) for name in metrics["validation"] if name.startswith(PERPLEXITY_OF)]
        if not known:
            raise ValueError("it names no control code")
    return known


def control_token(run: Run, control: str | None) -> list[int]:
    """Return the token of a control code, which begins each text; none for a model without control codes. Raises
    UserError if the model has no such code."""
    if control is None:
        return []
    try:
        return [run.tokenizer.control_code(control)]
    except ValueError as error:
        if control in (known := trained_codes(run)):
            files = f"{run.folder / 'model'}: merges.txt or vocab.json is damaged"
            raise UserError(f"{files} ({error}, and the run was trained with it); {MEND}") from None
        trained = f"the run was trained with {', '.join(known)}{suggest(control, known)}"
        raise UserError(f"--control: {error}; {trained}") from None


def encode_prompt(run: Run, control: str | None, prompt: str, length: int) -> list[int]:
    """Return the tokens to continue: the control code, if the model knows any, and the prompt. Raises UserError if
    there is no such control code, nothing to continue, or more tokens than the model has positions."""
    code, tokens = control_token(run, control), run.tokenizer.encode(prompt)
    if not code and not tokens:
        raise UserError("--prompt: missing; without control codes the model needs a text to go on from")
    given = f"{'the control code, ' if code else ''}a prompt of {len(tokens)} tokens"
    _check_room(run, given, len(code) + len(tokens), length)
    return [*code, *tokens]


def _check_room(run: Run, given: str, count: int, length: int) -> None:
    """Check that the model has positions for the ``count`` given tokens and ``length`` more."""
    if count + length > (positions := longest_text(run.model)):
        raise UserError(
            f"--length: {given} and {length} new ones are {count + length}, but the model has {positions} positions"
        )


def generate_text(folder: Path, console: Console, control: str | None, prompt: str, length: int, **options: Any) -> str:
    """Print the continuation of a prompt, and return it.

    Args:
        control: the control code; None for the first one that the run was trained with, if any.
        prompt: the text to continue; may be empty under a control code.

    Raises:
        UserError: the folder holds no finished run of a language model, or the options do not fit it or each other.
    """
    check_generates(folder, read_recipe(folder))
    run = load_run(folder)
    decoding = decoding_of(run, length, **options)
    return stream(run, settled_control(run, control, console), prompt, decoding, console)


def check_generates(folder: Path, recipe: Recipe) -> None:
    """Check that a run's task is to generate. Raises UserError, which names the command to use, if it is not."""
    task = task_of(recipe)
    if task.HEAD != "causal_lm":
        kind, command = task.DESCRIPTION.name, task.DESCRIPTION.command(folder, recipe)
        raise UserError(f"{folder}: is a run of {kind}, not of a language model: {command}")


def decoding_of(
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
    """Return how a run's model is to choose tokens.

    Args:
        stop: a text of one token, after which generation stops.
        repetition_penalty: see :class:`.decoding.Decoding`; None for the model's own.

    Raises:
        UserError: the options do not fit the model or each other.
    """
    sample = not (temperature is None and top_k is None and top_p is None)
    if sample and beams > 1:
        raise UserError("--beams: beam search does not sample; remove --temperature, --top-k and --top-p")
    stop_ids = [] if stop is None else run.tokenizer.encode(stop)
    if stop is not None and len(stop_ids) != 1:
        raise UserError(f"--stop: {stop!r} is {len(stop_ids)} tokens; it should be one")
    stop_id = stop_ids[0] if stop_ids else None
    penalty = run.model.repetition_penalty if repetition_penalty is None else repetition_penalty
    if not is_valid_penalty(penalty):
        raise UserError(f"--repetition-penalty: {penalty:g} is 0 or infinite in float32; use a number such as 1.2")
    return Decoding(
        length, beams, sample, temperature or 1.0, top_k, top_p, repetition_penalty=penalty, stop=stop_id, **options
    )


def settled_control(run: Run, control: str | None, console: Console) -> str | None:
    """Return the control code to generate under: the given one, or the first of the run; None if it knows none. Raises
    UserError if one is given, and the run knows none."""
    if not has_control_codes(run.recipe.model.name):
        if control is not None:
            title = families.family(run.recipe.model.name).title
            raise UserError(f"--control: {run.folder} is a run of a {title}, which knows no control codes; remove it")
        return None
    known = trained_codes(run)
    if control is None:
        return known[0]
    control_token(run, control)
    if control not in known:
        trained = f"{', '.join(known)}{suggest(control, known)}"
        console.print(f"note   {control} is a word of the vocabulary, but the run was trained with {trained}")
    return control


def stream(run: Run, control: str | None, prompt: str, decoding: Decoding, console: Console) -> str:
    """Print the prompt and then each token as soon as it is chosen; return the new text. ``control`` is None if the
    model knows no code."""
    tokens = encode_prompt(run, control, prompt, decoding.length)
    given = tokens if control is None else tokens[1:]
    new: list[int] = []
    text = shown = run.tokenizer.readable(given)
    console.print(shown, end="", soft_wrap=True)
    next_logits = NextToken(run.model, vocab_size=run.tokenizer.vocab_size)
    for token in generate(next_logits, tokens, decoding):
        new.append(token)
        text = run.tokenizer.readable(given + new)
        if text.startswith(shown) and not text.endswith(UNKNOWN_CHARACTER):
            console.print(text[len(shown) :], end="", soft_wrap=True)
            shown = text
    console.print(text.removeprefix(shown), soft_wrap=True)
    return run.tokenizer.readable(new)
