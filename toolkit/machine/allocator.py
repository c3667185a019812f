"""Where a command that computes takes Paddle's tensors from: glibc without its caches of small blocks, or oneTBB.

Paddle takes every tensor on a CPU from ``posix_memalign``, aligned to a page. glibc cuts what it aligns from a larger
block and gives the two ends to the next small requests; the hole that is left when the tensor is freed is then too
small for the next tensor of the same size (glibc's bug 14581). Each thread besides keeps some small blocks that were
freed, which stay in the way of what could be joined around them. A step of Reformer over 16,384 tokens holds 0.5 GB at
the most, and takes 1.07 GB; without those caches 0.79, at the same speed (4 texts of 1,024 tokens: 0.92 and 0.79 GB; a
CTRL of which parameters and moments are most: 1.19 and 1.16). That is what a command does by itself.

With oneTBB's allocator it takes 0.7, where all batches have one length. Where they have many it is slower: blocks of a
size that is not soon asked for again go back to the system, and fresh pages cost more than arithmetic (a short run of
recipes/reformer_cls.yaml: 7 s, and 12 with it; 12 steps on texts of 800 to 4,000 bytes: 22 s, and 38 to 69, for 0.75 to
0.85 of the memory). Evaluation has many lengths wherever texts have. So it is taken on demand, of long texts of equal
length.

Either can be had only when a program starts, by a variable of its environment. So a command that computes starts itself
once more (:func:`restart`), before it has done anything; processes that it starts for Paddle are given
:func:`environment`.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import json
import os
import sys
from collections.abc import Collection

from toolkit.errors import UserError
from toolkit.machine import interruption

VARIABLE = "TOOLKIT_MALLOC"
UNCACHED, TBB, SYSTEM = "uncached", "tbb", "system"
CHOICES = (UNCACHED, TBB, SYSTEM)

LIBRARIES = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")  # the second takes malloc's place, and needs the first
PRELOAD = "LD_PRELOAD"
TUNABLES = "GLIBC_TUNABLES"
#: No freed block is kept by a thread.
NO_CACHE = "glibc.malloc.tcache_count=0"
#: What the variables were before this program started itself again, in JSON; null: they were not set.
BEFORE = "TOOLKIT_MALLOC_BEFORE"
#: oneTBB gives freed blocks from 64 MiB on back to the system at once, and Paddle then pays for fresh, zeroed pages in
#: each operation. Smaller ones it keeps for a while; now it does so with all.
KEEP_LARGE_BLOCKS = {"TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD": str(2**40)}


def chosen() -> str:
    """Whose memory tensors lie in, one of :data:`CHOICES`: ``uncached`` with glibc, else ``system``, unless
    ``TOOLKIT_MALLOC`` says otherwise.

    Raises:
        UserError: the variable says something else, or what is not to be had here.
    """
    found = os.environ.get(VARIABLE) or (UNCACHED if is_glibc() else SYSTEM)
    if found not in CHOICES:
        raise UserError(f"{VARIABLE}={found}: is no choice; there are {', '.join(CHOICES)}")
    if found == UNCACHED and not is_glibc():
        raise UserError(f"{VARIABLE}={found}: needs the GNU C library")
    if found == TBB and not libraries():
        raise UserError(f"{VARIABLE}={found}: needs oneTBB (pip install tbb) on Linux")
    return found


def is_glibc() -> bool:
    """Whether the C library is GNU's."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # no POSIX, or another library
        return False


@functools.cache
def libraries() -> tuple[str, ...]:
    """The files to preload, () where they are not installed or cannot be loaded: a program would not even start."""
    if not sys.platform.startswith("linux"):
        return ()
    import importlib.metadata  # not above: a third of what the command line imports otherwise

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
    """The variables under which a process of Paddle's is to be started.

    Raises:
        UserError: as :func:`chosen`.
    """
    whose = chosen()
    if whose == SYSTEM:
        return {}
    if whose == TBB:
        added = {**KEEP_LARGE_BLOCKS, PRELOAD: _joined(*libraries(), os.environ.get(PRELOAD, ""))}
    else:  # of two settings of one name the later counts: the user's own
        added = {TUNABLES: _joined(NO_CACHE, os.environ.get(TUNABLES, ""))}
    return {**added, BEFORE: json.dumps({name: os.environ.get(name) for name in added})}


def _joined(*parts: str) -> str:
    return ":".join(filter(None, parts))


def restart(commands: Collection[str]) -> None:
    """Start this program again under the allocator, if its command is one of ``commands``; where it has been started
    so, forget the variables, which are not for the programs that it starts.

    Called first of all: nothing has been read or written yet, and nobody sees the difference.

    Raises:
        UserError: as :func:`chosen`.
    """
    if BEFORE in os.environ:
        forget()
        return
    command = next((word for word in sys.argv[1:] if not word.startswith("-")), None)
    if command not in commands or {"-h", "--help"} & set(sys.argv):
        return
    again = bool(sys.executable) and sys.argv[0] not in ("", "-")  # a program on standard input is read already
    debugged = sys.gettrace() is not None or "pydevd" in sys.modules  # what it is connected to would lose it
    if again and not debugged and (added := environment()):
        # A signal that comes meanwhile waits until the second one can handle it.
        with contextlib.suppress(OSError), interruption.blocked():  # it runs on as it is
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def forget() -> None:
    """Let the processes that this one starts have the C library's allocator as it is."""
    try:
        before = dict(json.loads(os.environ.pop(BEFORE, "{}")))
    except (TypeError, ValueError):  # nothing that a program has left here
        return
    for name in (PRELOAD, TUNABLES, *KEEP_LARGE_BLOCKS):
        if isinstance(value := before.get(name), str):
            os.environ[name] = value
        elif name in before:
            os.environ.pop(name, None)
