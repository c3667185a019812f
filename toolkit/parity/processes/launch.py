"""Environment of the Python processes that the gate starts (:mod:`models.files.another_python`)."""

from __future__ import annotations

from models.files import another_python
from models.files.another_python import module_command as module_command

#: Environment variable, and its value, that makes glibc 2.35 and newer use huge pages. Other C libraries ignore it.
HUGE_PAGES = ("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")
#: Environment variables that make idle threads sleep at once, in torch's OpenMP, in Paddle's OpenMP, and in NumPy's
#: OpenBLAS (after 2^4 cycles, its minimum, instead of 2^26). Each of the gate's two processes has a thread for each
#: core. Threads that wait by spinning took half of the other process's time. For a tensor of 64 MB, the idle threads of
#: OpenBLAS took twice as long as the arithmetic.
SLEEP = {"OMP_WAIT_POLICY": "PASSIVE", "KMP_BLOCKTIME": "0", "OPENBLAS_THREAD_TIMEOUT": "4"}


def worker_environment() -> dict[str, str]:
    """Return the environment variables of this process as a worker gets them, without the current folder.

    Memory comes in huge pages unless the user has tuned glibc: half of a large gate's time goes into fresh pages, one
    after another. Variables of a launcher of several processes are left out, as a worker runs alone.
    """
    environment = another_python.clean_environment()
    inherited_variables = {name: value for name, value in environment.items() if not name.startswith("PADDLE_")}
    return {HUGE_PAGES[0]: HUGE_PAGES[1], **SLEEP, **inherited_variables}
