"""Faults of the compiled loops of training (:mod:`models.operations.loops`): loops that keep too few digits.

Only float32 shows them. The faults of :data:`BELOW_THE_NOISE` are even smaller than the error that a step in float32
may have. Only the test of the loop in isolation shows them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from toolkit.parity.mutants.edits import SourceEdit, edit_source
from toolkit.parity.mutants.fault import Mutant, PortModules

#: Multiplier that splits off the upper 12 bits of a float32 number; the rest is about 1e-4 of the number.
SPLITTER = 2.0**12 + 1


def _drop_digits(port: PortModules, value: Any) -> Any:
    """Keep 12 of the 24 bits of float32 tensors (Dekker 1971), and leave other values as they are."""
    if isinstance(value, tuple):
        return tuple(_drop_digits(port, element) for element in value)
    if value is None or value.dtype != port.paddle.float32:
        return value
    large = value * SPLITTER
    return large - (large - value)


def _replace_loop(name: str, port: PortModules) -> list[tuple[Any, str, Callable]]:
    """Return the replacement of a compiled loop by one whose result loses digits.

    Args:
        name: name of the loop in the port's module of compiled loops.
        port: modules of the port.

    Returns:
        A list of (module, attribute, new function).
    """
    loop = getattr(port.compiled, name)
    return [(port.compiled, name, lambda *arguments: _drop_digits(port, loop(*arguments)))]


def _precision_faults(**functions: str) -> tuple[Mutant, ...]:
    """Return faults of functions of :mod:`models.operations.compiled`, each given with the name of its result."""
    return tuple(
        Mutant(
            f"float32-{name.strip('_').replace('_', '-')}",
            f"{description} keeps 12 bits",
            "",
            partial(_replace_loop, name),
            dtype="float32",
        )
        for name, description in functions.items()
    )


#: Faults by kind of compiled loop, a key of :data:`models.operations.compiled.LOOPS`.
LOOPS: dict[str, tuple[Mutant, ...]] = {
    "attention": _precision_faults(
        attend_chunks="attention of chunks", attend_chunks_backward="the backward of attention of chunks"
    ),
    "softmax": _precision_faults(softmax="attention's softmax", softmax_backward="the backward of attention's softmax"),
    "cross_entropy": _precision_faults(
        cross_entropy="the cross entropy", cross_entropy_backward="the backward of the cross entropy"
    ),
    "layer_norm": _precision_faults(layer_norm="layer norm", layer_norm_backward="the backward of layer norm"),
    "keys": _precision_faults(keys="LSH's keys", keys_backward="the backward of LSH's keys"),
    "dropout": _precision_faults(keep="what dropout scales"),
    "bias": _precision_faults(add_row_="a sum with a bias"),
    "axial_positions": _precision_faults(
        scale_columns="the axial position table", scale_columns_backward="the gradient of the axial position table"
    ),
    "streams": _precision_faults(add_on_grid="a residual stream as layers read it"),
}


def compile_loop(loop: str, source: str) -> bytes:
    """Return the object code of a compiled loop.

    Args:
        loop: name of the loop's function.
        source: source text of the whole file that defines the loop.
    """
    from models.operations import loop_code

    loop_code._engine()  # before Numba: it registers the names that both look up
    from models.operations import loops

    file = loop_code.find_loop_file(loop)
    module = ModuleType(f"models.operations.{file.stem}")
    exec(compile(source, str(file), "exec"), vars(module))
    return loop_code._object_file(loop, *loops.emit_assembly(vars(module)[loop]))


def load_code(loop: str, code: bytes) -> tuple[Any, int]:
    """Load a loop's object code. Return the engine, which keeps the code in memory, and the address of the loop."""
    import llvmlite.binding as llvm

    from models.operations import loop_code

    loop_code._engine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), loop_code._machine.__wrapped__())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, engine.get_function_address(loop)


@functools.cache
def _load_edited(loop: str, edits: tuple[SourceEdit, ...]) -> tuple[Any, int]:
    """Compile a loop after its source is edited, and return the loaded code as :func:`load_code` does.

    Args:
        loop: name of the loop.
        edits: edits of the loop's source.
    """
    from models.operations import loop_code

    source = loop_code.find_loop_file(loop).read_text(encoding="utf-8")
    return load_code(loop, compile_loop(loop, edit_source(source, edits)))


def _use_edited_loop(loop: str, edits: tuple[SourceEdit, ...], port: PortModules) -> list[tuple[Any, str, Callable]]:
    """Use the code of a loop that is compiled from its edited source."""
    from models.operations import loop_code

    original_address = loop_code._address

    def find_address(name: str) -> int:
        return _load_edited(loop, edits)[1] if name == loop else original_address(name)

    return [(loop_code, "_address", find_address)]


def _edit_loop(function: str, removed_text: str, added_text: str) -> SourceEdit:
    """Return the edit that replaces a text in a function of ``models.operations.loops``.

    Args:
        function: name of the function.
        removed_text: text to replace, which occurs once.
        added_text: text that replaces it.
    """
    return SourceEdit(f"models.operations.loops:{function}", removed_text, added_text)


def _faults_by_loop(name: str, fault: str, *loops: str, edits: tuple[SourceEdit, ...]) -> dict[str, Mutant]:
    """Return one fault for each of several loops, by name."""
    return {
        f"{name}-in-{loop.replace('_', '-')}": Mutant(
            f"{name}-in-{loop.replace('_', '-')}",
            f"{fault} in {loop}",
            f"loop:{loop}",
            partial(_use_edited_loop, loop, edits),
            dtype="float32",
        )
        for loop in loops
    }


#: Faults of the same loops that are smaller than the error that a step in float32 may have.
BELOW_THE_NOISE: dict[str, Mutant] = {
    **_faults_by_loop(
        "short-exp",
        "exp is two terms short",
        "attend_chunks",
        "softmax_rows",
        "cross_entropy_rows",
        "cross_entropy_rows_backward",
        edits=(_edit_loop("_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"),),
    ),
    **_faults_by_loop(
        "one-pass-variance",
        "the variance is the difference of two sums",
        "norm_rows",
        "norm_rows_backward",
        edits=(_edit_loop("_mean_and_scale", "(row[i] - mean) * (row[i] - mean)", "row[i] * row[i] - mean * mean"),),
    ),
    **_faults_by_loop(
        "float32-sum",
        "columns are added up in float32",
        "cross_entropy_rows",
        edits=(
            _edit_loop("cross_entropy_rows", "range(0, width, BLOCK_COLUMNS)", "range(0, width, width)"),
            _edit_loop("cross_entropy_rows", "min(width, begin + BLOCK_COLUMNS)", "width"),
        ),
    ),
    **_faults_by_loop(
        "float32-stream",
        "a residual stream is added up in float32",
        "add_on_grid",
        edits=(_edit_loop("add_on_grid", "total = exact[i]", "total = np.float64(np.float32(exact[i]))"),),
    ),
}


def faults_below_noise(*loops: str) -> tuple[Mutant, ...]:
    """Return the faults of :data:`BELOW_THE_NOISE` that are in these loops."""
    return tuple(mutant for mutant in BELOW_THE_NOISE.values() if mutant.culprit.partition(":")[2] in loops)


#: Faults of AdamW's loop, which a float32 update shows.
OF_ADAMW = tuple(
    Mutant(f"float32-adamw-{name}", fault, culprit, partial(_use_edited_loop, "adamw", (edit,)), dtype="float32")
    for name, fault, culprit, edit in (
        ("unclipped", "AdamW's loop does not clip", "updated:", _edit_loop("adamw", "factor * grad[i]", "grad[i]")),
        (
            "always-first",
            "AdamW's loop takes each step for the first",
            "#2",
            _edit_loop("adamw", "[0] *= beta2", "[0] *= beta2 / beta2"),
        ),
        (
            "no-decay",
            "AdamW's loop does not decay",
            "updated:",
            _edit_loop("adamw", "decay * weight[i] + step", "step"),
        ),
    )
)

#: Faults of :data:`BELOW_THE_NOISE` in loops that every family runs.
SHARED_LOOPS = faults_below_noise(
    "cross_entropy_rows", "cross_entropy_rows_backward", "norm_rows", "norm_rows_backward"
)
