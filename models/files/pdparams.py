"""Reading Paddle's ``.pdparams``: pickles of named NumPy arrays, read without running anything that is in them.

``paddle.save(model.state_dict(), ...)`` writes a pickle of a dict: name -> array, and beside the arrays the parameters'
other names. A pickle is a program. Two lists say what this one may do: the operations (:data:`OPERATIONS`) and the
callables (:data:`CALLABLES`), which are stand-ins of this module, never NumPy's own. A first pass checks the
operations and every length without running anything. So no file makes this process reserve more memory than the
file is long, or call what it names.
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

from models.files.plain import UnreadableFile, plain_file

#: Keys that Paddle writes beside the arrays: the parameters' names in its runtime, and the parts of large arrays.
OTHER_NAMES, PARTS = "StructuredToParameterName@@", "UnpackBigParamInfor@@"

#: Operations in Paddle's pickles of protocols 2, 3 and 4.
OPERATIONS = frozenset({
    "PROTO", "FRAME", "STOP", "MARK", "EMPTY_DICT", "SETITEM", "SETITEMS", "EMPTY_LIST", "APPEND", "APPENDS",
    "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "NONE", "NEWTRUE", "NEWFALSE", "BININT", "BININT1", "BININT2",
    "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8", "BINBYTES", "SHORT_BINBYTES", "BINBYTES8", "GLOBAL",
    "STACK_GLOBAL", "REDUCE", "BUILD", "MEMOIZE", "BINPUT", "LONG_BINPUT", "BINGET", "LONG_BINGET",
})  # fmt: skip

#: Type codes of the arrays that are read: numbers, no pointers. Paddle stores bfloat16 as ``u2``.
TYPES = frozenset(("b1", "i1", "i2", "i4", "i8", "u1", "u2", "u4", "u8", "f2", "f4", "f8"))


class _Refused(Exception):
    """A request of the file is refused. The message follows the file's name."""


def read_pdparams(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Return name -> array of a ``.pdparams`` file, as stored (Paddle's names and layout; float, integer or bool).

    The arrays share the memory of the data read and must not be written to.

    Raises:
        UnreadableFile: no pickle, a pickle of other things than named arrays, one that asks for code (none runs), or
            a truncated one.
        OSError: it cannot be opened.
    """
    with plain_file(path).open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
        try:
            _check_operations(content)
            content.seek(0)
            found = _Unpickler(content).load()  # a map has read and readline as a file does
            return _arrays(found)
        except _Refused as error:
            raise UnreadableFile(path, str(error)) from None
        except MemoryError:
            raise UnreadableFile(path, "holds more than the memory of this machine") from None
        except Exception as error:  # a pickle can be wrong in any way
            reason = f"{type(error).__name__}: {error}"
            raise UnreadableFile(path, f"cannot be read as .pdparams ({reason:.120}); it may be cut short") from None


# -- the first pass: nothing is built ---------------------------------------------------------------------------------


class _Bounded(io.RawIOBase):
    """A file that refuses reads past its end: a length in a pickle cannot be trusted."""

    def __init__(self, content: mmap.mmap) -> None:
        self.content = content

    def read(self, size: int = -1) -> bytes:
        if size > len(self.content) - self.content.tell():
            raise _Refused("ends in the middle of a value; it may be cut short")
        return self.content.read(size)

    def readline(self, size: int | None = -1) -> bytes:
        return self.content.readline()

    def tell(self) -> int:
        return self.content.tell()


def _check_operations(content: mmap.mmap) -> None:
    """Check the pickle's operations without running any. Raises _Refused for one that Paddle does not write, or a place
    in the memo beyond the file's length."""
    try:
        for operation, argument, position in pickletools.genops(cast(IO[bytes], _Bounded(content))):
            if operation.name not in OPERATIONS:
                raise _Refused(f"is no pickle of named arrays: {operation.name} at byte {position}; nothing of it ran")
            if operation.name == "LONG_BINPUT" and cast(int, argument) > cast(int, position):
                raise _Refused(f"is no pickle of named arrays: memo {argument} at byte {position}; nothing of it ran")
    except ValueError as error:
        raise _Refused(f"is no pickle as paddle.save writes it, or is cut short ({error!s:.80})") from None


# -- the second pass: the stand-ins -----------------------------------------------------------------------------------


class _Callable:
    """A function that a pickle may name. A pickle cannot set its attributes."""

    __slots__ = ("_make",)
    _make: Callable[..., Any]

    def __init__(self, make: Callable[..., Any]) -> None:
        object.__setattr__(self, "_make", make)

    def __call__(self, *arguments: Any) -> Any:
        return self._make(*arguments)

    def __setattr__(self, name: str, value: Any) -> None:
        raise _Refused(f"sets {name} of a function; nothing of it was run")

    def __setstate__(self, state: Any) -> None:
        raise _Refused("changes a function; nothing of it was run")


class _Type:
    """Stands for ``numpy.dtype``: a code of :data:`TYPES`, then its byte order."""

    def __init__(self, code: Any, *_: Any) -> None:
        if not isinstance(code, str) or code not in TYPES:
            kind = code if isinstance(code, str) else type(code).__name__
            raise _Refused(f"holds an array of type {kind!r:.40}; numbers are read and nothing else")
        self.code, self.order = code, "|"

    def __setstate__(self, state: Any) -> None:
        order, rest = state[1], state[2:5]
        if order not in ("<", ">", "|", "=") or any(part is not None for part in rest):
            raise _Refused(f"holds an array of a type with parts ({self.code}); numbers are read and nothing else")
        self.order = order

    def resolved(self) -> np.dtype:
        return np.dtype(self.order + self.code)


class _Array:
    """Stands for ``numpy.ndarray``: empty until its state is set, then a view of the bytes."""

    def __init__(self) -> None:
        self.value: np.ndarray | None = None

    def __setstate__(self, state: Any) -> None:
        _, shape, kind, is_fortran, content = state
        if not isinstance(kind, _Type) or not isinstance(content, bytes):
            raise _Refused("holds an array of something else than numbers")
        if not isinstance(shape, tuple) or not all(type(size) is int and size >= 0 for size in shape):
            raise _Refused("holds an array without a proper shape")
        dtype = kind.resolved()
        if len(shape) > 32 or math.prod(shape) * dtype.itemsize != len(content):
            raise _Refused(f"holds an array of the shape {shape!r:.60} and {len(content)} bytes, which do not fit")
        self.value = np.frombuffer(content, dtype).reshape(shape, order="F" if is_fortran is True else "C")


def _reconstruct(kind: Any, shape: Any, code: Any) -> _Array:
    if kind is not NDARRAY:
        raise _Refused("asks for an array of a kind that Paddle does not write")
    return _Array()


def _ordered(*content: Any) -> dict:
    if content:
        raise _Refused("makes an OrderedDict of something")
    return {}


def _encode(text: Any, encoding: Any) -> bytes:
    """Make bytes, as in protocol 2."""
    if not isinstance(text, str) or encoding != "latin1":
        raise _Refused("encodes something else than bytes")
    return text.encode("latin-1")


def _no_call(*_: Any) -> Any:
    raise _Refused("makes an array by itself; Paddle does not")


NDARRAY = _Callable(_no_call)

#: Names allowed in a pickle, and their stand-ins here.
CALLABLES: Mapping[str, _Callable] = {
    "numpy.core.multiarray._reconstruct": _Callable(_reconstruct),
    "numpy._core.multiarray._reconstruct": _Callable(_reconstruct),
    "numpy.ndarray": NDARRAY,
    "numpy.dtype": _Callable(_Type),
    "collections.OrderedDict": _Callable(_ordered),
    "_codecs.encode": _Callable(_encode),
}


class _Unpickler(pickle.Unpickler):
    """Knows :data:`CALLABLES` and imports nothing."""

    def find_class(self, module: str, name: str) -> Any:
        known = CALLABLES.get(f"{module}.{name}")
        if known is None:
            wanted = f"{module}.{name}".encode("ascii", "backslashreplace").decode()
            raise _Refused(f"asks for {wanted:.80}, which is code; nothing of it was run")
        return known

    def persistent_load(self, pid: Any) -> Any:
        raise _Refused("refers to something outside of it")


# -- what was read ----------------------------------------------------------------------------------------------------


def _arrays(found: Any) -> dict[str, np.ndarray]:
    """Return the arrays by name; join the large ones, which protocols 2 and 3 hold in parts."""
    if not isinstance(found, dict):
        raise _Refused("holds no tensors by name (a state_dict)")
    arrays: dict[str, np.ndarray] = {}
    for name, value in found.items():
        if name in (OTHER_NAMES, PARTS):
            continue
        if not isinstance(name, str) or not isinstance(value, _Array) or value.value is None:
            what = f"{name!r:.60}" if isinstance(name, str) else f"a name of type {type(name).__name__}"
            raise _Refused(f"holds {what}, which is no array; save the model's state_dict() alone")
        arrays[name] = value.value
    for name, parts in (found.get(PARTS) or {}).items():
        pieces = [arrays.pop(part) for part in parts["slices"]]
        arrays[name] = np.concatenate(pieces).reshape(parts["OriginShape"])
    if not arrays:
        raise _Refused("holds no tensors")
    return arrays
