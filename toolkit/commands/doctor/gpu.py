"""Check the GPU, as the driver and Paddle see it."""

from __future__ import annotations

import os
import shutil
import subprocess

from toolkit.commands.doctor.finding import MAX_MESSAGE_LENGTH, Finding
from toolkit.machine.install import install_command
from toolkit.terminal.escape import one_line

#: Time limit for the driver's answer, in seconds.
DRIVER_TIMEOUT = 20.0


def gpu_finding(gpus: list[str], fault: str, num_paddle_gpus: int, *, has_cuda: bool) -> Finding:
    """Return the finding that compares the GPUs of the driver with the GPUs that Paddle sees.

    Args:
        gpus: descriptions of the GPUs that the driver lists.
        fault: fault of the driver; empty if it answers or is not installed.
        has_cuda: whether Paddle is compiled for GPUs.
        num_paddle_gpus: number of GPUs that Paddle sees.
    """
    if fault:
        return Finding("gpu", "fault", fault, "repair the driver until nvidia-smi lists the GPU; or runtime.device=cpu")
    if gpus and not has_cuda:
        remedy = "pip uninstall -y paddlepaddle; " + install_command("gpu")
        return Finding("gpu", "warn", f"{', '.join(gpus)}; Paddle's wheel is for the CPU, so runs use the CPU", remedy)
    if gpus and not num_paddle_gpus:
        visible_devices = os.environ.get("CUDA_VISIBLE_DEVICES")
        if visible_devices is not None and visible_devices.strip() in ("", "-1"):
            description = f"{', '.join(gpus)}, hidden by CUDA_VISIBLE_DEVICES={visible_devices!r}; runs are on the CPU"
            return Finding("gpu", "warn", description, "unset CUDA_VISIBLE_DEVICES")
        remedy = "update the driver, or install a paddlepaddle-gpu of the driver's CUDA version"
        return Finding("gpu", "fault", f"{', '.join(gpus)}; Paddle sees none of them", remedy)
    if has_cuda and not gpus:
        remedy = "pip uninstall -y paddlepaddle-gpu; " + install_command("cpu")
        return Finding("gpu", "warn", "no driver (nvidia-smi) here, and Paddle's wheel is for GPUs", remedy)
    return Finding(
        "gpu", "ok", f"{', '.join(gpus)}; Paddle sees {num_paddle_gpus}" if gpus else "none; runs are on the CPU"
    )


def gpu_finding_without_paddle(gpus: list[str], fault: str) -> Finding:
    """Return the finding for the GPUs of the driver if Paddle cannot be imported."""
    return Finding("gpu", "fault" if fault else "ok", fault or ", ".join(gpus) or "none")


def query_driver() -> tuple[list[str], str]:
    """Return descriptions of the GPUs that the driver lists, and the driver's fault, which may be empty."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    command = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        process = subprocess.run(
            command, capture_output=True, text=True, timeout=DRIVER_TIMEOUT, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not answer: {one_line(str(error))[:MAX_MESSAGE_LENGTH]}"
    if process.returncode != 0:
        return [], f"nvidia-smi: {one_line(process.stdout or process.stderr)[:MAX_MESSAGE_LENGTH]}"
    return [one_line(line) for line in process.stdout.splitlines() if line.strip()], ""
