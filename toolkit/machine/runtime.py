"""Device, threads and flags of a run, which must be set before Paddle is imported.

Paddle reads its thread counts and MKL reads its CPU type once, when the libraries load; later values are silently
ignored. So this module imports nothing heavy, and :func:`configure_paddle` is the first call of every command.
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
from toolkit.machine.disk import describe_missing_space, find_write_obstacle
from toolkit.machine.heap import keep_freed_memory
from toolkit.machine.install import install_command
from toolkit.machine.memory import physical_memory
from toolkit.machine.scratch import scratch_until_exit
from toolkit.terminal.escape import visible

#: Distributions, in addition to the toolkit, whose versions affect the results of a run. Every run and every parity
#: report records them.
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

#: Free bytes that the disk of the cache must have: space for the tokens of some texts and a verdict.
MIN_CACHE_BYTES = 32 * 2**20


def cache_folder() -> Path:
    """Return the folder for tokens and verdicts that later runs reuse.

    It is ``$TOOLKIT_CACHE``, or ``.cache`` in the current folder. If it is not writable or its disk is full, a note is
    printed and a temporary folder of this process is returned.
    """
    return _usable_cache(configured_cache_folder())


def configured_cache_folder() -> Path:
    """Return the folder that is configured as the cache; it need not exist or be writable."""
    return Path(os.environ.get("TOOLKIT_CACHE") or ".cache").absolute()


@functools.cache
def _usable_cache(folder: Path) -> Path:
    """Return the cache folder, or a temporary folder if it cannot be written or its disk is full."""
    obstacle = find_write_obstacle(folder) or describe_missing_space(folder, MIN_CACHE_BYTES)
    if obstacle is None:
        return folder
    print(visible(f"note: the cache {folder}: {obstacle}; nothing is kept for later runs"), file=sys.stderr)
    return scratch_until_exit("toolkit-cache-")


def count_physical_cores() -> int:
    """Return the number of physical cores that this process may use, at least 1.

    Hyper-threads do not help matrix products: two of them share one multiplier.
    """
    usable_cpus = os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set(range(os.cpu_count() or 1))
    core_ids = set()
    for cpu in usable_cpus:
        topology = f"/sys/devices/system/cpu/cpu{cpu}/topology"
        try:
            with open(f"{topology}/physical_package_id") as package, open(f"{topology}/core_id") as core:
                core_ids.add((package.read().strip(), core.read().strip()))
        except OSError:
            return max(1, len(usable_cpus))
    return max(1, min(len(core_ids), len(usable_cpus)))


def default_num_threads() -> int:
    """Return the default number of compute threads: ``OMP_NUM_THREADS``, or one for each physical core."""
    setting = os.environ.get("OMP_NUM_THREADS", "")
    return int(setting) if setting.isdecimal() and int(setting) else count_physical_cores()


def choose_mkl_cpu_type() -> str | None:
    """Return the code path for MKL on an AMD processor; None on others, where MKL chooses a fast path.

    The MKL inside Paddle's CPU wheel takes its slowest path if it does not find Intel's name. The path for AVX2 (5) is
    twice as fast, and the path for AVX-512 (7) another 2 to 4 times (measured on an EPYC with 2 cores, float32,
    16384x128 by 128x256: 112 against 410 GFLOP/s). A path that the processor lacks would end in an illegal instruction.
    """
    try:
        with open("/proc/cpuinfo") as info:
            cpu_info = info.read(8192)
    except OSError:
        return None
    if "AuthenticAMD" not in cpu_info:
        return None
    cpu_flags = set(cpu_info.partition("flags")[2].partition("\n")[0].split())
    if {"avx512f", "avx512dq", "avx512cd", "avx512bw", "avx512vl"} <= cpu_flags:
        return "7"
    return "5" if "avx2" in cpu_flags else None


def paddle_environment(num_threads: int | None = None) -> dict[str, str]:
    """Return the environment variables under which Paddle is fast and repeatable; the user's settings stay.

    - ``OMP_NUM_THREADS``, ``FLAGS_paddle_num_threads``: Paddle starts with one thread.
    - ``MKL_DEBUG_CPU_TYPE``: see :func:`choose_mkl_cpu_type`.
    - ``NVIDIA_TF32_OVERRIDE=0``, ``FLAGS_cudnn_deterministic``: float32 means float32, and a run repeats.
    - ``TOOLKIT_KERNELS``: see :mod:`models.operations.kernels`; set to the chosen value, so that it is recorded with
      the others.

    Args:
        num_threads: number of CPU threads, which overrides the user's settings; None for the default.

    Raises:
        UserError: ``TOOLKIT_KERNELS`` has an invalid value.
    """
    thread_count = str(num_threads or threads_per_process())
    variables = {
        "OMP_NUM_THREADS": thread_count,
        "FLAGS_paddle_num_threads": thread_count,
        "NVIDIA_TF32_OVERRIDE": "0",
        "FLAGS_cudnn_deterministic": "1",
        "GLOG_minloglevel": "2",
        "TOKENIZERS_PARALLELISM": "false",
        kernels.VARIABLE: choose_kernels(),
    }
    if mkl_cpu_type := choose_mkl_cpu_type():
        variables["MKL_DEBUG_CPU_TYPE"] = mkl_cpu_type
    if num_threads is not None:  # an explicit number overrides the variables of the shell
        return variables
    return {name: os.environ.get(name, value) for name, value in variables.items()}


def choose_kernels() -> str:
    """Return the choice of kernels, without an import of Paddle or Numba.

    Raises:
        UserError: ``TOOLKIT_KERNELS`` has an invalid value.
    """
    try:
        return kernels.chosen_kernels()
    except ValueError as error:
        raise UserError(str(error)) from None


def find_gpu_obstacle() -> str | None:
    """Return why Paddle cannot use a GPU, found without importing Paddle; None if no reason is known."""
    if distribution_version("paddlepaddle-gpu") is None:
        return "the installed Paddle is for CPUs"
    if shutil.which("nvidia-smi") is None and not Path("/dev/nvidiactl").exists():
        return "this machine has no driver of an NVIDIA GPU"
    return None


def configure_paddle(device: str = "auto", num_threads: int | None = None, *, keeps_freed_memory: bool = True) -> str:
    """Set the environment, import Paddle and choose the device.

    Args:
        device: ``auto`` (a GPU when Paddle sees one), ``cpu`` or ``gpu``.
        num_threads: number of CPU threads; by default the physical cores, which the processes of a machine share.
        keeps_freed_memory: whether to call :func:`.heap.keep_freed_memory`; False for a process with little memory.

    Returns:
        The chosen device, ``cpu`` or ``gpu``.

    Raises:
        UserError: both Paddle wheels are installed or neither is, no GPU exists for ``gpu``, or ``TOOLKIT_KERNELS``
            has an invalid value.
    """
    check_paddle_installation()
    if "paddle" not in sys.modules:
        os.environ.update(paddle_environment(num_threads))
        if keeps_freed_memory:
            keep_freed_memory()
    # Paddle prints a warning about the number of threads that makes it fast.
    with contextlib.redirect_stderr(io.StringIO()), collector.pause_garbage_collection():
        import paddle

    num_gpus = paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0
    if device == "gpu" and not num_gpus:
        raise UserError(f"device gpu: Paddle {paddle.__version__} sees no GPU here; use device cpu or auto")
    chosen_device = "gpu" if num_gpus and device != "cpu" else "cpu"
    paddle.set_device(chosen_device)
    return chosen_device


def current_device() -> str:
    """Return the device that Paddle uses after :func:`configure_paddle`: ``cpu`` or ``gpu``."""
    import paddle

    return paddle.device.get_device().partition(":")[0]


def num_processes() -> int:
    """Return how many processes `--processes` or `python -m paddle.distributed.launch` started to train together."""
    return int(os.environ.get("PADDLE_TRAINERS_NUM", "1"))


def process_rank() -> int:
    """Return the number of this process among the processes that train together, from 0."""
    return int(os.environ.get("PADDLE_TRAINER_ID", "0"))


def is_first_process() -> bool:
    """Return whether this is the process that runs the gate and writes the run folder."""
    return process_rank() == 0


def threads_per_process() -> int:
    """Return the number of CPU threads of this process: its share of the physical cores, at least 1."""
    return max(1, count_physical_cores() // int(os.environ.get("PADDLE_LOCAL_SIZE", "1")))


def check_paddle_installation() -> None:
    """Check that exactly one of the two Paddle wheels is installed; they write into the same ``paddle/`` folder.

    Raises:
        UserError: no wheel or both are installed; the message has the command that fixes it.
    """
    installed_wheels = [name for name in ("paddlepaddle", "paddlepaddle-gpu") if distribution_version(name)]
    reinstallation = f"{install_command('cpu')}, or for a GPU {install_command('gpu')}"
    if len(installed_wheels) == 2:
        raise UserError(
            "paddlepaddle and paddlepaddle-gpu are both installed, and overwrite each other's files; "
            f"pip uninstall -y paddlepaddle paddlepaddle-gpu, then {reinstallation}"
        )
    if not installed_wheels:
        raise UserError(f"Paddle is not installed; {reinstallation} (or make install)")


def seed_everything(seed: int) -> None:
    """Seed Python's, NumPy's and Paddle's generators."""
    import numpy as np
    import paddle

    random.seed(seed)
    np.random.seed(seed % 2**32)
    paddle.seed(seed)


def installed_versions() -> dict[str, str]:
    """Return name -> version of Python, the platform, the toolkit and :data:`RECORDED_DISTRIBUTIONS`."""
    version_by_name = {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "toolkit": toolkit.__version__,
    }
    version_by_name.update(
        {name: version for name in RECORDED_DISTRIBUTIONS if (version := distribution_version(name))}
    )
    return version_by_name


def describe_hardware() -> dict[str, str | int]:
    """Return the device, its name, the numbers of cores and processes, and the bytes of memory if they are known."""
    import paddle

    processor_label = paddle.device.cuda.get_device_name() if current_device() == "gpu" else processor_name()
    description: dict[str, str | int] = {
        "device": current_device(),
        "name": processor_label,
        "cores": count_physical_cores(),
    }
    description["processes"] = num_processes()
    if memory := physical_memory():
        description["memory"] = memory
    return description


def processor_name() -> str:
    """Return the name of the processor, from Linux if possible and otherwise from Python."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def current_flags() -> dict[str, str]:
    """Return the variables of :func:`paddle_environment` with their current values in this process."""
    return {name: os.environ[name] for name in paddle_environment() if name in os.environ}


def distribution_version(distribution: str) -> str | None:
    """Return the version of a distribution; None if it is not installed."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None
