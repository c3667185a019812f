"""Test faults that are edits of source text: each edit finds its text and is reverted."""

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


def find_functions(names):
    return [edits._resolve_function(name) for name in names]


def find_undefined_names(function) -> list[str]:
    """Return the global names that a function uses and that do not exist."""
    known_names = {*vars(builtins), *function.__globals__}
    return [
        instruction.argval
        for code in (function.__code__, *edits._nested_codes(function.__code__))
        for instruction in dis.get_instructions(code)
        if instruction.opname == "LOAD_GLOBAL" and instruction.argval not in known_names
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: f"{file.parents[1].name}-{file.stem}")
def test_each_fault_of_a_file_edits_its_functions_and_restores_them(file):
    faults = read_faults(file)
    assert faults
    for fault in faults:
        functions = find_functions({edit.function for edit in fault.edits})
        original_code = [function.__code__ for function in functions]
        with fault.in_force():
            for function, code in zip(functions, original_code, strict=True):
                assert function.__code__ != code
                assert find_undefined_names(function) == [], (
                    f"{fault.name}: an added text uses a name that is not there"
                )
        assert [function.__code__ for function in functions] == original_code


def test_each_fault_of_a_loop_finds_its_text():
    loops = [mutant.apply.args[1] for mutant in (*mutants.BELOW_THE_NOISE.values(), *mutants.OF_ADAMW)]
    for source_edits in (*([fault.edit] for fault in FAULTS.values()), *loops):
        source = source_edits[0].file.read_text()
        assert edit_source(source, source_edits) != source


@pytest.mark.parametrize(
    ("removed_text", "message"),
    [("x +", "0 occurrences, not one, of 'x +'"), ("self.", "2 occurrences, not one, of 'self.'")],
)
def test_a_text_that_does_not_occur_exactly_once_is_reported(removed_text, message):
    edit = SourceEdit("models.operations.ops:Linear.forward", removed_text, "")
    with pytest.raises(ValueError, match=f"^models.operations.ops:Linear.forward: {re.escape(message)}$"):
        edit_source(edit.file.read_text(), [edit])


def test_a_missing_function_is_reported():
    edit = SourceEdit("models.operations.ops:Linear.backward", "x", "")
    with pytest.raises(ValueError, match=r"^Linear\.backward: 0 definitions, not one, of backward$"):
        edit_source(edit.file.read_text(), [edit])


def test_added_lines_are_indented_like_the_first_line():
    source = "class A:\n    def f(self):\n        if self:\n            return 1\n        return 2\n"
    edit = SourceEdit("a:A.f", "if self:\n    return 1", "if not self:\n    return 3\nself = 1")
    edited_source = (
        "class A:\n    def f(self):\n        if not self:\n            return 3\n        self = 1\n        return 2\n"
    )
    assert edit_source(source, [edit]) == edited_source


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
    ("function", "removed_text", "added_text", "call", "original_result", "faulty_result"),
    [
        ("Derived.name", '"derived "', '"further "', lambda m: m.Derived().name(), "derived base", "further base"),
        ("Derived.size", "1", "2", lambda m: m.Derived().size, 1, 2),
        ("Derived.twice", "2 *", "3 *", lambda m: m.Derived.twice(5), 10, 15),
        ("logged", "return around", "return lambda: there", lambda m: m.counter(1)(), 2, 7),
    ],
    ids=["super", "property", "static", "function"],
)
def test_an_edit_is_active_only_inside_the_block(
    module, function, removed_text, added_text, call, original_result, faulty_result
):
    assert call(module) == original_result
    with edited_functions([SourceEdit(f"edited_module:{function}", removed_text, added_text)]):
        assert call(module) == faulty_result
    assert call(module) == original_result


def test_an_edit_that_needs_other_closure_variables_is_rejected(module):
    edit = SourceEdit("edited_module:Derived.name", " + super().name()", "")
    with pytest.raises(ValueError, match="it uses other variables"), edited_functions([edit]):
        pass


def test_an_imported_function_is_edited_in_every_caller():
    edit = SourceEdit("models.operations.randomness:dropout", "if not training or p == 0.0", "if True")
    original_function = randomness.dropout
    with edited_functions([edit]):
        assert original_function("x", 0.5, True) == "x"
