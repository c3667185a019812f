"""The machine code of the compiled loops (:mod:`models.operations.loops`): run, loaded, and kept on disk.

A loop is called with one pointer, to a list of 64-bit numbers: its length first, then the addresses of what it reads
and writes, sizes and scalars. The team of threads is that of Paddle's own matrix products (Intel's OpenMP, beside
Paddle in its wheel): a second team would wait for the cores on which the first one spins. Each thread takes its share
of the length.

Numba takes 0.15 GB and half a second even where it has kept what it compiled. So it is only imported to compile; what
it made is kept as an object file beside this module, or in the user's cache, and loaded by LLVM alone.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib.metadata
import os
import struct
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
import paddle

from models.operations.kernels import THREADS

#: Fewer numbers than this are not worth waking the other threads for (measured: some microseconds).
ALONE = 2**14

_openmp = ctypes.CDLL(str(Path(paddle.__file__).parent / "libs" / "libiomp5.so"))
_parallel = _openmp.GOMP_parallel
_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_parallel.restype = None

#: What Numba's code calls when it raises or frees, which no loop does.
NEVER_CALLED = ("numba_gil_ensure", "numba_gil_release", "NRT_MemInfo_call_dtor")
_DIGEST = hashlib.sha256().digest_size


def run(loop: str, numbers: int, length: int, *given: int | float) -> None:
    """Run a loop.

    Args:
        loop: its name in :mod:`models.operations.loops`.
        numbers: that are worked on in all.
        length: what the threads share among them: rows, or the numbers themselves.
        given: addresses, sizes and scalars, in the order in which the loop takes them.
    """
    kinds = "".join("d" if isinstance(value, float) else "q" for value in given)
    packed = ctypes.create_string_buffer(struct.pack("q" + kinds, length, *given))
    _parallel(_address(loop), packed, 1 if numbers < ALONE else 0, 0)


@functools.cache
def _address(loop: str) -> int:
    """Where the loop's machine code lies."""
    engine = _engine()
    code = _kept(loop)
    if code is None:
        from models.operations import loops

        code = _object_file(loop, *loops.compiled(loop))
        _keep(loop, code)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(loop)


@functools.cache
def _machine() -> llvm.TargetMachine:
    """This processor, with all it can do."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, codemodel="jitdefault", jit=True
    )


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    """Holds the loops' code as long as the process lives. Numba, too, looks for the names that are told here."""
    for name, ours in THREADS.items():
        llvm.add_symbol(ours, ctypes.cast(getattr(_openmp, name), ctypes.c_void_p).value)
    for name in NEVER_CALLED:
        if not llvm.address_of_symbol(name):  # Numba has not brought its own
            llvm.add_symbol(name, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


def _object_file(loop: str, assembly: str, symbol: str) -> bytes:
    """LLVM's assembly as machine code in which the function called ``symbol`` has the loop's name."""
    module = llvm.parse_assembly(assembly)
    module.get_function(symbol).name = loop
    return _machine().emit_object(module)


# -- on disk


def _kept(loop: str) -> bytes | None:
    """The loop's object file as :func:`_keep` left it, None where there is none that is whole."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            stored = (folder / _file_name(loop)).read_bytes()
            if hashlib.sha256(stored[_DIGEST:]).digest() == stored[:_DIGEST]:
                return stored[_DIGEST:]
    return None


def _keep(loop: str, code: bytes) -> None:
    """Leave the object file, behind its digest, in the first folder that can be written; in none where none can."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix=f"{loop}-")
            try:
                with os.fdopen(handle, "wb") as file:
                    os.fchmod(handle, 0o644)  # as Python's own compiled files are
                    file.write(hashlib.sha256(code).digest() + code)
                os.replace(name, folder / _file_name(loop))  # whole or not at all: other processes read it
            except OSError:
                os.unlink(name)
                raise
            return


def _folders() -> list[Path]:
    found = [Path(__file__).parent / "__pycache__"]
    with contextlib.suppress(RuntimeError):  # nobody's home
        found.append(Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "toolkit" / "loops")
    return found


def _file_name(loop: str) -> str:
    return f"{loop}-{_key()[:16]}.o"


@functools.cache
def _key() -> str:
    """Of all that decides the machine code: the loops, what they take from here, the compiler, the processor."""
    sources = ("loops.py", "kernels.py", Path(__file__).name)
    made_of = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in sources]
    made_of += [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    made_of += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()
