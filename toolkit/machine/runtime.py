"""Where a run happens: device, threads and flags. Everything here must be set before Paddle is imported.

Paddle reads its thread counts and MKL reads its CPU type once, when the libraries load; later values are silently
ignored. So this module imports nothing heavy, and :func:`configure` is the first call of every command.
"""

from __future__ import annotations

import contextlib
import functools
import importlib.metadata
import io
import os
import platform
import random
import shutil
import sys
from pathlib import Path

import toolkit
from models import collector
from models.operations import kernels
from toolkit.errors import UserError
from toolkit.machine.disk import check_writable, missing_room
from toolkit.machine.heap import keep_freed_memory
from toolkit.machine.install import install_command
from toolkit.machine.memory import physical_memory
from toolkit.machine.scratch import scratch_until_exit
from toolkit.terminal.escape import visible

#: The distributions, next to the toolkit itself, whose versions decide what a run computes; recorded in every run and
#: every parity report.
RECORDED_DISTRIBUTIONS = (
    "paddlepaddle",
    "paddlepaddle-gpu",
    "paddlenlp",
    "paddleformers",
    "torch",
    "transformers",
    "datasets",
    "sentencepiece",
    "safetensors",
    "numpy",
    "numba",
)

#: The cache's disk is full below this many free bytes, which some texts' tokens and a verdict take.
CACHE_ROOM = 32 * 2**20


def cache_folder() -> Path:
    """Return the folder for tokens and verdicts between runs: ``$TOOLKIT_CACHE``, or ``.cache`` here. If it is not
    writable, or its disk is full, a note says so and a temporary folder of this process is returned."""
    return _usable_cache(cache_place())


def cache_place() -> Path:
    """Return the folder that :func:`cache_folder` gives if usable; it need not exist."""
    return Path(os.environ.get("TOOLKIT_CACHE") or ".cache").absolute()


@functools.cache
def _usable_cache(folder: Path) -> Path:
    refused = check_writable(folder) or missing_room(folder, CACHE_ROOM)
    if refused is None:
        return folder
    print(visible(f"note: the cache {folder}: {refused}; nothing is kept for later runs"), file=sys.stderr)
    return scratch_until_exit("toolkit-cache-")


def physical_cores() -> int:
    """The number of physical cores this process may run on, at least 1.

    Hyper-threads do not help matrix products: two of them share one multiplier.
    """
    allowed = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    cores = set()
    for cpu in allowed:
        topology = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            with open(f"{topology}/physical_package_id") as package, open(f"{topology}/core_id") as core:
                cores.add((package.read().strip(), core.read().strip()))
        except OSError:
            return max(1, len(allowed))
    return max(1, min(len(cores), len(allowed)))


def threads() -> int:
    """Number of compute threads unless a recipe sets it: ``OMP_NUM_THREADS``, else one per physical core."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    return int(given) if given.isdecimal() and int(given) else physical_cores()


def mkl_cpu_type() -> str | None:
    """Return the code path for MKL on an AMD processor, None on others (there it chooses well by itself).

    The MKL inside Paddle's CPU wheel takes its slowest path if it does not find Intel's name. The path for AVX2 (5)
    is twice as fast; that for AVX-512 (7) another 2 to 4 times (measured on an EPYC with 2 cores, float32, 16384x128 by
    128x256: 112 against 410 GFLOP/s). A path that the processor lacks would end in an illegal instruction.
    """
    try:
        with open("/proc/cpuinfo") as info:
            first = info.read(8192)
    except OSError:
        return None
    if "AuthenticAMD" not in first:
        return None
    flags = set(first.partition("flags")[2].partition("\n")[0].split())
    if {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"} <= flags:
        return "7"
    return "5" if "avx2" in flags else None


def environment(threads: int | None = None) -> dict[str, str]:
    """The environment variables under which Paddle is fast and repeatable. What the user has set is kept.

    - ``OMP_NUM_THREADS``, ``FLAGS_paddle_num_threads``: Paddle starts with one thread.
    - ``MKL_DEBUG_CPU_TYPE``: see :func:`mkl_cpu_type`.
    - ``NVIDIA_TF32_OVERRIDE=0``, ``FLAGS_cudnn_deterministic``: float32 means float32, and a run repeats.
    - ``TOOLKIT_KERNELS``: see :mod:`models.operations.kernels`; set to what is taken, so that it is recorded with the
      others.

    Raises:
        UserError: that one is no valid choice.
    """
    count = str(threads or threads_each())
    wanted = {
        "OMP_NUM_THREADS": count,
        "FLAGS_paddle_num_threads": count,
        "NVIDIA_TF32_OVERRIDE": "0",
        "FLAGS_cudnn_deterministic": "1",
        "GLOG_minloglevel": "2",
        "TOKENIZERS_PARALLELISM": "false",
        kernels.VARIABLE: chosen_kernels(),
    }
    if path := mkl_cpu_type():
        wanted["MKL_DEBUG_CPU_TYPE"] = path
    if threads is not None:  # asked for: it wins over what the shell has set
        return wanted
    return {name: os.environ.get(name, value) for name, value in wanted.items()}


def chosen_kernels() -> str:
    """:func:`models.operations.kernels.chosen`; imports neither Paddle nor Numba. Raises UserError if
    ``TOOLKIT_KERNELS`` is no choice."""
    try:
        return kernels.chosen()
    except ValueError as problem:
        raise UserError(str(problem)) from None


def gpu_obstacle() -> str | None:
    """Say why Paddle can use no GPU here, as far as that shows without importing Paddle; None if nothing does."""
    if version_of("paddlepaddle-gpu") is None:
        return "the installed Paddle is for CPUs"
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        return "this machine has no driver of an NVIDIA GPU"
    return None


def configure(device: str = "auto", threads: int | None = None, keep_memory: bool = True) -> str:
    """Set the environment, import Paddle and choose the device.

    Args:
        device: ``auto`` (a GPU when Paddle sees one), ``cpu`` or ``gpu``.
        threads: CPU threads; by default the physical cores, which the processes of a machine share.
        keep_memory: see :func:`.heap.keep_freed_memory`; False for a process that has little.

    Raises:
        UserError: both Paddle wheels are installed, none is, a GPU was asked for and there is none, or
            ``TOOLKIT_KERNELS`` is no choice.
    """
    explain_paddle_installation()
    if "paddle" not in sys.modules:
        os.environ.update(environment(threads))
        if keep_memory:
            keep_freed_memory()
    # Paddle advises against the threads that make it fast.
    with contextlib.redirect_stderr(io.StringIO()), collector.paused():
        import paddle

    gpus = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    if device == "gpu" and not gpus:
        raise UserError(f"device gpu: Paddle {paddle.__version__} sees no GPU here; use device cpu or auto")
    chosen = "gpu" if gpus and device != "cpu" else "cpu"
    paddle.set_device(chosen)
    return chosen


def device() -> str:
    """Where Paddle computes since :func:`configure`, ``cpu`` or ``gpu``."""
    import paddle

    return paddle.device.get_device().partition(":")[0]


def processes() -> int:
    """How many processes train together: as many as `--processes` or `python -m paddle.distributed.launch` started."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def rank() -> int:
    """The number of this process among those that train together, from 0."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def is_first_process() -> bool:
    """Whether this is the process that runs the gate and writes the run folder."""
    return rank() == 0


def threads_each() -> int:
    """The CPU threads of this process: its share of the physical cores, at least 1."""
    return max(1, physical_cores() // int(os.environ.get("PADDLE_LOCAL_SIZE", "1")))


def explain_paddle_installation() -> None:
    """Stop with one line when no Paddle wheel is installed, or both are: they own the same ``paddle/`` folder, and
    which of the two a file comes from is then anyone's guess.

    Raises:
        UserError: with the command that mends it.
    """
    installed = [name for name in ("paddlepaddle", "paddlepaddle-gpu") if version_of(name)]
    reinstallation = f"{install_command('cpu')}, or for a GPU {install_command('gpu')}"
    if len(installed) == 2:
        raise UserError(
            "paddlepaddle and paddlepaddle-gpu are both installed, and overwrite each other's files; "
            f"pip uninstall -y paddlepaddle paddlepaddle-gpu, then {reinstallation}"
        )
    if not installed:
        raise UserError(f"Paddle is not installed; {reinstallation} (or make install)")


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and Paddle's generators."""
    import numpy as np
    import paddle

    random.seed(seed)
    np.random.seed(seed % 2**32)
    paddle.seed(seed)


def versions() -> dict[str, str]:
    """Return name -> version of Python, the platform, the toolkit and every installed distribution that decides what a
    run computes."""
    found = {"python": platform.python_version(), "platform": platform.platform(), "toolkit": toolkit.__version__}
    found.update({name: version for name in RECORDED_DISTRIBUTIONS if (version := version_of(name))})
    return found


def hardware() -> dict[str, str | int]:
    """What this process computes on: ``device``, the processor's or GPU's name, cores and processes of a run, and bytes
    of memory where the system tells them."""
    import paddle

    name = paddle.device.cuda.get_device_name() if device() == "gpu" else processor()
    found: dict[str, str | int] = {"device": device(), "name": name, "cores": physical_cores()}
    found["processes"] = processes()
    if memory := physical_memory():
        found["memory"] = memory
    return found


def processor() -> str:
    """The processor's name as Linux tells it, else what Python knows of it."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def flags() -> dict[str, str]:
    """The environment variables of :func:`environment`, as they are in this process."""
    return {name: os.environ[name] for name in environment() if name in os.environ}


def version_of(distribution: str) -> str | None:
    """Return the version of an installed distribution, else None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
