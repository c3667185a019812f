"""Read Paddle's ``.pdparams``, pickles of named NumPy arrays, without running any code in them.

``paddle.save(model.state_dict(), ...)`` writes a pickle of a dict with the arrays by name, and with other names of the
parameters. A pickle is a program. Two lists limit it: its operations (:data:`OPERATIONS`), and the callables that it
may name (:data:`CALLABLES`), which are stand-ins of this module and not NumPy's. A first pass checks the operations and
every length without running anything. Therefore no file can call other functions, or let this process reserve more
memory than the size of the file.
"""

from __future__ import annotations

import io
import math
import mmap
import os
import pickle
import pickletools
from collections.abc import Callable, Mapping
from typing import IO, Any, cast

import numpy as np

from models.files.plain import UnreadableFileError, plain_file

#: Keys that Paddle writes next to the arrays: runtime names of the parameters, and the parts of large arrays.
RUNTIME_NAMES, PARTS = "StructuredToParameterName@@", "UnpackBigParamInfor@@"

#: Operations in Paddle's pickles of protocols 2, 3 and 4.
OPERATIONS = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "BUILD", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
})  # fmt: skip

#: Type codes of the arrays that are read, only numbers and no pointers. Paddle stores bfloat16 as ``u2``.
TYPES = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))


class _RefusedError(Exception):
    """The file has something that is not allowed. The message is a predicate that follows the file's name."""


def read_pdparams(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return the arrays of a ``.pdparams`` file by name, in Paddle's names, layout and dtypes.

    The arrays share the memory of the file's content and must not be changed.

    Raises:
        UnreadableFileError: the file is not a pickle of named arrays, names code (which is not run), or is truncated.
        OSError: the file cannot be opened.
    """
    with plain_file(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            _check_operations(content)
            content.seek(0)
            return _collect_arrays(_Unpickler(content).load())  # a memory map has read and readline, like a file
        except _RefusedError as error:
            raise UnreadableFileError(path, str(error)) from None
        except MemoryError:
            raise UnreadableFileError(path, "holds more than the memory of this machine") from None
        except Exception as error:  # an invalid pickle can raise any exception
            reason = f"{type(error).__name__}: {error}"
            raise UnreadableFileError(
                path, f"cannot be read as .pdparams ({reason:.120}); it may be cut short"
            ) from None


# -- the first pass, which creates no objects -------------------------------------------------------------------------


class _CheckedFile(io.RawIOBase):
    """A file that refuses to read beyond its end, since a length in a pickle may be wrong."""

    def __init__(self, pickle_file: mmap.mmap) -> None:
        self.content = pickle_file

    def read(self, size: int = -1) -> bytes:
        """Return the next ``size`` bytes, or all remaining bytes for -1; reject a size beyond the end of the file."""
        if size > len(self.content) - self.content.tell():
            raise _RefusedError("ends in the middle of a value; it may be cut short")
        return self.content.read(size)

    def readline(self, size: int | None = -1) -> bytes:
        """Return the bytes up to and including the next line break. ``size`` is not used."""
        return self.content.readline()

    def tell(self) -> int:
        """Return the current position in bytes."""
        return self.content.tell()


def _check_operations(pickle_file: mmap.mmap) -> None:
    """Check the operations of a pickle without running any.

    Raises:
        _RefusedError: Paddle does not write such an operation, or an index of the memo is beyond the file's length.
    """
    try:
        for operation, argument, position in pickletools.genops(cast(IO[bytes], _CheckedFile(pickle_file))):
            if operation.name not in OPERATIONS:
                raise _RefusedError(
                    f"is no pickle of named arrays: {operation.name} at byte {position}; nothing of it ran"
                )
            if operation.name == "LONG_BINPUT" and cast(int, argument) > cast(int, position):
                raise _RefusedError(
                    f"is no pickle of named arrays: memo {argument} at byte {position}; nothing of it ran"
                )
    except ValueError as error:
        raise _RefusedError(f"is no pickle as paddle.save writes it, or is cut short ({error!s:.80})") from None


# -- the second pass, with stand-ins for callables --------------------------------------------------------------------


class _Callable:
    """A function that a pickle may name and call, but not change."""

    __slots__ = ("_function",)
    _function: Callable[..., Any]

    def __init__(self, function: Callable[..., Any]) -> None:
        object.__setattr__(self, "_function", function)

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _RefusedError(f"sets {name} of a function; nothing of it was run")

    def __setstate__(self, state: Any) -> None:
        raise _RefusedError("changes a function; nothing of it was run")


class _Type:
    """Stand-in for ``numpy.dtype``: a code of :data:`TYPES` and a byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code not in TYPES:
            type_name = code if isinstance(code, str) else type(code).__name__
            raise _RefusedError(f"holds an array of type {type_name!r:.40}; numbers are read and nothing else")
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        order, subtype_state = state[1], state[2:5]
        if order not in ("<", ">", "|", "=") or any(item is not None for item in subtype_state):
            raise _RefusedError(f"holds an array of a type with parts ({self.code}); numbers are read and nothing else")
        self.order = order

    def to_dtype(self) -> np.dtype:
        """Return the NumPy dtype."""
        return np.dtype(self.order + self.code)


class _Array:
    """Stand-in for ``numpy.ndarray``, empty until its state is set and then a view of the file's bytes."""

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, array_type, is_fortran, content = state
        if not isinstance(array_type, _Type) or not isinstance(content, bytes):
            raise _RefusedError("holds an array of something else than numbers")
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise _RefusedError("holds an array without a proper shape")
        dtype = array_type.to_dtype()
        if len(shape) > 32 or math.prod(shape) * dtype.itemsize != len(content):
            raise _RefusedError(f"holds an array of the shape {shape!r:.60} and {len(content)} bytes, which do not fit")
        self.value = np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran is True else "C")


def _reconstruct(array_type: Any, shape: Any, code: Any) -> _Array:
    """Return an empty array, as ``numpy.core.multiarray._reconstruct``.

    Args:
        array_type: type of the array, which must be the stand-in of ``numpy.ndarray``.
        shape: placeholder shape, which is ignored; the array's state has the shape.
        code: placeholder type code, which is ignored.
    """
    if array_type is not NDARRAY:
        raise _RefusedError("asks for an array of a kind that Paddle does not write")
    return _Array()


def _make_ordered_dict(*items: Any) -> dict:
    """Return an empty dict, as ``collections.OrderedDict`` without arguments."""
    if items:
        raise _RefusedError("makes an OrderedDict of something")
    return {}


def _encode_bytes(text: Any, encoding: Any) -> bytes:
    """Return bytes from their text form in protocol 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _RefusedError("encodes something else than bytes")
    return text.encode("latin-1")


def _refuse_call(*_: Any) -> Any:
    """Raise the error for a direct call of ``numpy.ndarray``."""
    raise _RefusedError("makes an array by itself; Paddle does not")


NDARRAY = _Callable(_refuse_call)

#: Stand-ins of the callables that a pickle may name.
CALLABLES: Mapping[str, _Callable] = {
    "numpy.core.multiarray._reconstruct": _Callable(_reconstruct),
    "numpy._core.multiarray._reconstruct": _Callable(_reconstruct),
    "numpy.ndarray": NDARRAY,
    "numpy.dtype": _Callable(_Type),
    "collections.OrderedDict": _Callable(_make_ordered_dict),
    "_codecs.encode": _Callable(_encode_bytes),
}


class _Unpickler(pickle.Unpickler):
    """An unpickler that only finds :data:`CALLABLES` and imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        """Return the harmless substitute of a class or function that the pickle names.

        Args:
            module: name of the module that the pickle would import.
            name: name of the class or function in the module.

        Raises:
            _RefusedError: no substitute exists, so nothing may be imported or run.
        """
        stand_in = CALLABLES.get(f"{module}.{name}")
        if stand_in is None:
            full_name = f"{module}.{name}".encode("ascii", "backslashreplace").decode()
            raise _RefusedError(f"asks for {full_name:.80}, which is code; nothing of it was run")
        return stand_in

    def persistent_load(self, pid: Any) -> Any:
        """Reject a pickle that refers to an object outside of the file."""
        raise _RefusedError("refers to something outside of it")


# -- the content of the pickle ----------------------------------------------------------------------------------------


def _collect_arrays(state_dict: Any) -> dict[str, np.ndarray]:
    """Return the arrays of an unpickled state dict by name. Large arrays are joined from their parts."""
    if not isinstance(state_dict, dict):
        raise _RefusedError("holds no tensors by name (a state_dict)")
    arrays: dict[str, np.ndarray] = {}
    for name, value in state_dict.items():
        if name in (RUNTIME_NAMES, PARTS):
            continue
        if not isinstance(name, str) or not isinstance(value, _Array) or value.value is None:
            item = f"{name!r:.60}" if isinstance(name, str) else f"a name of type {type(name).__name__}"
            raise _RefusedError(f"holds {item}, which is no array; save the model's state_dict() alone")
        arrays[name] = value.value
    for name, parts in (state_dict.get(PARTS) or {}).items():
        slices = [arrays.pop(part) for part in parts["slices"]]
        arrays[name] = np.concatenate(slices).reshape(parts["OriginShape"])
    if not arrays:
        raise _RefusedError("holds no tensors")
    return arrays
