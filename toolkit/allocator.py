"""oneTBB's memory allocator in place of the C library's, for the processes that hold Paddle's tensors.

Paddle takes every tensor on a CPU from ``posix_memalign``, aligned to a page. glibc cuts what it aligns from a larger
block and gives the two ends to the next small requests; the hole that is left when the tensor is freed is then too
small for the next tensor of the same size (glibc's bug 14581; its 2.38 looks for such holes). A step of Reformer over
16,384 tokens holds 0.5 GB at the most, and takes 1.4 GB: 0.7 with this allocator, at the same speed.

That holds where all batches have one length. Where they have many it is slower: blocks of a size that is not soon
asked for again go back to the system, and fresh pages cost more than arithmetic (a short run of
recipes/reformer_cls.yaml: 7 s, and 12 with it; 12 steps on texts of 800 to 4,000 bytes: 22 s, and 38 to 69, for 0.75 to
0.85 of the memory). Evaluation has many lengths wherever texts have. So it is taken on demand, of long texts of equal
length.

An allocator can be put in place of the C library's only when a program starts, by ``LD_PRELOAD``. So a command that
computes starts itself once more (:func:`restart`), before it has done anything; processes that it starts for Paddle are
given :func:`environment`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.metadata
import os
import sys
from collections.abc import Collection

from toolkit.errors import UserError

VARIABLE = "TOOLKIT_MALLOC"
TBB, SYSTEM = "tbb", "system"
CHOICES = (TBB, SYSTEM)

LIBRARIES = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")  # the second takes malloc's place, and needs the first
PRELOAD = "LD_PRELOAD"
#: What LD_PRELOAD was before this program started itself again.
PRELOAD_BEFORE = "TOOLKIT_PRELOAD_BEFORE"
#: oneTBB gives freed blocks from 64 MiB on back to the system at once, and Paddle then pays for fresh, zeroed pages in
#: each operation. Smaller ones it keeps for a while; now it does so with all.
KEEP_LARGE_BLOCKS = {"TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD": str(2**40)}


def chosen() -> str:
    """Whose memory tensors lie in, one of :data:`CHOICES`: ``system`` unless ``TOOLKIT_MALLOC`` says ``tbb``.

    Raises:
        UserError: the variable says something else, or what is not to be had here.
    """
    found = os.environ.get(VARIABLE)
    if not found:
        return SYSTEM
    if found not in CHOICES:
        raise UserError(f"{VARIABLE}={found}: is no choice; there are {', '.join(CHOICES)}")
    if found == TBB and not libraries():
        raise UserError(f"{VARIABLE}={found}: needs oneTBB (pip install tbb) on Linux")
    return found


@functools.cache
def libraries() -> tuple[str, ...]:
    """The files to preload, () where they are not installed or cannot be loaded: a program would not even start."""
    if not sys.platform.startswith("linux"):
        return ()
    try:
        files = importlib.metadata.distribution("tbb").files or ()
    except importlib.metadata.PackageNotFoundError:
        return ()
    found = {file.name: os.path.realpath(file.locate()) for file in files if file.name in LIBRARIES}
    try:
        ctypes.CDLL(found[LIBRARIES[0]])
        return tuple(found[name] for name in LIBRARIES)
    except (KeyError, OSError):
        return ()


def environment() -> dict[str, str]:
    """The variables under which a process of Paddle's is to be started."""
    if chosen() == SYSTEM:
        return {}
    before = os.environ.get(PRELOAD, "")
    return {
        **KEEP_LARGE_BLOCKS,
        PRELOAD: ":".join((*libraries(), *filter(None, [before]))),
        PRELOAD_BEFORE: before,
    }


def restart(commands: Collection[str]) -> None:
    """Start this program again under the allocator, if its command is one of ``commands``; where it has been started
    so, forget the variables, which are not for the programs that it starts.

    Called first of all: nothing has been read or written yet, and nobody sees the difference.

    Raises:
        UserError: as :func:`chosen`.
    """
    if PRELOAD_BEFORE in os.environ:
        forget()
        return
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if command not in commands or {"-h", "--help"} & set(sys.argv):
        return
    again = bool(sys.executable) and sys.argv[0] not in ("", "-")  # a program on standard input is read already
    if again and (added := environment()):
        with contextlib.suppress(OSError):  # it runs on as it is
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def forget() -> None:
    """Let the processes that this one starts have the C library's allocator."""
    before = os.environ.pop(PRELOAD_BEFORE, None)
    if before is None:
        return
    for name in (PRELOAD, *KEEP_LARGE_BLOCKS):
        os.environ.pop(name, None)
    if before:
        os.environ[PRELOAD] = before
