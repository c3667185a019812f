"""Edits of source text: a fault of a function is its source with a few characters changed."""

from __future__ import annotations

import ast
import contextlib
import functools
import importlib.util
import inspect
import pkgutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any


@dataclass(frozen=True)
class SourceEdit:
    """An edit of a function's source.

    Attributes:
        function: module and qualified name, such as ``models.ctrl.layers:EncoderLayer.forward``.
        removed: text that occurs exactly once in the function. If it has several lines, all but the first are indented
            relative to the line that the text begins in.
        added: text that replaces it, indented in the same way. A change of an argument's default has no effect.
    """

    function: str
    removed: str
    added: str

    @property
    def file(self) -> Path:
        """File of the function."""
        spec = importlib.util.find_spec(self.function.partition(":")[0])
        assert spec is not None and spec.origin is not None, self.function
        return Path(spec.origin)


def edit_source(source: str, edits: Sequence[SourceEdit]) -> str:
    """Return the source of a module with edits of its functions.

    Raises:
        ValueError: a removed text does not occur exactly once in its function.
    """
    for edit in edits:
        first, last = _find_lines(source, edit.function.partition(":")[2])
        lines = source.splitlines(keepends=True)
        text = "".join(lines[first - 1 : last])
        occurrences = list(_find_text(text, edit.removed))
        if len(occurrences) != 1:
            raise ValueError(f"{edit.function}: {len(occurrences)} occurrences, not one, of {edit.removed!r}")
        [(start, indent)] = occurrences
        rest = text[start + len(_indent_lines(edit.removed, indent)) :]
        edited_text = text[:start] + _indent_lines(edit.added, indent) + rest
        source = "".join([*lines[: first - 1], edited_text, *lines[last:]])
    return source


@contextlib.contextmanager
def edited_functions(edits: Sequence[SourceEdit]) -> Iterator[None]:
    """Run functions with their edits inside the ``with`` block, wherever they have been imported.

    A function gets the code that is compiled from its edited file. Raises ValueError as :func:`edit_source`, and if an
    edited function would use other variables of the functions around it.
    """
    with contextlib.ExitStack() as undo:
        for name in dict.fromkeys(edit.function for edit in edits):
            function = _resolve_function(name)
            code = _compile_edited(name, tuple(edit for edit in edits if edit.function == name))
            if code.co_freevars != function.__code__.co_freevars:
                raise ValueError(f"{name}: with the edit it uses other variables of the functions around it")
            undo.callback(setattr, function, "__code__", function.__code__)
            function.__code__ = code
        yield


@functools.cache
def _compile_edited(name: str, edits: tuple[SourceEdit, ...]) -> CodeType:
    """Return the code of a function, compiled from its whole file with edits of the function."""
    file, qualified_name = edits[0].file, name.partition(":")[2]
    source = file.read_text(encoding="utf-8")
    name_and_line = qualified_name.rpartition(".")[2], _find_lines(source, qualified_name)[0]
    module = compile(edit_source(source, edits), str(file), "exec", dont_inherit=True)
    return next(code for code in _nested_codes(module) if (code.co_name, code.co_firstlineno) == name_and_line)


def _resolve_function(name: str) -> FunctionType:
    """Return the Python function of a name: a property's getter, or what decorators wrap."""
    member: Any = pkgutil.resolve_name(name)
    return inspect.unwrap(getattr(member, "fget", getattr(member, "__func__", member)))


def _nested_codes(code_object: CodeType) -> Iterator[CodeType]:
    """Yield all code objects within a code object."""
    for constant in code_object.co_consts:
        if isinstance(constant, CodeType):
            yield constant
            yield from _nested_codes(constant)


@functools.lru_cache(maxsize=8)
def _parse_module(source: str) -> ast.Module:
    """Return the syntax tree of a source text; results are cached.

    Args:
        source: source text of a module.
    """
    return ast.parse(source)


def _find_lines(source: str, qualified_name: str) -> tuple[int, int]:
    """Return the numbers of the first and the last line of a function, with its decorators.

    Args:
        source: source text of a module.
        qualified_name: name of the function, such as ``Class.method``.
    """
    node: Any = _parse_module(source)
    for name in qualified_name.split("."):
        definitions = [child for child in node.body if getattr(child, "name", None) == name]
        if len(definitions) != 1:
            raise ValueError(f"{qualified_name}: {len(definitions)} definitions, not one, of {name}")
        [node] = definitions
    return min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)]), node.end_lineno


def _find_text(text: str, removed_text: str) -> Iterator[tuple[int, str]]:
    """Yield each start of a removed text, and the indentation of the line that it begins in."""
    first_line = removed_text.partition("\n")[0]
    start = text.find(first_line)
    while start >= 0:
        line = text[text.rfind("\n", 0, start) + 1 :]
        indent = line[: len(line) - len(line.lstrip())]
        if text.startswith(_indent_lines(removed_text, indent), start):
            yield start, indent
        start = text.find(first_line, start + 1)


def _indent_lines(text: str, indent: str) -> str:
    """Indent all lines of a text but the first."""
    return text.replace("\n", "\n" + indent)
