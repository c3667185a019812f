"""Test that no code outside a family's two folders contains its name, its classes or its configuration keys."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

from models.families import FAMILIES, part

ROOT = Path(__file__).resolve().parents[2]
#: By file, the words that it may contain.
ALLOWED_WORDS = {
    # A fact in the gate's records; recorded bundles contain it under this name.
    "toolkit/parity/exchange/results.py": {"num_buckets"},
    "toolkit/parity/other_frameworks/output_errors.py": {"num_buckets"},
    "toolkit/parity/judge/verdict.py": {"num_buckets"},
    "toolkit/parity/judge/culprit.py": {"num_buckets"},
    "toolkit/parity/comparator/dtype.py": {"num_buckets"},
    # Attributes that layers of any user's port may have.
    "toolkit/parity/mutants/generic.py": {"hidden_act"},
}


def find_own_keys(family: str) -> set[str]:
    """Return the configuration keys that no other family has."""
    schemas = {name: part(name, "schema") for name in FAMILIES}
    other_schemas = [schemas[name] for name in FAMILIES if name != family]
    other_keys = {
        key for schema in other_schemas for keys in (schema.DEFAULTS, schema.INERT, schema.ONLY) for key in keys
    }
    other_keys |= {key for schema in other_schemas for key in getattr(schema, "SYNONYMS", ())}
    return set(schemas[family].DEFAULTS) - other_keys


NAMES = re.compile("|".join(FAMILIES), re.IGNORECASE)
KEYS = re.compile(rf"\b({'|'.join(sorted(key for family in FAMILIES for key in find_own_keys(family)))})\b")


def find_family_words(source: str) -> Iterator[tuple[int, str]]:
    """Yield lines and words of code that belong to a family; comments and docstrings may contain them."""
    docstring_lines = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type == tokenize.STRING and token.start[0] in docstring_lines
        if token.type != tokenize.COMMENT and not is_text:
            text = token.string.replace("Ctrl-C", "")
            yield from ((token.start[0], match[0]) for match in (*NAMES.finditer(text), *KEYS.finditer(text)))


def list_sources() -> list[str]:
    own = tuple(f"{folder}/{name}/" for folder in ("models", "toolkit/parity/families") for name in FAMILIES)
    paths = [
        path.relative_to(ROOT).as_posix() for name in ("toolkit", "models") for path in (ROOT / name).rglob("*.py")
    ]
    return sorted(path for path in paths if not path.startswith(own))


def test_code_outside_a_familys_folders_does_not_contain_its_words():
    unexpected_words = {
        f"{path}:{line}: {word}"
        for path in list_sources()
        for line, word in find_family_words((ROOT / path).read_text(encoding="utf-8"))
        if word not in ALLOWED_WORDS.get(path, ())
    }
    assert not unexpected_words, "\n".join(sorted(unexpected_words))


def test_the_allowed_words_exist():
    for path, words in ALLOWED_WORDS.items():
        assert words <= {word for _, word in find_family_words((ROOT / path).read_text(encoding="utf-8"))}, path


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ('if model == "ctrl": pass', ["ctrl"]),
        ("from models.reformer import ReformerConfig", ["reformer", "Reformer"]),
        ('width = config["n_embd"]', ["n_embd"]),
        ('"""Of Reformer."""\nx = 1  # CTRL', []),
        ('raise ValueError("Ctrl-C")', []),
    ],
)
def test_the_search_finds_names_classes_and_keys_only_in_code(source, words):
    assert [word for _, word in find_family_words(source)] == words
