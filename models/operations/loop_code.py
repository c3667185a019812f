"""Run, load and cache the machine code of the compiled loops (:mod:`models.operations.loops`).

A loop takes one pointer, to a list of 64-bit numbers: its length first, then the addresses of what it reads and
writes, sizes and scalars. It runs on the threads of Paddle's own matrix products (Intel's OpenMP, from Paddle's wheel):
a second thread team would wait for the cores on which the first one spins. Each thread takes its share of the length.

Numba takes 0.15 GB and half a second even with its compilations cached. So it is only imported to compile. Its code is
kept as an object file beside this module, or in the user's cache, and loaded by LLVM alone. Numba's own
``njit(parallel=True, cache=True)`` would make the raw addresses and this module, about 350 lines, unnecessary. They are
kept since it would cost each process that memory and time, and the second thread team.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import importlib
import importlib.metadata
import os
import struct
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
import paddle

from models.operations.kernels import PRODUCT, THREADS

#: Below this many numbers one thread runs alone: waking the others costs some microseconds (measured).
ALONE = 2**14

#: Where loops are defined.
LOOP_FILES = ("loops.py", "decoder_loops.py")

_LIBRARIES = Path(paddle.__file__).parent / "libs"
_openmp = ctypes.CDLL(str(_LIBRARIES / "libiomp5.so"))
_mkl = ctypes.CDLL(str(_LIBRARIES / "libmklml_intel.so"))
_parallel = _openmp.GOMP_parallel
_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_parallel.restype = None

#: Functions that Numba's code calls to raise or free; no loop does.
NEVER_CALLED = ("numba_gil_ensure", "numba_gil_release", "NRT_MemInfo_call_dtor")
_DIGEST = hashlib.sha256().digest_size


def run(loop: str, numbers: int, length: int, *given: int | float) -> None:
    """Run a loop.

    Args:
        loop: its name in one of :data:`LOOP_FILES`.
        numbers: their count in all.
        length: what the threads divide: the number of rows, or of numbers.
        given: addresses, sizes and scalars, in the order in which the loop takes them.
    """
    kinds = "".join("d" if isinstance(value, float) else "q" for value in given)
    packed = ctypes.create_string_buffer(struct.pack("q" + kinds, length, *given))
    _parallel(_address(loop), packed, 1 if numbers < ALONE else 0, 0)


@functools.cache
def _address(loop: str) -> int:
    """Address of the loop's code."""
    engine = _engine()
    code = _kept(loop)
    if code is None:
        code = _object_file(loop, *_assembly(loop))
        _keep(loop, code)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    return engine.get_function_address(loop)


def _assembly(loop: str) -> tuple[str, str]:
    from models.operations import loops

    module = importlib.import_module(f"{__package__}.{file_of(loop).stem}")
    return loops.compiled(getattr(module, loop))


def file_of(loop: str) -> Path:
    """Return the file that defines a loop."""
    files = [Path(__file__).with_name(name) for name in LOOP_FILES]
    return next(file for file in files if f"\ndef {loop}(given):" in file.read_text(encoding="utf-8"))


@functools.cache
def _machine() -> llvm.TargetMachine:
    """This processor, with all features."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, codemodel="jitdefault", jit=True
    )


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    """Engine that holds the loops' code for the process's life. Numba also sees the symbols added here."""
    for name, ours in THREADS.items():
        llvm.add_symbol(ours, ctypes.cast(getattr(_openmp, name), ctypes.c_void_p).value)
    llvm.add_symbol(PRODUCT, ctypes.cast(_mkl.cblas_sgemm, ctypes.c_void_p).value)
    for name in NEVER_CALLED:
        if not llvm.address_of_symbol(name):  # Numba has not brought its own
            llvm.add_symbol(name, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


def _object_file(loop: str, assembly: str, symbol: str) -> bytes:
    """Compile LLVM's assembly to machine code; rename the function ``symbol`` to the loop's name."""
    module = llvm.parse_assembly(assembly)
    module.get_function(symbol).name = loop
    return _machine().emit_object(module)


# -- on disk


def _kept(loop: str) -> bytes | None:
    """Return the loop's object file from :func:`_keep`; None if there is no intact one."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            stored = (folder / _file_name(loop)).read_bytes()
            if hashlib.sha256(stored[_DIGEST:]).digest() == stored[:_DIGEST]:
                return stored[_DIGEST:]
    return None


def _keep(loop: str, code: bytes) -> None:
    """Write the object file, after its digest, to the first writable folder, if there is one."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=folder, prefix=f"{loop}-")
            try:
                with os.fdopen(handle, "wb") as file:
                    os.fchmod(handle, 0o644)  # as Python's own compiled files are
                    file.write(hashlib.sha256(code).digest() + code)
                os.replace(name, folder / _file_name(loop))  # atomic: other processes read it
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
    """Hash of all that decides the machine code: the loops' sources, the compiler, the processor."""
    sources = (*LOOP_FILES, "kernels.py", Path(__file__).name)
    made_of = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in sources]
    made_of += [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    made_of += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    return hashlib.sha256("\0".join(made_of).encode()).hexdigest()
