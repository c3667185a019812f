"""The text of a new recipe: a comment on every line, as in the recipes that ship."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.commands.recipe_new.choose import Steps
from toolkit.terminal.escape import one_line

#: Text that every YAML parser reads as a string without quotes.
PLAIN_TEXT = re.compile(r"[A-Za-z_][\w./-]*( [\w./-]+)*", re.ASCII)
YAML_WORDS = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
#: Column at which comments begin after short settings.
COMMENT_COLUMN = 32

Line = tuple[str, Any, str]


def format_section(name: str, lines: Iterable[Line], indent: int = 2) -> str:
    """Format a mapping: its key, then lines of (key, value, comment); a value may be such lines."""
    text = f"{' ' * (indent - 2)}{format_scalar(name)}:\n"
    for key, value, comment in lines:
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            text += format_section(key, value, indent + 2)
        else:
            text += format_line(f"{' ' * indent}{format_scalar(key)}: {format_scalar(value)}", comment)
    return text


def format_line(setting: str, comment: str) -> str:
    """Format a line with its comment."""
    return f"{setting.ljust(COMMENT_COLUMN - 1)} # {one_line(comment)}\n" if comment else f"{setting}\n"


def format_scalar(value: Any) -> str:
    """Format a value so that YAML reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if PLAIN_TEXT.fullmatch(value) and value.lower() not in YAML_WORDS else quote_text(value)
    if isinstance(value, list):
        return f"[{', '.join(map(format_scalar, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{format_scalar(key)}: {format_scalar(item)}' for key, item in value.items())}}}"
    return repr(value)


def quote_text(text: str) -> str:
    """Quote a text, with unprintable characters escaped."""
    letters = []
    for letter in text:
        json_escapes_it = letter.isprintable() or letter < " "
        letters.append(json.dumps(letter, ensure_ascii=False)[1:-1] if json_escapes_it else f"\\U{ord(letter):08x}")
    return f'"{"".join(letters)}"'


def format_training(steps: Steps, learning_rate: float, save_best: str, metric_list: str, decay: float = 0.01) -> str:
    """Format the train section of a recipe.

    Args:
        steps: batch size and number of passes or steps.
        learning_rate: peak of the learning rate.
        save_best: metric that selects the checkpoint.
        metric_list: all possible metrics in words, for the comment.
        decay: weight decay.
    """
    lines: list[Line] = [
        ("epochs", steps.epochs, "passes over the training split; or set max_steps"),
        ("max_steps", steps.max_steps, "optimizer steps"),
        ("batch_size", steps.batch_size, "examples per step"),
        ("eval_batch_size", 32, "examples per evaluation step"),
        ("learning_rate", learning_rate, "peak"),
        ("lr_scheduler", "linear", "from the peak to 0; or cosine, constant"),
        ("warmup_ratio", 0.1, "share of the steps for warm-up"),
        ("weight_decay", decay, "decoupled (AdamW), not on biases and LayerNorm"),
        ("eval_steps", steps.eval_steps, "steps between evaluations; null: after each epoch"),
        ("early_stopping_patience", 3, "stop after this many evaluations without improvement; null: never"),
        ("save_best", save_best, f"selects the checkpoint to keep: {metric_list} on validation"),
        ("baseline", True, "also measure simple methods on the same splits"),
    ]
    return format_section("train", lines)
