"""The allocator of Paddle's tensors in a command that computes: glibc's, without its caches of small blocks.

Paddle allocates every CPU tensor with ``posix_memalign``, aligned to a page. glibc cuts an aligned block from a larger
one and gives the two ends to the next small requests. When the tensor is freed, the hole is too small for the next
tensor of the same size (glibc's bug 14581). Each thread also caches some freed small blocks, which keeps their
neighbours from being merged. A step of Reformer over 16,384 tokens took 0.94 GB above the imports, 0.67 without those
caches, and 0.5 if small blocks are also kept ready (:func:`.heap.keep_small_blocks`), at the same speed. oneTBB's
allocator takes no less (0.57), and three times the time where texts have many lengths.

The caches are turned off by an environment variable when a program starts. So a command that computes restarts itself
(:func:`restart`) before it does anything; processes that it starts for Paddle get :func:`environment`.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Collection

from toolkit.errors import UserError
from toolkit.machine import interruption

VARIABLE = "TOOLKIT_MALLOC"
UNCACHED, SYSTEM = "uncached", "system"
CHOICES = (UNCACHED, SYSTEM)

TUNABLES = "GLIBC_TUNABLES"
#: Threads cache no freed blocks.
NO_CACHE = "glibc.malloc.tcache_count=0"
#: Values of the variables before this program restarted itself, in JSON; null: not set.
BEFORE = "TOOLKIT_MALLOC_BEFORE"


def chosen() -> str:
    """Return the allocator, one of :data:`CHOICES`: ``uncached`` with glibc, else ``system``, unless ``TOOLKIT_MALLOC``
    says otherwise. Raises UserError if the variable is no choice, or one not available here."""
    found = os.environ.get(VARIABLE) or (UNCACHED if is_glibc() else SYSTEM)
    if found not in CHOICES:
        raise UserError(f"{VARIABLE}={found}: is no choice; there are {', '.join(CHOICES)}")
    if found == UNCACHED and not is_glibc():
        raise UserError(f"{VARIABLE}={found}: needs the GNU C library")
    return found


def is_glibc() -> bool:
    """Whether the C library is GNU's."""
    try:
        return (os.confstr("CS_GNU_LIBC_VERSION") or "").startswith("glibc")
    except (AttributeError, ValueError, OSError):  # no POSIX, or another library
        return False


def environment() -> dict[str, str]:
    """Return the variables for starting a Paddle process. Raises as :func:`chosen`."""
    if chosen() == SYSTEM:
        return {}
    # The later of two settings counts: the user's own.
    added = {TUNABLES: ":".join(filter(None, (NO_CACHE, os.environ.get(TUNABLES))))}
    return {**added, BEFORE: json.dumps({name: os.environ.get(name) for name in added})}


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
        with contextlib.suppress(OSError), interruption.block_signals():  # it runs on as it is
            os.execve(sys.executable, [sys.executable, *sys.orig_argv[1:]], {**os.environ, **added})


def forget() -> None:
    """Restore the C library's own allocator for processes that this one starts."""
    try:
        before = dict(json.loads(os.environ.pop(BEFORE, "{}")))
    except (TypeError, ValueError):  # not written by this program
        return
    if isinstance(value := before.get(TUNABLES), str):
        os.environ[TUNABLES] = value
    elif TUNABLES in before:
        os.environ.pop(TUNABLES, None)
