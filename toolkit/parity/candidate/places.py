"""Source locations of the port's code: of its modules, and of computations outside of modules.

A :class:`.results.Place` has the class of a module, and the source lines that create the module and define its class.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any

from paddle import nn

from models.operations import losses
from toolkit.parity.candidate.scores import LOGITS
from toolkit.parity.exchange.results import Place
from toolkit.parity.measure.evaluation import DECODING, NUM_DECODED, name_in_run
from toolkit.parity.measure.naming import append_number


def places(model: nn.Layer) -> dict[str, Place]:
    """Return the class and the source lines of each module of the port, by the module's path.

    A module without a line that creates it, such as an item of a list, has its parent's line.
    """
    module_places: dict[str, Place] = {}
    for name, layer in model.named_sublayers():
        parent = model
        around, _, attribute = name.rpartition(".")
        for part in filter(None, around.split(".")):
            parent = getattr(parent, part) if not part.isdigit() else parent[int(part)]
        where = source_of(layer, parent, attribute)
        if around in module_places and (
            not where or isinstance(parent, nn.Sequential)
        ):  # no line creates an item of a list
            where = ", ".join(filter(None, [module_places[around].where, where]))
        module_places[name] = Place(type(layer).__name__, where)
    return module_places


def head_places(model_class: type[nn.Layer]) -> dict[str, Place]:
    """Return the source locations that compute the scores and the loss, by tensor name.

    These computations follow the model's last module.

    Args:
        model_class: class of the port.
    """
    tensor_places = {}
    for name in LOGITS:
        if line := line_of(model_class.forward, rf"^\s*(\w+, )*{name}\b.* = "):
            tensor_places[name] = Place(f"{model_class.__name__}.forward", line)
    loss_call = re.search(r"\blosses\.(\w+)\(", _source(model_class.forward))
    if loss_call:
        line = line_of(model_class.forward, rf"\blosses\.{loss_call[1]}\(")
        loss_place = place_of_code(f"losses.{loss_call[1]}", getattr(losses, loss_call[1]))
        tensor_places["loss"] = Place(
            loss_place.kind, ", ".join(filter(None, [loss_place.where, line and f"called at {line}"]))
        )
    return tensor_places


def place_of_code(kind: str, code: Callable[..., Any]) -> Place:
    """Return the source location that defines a function or class.

    Args:
        kind: name of the code, as the report shows it.
        code: the function or class.
    """
    return Place(kind, line_of(code, "") or "")


def decoding_places(continuation: type, excluded_calls: Collection[int] = ()) -> dict[str, Place]:
    """Return the source location that computes the scores of tokens that are decoded one by one.

    It is returned for each call after the first, by tensor name: ``decoding/logits#2`` and so on.

    Args:
        continuation: class of the port that continues a text with cached keys and values.
        excluded_calls: numbers of the calls to leave out.
    """
    place = place_of_code("Continuation.__call__", continuation.__call__)
    calls = (number for number in range(2, NUM_DECODED + 2) if number not in excluded_calls)
    return {append_number(name_in_run(DECODING, "logits"), number): place for number in calls}


def source_of(layer: nn.Layer, parent: nn.Layer, attribute: str) -> str:
    """Return the source lines of a layer, such as ``file:12, class at file:34``.

    The first line creates the layer in its parent. The second line defines its class, if the class is in this project.

    Args:
        layer: the layer.
        parent: layer or list that has the layer as a child.
        attribute: name of the layer in its parent.
    """
    creation_line = line_of(type(parent), rf"self\.{attribute}\s*=")
    class_line = line_of(type(layer), r"class ") if type(layer).__module__.startswith("models.") else None
    return ", ".join(filter(None, [creation_line, class_line and f"class at {class_line}"]))


def line_of(code: Callable[..., Any], pattern: str) -> str | None:
    """Return the first line of a class or function that matches a pattern, as ``file:line``; None if none does.

    Args:
        code: class or function.
        pattern: regular expression, searched in each source line; an empty pattern matches the first line.
    """
    return _first_line(getattr(code, "__func__", code), pattern)


@functools.lru_cache(maxsize=4096)
def _first_line(code: Callable[..., Any], pattern: str) -> str | None:
    """Return the source line, ``file:line``, that a pattern matches in a function or class, as :func:`line_of` does.

    The result is cached: each dtype and each of a hundred mutants needs the line of every module.

    Args:
        code: function or class.
        pattern: regular expression of the source line.
    """
    source_lines = _source_lines(code)
    if source_lines is None:
        return None
    lines, first, file = source_lines
    offset = next((index for index, line in enumerate(lines) if re.search(pattern, line)), None)
    if offset is None:
        return None
    return f"{display_path(file)}:{first + offset}"


def display_path(file: Path) -> str:
    """Return a file's path relative to ``site-packages``, the repository or the current folder, whichever contains it.

    The path of any other file is returned unchanged.
    """
    *_, of_libraries = str(file).rpartition("site-packages/")
    roots = (Path(__file__).resolve().parents[3], Path.cwd())
    inside = (str(file.relative_to(root)) for root in roots if file.is_relative_to(root))
    return of_libraries if of_libraries != str(file) else next(inside, str(file))


def _source(code: Callable[..., Any]) -> str:
    """Return the source text of a class or function; empty if it has no source."""
    source_lines = _source_lines(getattr(code, "__func__", code))
    return "" if source_lines is None else "".join(source_lines[0])


@functools.lru_cache(maxsize=1024)
def _source_lines(code: Callable[..., Any]) -> tuple[list[str], int, Path] | None:
    """Return the lines of a class or function, the number of its first line, and its file.

    The result is None without a source. It is cached: finding a class parses its whole file, and each dtype and each of
    a hundred mutants needs every module.
    """
    try:
        lines, first = inspect.getsourcelines(code)
        return lines, first, Path(inspect.getfile(code))
    except (OSError, TypeError):
        return None
