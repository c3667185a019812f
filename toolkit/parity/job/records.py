"""Dataclasses to JSON and back, with their types checked: what crosses from one process to another is typed on both
sides."""

from __future__ import annotations

import dataclasses
import functools
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")

#: What JSON has without anything inside. Lists of these are the bulk of what is measured, and are taken as a whole.
PLAIN = frozenset({str, int, float, bool, type(None)})


def as_json(record: Any) -> Any:
    """What :func:`from_json` takes: dataclasses become objects, tuples lists."""
    if type(record) in PLAIN:
        return record
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: as_json(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {key: as_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return list(record) if PLAIN.issuperset(map(type, record)) else [as_json(value) for value in record]
    return record


def from_json(kind: type[Record], content: Any, where: str = "") -> Record:
    """A value of a type that is made of dataclasses, dicts, lists, tuples, ``X | None``, JSON's own types and ``Any``.

    Raises:
        ValueError: the content is not of that type, or lacks or has too many keys, with the place.
    """
    return _decoded(kind, content, where or getattr(kind, "__name__", str(kind)))


def _decoded(kind: Any, content: Any, where: str) -> Any:
    if kind is Any:
        return content
    origin, arguments = _made_of(kind)
    if dataclasses.is_dataclass(kind):
        return _dataclass(typing.cast(type, kind), content, where)
    if origin in (types.UnionType, typing.Union):
        if content is None and type(None) in arguments:
            return None
        (only,) = (argument for argument in arguments if argument is not type(None))
        return _decoded(only, content, where)
    if origin is dict:
        _check(content, dict, where)
        return {key: _decoded(arguments[1], value, f"{where}.{key}") for key, value in content.items()}
    if origin in (list, tuple):
        _check(content, list, where)
        wanted = typing.get_args(arguments[0]) or (arguments[0],)
        if PLAIN.issuperset(wanted) and set(wanted).issuperset(map(type, content)):
            return origin(content)  # most of a gate's half a million values; none needs a look of its own
        return origin(_decoded(arguments[0], value, f"{where}[{index}]") for index, value in enumerate(content))
    if kind is float and type(content) is int:
        return float(content)
    _check(content, kind, where)
    return content


def _dataclass(kind: type, content: Any, where: str) -> Any:
    _check(content, dict, where)
    fields = _fields(kind)
    if unknown := content.keys() - fields.keys():
        raise ValueError(f"{where}: has {sorted(unknown)[0]}, which is none of {', '.join(fields)}")
    if missing := _needed(kind) - content.keys():
        raise ValueError(f"{where}: lacks {sorted(missing)[0]}")
    return kind(**{key: _decoded(fields[key], value, f"{where}.{key}") for key, value in content.items()})


# Of each type once: a trial of all faults has a million values.


@functools.cache
def _made_of(kind: Any) -> tuple[Any, tuple[Any, ...]]:
    return typing.get_origin(kind), typing.get_args(kind)


@functools.cache
def _needed(kind: type) -> frozenset[str]:
    """The fields without a default."""
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    )


@functools.cache
def _fields(kind: type) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    return {field.name: hints[field.name] for field in dataclasses.fields(kind)}


def _check(content: Any, kind: type, where: str) -> None:
    if not isinstance(content, kind) or (isinstance(content, bool) and kind is not bool):
        raise ValueError(f"{where}: expected {kind.__name__}, found {type(content).__name__}")
