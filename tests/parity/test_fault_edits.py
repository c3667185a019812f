"""Faults that are edits of source text: each finds its text, and is taken back."""

from __future__ import annotations

import builtins
import dis
import re
from pathlib import Path

import pytest
from loop_faults import FAULTS

from models.families import FAMILIES
from models.operations import randomness
from toolkit.parity import mutants
from toolkit.parity.mutants import edits
from toolkit.parity.mutants.edits import SourceEdit, edit_source, edited_functions
from toolkit.parity.mutants.fault import read_faults

FOLDERS = Path(mutants.__file__).parent, *(Path(mutants.__file__).parents[1] / "families" / name for name in FAMILIES)
FILES = sorted(file for folder in FOLDERS for file in folder.rglob("*.yaml"))


def functions_of(names):
    return [edits._resolve_function(name) for name in names]


def undefined_names(function) -> list[str]:
    """Return the global names that a function uses and that do not exist."""
    known_names = {*vars(builtins), *function.__globals__}
    return [
        instruction.argval
        for code in (function.__code__, *edits._nested_codes(function.__code__))
        for instruction in dis.get_instructions(code)
        if instruction.opname == "LOAD_GLOBAL" and instruction.argval not in known_names
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parents[1].name}-{file.stem}")
def test_each_fault_of_a_file_edits_its_functions_and_leaves_them_as_they_were(file):
    faults = read_faults(file)
    assert faults
    for fault in faults:
        functions = functions_of({edit.function for edit in fault.edits})
        plain = [function.__code__ for function in functions]
        with fault.in_force():
            for function, code in zip(functions, plain, strict=True):
                assert function.__code__ != code
                assert undefined_names(function) == [], f"{fault.name}: an added text uses a name that is not there"
        assert [function.__code__ for function in functions] == plain


def test_each_fault_of_a_loop_finds_its_text():
    loops = [mutant.apply.args[1] for mutant in (*mutants.BELOW_THE_NOISE.values(), *mutants.OF_ADAMW)]
    for several in (*([fault.edit] for fault in FAULTS.values()), *loops):
        source = several[0].file.read_text()
        assert edit_source(source, several) != source


@pytest.mark.parametrize(
    ("removed", "message"),
    [("x +", "0 occurrences, not one, of 'x +'"), ("self.", "2 occurrences, not one, of 'self.'")],
)
def test_a_text_that_does_not_occur_exactly_once_is_reported(removed, message):
    edit = SourceEdit("models.operations.ops:Linear.forward", removed, "")
    with pytest.raises(ValueError, match=f"^models.operations.ops:Linear.forward: {re.escape(message)}$"):
        edit_source(edit.file.read_text(), [edit])


def test_a_function_that_is_not_there_is_reported():
    edit = SourceEdit("models.operations.ops:Linear.backward", "x", "")
    with pytest.raises(ValueError, match=r"^Linear\.backward: 0 definitions, not one, of backward$"):
        edit_source(edit.file.read_text(), [edit])


def test_further_lines_are_indented_as_the_line_that_the_text_begins_in():
    source = "class A:\n    def f(self):\n        if self:\n            return 1\n        return 2\n"
    edit = SourceEdit("a:A.f", "if self:\n    return 1", "if not self:\n    return 3\nself = 1")
    edited = (
        "class A:\n    def f(self):\n        if not self:\n            return 3\n        self = 1\n        return 2\n"
    )
    assert edit_source(source, [edit]) == edited


MODULE = """
from functools import wraps

def logged(function):
    @wraps(function)
    def around(*given):
        return function(*given)
    return around

def counter(start):
    @logged
    def count():
        return start + 1
    return count

count = counter(3)
there = 7

class Base:
    def name(self):
        return "base"

class Derived(Base):
    def name(self):
        return "derived " + super().name()

    @property
    def size(self):
        return 1

    @staticmethod
    def twice(x):
        return 2 * x
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "edited_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    import edited_module

    yield edited_module
    edits._compile_edited.cache_clear()


@pytest.mark.parametrize(
    ("function", "removed", "added", "call", "plain", "edited"),
    [
        ("Derived.name", '"derived "', '"further "', lambda m: m.Derived().name(), "derived base", "further base"),
        ("Derived.size", "1", "2", lambda m: m.Derived().size, 1, 2),
        ("Derived.twice", "2 *", "3 *", lambda m: m.Derived.twice(5), 10, 15),
        ("logged", "return around", "return lambda: there", lambda m: m.counter(1)(), 2, 7),
    ],
    ids=["super", "property", "static", "function"],
)
def test_an_edit_holds_only_inside_the_block(module, function, removed, added, call, plain, edited):
    assert call(module) == plain
    with edited_functions([SourceEdit(f"edited_module:{function}", removed, added)]):
        assert call(module) == edited
    assert call(module) == plain


def test_an_edit_that_needs_other_variables_around_the_function_is_refused(module):
    edit = SourceEdit("edited_module:Derived.name", " + super().name()", "")
    with pytest.raises(ValueError, match="it uses other variables"), edited_functions([edit]):
        pass


def test_an_imported_function_is_edited_wherever_it_is_called():
    edit = SourceEdit("models.operations.randomness:dropout", "if not training or p == 0.0", "if True")
    held = randomness.dropout
    with edited_functions([edit]):
        assert held("x", 0.5, True) == "x"
