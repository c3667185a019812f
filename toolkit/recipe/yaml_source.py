"""Read YAML with the line of each key, so that an error about a value can name its line.

The values follow the core schema of YAML 1.2: ``no`` is a string (Norwegian, not false), and ``1e-3`` is a number. In
YAML 1.1, PyYAML's default, both are different. Tags, aliases and repeated keys are rejected, since a recipe must mean
exactly the text that a reader sees.
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
from toolkit.files.compression import content_ending
from toolkit.files.kinds import ARCHIVE_ENDINGS, KIND_BY_ENDING
from toolkit.terminal.escape import shorten_middle

#: Folder of the recipes that the toolkit ships, in the source tree and in an installation from a wheel.
RECIPES_DIR = Path(__file__).resolve().parents[2] / "recipes"
KeyPath = tuple[str, ...]

#: Pattern of an escaped code point in a text with double quotes.
_CODE_POINT = re.compile(r"\\U([0-9a-fA-F]{8})")
#: Maximum digits of a number, and maximum nesting of keys. Python has limits that are only slightly higher.
MAX_DIGITS = 1000
MAX_LEVELS = 32
#: Maximum size of a recipe in characters and bytes, and maximum number of brackets that are open at once or in a line.
MAX_CHARACTERS = 2**20
MAX_BYTES = 4 * MAX_CHARACTERS
MAX_BRACKETS = 1000
#: Maximum length of a message about a value, in characters. The middle of a longer message is left out.
MAX_MESSAGE_LENGTH = 600
#: Maximum length of a quoted value in a message, in characters.
MAX_QUOTE_LENGTH = 80
#: Endings of files that cannot be recipes. A JSON file may be a recipe.
DATA_ENDINGS = {*ARCHIVE_ENDINGS, *(end for end, kind in KIND_BY_ENDING.items() if kind != "text" and end != ".json")}

_INT = re.compile(r"[-+]?[0-9][0-9_]*")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9][0-9_]*(\.[0-9_]*)?)([eE][-+]?[0-9]+)?")
_CONSTANTS = {
    "": None, "~": None, "null": None, "Null": None, "NULL": None,
    "true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False,
    ".inf": math.inf, "+.inf": math.inf, "-.inf": -math.inf, ".nan": math.nan,
}  # fmt: skip


@dataclass
class Source:
    """The origin of a recipe's values: the line of every key in the file, and the keys set on the command line.

    Attributes:
        name: path of the file as the user wrote it.
        lines: key path -> line, counted from 1; the empty path stands for the whole file.
        overridden: key paths that the command line set.
    """

    name: str
    lines: dict[KeyPath, int] = field(default_factory=dict)
    overridden: set[KeyPath] = field(default_factory=set)

    def where(self, key_path: KeyPath) -> str:
        """Return ``file:line`` of a key, or ``command line`` if it was set there.

        A key that is missing in the file gets the line of its section.
        """
        for depth in range(len(key_path), -1, -1):
            if key_path[:depth] in self.overridden:
                return "command line"
            if key_path[:depth] in self.lines:
                return f"{self.name}:{self.lines[key_path[:depth]]}"
        return self.name

    def line(self, key_path: KeyPath) -> int:
        """Return the line of a key, or of its section if the key is missing; 0 for the command line."""
        where = self.where(key_path).rpartition(":")[2]
        return int(where) if where.isdigit() else 0

    def rename(self, old: KeyPath, new: KeyPath) -> None:
        """Record the line of a key under its new name."""
        if old in self.lines:
            self.lines[new] = self.lines.pop(old)
        if old in self.overridden:
            self.overridden ^= {old, new}

    def error(self, key: str | KeyPath, message: str) -> UserError:
        """Return an error about a key with its line: ``file:line: key.path: message``."""
        path = tuple(key.split(".")) if isinstance(key, str) else key
        location = f"{self.where(path)}: {'.'.join(path)}: " if path else f"{self.where(path)}: "
        return UserError(_in_one_line(location) + _in_one_line(message))


def read(path: Path, overrides: Iterable[str] = ()) -> tuple[dict[str, Any], Source]:
    """Read a YAML mapping, and apply the ``key.path=value`` options of the command line.

    Raises:
        UserError: the file cannot be read or is not a YAML mapping, or an option is malformed.
    """
    source = Source(str(path))
    new_recipe = f"toolkit recipe new {shlex.quote(str(path))}"
    if path.is_dir():
        raise UserError(f"{path}: is a folder, not a recipe; next, if it holds data: {new_recipe}")
    try:
        with open(path, "rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as problem:
        raise UserError(f"{path}: cannot read the recipe: {problem.strerror}{_hint_for_missing(path)}") from None
    if content_ending(path) in DATA_ENDINGS:
        raise UserError(f"{path}: is data, not a recipe; next: {new_recipe}")
    doubt = "" if path.suffix in (".yaml", ".yml") else f"; if it is data, next: {new_recipe}"
    if len(content) > MAX_BYTES:
        raise UserError(f"{path}:1: a file of more than {MAX_BYTES:,} bytes is no recipe{doubt}")
    try:
        values = _parse_mapping(_decode(content, source), source)
    except UserError as error:
        raise UserError(f"{error}{doubt}") from None
    if doubt and not isinstance(values.get("data"), dict):
        raise UserError(f"{path}: has no section data, so it is not a recipe{doubt}")
    for override in overrides:
        _apply_override(values, override, source)
    return values, source


def parse_mapping(text: str, name: str) -> dict[str, Any]:
    """Parse the YAML mapping in a text; errors name the text by ``name``.

    Raises:
        UserError: the text is not a YAML mapping.
    """
    return _parse_mapping(text, Source(name))


def _parse_mapping(text: str, source: Source) -> dict[str, Any]:
    """Return the keys and values of a recipe's text, and record the line of each key in ``source``."""
    values = _parse(text, source)
    source.lines.setdefault((), 1)
    if not isinstance(values, dict):
        raise source.error((), f"a recipe is a mapping of keys to values, not {_describe_kind(values)}")
    return values


def _decode(file_bytes: bytes, source: Source) -> str:
    """Return the text of a file with line feeds as line breaks.

    Args:
        file_bytes: bytes of the file.
        source: name and lines of the recipe, for errors.

    Raises:
        UserError: the file is not UTF-8.
    """
    file_bytes = file_bytes.removeprefix(codecs.BOM_UTF8)
    try:
        text = file_bytes.decode("utf-8")
    except UnicodeDecodeError as error:
        line = len((file_bytes[: error.start] + b"x").splitlines())
        raise UserError(f"{source.name}:{line}: is not UTF-8 text (byte {error.start}); save it as UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")


def parse_value(text: str, location: str) -> Any:
    """Parse a word of the command line like a value of a recipe; errors start with ``location``.

    Raises:
        UserError: the word is not YAML.
    """
    return _parse(text, Source(location)) if text else None


def parse_pairs(pairs: Iterable[str], example: str) -> dict[str, Any]:
    """Parse ``KEY=VALUE`` words of the command line, whose values are YAML.

    Raises:
        UserError: a word has another form, or a value is not YAML; the message shows ``example`` as a correct word.
    """
    values = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise UserError(f"{pair}: expected KEY=VALUE, for example {example}")
        values[key] = parse_value(value, f"command line: {key}")
    return values


def dump(values: dict[str, Any]) -> str:
    """Return values as YAML, which :func:`read` parses to the same values."""
    return yaml.dump(values, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=120)


def quote_value(value: Any) -> str:
    """Return a value of a file as an error message quotes it."""
    text = repr(value)
    return text if len(text) <= MAX_QUOTE_LENGTH else f"{text[: MAX_QUOTE_LENGTH - 1]}…"


def suggest(word: str, known_words: Iterable[str]) -> str:
    """Return ``, did you mean KNOWN?`` for a word that resembles a known word; otherwise the empty string."""
    words_by_lowercase = {name.lower(): name for name in known_words}
    matches = difflib.get_close_matches(word[:100].lower(), words_by_lowercase, n=1, cutoff=0.6)
    return f", did you mean {words_by_lowercase[matches[0]]}?" if matches else ""


def _in_one_line(text: str) -> str:
    """Escape invisible characters (line breaks, control characters) as Python does, and cut a long text."""
    escaped_text = "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape").decode() for letter in text
    )
    return shorten_middle(escaped_text, MAX_MESSAGE_LENGTH)


class _Dumper(yaml.SafeDumper):
    """PyYAML's dumper that also quotes strings which YAML 1.2 reads as another type, such as ``1e-3``."""


def _represent_text(dumper: yaml.SafeDumper, text: str) -> yaml.Node:
    """Return the YAML node of a text, in quotes if it would be read as another type."""
    plain = len(text) <= MAX_DIGITS and isinstance(_scalar(text), str)
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else "'")


_Dumper.add_representer(str, _represent_text)


def _parse(text: str, source: Source) -> Any:
    """Return the value of a YAML text, and reject anchors, aliases and deep nesting.

    Args:
        text: text to parse.
        source: name of the text for errors; it records the line of each key.
    """
    _check_size(text, source)
    line = 1
    try:
        for event in yaml.parse(text, Loader=yaml.BaseLoader):
            line = event.start_mark.line + 1
            if isinstance(event, yaml.AliasEvent) or getattr(event, "anchor", None):
                raise UserError(f"{source.name}:{line}: anchors and aliases (& and *) are not read")
        node = yaml.compose(text, Loader=yaml.BaseLoader)
        return {} if node is None else _node_value(node, (), source)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        raise UserError(f"{source.name}:{mark.line + 1 if mark else line}: not YAML: {error.problem}") from None
    except yaml.reader.ReaderError as error:
        location = f"{source.name}:{_line_of(error.position, text)}"
        raise UserError(f"{location}: not YAML: U+{error.character:04X} is no character of a text; remove it") from None
    except RecursionError:
        raise UserError(f"{source.name}:{_most_indented(text)}: nested too deeply") from None
    except (ValueError, OverflowError) as error:  # from PyYAML's chr() and from the numbers of a %YAML line
        invalid_escape = next(
            (match for match in _CODE_POINT.finditer(text) if int(match[1], 16) > sys.maxunicode), None
        )
        if invalid_escape is None:
            directive = re.search(r"^%YAML.*", text, re.MULTILINE)
            location = f"{source.name}:{_line_of(directive.start(), text) if directive else line}"
            raise UserError(f"{location}: not YAML: {' '.join(str(error).split())}") from None
        location = f"{source.name}:{_line_of(invalid_escape.start(), text)}"
        raise UserError(f"{location}: not YAML: {invalid_escape[0]} is no character; \\U0010FFFF is the last") from None


def _line_of(position: int, text: str) -> int:
    """Return the line of the character at a position, counted from 1."""
    return text.count("\n", 0, position) + 1


def _most_indented(text: str) -> int:
    """Return the line with the deepest indentation, counted from 1, which is the most deeply nested line."""
    lines = text.split("\n")
    return 1 + max(range(len(lines)), key=lambda index: len(lines[index]) - len(lines[index].lstrip(" -?")))


def _check_size(text: str, source: Source) -> None:
    """Reject texts that would take the parser minutes: its time is quadratic in the number of open brackets."""
    if len(text) > MAX_CHARACTERS:
        raise UserError(f"{source.name}:1: {len(text)} characters are no recipe")
    num_open = 0
    for number, line in enumerate(text.split("\n"), start=1):
        num_open += line.count("[") + line.count("{") - line.count("]") - line.count("}")
        if max(num_open, line.count("[") + line.count("{")) > MAX_BRACKETS:
            raise UserError(f"{source.name}:{number}: nested too deeply")


def _node_value(node: yaml.Node, value_path: KeyPath, source: Source) -> Any:
    """Return the value of a node, and record the line of every mapping key below it."""
    source.lines.setdefault(value_path, node.start_mark.line + 1)
    if node.tag not in ("tag:yaml.org,2002:str", "tag:yaml.org,2002:map", "tag:yaml.org,2002:seq", "!"):
        raise source.error(value_path, f"the tag {node.tag} is not read; write the plain value")
    if len(value_path) > MAX_LEVELS:
        raise source.error(value_path[:MAX_LEVELS], "nested too deeply")
    if isinstance(node, yaml.SequenceNode):
        return [_node_value(item, (*value_path, str(index)), source) for index, item in enumerate(node.value)]
    if isinstance(node, yaml.ScalarNode):
        return _checked_scalar(node, value_path, source)
    mapping: dict[str, Any] = {}
    for key_node, value_node in node.value:
        key = key_node.value
        line = key_node.start_mark.line + 1
        if not isinstance(key, str):
            raise UserError(f"{source.name}:{line}: a key must be a word")
        key_path = (*value_path, key)
        if "\0" in key or not _is_writable(key):
            raise UserError(f"{source.name}:{line}: {_in_one_line(key)}: holds something that is no character")
        if key in mapping:
            first_line = source.lines[key_path]
            raise UserError(f"{source.name}:{line}: {'.'.join(key_path)}: written twice, first at line {first_line}")
        source.lines[key_path] = line
        mapping[key] = _node_value(value_node, key_path, source)
    return mapping


def _checked_scalar(node: yaml.ScalarNode, key_path: KeyPath, source: Source) -> Any:
    """Return the value of a YAML scalar, which is a text if it is quoted.

    Args:
        node: the scalar.
        key_path: keys that lead to it, for errors.
        source: name and lines of the text, for errors.
    """
    text = node.value
    if node.style is None and len(text) > MAX_DIGITS and (_INT.fullmatch(text) or _FLOAT.fullmatch(text)):
        raise source.error(key_path, f"a number of {len(text)} digits is not read")
    if "\0" in text or not _is_writable(text):
        raise source.error(key_path, f"{text!r} holds something that is no character")
    return _scalar(text) if node.style is None else text


def _is_writable(text: str) -> bool:
    """Return whether UTF-8 can encode the text, which fails for a lone surrogate."""
    try:
        text.encode()
        return True
    except UnicodeEncodeError:
        return False


def _scalar(text: str) -> Any:
    """Return the value of a plain scalar, by the core schema of YAML 1.2."""
    if text in _CONSTANTS:
        return _CONSTANTS[text]
    if _INT.fullmatch(text):
        return int(text.replace("_", ""))
    if _FLOAT.fullmatch(text):
        return float(text.replace("_", ""))
    return text


def _apply_override(values: dict[str, Any], override: str, source: Source) -> None:
    """Apply a ``key.path=value`` option of the command line to the values.

    Args:
        values: keys and values of a recipe, changed in place.
        override: option, such as ``train.epochs=3``.
        source: name and lines of the recipe, for errors.
    """
    key, equals, text = override.partition("=")
    path = tuple(key.split("."))
    if not equals or not all(path):
        raise UserError(f"command line: {override!r}: expected key.path=value, for example train.batch_size=4")
    value = parse_value(text, f"command line: {key}")
    section = values
    for depth, name in enumerate(path[:-1], start=1):
        subsection = section.setdefault(name, {})
        if subsection is None:
            subsection = section[name] = {}
        if not isinstance(subsection, dict):
            raise UserError(
                f"command line: {key}: {'.'.join(path[:depth])} is {_describe_kind(subsection)}, which has no keys"
            )
        section = subsection
    section[path[-1]] = value
    source.lines = {key_path: line for key_path, line in source.lines.items() if key_path[: len(path)] != path}
    source.overridden.add(path)


def _describe_kind(value: Any) -> str:
    """Return the type of a value in words, such as ``a list``."""
    if isinstance(value, list):
        return "a list"
    return "a mapping" if isinstance(value, dict) else f"the value {quote_value(value)}"


def _hint_for_missing(path: Path) -> str:
    """Return a hint for a missing file: the command that copies the shipped recipe of this name, or a similar path."""
    name = path.name.removesuffix(".yaml")
    if name in {recipe.stem for recipe in RECIPES_DIR.glob("*.yaml")}:
        return f"; it ships: toolkit recipe copy {name}"
    folder = path.parent
    names = [recipe.name for recipe in sorted(folder.glob("*.yaml"))] if folder.is_dir() else []
    matches = difflib.get_close_matches(path.name, names, n=1, cutoff=0.4)
    return f"; did you mean {folder / matches[0]}?" if matches else ""
