"""The text of a new recipe: a comment on every line, as in the recipes that ship."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.commands.recipe_new.choose import Steps
from toolkit.terminal.escape import one_line

#: Text that every YAML reader takes for a string unquoted.
PLAIN = re.compile(r"[A-Za-z_][\w./-]*( [\w./-]+)*", re.ASCII)
NOT_A_TEXT = {"null", "true", "false", "yes", "no", "on", "off", "y", "n"}
#: The column at which comments begin, where there is room.
COMMENTS = 32

Line = tuple[str, Any, str]


def section(name: str, lines: Iterable[Line], indent: int = 2) -> str:
    """Format a mapping: its key, then lines of (key, value, comment); a value may be such lines."""
    text = f"{' ' * (indent - 2)}{scalar(name)}:\n"
    for key, value, comment in lines:
        if isinstance(value, list) and value and isinstance(value[0], tuple):
            text += section(key, value, indent + 2)
        else:
            text += line(f"{' ' * indent}{scalar(key)}: {scalar(value)}", comment)
    return text


def line(written: str, comment: str) -> str:
    """Format a line with its comment."""
    return f"{written.ljust(COMMENTS - 1)} # {one_line(comment)}\n" if comment else f"{written}\n"


def scalar(value: Any) -> str:
    """Format a value so that YAML reads it back."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, str):
        return value if PLAIN.fullmatch(value) and value.lower() not in NOT_A_TEXT else quoted(value)
    if isinstance(value, list):
        return f"[{', '.join(map(scalar, value))}]"
    if isinstance(value, Mapping):
        return f"{{{', '.join(f'{scalar(key)}: {scalar(item)}' for key, item in value.items())}}}"
    return repr(value)


def quoted(text: str) -> str:
    """Quote a text, with unprintable characters escaped."""
    letters = []
    for letter in text:
        json_escapes_it = letter.isprintable() or letter < " "
        letters.append(json.dumps(letter, ensure_ascii=False)[1:-1] if json_escapes_it else f"\\U{ord(letter):08x}")
    return f'"{"".join(letters)}"'


def training(steps: Steps, learning_rate: float, save_best: str, others: str, decay: float = 0.01) -> str:
    """Format the train section."""
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
        ("save_best", save_best, f"selects the checkpoint to keep: {others} on validation"),
        ("baseline", True, "also measure simple methods on the same splits"),
    ]
    return section("train", lines)
