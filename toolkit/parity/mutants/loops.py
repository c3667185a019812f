"""Faults of the compiled loops of training (:mod:`models.operations.loops`): loops that keep too few digits. Only
float32 shows them, and each must be named by what its loop computes. Not even a step in float32 shows those of
:data:`BELOW_THE_NOISE`."""

from __future__ import annotations

import functools
from collections.abc import Callable
from functools import partial
from types import ModuleType
from typing import Any

from toolkit.parity.mutants.edits import SourceEdit, edit_source
from toolkit.parity.mutants.fault import Modules, Mutant

#: Multiplier that splits off 12 bits of a float32 number: what is lost is 1e-4 of the number.
SPLITTER = 2.0**12 + 1


def _coarse(port: Modules, value: Any) -> Any:
    """Keep 12 bits instead of 24 (Dekker 1971); leave what is no float32."""
    if isinstance(value, tuple):
        return tuple(_coarse(port, one) for one in value)
    if value is None or value.dtype != port.paddle.float32:
        return value
    large = value * SPLITTER
    return large - (large - value)


def _of_loop(name: str, port: Modules) -> list[tuple[Any, str, Callable]]:
    loop = getattr(port.compiled, name)
    return [(port.compiled, name, lambda *given: _coarse(port, loop(*given)))]


def _faults(**functions: str) -> tuple[Mutant, ...]:
    """Return faults of functions of :mod:`models.operations.compiled`, given what each computes."""
    return tuple(
        Mutant(
            f"float32-{name.strip('_').replace('_', '-')}",
            f"{what} keeps 12 bits",
            "",
            partial(_of_loop, name),
            dtype="float32",
        )
        for name, what in functions.items()
    )


#: Faults by compiled loop, of :data:`models.operations.compiled.LOOPS`.
LOOPS: dict[str, tuple[Mutant, ...]] = {
    "attention": _faults(
        attend_chunks="attention of chunks", attend_chunks_backward="the backward of attention of chunks"
    ),
    "softmax": _faults(softmax="attention's softmax", softmax_backward="the backward of attention's softmax"),
    "cross_entropy": _faults(
        cross_entropy="the cross entropy", cross_entropy_backward="the backward of the cross entropy"
    ),
    "layer_norm": _faults(layer_norm="layer norm", layer_norm_backward="the backward of layer norm"),
    "keys": _faults(keys="LSH's keys", keys_backward="the backward of LSH's keys"),
    "dropout": _faults(keep="what dropout scales"),
    "bias": _faults(add_row_="a sum with a bias"),
    "axial_positions": _faults(
        scale_columns="the axial position table", scale_columns_backward="the gradient of the axial position table"
    ),
    "streams": _faults(add_on_grid="a residual stream as layers read it"),
}


def compile_loop(loop: str, source: str) -> bytes:
    """Return a loop's object file, compiled from this source of the file that defines it."""
    from models.operations import loop_code

    loop_code._engine()  # before Numba: both look for names that it tells
    from models.operations import loops

    file = loop_code.file_of(loop)
    module = ModuleType(f"models.operations.{file.stem}")
    exec(compile(source, str(file), "exec"), vars(module))
    return loop_code._object_file(loop, *loops.compiled(vars(module)[loop]))


def loaded(loop: str, code: bytes) -> tuple[Any, int]:
    """Load an object file, and return what holds its code, and its address."""
    import llvmlite.binding as llvm

    from models.operations import loop_code

    loop_code._engine()
    engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), loop_code._machine.__wrapped__())
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine, engine.get_function_address(loop)


@functools.cache
def _loaded(loop: str, edits: tuple[SourceEdit, ...]) -> tuple[Any, int]:
    from models.operations import loop_code

    source = loop_code.file_of(loop).read_text(encoding="utf-8")
    return loaded(loop, compile_loop(loop, edit_source(source, edits)))


def _edited(loop: str, edits: tuple[SourceEdit, ...], port: Modules) -> list[tuple[Any, str, Callable]]:
    """Use the loop's code with these edits instead of that compiled from the source as it is."""
    from models.operations import loop_code

    plain = loop_code._address
    return [(loop_code, "_address", lambda name: _loaded(loop, edits)[1] if name == loop else plain(name))]


def _loop_edit(function: str, removed: str, added: str) -> SourceEdit:
    return SourceEdit(f"models.operations.loops:{function}", removed, added)


def _below(name: str, fault: str, *loops: str, edits: tuple[SourceEdit, ...]) -> dict[str, Mutant]:
    """Return a fault of several loops, under a name for each."""
    return {
        f"{name}-in-{loop.replace('_', '-')}": Mutant(
            f"{name}-in-{loop.replace('_', '-')}",
            f"{fault} in {loop}",
            f"loop:{loop}",
            partial(_edited, loop, edits),
            dtype="float32",
        )
        for loop in loops
    }


#: Faults of the same loops, smaller than the error that a step in float32 may have: only the loop itself shows them.
BELOW_THE_NOISE: dict[str, Mutant] = {
    **_below(
        "short-exp",
        "exp is two terms short",
        "attend_chunks",
        "softmax_rows",
        "cross_entropy_rows",
        "cross_entropy_rows_backward",
        edits=(_loop_edit("_exp", "rest * (S5 + rest * (S6 + rest * S7))", "rest * S5"),),
    ),
    **_below(
        "one-pass-variance",
        "the variance is the difference of two sums",
        "norm_rows",
        "norm_rows_backward",
        edits=(_loop_edit("_mean_and_scale", "(row[i] - mean) * (row[i] - mean)", "row[i] * row[i] - mean * mean"),),
    ),
    **_below(
        "float32-sum",
        "columns are added up in float32",
        "cross_entropy_rows",
        edits=(
            _loop_edit("cross_entropy_rows", "range(0, width, BLOCK_COLUMNS)", "range(0, width, width)"),
            _loop_edit("cross_entropy_rows", "min(width, begin + BLOCK_COLUMNS)", "width"),
        ),
    ),
    **_below(
        "float32-stream",
        "a residual stream is added up in float32",
        "add_on_grid",
        edits=(_loop_edit("add_on_grid", "total = exact[i]", "total = np.float64(np.float32(exact[i]))"),),
    ),
}


def below_the_noise(*loops: str) -> tuple[Mutant, ...]:
    """Return those of these loops."""
    return tuple(mutant for mutant in BELOW_THE_NOISE.values() if mutant.expected.partition(":")[2] in loops)


#: Faults of AdamW's loop, which updates in float32 show.
OF_ADAMW = tuple(
    Mutant(f"float32-adamw-{name}", fault, expected, partial(_edited, "adamw", (edit,)), dtype="float32")
    for name, fault, expected, edit in (
        ("unclipped", "AdamW's loop does not clip", "updated:", _loop_edit("adamw", "factor * grad[i]", "grad[i]")),
        (
            "always-first",
            "AdamW's loop takes each step for the first",
            "#2",
            _loop_edit("adamw", "[0] *= beta2", "[0] *= beta2 / beta2"),
        ),
        (
            "no-decay",
            "AdamW's loop does not decay",
            "updated:",
            _loop_edit("adamw", "decay * weight[i] + step", "step"),
        ),
    )
)

#: Those of loops that every family runs.
SHARED_LOOPS = below_the_noise("cross_entropy_rows", "cross_entropy_rows_backward", "norm_rows", "norm_rows_backward")
