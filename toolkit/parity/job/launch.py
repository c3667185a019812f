"""Environment of the gate's other Pythons (:mod:`models.files.another_python`)."""

from __future__ import annotations

from models.files import another_python
from models.files.another_python import module_command as module_command

#: Read by glibc from 2.35 on; other C libraries ignore it.
HUGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
#: Threads with nothing to do sleep at once, in torch's OpenMP, in Paddle's, and in NumPy's OpenBLAS (after 2^4 cycles,
#: its least; by default after 2^26): the gate's two processes have as many as there are cores each, and those that wait
#: by spinning took half of the other's time. Of the size of a tensor of 64 MB, OpenBLAS's took twice as long as the
#: arithmetic.
SLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}


def worker_environment() -> dict[str, str]:
    """Return the environment of this process for a worker, without the current folder.

    Memory comes in huge pages unless the user has tuned glibc: half of a large gate's time goes into fresh pages, one
    after another. Variables of a launcher of several processes are left out, as a worker runs alone.
    """
    environment = another_python.clean_environment()
    inherited_variables = {name: value for name, value in environment.items() if not name.startswith("PADDLE_")}
    return {HUGE_PAGES[0]: HUGE_PAGES[1], **SLEEP, **inherited_variables}
