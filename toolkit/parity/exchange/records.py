"""Conversion of dataclasses to JSON and back, with checked types.

Data that passes between the gate's processes is typed on both sides.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

Record = TypeVar("Record")
#: Location of a value in JSON: the location of its container, None for the outermost value, and its key or index there,
#: such as `.shape` or `[3]`. Only an error message turns it into text, as a trial of all faults has a million values.
Location = tuple[Any, str]
#: Function that converts JSON content at a location to a value of one type, and raises ValueError for other content.
Decode = Callable[[Any, Location], Any]

#: JSON's scalar types. Most measurements are lists of such values, which are copied as a whole.
PLAIN = frozenset({str, int, float, bool, type(None)})


def as_json(record: Any) -> Any:
    """Return a value in the form that :func:`from_json` accepts, of dictionaries, lists and JSON's scalars.

    Dataclasses become dictionaries, and tuples become lists.
    """
    if type(record) in PLAIN:
        return record
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {field.name: as_json(getattr(record, field.name)) for field in dataclasses.fields(record)}
    if isinstance(record, Mapping):
        return {key: as_json(value) for key, value in record.items()}
    if isinstance(record, (list, tuple)):
        return list(record) if PLAIN.issuperset(map(type, record)) else [as_json(value) for value in record]
    return record


def text_of(record: Any) -> str:
    """Return a record as JSON text in one line. NaN is written as ``NaN``.

    This takes half the time of :func:`as_json` followed by ``json.dumps``.
    """
    return json.dumps(record, allow_nan=True, default=_as_object)


def _as_object(record: Any) -> dict[str, Any]:
    """Return a dataclass or a mapping as a dictionary with unchanged values.

    Raises:
        TypeError: the record has another type.
    """
    if isinstance(record, Mapping):
        return dict(record)
    if dataclasses.is_dataclass(record) and not isinstance(record, type):
        return {name: getattr(record, name) for name in _field_names(type(record))}
    raise TypeError(f"{type(record).__name__} has no counterpart in JSON")


def from_json(kind: type[Record], content: Any, location: str = "") -> Record:
    """Return JSON content as a value of a type, after checking that it has this type.

    The type may consist of dataclasses, dicts, lists, tuples, ``X | None``, JSON's own types and ``Any``.

    Args:
        kind: type of the value.
        content: content of the JSON, as ``json.loads`` returns it.
        location: name of the content in error messages; empty for the name of the type.

    Raises:
        ValueError: the content does not have this type, or lacks a key, or has an unknown key.
    """
    return _make_decoder(typing.cast(Any, kind))(content, (None, location or getattr(kind, "__name__", str(kind))))


@functools.cache
def _make_decoder(kind: Any) -> Decode:
    """Return the function that converts JSON content to a type (:func:`from_json`)."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if kind is Any:
        return lambda content, location: content
    if dataclasses.is_dataclass(kind):
        return _of_dataclass(typing.cast(type, kind))
    if origin in (types.UnionType, typing.Union):
        (only,) = (argument for argument in arguments if argument is not type(None))
        decode = _make_decoder(only)
        return lambda content, location: None if content is None else decode(content, location)
    if origin is dict:
        return _of_dict(arguments[1])
    if origin in (list, tuple):
        return _of_list(origin, arguments[0])
    return functools.partial(_decode_plain, kind)


@functools.cache
def _as_it_is(kind: Any) -> frozenset[Any]:
    """Return the types whose values need no conversion to the type ``kind``.

    A function call for each of a million values would take too long.
    """
    if typing.get_origin(kind) in (dict, list, tuple):
        return frozenset()
    return PLAIN.intersection(typing.get_args(kind) or (kind,))


def _of_dataclass(kind: type) -> Decode:
    """Return the function that converts a JSON object to a dataclass."""
    hints = typing.get_type_hints(kind)
    fields = {name: (_as_it_is(hints[name]), _make_decoder(hints[name])) for name in _field_names(kind)}
    required_keys = {
        field.name
        for field in dataclasses.fields(kind)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }

    def decode(content: Any, location: Location) -> Any:
        """Return a JSON object as an instance of the dataclass, after checking its keys and values."""
        _check_type(content, dict, location)
        if unknown := content.keys() - fields.keys():
            raise ValueError(
                f"{_describe_location(location)}: has {sorted(unknown)[0]}, which is none of {', '.join(fields)}"
            )
        if missing := required_keys - content.keys():
            raise ValueError(f"{_describe_location(location)}: lacks {sorted(missing)[0]}")
        values = {}
        for key, value in content.items():
            as_it_is, of_field = fields[key]
            values[key] = value if type(value) in as_it_is else of_field(value, (location, f".{key}"))
        return kind(**values)

    return decode


def _of_dict(kind: Any) -> Decode:
    """Return the function that converts a JSON object to a dictionary with values of the type ``kind``."""
    as_it_is, decoder = _as_it_is(kind), _make_decoder(kind)

    def decode(content: Any, location: Location) -> Any:
        """Return a JSON object as a dictionary, after checking its values."""
        _check_type(content, dict, location)
        if as_it_is.issuperset(map(type, content.values())):
            return dict(content)
        return {key: decoder(value, (location, f".{key}")) for key, value in content.items()}

    return decode


def _of_list(sequence_type: Callable[[Any], Any], kind: Any) -> Decode:
    """Return the function that converts a JSON list to a list or tuple.

    Args:
        sequence_type: ``list`` or ``tuple``.
        kind: type of the elements.
    """
    as_it_is, decoder = _as_it_is(kind), _make_decoder(kind)

    def decode(content: Any, location: Location) -> Any:
        """Return a JSON list as a list or tuple, after checking its elements."""
        _check_type(content, list, location)
        if as_it_is.issuperset(map(type, content)):
            return sequence_type(content)
        return sequence_type(decoder(value, (location, f"[{index}]")) for index, value in enumerate(content))

    return decode


def _decode_plain(kind: type, content: Any, location: Location) -> Any:
    """Return content of a scalar type or class after checking its type; an integer may stand for a float."""
    if kind is float and type(content) is int:
        return float(content)
    _check_type(content, kind, location)
    return content


@functools.cache
def _field_names(kind: type) -> tuple[str, ...]:
    """Return the names of a dataclass's fields."""
    return tuple(field.name for field in dataclasses.fields(kind))


def _check_type(content: Any, kind: type, location: Location) -> None:
    """Check that JSON content is an instance of ``kind``. Raises ValueError with the location if it is not."""
    if not isinstance(content, kind) or (isinstance(content, bool) and kind is not bool):
        raise ValueError(f"{_describe_location(location)}: expected {kind.__name__}, found {type(content).__name__}")


def _describe_location(location: Location) -> str:
    """Return a location as text, such as `result.json.tensors.loss.shape[0]`."""
    outer, name = location
    return f"{_describe_location(outer)}{name}" if outer else name
