"""Run, load and cache the machine code of the compiled loops (:mod:`models.operations.loops`).

A loop takes one pointer, to a list of 64-bit numbers: its length first, then the addresses of its inputs and outputs,
sizes and scalars. It runs on the threads of Paddle's own matrix products (Intel's OpenMP, from Paddle's wheel):
a second thread team would wait for the cores on which the first one spins. Each thread takes its share of the length.

Numba takes 0.15 GB and half a second even with its compilations cached. So it is only imported to compile. Its code is
kept as an object file next to this module, or in the user's cache, and loaded by LLVM alone. A file that another user
may have written is not loaded: it could do anything. Numba's own ``njit(parallel=True, cache=True)`` would make the raw
addresses and this module, about 350 lines, unnecessary. They are kept since it would cost each process that memory and
time, and the second thread team.
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
#: Name of Python's own folder of compiled files, which all users read.
PYTHONS = "__pycache__"
#: Maximum number of bytes read of an object file; the loops' object files have some thousands.
MAX_BYTES = 2**24


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
            file_content = _read_trusted(folder, _file_name(loop))
            code = file_content[_DIGEST:]
            if _digest(loop, code) == file_content[:_DIGEST]:
                return code
    return None


def _keep(loop: str, code: bytes) -> None:
    """Write the object file, after its digest, to the first trusted folder that is writable, if there is one."""
    for folder in _folders():
        with contextlib.suppress(OSError):
            folder.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            folder.mkdir(mode=0o777 if folder.name == PYTHONS else 0o700, exist_ok=True)
            if folder.name != PYTHONS:
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
    """Take the group's permissions from a folder of this user, which a umask of 002 had given them."""
    status = os.lstat(folder)
    is_own_folder = stat.S_ISDIR(status.st_mode) and status.st_uid == os.geteuid()
    if is_own_folder and status.st_mode & stat.S_IWGRP and not status.st_mode & stat.S_IWOTH:
        os.chmod(folder, 0o700)


def _folders() -> list[Path]:
    """Return the folders of object files: Python's folder next to this module, then a folder in the user's cache.

    A relative ``XDG_CACHE_HOME`` or ``HOME`` is ignored: it would be a folder of the current folder.
    """
    cache = Path(os.environ.get("XDG_CACHE_HOME") or "")
    if not cache.is_absolute():
        with contextlib.suppress(RuntimeError):  # the user has no home folder
            cache = Path.home() / ".cache"
    own = [cache / "toolkit" / "loops"] if cache.is_absolute() else []
    return [Path(__file__).parent / PYTHONS, *own]


def _read_trusted(folder: Path, name: str) -> bytes:
    """Read a file in a folder.

    Raises:
        OSError: it is not a plain file, or other users may write to it.
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
    """Open a folder. Raises OSError if it or its parent is a link, another user's or writable by other users.

    A group may write to the parent, as with a umask of 002: a folder that it creates there belongs to another user.
    """
    parent = _open_trusted(folder.parent, writers=stat.S_IWOTH)
    try:
        return _open_trusted(folder.name, parent, os.O_DIRECTORY)
    finally:
        os.close(parent)


def _open_trusted(
    path: str | Path, folder: int | None = None, flags: int = 0, writers: int = stat.S_IWGRP | stat.S_IWOTH
) -> int:
    """Open a path to read it; do not follow a link or wait for a pipe.

    Args:
        path: file or folder to open, relative to ``folder``.
        folder: descriptor of an open folder.
        flags: further flags of :func:`os.open`.
        writers: permission bits that it must not have.

    Raises:
        OSError: the path is a link, has one of these bits, or belongs to neither this user nor root.
    """
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | flags, dir_fd=folder)
    status = os.fstat(descriptor)
    if status.st_uid not in (os.geteuid(), 0) or status.st_mode & writers:
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "other users may write here", str(path))
    return descriptor


def _digest(loop: str, code: bytes) -> bytes:
    """Return the SHA-256 of an object file and its name: the file of another loop does not stand in for it."""
    return hashlib.sha256(_file_name(loop).encode() + b"\0" + code).digest()


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
