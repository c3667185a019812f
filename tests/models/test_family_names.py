"""No code outside a family's two folders spells its name, its classes or its configuration keys."""

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
#: Place -> words that it may have, and why.
ALLOWED = {
    # A fact of the gate's records: bundles that were recorded hold it by this name.
    "toolkit/parity/exchange/results.py": {"num_buckets"},
    "toolkit/parity/other_frameworks/given.py": {"num_buckets"},
    "toolkit/parity/judge/verdict.py": {"num_buckets"},
    "toolkit/parity/judge/culprit.py": {"num_buckets"},
    "toolkit/parity/comparator/dtype.py": {"num_buckets"},
    # Attributes that layers of anybody's port may have.
    "toolkit/parity/mutants/generic.py": {"hidden_act"},
}


def keys_of(family: str) -> set[str]:
    """Configuration keys that no other family knows."""
    schemas = {name: part(name, "schema") for name in FAMILIES}
    others = [schemas[name] for name in FAMILIES if name != family]
    known = {key for one in others for keys in (one.DEFAULTS, one.INERT, one.ONLY) for key in keys}
    known |= {key for one in others for key in getattr(one, "SYNONYMS", ())}
    return set(schemas[family].DEFAULTS) - known


NAMES = re.compile("|".join(FAMILIES), re.IGNORECASE)
KEYS = re.compile(rf"\b({'|'.join(sorted(key for family in FAMILIES for key in keys_of(family)))})\b")


def spelled(source: str) -> Iterator[tuple[int, str]]:
    """Lines and words of code that are a family's own; comments and docstrings may have them."""
    documented = {
        node.body[0].lineno
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Module | ast.FunctionDef | ast.ClassDef)
        and node.body
        and isinstance(node.body[0], ast.Expr)
    }
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        is_text = token.type == tokenize.STRING and token.start[0] in documented
        if token.type != tokenize.COMMENT and not is_text:
            text = token.string.replace("Ctrl-C", "")
            yield from ((token.start[0], found[0]) for found in (*NAMES.finditer(text), *KEYS.finditer(text)))


def sources() -> list[str]:
    own = tuple(f"{folder}/{name}/" for folder in ("models", "toolkit/parity/families") for name in FAMILIES)
    paths = [
        path.relative_to(ROOT).as_posix() for name in ("toolkit", "models") for path in (ROOT / name).rglob("*.py")
    ]
    return sorted(path for path in paths if not path.startswith(own))


def test_code_outside_a_familys_two_folders_does_not_spell_it():
    found = {
        f"{path}:{line}: {word}"
        for path in sources()
        for line, word in spelled((ROOT / path).read_text(encoding="utf-8"))
        if word not in ALLOWED.get(path, ())
    }
    assert not found, "\n".join(sorted(found))


def test_what_is_allowed_is_there():
    for path, words in ALLOWED.items():
        assert words <= {word for _, word in spelled((ROOT / path).read_text(encoding="utf-8"))}, path


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
def test_the_search_finds_names_classes_and_keys_in_code_alone(source, words):
    assert [word for _, word in spelled(source)] == words
