"""YAML that remembers where each key stands, so that an error about a value can name its line.

Reads the core schema of YAML 1.2: ``no`` is a string (Norwegian, not false) and ``1e-3`` is a number, where PyYAML's
default, YAML 1.1, has it the other way round. Tags, aliases and repeated keys are refused: a recipe is data, and what
it says must be what a reader sees.
"""

from __future__ import annotations

import codecs
import difflib
import math
import re
import shlex
import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from toolkit.errors import UserError
from toolkit.files.kinds import ARCHIVES, KINDS
from toolkit.files.packed import ending

#: The recipes that ship, beside this package, in the source tree as well as in an installation from a wheel.
SHIPPED = Path(__file__).resolve().parents[2] / "recipes"
KeyPath = tuple[str, ...]

#: Escaped code point of a text in double quotes.
_CODE_POINT = re.compile(r"\\U([0-9a-fA-F]{8})")
#: A number of more digits, or a value below more keys, is a slip; Python has limits of its own a little above.
MOST_DIGITS = 1000
MOST_LEVELS = 32
#: A file of more is not a recipe; nor is one with so many brackets open at once, or in one line.
MOST_CHARACTERS = 2**20
MOST_BYTES = 4 * MOST_CHARACTERS
MOST_BRACKETS = 1000
#: The longest message about a value, in characters; the middle of a longer one is left out.
LONGEST_MESSAGE = 600
#: The longest quotation of a value in a message, in characters.
LONGEST_QUOTE = 80
#: Endings of files that cannot be recipes. JSON may be one.
DATA_ENDINGS = {*ARCHIVES, *(end for end, kind in KINDS.items() if kind != "text" and end != ".json")}

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan,
}  # fmt: skip


@dataclass
class Source:
    """Where the values of a recipe come from: the line of every key in the file, and the keys set on the command line.

    Attributes:
        name: the file as the user wrote it.
        lines: key path -> line, counted from 1; the empty path stands for the whole file.
        overridden: the key paths that the command line set.
    """

    name: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overridden: set[KeyPath] = field(default_factory=set)

    def where(self, path: KeyPath) -> str:
        """``file:line`` of a key, ``command line`` if it was set there; a key that is not written down gets the line
        of the section it would stand in."""
        for depth in range(len(path), -1, -1):
            if path[:depth] in self.overridden:
                return "command line"
            if path[:depth] in self.lines:
                return f"{self.name}:{self.lines[path[:depth]]}"
        return self.name

    def line(self, path: KeyPath) -> int:
        """The line of a key, or of the section it would stand in; 0 for the command line."""
        where = self.where(path).rpartition(":")[2]
        return int(where) if where.isdigit() else 0

    def rename(self, old: KeyPath, new: KeyPath) -> None:
        """Move the record of one key to another."""
        if old in self.lines:
            self.lines[new] = self.lines.pop(old)
        if old in self.overridden:
            self.overridden ^= {old, new}

    def error(self, key: str | KeyPath, message: str) -> UserError:
        """The error to raise about a key: ``file:line: key.path: message``."""
        path = tuple(key.split(".")) if isinstance(key, str) else key
        place = f"{self.where(path)}: {'.'.join(path)}: " if path else f"{self.where(path)}: "
        return UserError(_in_one_line(place) + _in_one_line(message))


def read(path: Path, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], Source]:
    """Read a YAML mapping, overlaid with the command line's ``key.path=value``. Raises UserError if the file cannot be
    read, is not YAML or no mapping, or if an override is malformed."""
    source = Source(str(path))
    new_recipe = f"toolkit recipe new {shlex.quote(str(path))}"
    if path.is_dir():
        raise UserError(f"{path}: is a folder, not a recipe; next, if it holds data: {new_recipe}")
    try:
        with open(path, "rb") as file:
            stored = file.read(MOST_BYTES + 1)
    except OSError as problem:
        raise UserError(f"{path}: cannot read the recipe: {problem.strerror}{_nearby(path)}") from None
    if ending(path) in DATA_ENDINGS:
        raise UserError(f"{path}: is data, not a recipe; next: {new_recipe}")
    doubt = "" if path.suffix in (".yaml", ".yml") else f"; if it is data, next: {new_recipe}"
    if len(stored) > MOST_BYTES:
        raise UserError(f"{path}:1: a file of more than {MOST_BYTES:,} bytes is no recipe{doubt}")
    try:
        values = _mapping(_decoded(stored, source), source)
    except UserError as error:
        raise UserError(f"{error}{doubt}") from None
    if doubt and not isinstance(values.get("data"), dict):
        raise UserError(f"{path}: has no section data, so it is not a recipe{doubt}")
    for override in overrides:
        _apply(values, override, source)
    return values, source


def parse_mapping(text: str, name: str) -> dict[str, Any]:
    """Parse the YAML mapping in a text; errors name the text by ``name``.

    Raises:
        UserError: the text is not a YAML mapping.
    """
    return _mapping(text, Source(name))


def _mapping(text: str, source: Source) -> dict[str, Any]:
    values = _parse(text, source)
    source.lines.setdefault((), 1)
    if not isinstance(values, dict):
        raise source.error((), f"a recipe is a mapping of keys to values, not {_kind(values)}")
    return values


def _decoded(stored: bytes, source: Source) -> str:
    """The text of a file, its lines ended by line feeds. Raises UserError if it is not UTF-8."""
    stored = stored.removeprefix(codecs.BOM_UTF8)
    try:
        text = stored.decode("utf-8")
    except UnicodeDecodeError as error:
        line = len((stored[: error.start] + b"x").splitlines())
        raise UserError(f"{source.name}:{line}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_value(text: str, where: str) -> Any:
    """Parse a word of the command line like a value of a recipe; errors say with ``where`` what it is of. Raises
    UserError if it is not YAML."""
    return _parse(text, Source(where)) if text else None


def parse_pairs(pairs: Iterable[str], example: str) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` words of the command line. Raises UserError for a word of another form, with ``example`` as a
    right one, and for a value that is not YAML."""
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{pair}: expected KEY=VALUE, for example {example}")
        values[key] = parse_value(value, f"command line: {key}")
    return values


def dump(values: dict[str, Any]) -> str:
    """YAML text that :func:`read` reads back as the same values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def quote_value(value: Any) -> str:
    """Return a value of a file as an error message quotes it."""
    text = repr(value)
    return text if len(text) <= LONGEST_QUOTE else f"{text[: LONGEST_QUOTE - 1]}…"


def suggest(word: str, known: Iterable[str]) -> str:
    """``, did you mean KNOWN?`` for a word that resembles a known one, else the empty string."""
    plain = {name.lower(): name for name in known}
    close = difflib.get_close_matches(word[:100].lower(), plain, n=1, cutoff=0.6)
    return f", did you mean {plain[close[0]]}?" if close else ""


def _in_one_line(text: str) -> str:
    """Escape invisible characters (line breaks, control characters) as Python does, and cut a long text."""
    escaped_text = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )
    half = LONGEST_MESSAGE // 2
    return escaped_text if len(escaped_text) <= LONGEST_MESSAGE else f"{escaped_text[:half]} ... {escaped_text[-half:]}"


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper, quoting the strings that YAML 1.2 would take for something else (``1e-3``)."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    plain = len(text) <= MOST_DIGITS and isinstance(_scalar(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "'")


_Dumper.add_representer(str, _represent_text)


def _parse(text: str, source: Source) -> Any:
    _check_size(text, source)
    line = 1
    try:
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise UserError(f"{source.name}:{line}: anchors and aliases (& and *) are not read")
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        return {} if node is None else _value(node, (), source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UserError(f"{source.name}:{mark.line + 1 if mark else line}: not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        at = f"{source.name}:{_line_of(error.position, text)}"
        raise UserError(f"{at}: not YAML: U+{error.character:04X} is no character of a text; remove it") from None
    except RecursionError:
        raise UserError(f"{source.name}:{_most_indented(text)}: nested too deeply") from None
    except (ValueError, OverflowError) as error:  # of the library's chr(), and of the numbers of a %YAML line
        beyond = next((found for found in _CODE_POINT.finditer(text) if int(found[1], 16) > sys.maxunicode), None)
        if beyond is None:
            directive = re.search(r"^%YAML.*", text, re.MULTILINE)
            at = f"{source.name}:{_line_of(directive.start(), text) if directive else line}"
            raise UserError(f"{at}: not YAML: {' '.join(str(error).split())}") from None
        at = f"{source.name}:{_line_of(beyond.start(), text)}"
        raise UserError(f"{at}: not YAML: {beyond[0]} is no character; \\U0010FFFF is the last") from None


def _line_of(place: int, text: str) -> int:
    """The line in which a character is, counted from 1."""
    return text.count("\n", 0, place) + 1


def _most_indented(text: str) -> int:
    """The line that begins furthest to the right, counted from 1: there a text is nested most deeply."""
    lines = text.split("\n")
    return 1 + max(range(len(lines)), key=lambda index: len(lines[index]) - len(lines[index].lstrip(" -?")))


def _check_size(text: str, source: Source) -> None:
    """Refuse what would take the parser minutes: its time grows with the square of the open brackets."""
    if len(text) > MOST_CHARACTERS:
        raise UserError(f"{source.name}:1: {len(text)} characters are no recipe")
    opened = 0
    for number, line in enumerate(text.split("\n"), start=1):
        opened += line.count("[") + line.count("{") - line.count("]") - line.count("}")
        if max(opened, line.count("[") + line.count("{")) > MOST_BRACKETS:
            raise UserError(f"{source.name}:{number}: nested too deeply")


def _value(node: yaml.Node, path: KeyPath, source: Source) -> Any:
    """The value of a node; records the line of every mapping key below it."""
    source.lines.setdefault(path, node.start_mark.line + 1)
    if node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!"):
        raise source.error(path, f"the tag {node.tag} is not read; write the plain value")
    if len(path) > MOST_LEVELS:
        raise source.error(path[:MOST_LEVELS], "nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return [_value(item, (*path, str(index)), source) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _checked_scalar(node, path, source)
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise UserError(f"{source.name}:{line}: a key must be a word")
        place = (*path, key)
        if "\0" in key or not _is_writable(key):
            raise UserError(f"{source.name}:{line}: {_in_one_line(key)}: holds something that is no character")
        if key in mapping:
            first = source.lines[place]
            raise UserError(f"{source.name}:{line}: {'.'.join(place)}: written twice, first at line {first}")
        source.lines[place] = line
        mapping[key] = _value(value_node, place, source)
    return mapping


def _checked_scalar(node: yaml.ScalarNode, path: KeyPath, source: Source) -> Any:
    text = node.value
    if node.style is None and len(text) > MOST_DIGITS and (_INT.fullmatch(text) or _FLOAT.fullmatch(text)):
        raise source.error(path, f"a number of {len(text)} digits is not read")
    if "\0" in text or not _is_writable(text):
        raise source.error(path, f"{text!r} holds something that is no character")
    return _scalar(text) if node.style is None else text


def _is_writable(text: str) -> bool:
    """Whether UTF-8 can encode it, as it cannot a lone surrogate."""
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def _scalar(text: str) -> Any:
    """A plain scalar by YAML 1.2's core schema."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def _apply(values: dict[str, Any], override: str, source: Source) -> None:
    """Lay one ``key.path=value`` over the values."""
    key, equals, text = override.partition("=")
    path = tuple(key.split("."))
    if not equals or not all(path):
        raise UserError(f"command line: {override!r}: expected key.path=value, for example train.batch_size=4")
    value = parse_value(text, f"command line: {key}")
    section = values
    for depth, name in enumerate(path[:-1], start=1):
        below = section.setdefault(name, {})
        if below is None:
            below = section[name] = {}
        if not isinstance(below, dict):
            raise UserError(f"command line: {key}: {'.'.join(path[:depth])} is {_kind(below)}, which has no keys")
        section = below
    section[path[-1]] = value
    source.lines = {known: line for known, line in source.lines.items() if known[: len(path)] != path}
    source.overridden.add(path)


def _kind(value: Any) -> str:
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else f"the value {quote_value(value)}"


def _nearby(path: Path) -> str:
    """How to get the recipe that is called so and ships, or ``; did you mean X?`` for a misspelt path."""
    name = path.name.removesuffix(".yaml")
    if name in {recipe.stem for recipe in SHIPPED.glob("*.yaml")}:
        return f"; it ships: toolkit recipe copy {name}"
    folder = path.parent
    names = [found.name for found in sorted(folder.glob("*.yaml"))] if folder.is_dir() else []
    close = difflib.get_close_matches(path.name, names, n=1, cutoff=0.4)
    return f"; did you mean {folder / close[0]}?" if close else ""
