"""Run, load and cache the machine code of the compiled loops (:mod:`models.operations.loops`).

A loop receives one pointer, to its packed arguments (:mod:`models.operations.loop_arguments`). It runs on the threads
of Paddle's own matrix products (Intel's OpenMP, from Paddle's wheel): a second team of threads would wait for the cores
that the first team uses. Each thread computes a share.

Numba takes 0.15 GB and half a second even if its compilations are cached. So it is only imported to compile. The
machine code is stored as an object file next to this module, or in the user's cache, and loaded by LLVM alone. A file
that another user may have written is not loaded: it could do anything. With Numba's own ``njit(parallel=True,
cache=True)``, the packed arguments and this module would be unnecessary. They exist because it would cost each process
that memory and time, and the second team of threads.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import hashlib
import importlib
import importlib.metadata
import os
import stat
import tempfile
from pathlib import Path

import llvmlite.binding as llvm
import paddle

from models.operations.kernels import PRODUCT, THREADS

#: Minimum work for several threads; a smaller loop runs on one, because waking the others takes some microseconds.
MIN_PARALLEL_WORK = 2**14

#: Files that define the loops.
LOOP_FILES = ("loops.py", "decoder_loops.py")

_LIBRARIES = Path(paddle.__file__).parent / "libs"
_openmp = ctypes.CDLL(str(_LIBRARIES / "libiomp5.so"))
_mkl = ctypes.CDLL(str(_LIBRARIES / "libmklml_intel.so"))
_parallel = _openmp.GOMP_parallel
_parallel.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint, ctypes.c_uint]
_parallel.restype = None

#: Functions that Numba's code would call to raise an exception or to free an array; no loop calls them.
NEVER_CALLED = ["numba_gil_ensure", "numba_gil_release", "numba_do_raise", "numba_unpickle", "NRT_Free"]
NEVER_CALLED += ["numba_runtime_build_excinfo_struct", "NRT_MemInfo_call_dtor"]
_DIGEST = hashlib.sha256().digest_size
#: Name of Python's own folder of compiled files, which all users may read.
PYTHON_CACHE = "__pycache__"
#: Maximum number of bytes that are read of an object file; the loops' object files have some thousands.
MAX_BYTES = 2**24


def run_loop(loop: str, packed_arguments: bytes, work: int) -> None:
    """Run a loop.

    Args:
        loop: name of a function of a file of :data:`LOOP_FILES`.
        packed_arguments: arguments of the loop, from :meth:`models.operations.loop_arguments.Fields.pack`.
        work: approximate number of numbers that it computes.
    """
    buffer = ctypes.create_string_buffer(packed_arguments)
    _parallel(_address(loop), buffer, 1 if work < MIN_PARALLEL_WORK else 0, 0)


#: Names of the loops whose machine code this process has loaded, since it has run them.
loaded_loops: set[str] = set()


@functools.cache
def _address(loop: str) -> int:
    """Return the address of a loop's machine code, which is compiled unless it is stored.

    Args:
        loop: name of the loop.
    """
    engine = _engine()
    code = _read_code(loop)
    if code is None:
        from models.operations import loops  # imports Numba

        module = importlib.import_module(f"{__package__}.{find_loop_file(loop).stem}")
        code = _object_file(loop, *loops.emit_assembly(getattr(module, loop)))
        _store_code(loop, code)
    engine.add_object_file(llvm.ObjectFileRef.from_data(code))
    engine.finalize_object()
    loaded_loops.add(loop)
    return engine.get_function_address(loop)


def find_loop_file(loop: str) -> Path:
    """Return the file that defines a loop.

    Args:
        loop: name of the loop.
    """
    files = [Path(__file__).with_name(name) for name in LOOP_FILES]
    return next(file for file in files if f"\ndef {loop}(" in file.read_text(encoding="utf-8"))


@functools.cache
def _machine() -> llvm.TargetMachine:
    """Return a compiler for this processor, with all its features."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    features = llvm.get_host_cpu_features().flatten()
    target = llvm.Target.from_default_triple()
    return target.create_target_machine(
        cpu=llvm.get_host_cpu_name(), features=features, opt=3, codemodel="jitdefault", jit=True
    )


@functools.cache
def _engine() -> llvm.ExecutionEngine:
    """Return the engine that holds the code of the loops; Numba also sees the symbols that are added here."""
    for name, symbol in THREADS.items():
        llvm.add_symbol(symbol, ctypes.cast(getattr(_openmp, name), ctypes.c_void_p).value)
    llvm.add_symbol(PRODUCT, ctypes.cast(_mkl.cblas_sgemm, ctypes.c_void_p).value)
    for name in NEVER_CALLED:
        if not llvm.address_of_symbol(name):  # Numba has not defined it
            llvm.add_symbol(name, ctypes.cast(ctypes.CDLL(None).abort, ctypes.c_void_p).value)
    return llvm.create_mcjit_compiler(llvm.parse_assembly(""), _machine())


def _object_file(loop: str, assembly: str, symbol: str) -> bytes:
    """Compile LLVM assembly to machine code, and rename its function ``symbol`` to the name of the loop.

    Args:
        loop: name of the loop, a key of :data:`models.operations.loop_arguments.DECLARED`.
        assembly: LLVM assembly of the loop's module, with its helper functions.
        symbol: name of the loop's function in the assembly.
    """
    module = llvm.parse_assembly(assembly)
    for function in module.functions:
        if not function.is_declaration and function.name != symbol:
            function.linkage = "internal"  # other loops may have helpers of the same names
    module.get_function(symbol).name = loop
    return _machine().emit_object(module)


# -- on disk


def _read_code(loop: str) -> bytes | None:
    """Return a loop's object file as :func:`_store_code` wrote it; None if no intact file exists.

    Args:
        loop: name of the loop.
    """
    for folder in _folders():
        with contextlib.suppress(OSError):
            file_content = _read_trusted(folder, _file_name(loop))
            code = file_content[_DIGEST:]
            if _digest(loop, code) == file_content[:_DIGEST]:
                return code
    return None


def _store_code(loop: str, code: bytes) -> None:
    """Write a digest and an object file to the first trusted folder that is writable, if any.

    Args:
        loop: name of the loop.
        code: object code of the loop.
    """
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o777 if folder.name == PYTHON_CACHE else 0o700, exist_ok=True)
            if folder.name != PYTHON_CACHE:
                _restrict_to_owner(folder)
            os.close(_open_trusted_folder(folder))
            handle, name = tempfile.mkstemp(dir=folder, prefix=f"{loop}-")
            try:
                with os.fdopen(handle, "wb") as file:
                    os.fchmod(handle, 0o644)  # as Python's own compiled files are
                    file.write(_digest(loop, code) + code)
                os.replace(name, folder / _file_name(loop))  # atomic: other processes read it
            except OSError:
                os.unlink(name)
                raise
            return


def _restrict_to_owner(folder: Path) -> None:
    """Remove the permissions of the group from a folder of this user; a umask of 002 grants them."""
    status = os.lstat(folder)
    is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if is_own_folder and status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH:
        os.chmod(folder, 0o700)


def _folders() -> list[Path]:
    """Return the folders of object files: Python's folder next to this module, then a folder in the user's cache.

    A relative ``XDG_CACHE_HOME`` or ``HOME`` is ignored: it would be inside the current folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not cache.is_absolute():
        with contextlib.suppress(RuntimeError):  # the user has no home folder
            cache = Path.home() / ".cache"
    user_folders = [cache / "toolkit" / "loops"] if cache.is_absolute() else []
    return [Path(__file__).parent / PYTHON_CACHE, *user_folders]


def _read_trusted(folder: Path, name: str) -> bytes:
    """Read a file in a folder.

    Raises:
        OSError: the file is not a plain file, or other users may write to it.
    """
    opened_folder = _open_trusted_folder(folder)
    try:
        with os.fdopen(_open_trusted(name, opened_folder), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise FileNotFoundError(errno.ENOENT, "not a plain file", name)
            return file.read(MAX_BYTES)
    finally:
        os.close(opened_folder)


def _open_trusted_folder(folder: Path) -> int:
    """Open a folder.

    A group may write to the parent, as with a umask of 002: a folder that it creates there belongs to another user.

    Raises:
        OSError: the folder or its parent is a link, belongs to another user, or is writable by other users.
    """
    parent = _open_trusted(folder.parent, forbidden_bits=stat.S_IWOTH)
    try:
        return _open_trusted(folder.name, parent, os.O_DIRECTORY)
    finally:
        os.close(parent)


def _open_trusted(
    path: str | Path,
    folder_descriptor: int | None = None,
    flags: int = 0,
    forbidden_bits: int = stat.S_IWGRP | stat.S_IWOTH,
) -> int:
    """Open a path to read it; do not follow a link or wait for a pipe.

    Args:
        path: file or folder to open, relative to `folder_descriptor`.
        folder_descriptor: descriptor of an open folder.
        flags: further flags of :func:`os.open`.
        forbidden_bits: permission bits that the file or folder must not have.

    Raises:
        OSError: the path is a link, has one of these bits, or belongs to neither this user nor root.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=folder_descriptor)
    status = os.fstat(descriptor)
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & forbidden_bits:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "other users may write here", str(path))
    return descriptor


def _digest(loop: str, code: bytes) -> bytes:
    """Return the SHA-256 of an object file and its name, so that the file of another loop is not accepted.

    Args:
        loop: name of the loop.
        code: object code of the loop.
    """
    return hashlib.sha256(_file_name(loop).encode() + b"\0" + code).digest()


def _file_name(loop: str) -> str:
    """Return the name of a loop's object file, such as ``norm_rows-0123456789abcdef.o``.

    Args:
        loop: name of the loop.
    """
    return f"{loop}-{code_key()[:16]}.o"


@functools.cache
def code_key() -> str:
    """Return a hash of everything that determines the machine code: sources, compiler, processor."""
    sources = (*LOOP_FILES, "loop_arguments.py", "kernels.py", Path(__file__).name)
    parts = [Path(__file__).with_name(name).read_text(encoding="utf-8") for name in sources]
    parts += [importlib.metadata.version(name) for name in ("numba", "llvmlite")]
    parts += [llvm.get_host_cpu_name(), llvm.get_host_cpu_features().flatten()]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()
