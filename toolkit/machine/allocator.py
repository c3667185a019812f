"""The allocator of Paddle's tensors in a command that computes: glibc without its caches of small blocks, or oneTBB.

Paddle allocates every CPU tensor with ``posix_memalign``, aligned to a page. glibc cuts an aligned block from a larger
one and gives the two ends to the next small requests. When the tensor is freed, the hole is too small for the next
tensor of the same size (glibc's bug 14581). Each thread also caches some freed small blocks, which keeps their
neighbours from being merged. A step of Reformer over 16,384 tokens holds at most 0.5 GB, and takes 1.07 GB; without
those caches it takes 0.79, at the same speed (4 texts of 1,024 tokens: 0.92 and 0.79 GB; a CTRL, mostly parameters and
moments: 1.19 and 1.16). This is the default: a quarter less memory on long texts is why the restart is kept.

With oneTBB's allocator it takes 0.7, if all batches have one length. With many lengths it is slower: blocks of a size
that is not soon asked for again go back to the system, and fresh pages cost more than arithmetic (a short run of
recipes/reformer_cls.yaml: 7 s, and 12 with it; 12 steps on texts of 800 to 4,000 bytes: 22 s, and 38 to 69, for 0.75 to
0.85 of the memory). Evaluation has many lengths whenever texts have. So oneTBB is opt-in, for long texts of equal
length.

Either needs an environment variable when a program starts. So a command that computes restarts itself
(:func:`restart`) before it does anything; processes that it starts for Paddle get :func:`environment`.
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

LIBRARIES = ("libtbbmalloc.so.2", "libtbbmalloc_proxy.so.2")  # the second replaces malloc and needs the first
PRELOAD = "LD_PRELOAD"
TUNABLES = "GLIBC_TUNABLES"
#: Threads cache no freed blocks.
NO_CACHE = "glibc.malloc.tcache_count=0"
#: Values of the variables before this program restarted itself, in JSON; null: not set.
BEFORE = "TOOLKIT_MALLOC_BEFORE"
#: oneTBB returns freed blocks from 64 MiB on to the system at once, and Paddle then pays for fresh, zeroed pages in
#: each operation. It keeps smaller ones for a while; this makes it keep all.
KEEP_LARGE_BLOCKS = {"TBB_MALLOC_SET_HUGE_SIZE_THRESHOLD": str(2**40)}


def chosen() -> str:
    """Return the allocator, one of :data:`CHOICES`: ``uncached`` with glibc, else ``system``, unless ``TOOLKIT_MALLOC``
    says otherwise. Raises UserError if the variable is no choice, or one not available here."""
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
    """Return the files to preload, () if not installed or not loadable: a program would not even start."""
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
    """Return the variables for starting a Paddle process. Raises as :func:`chosen`."""
    whose = chosen()
    if whose == SYSTEM:
        return {}
    if whose == TBB:
        added = {**KEEP_LARGE_BLOCKS, PRELOAD: _joined(*libraries(), os.environ.get(PRELOAD, ""))}
    else:  # the later of two settings counts: the user's own
        added = {TUNABLES: _joined(NO_CACHE, os.environ.get(TUNABLES, ""))}
    return {**added, BEFORE: json.dumps({name: os.environ.get(name) for name in added})}


def _joined(*parts: str) -> str:
    return ":".join(filter(None, parts))


def restart(commands: Collection[str]) -> None:
    """Restart this program under the allocator, if its command is one of ``commands``. After the restart, forget the
    variables: they are not for the programs that it starts.

    To be called first: nothing has been read or written yet, and nobody sees the difference.

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
    debugged = sys.gettrace() is not None or "pydevd" in sys.modules  # the debugger would lose it
    if again and not debugged and (added := environment()):
        # A signal in between waits until the new process can handle it.
        with contextlib.suppress(OSError), interruption.blocked():  # it runs on as it is
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def forget() -> None:
    """Restore the C library's own allocator for processes that this one starts."""
    try:
        before = dict(json.loads(os.environ.pop(BEFORE, "{}")))
    except (TypeError, ValueError):  # not written by this program
        return
    for name in (PRELOAD, TUNABLES, *KEEP_LARGE_BLOCKS):
        if isinstance(value := before.get(name), str):
            os.environ[name] = value
        elif name in before:
            os.environ.pop(name, None)
