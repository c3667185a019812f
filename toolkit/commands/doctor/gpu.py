"""The GPU: the driver's view of it and Paddle's."""

from __future__ import annotations

import os
import shutil
import subprocess

from toolkit.commands.doctor.finding import LONGEST_WORDS, Finding
from toolkit.machine.install import install_command
from toolkit.terminal.escape import one_line

#: Seconds for the driver's answer.
DRIVER_PATIENCE = 20.0


def gpu_finding(gpus: list[str], fault: str, cuda: bool, seen: int) -> Finding:
    """Compare the driver's GPUs with Paddle's.

    Args:
        fault: the driver's; empty if it answers, or is not there.
        cuda: whether Paddle is compiled for GPUs.
        seen: number that Paddle sees.
    """
    if fault:
        return Finding("gpu", "fault", fault, "repair the driver until nvidia-smi lists the GPU; or runtime.device=cpu")
    if gpus and not cuda:
        mend = "pip uninstall -y paddlepaddle; " + install_command("gpu")
        return Finding("gpu", "warn", f"{', '.join(gpus)}; Paddle's wheel is for the CPU, so runs use the CPU", mend)
    if gpus and not seen:
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        if hidden is not None and hidden.strip() in ("", "-1"):
            what = f"{', '.join(gpus)}, hidden by CUDA_VISIBLE_DEVICES={hidden!r}; runs are on the CPU"
            return Finding("gpu", "warn", what, "unset CUDA_VISIBLE_DEVICES")
        mend = "update the driver, or install a paddlepaddle-gpu of the driver's CUDA version"
        return Finding("gpu", "fault", f"{', '.join(gpus)}; Paddle sees none of them", mend)
    if cuda and not gpus:
        mend = "pip uninstall -y paddlepaddle-gpu; " + install_command("cpu")
        return Finding("gpu", "warn", "no driver (nvidia-smi) here, and Paddle's wheel is for GPUs", mend)
    return Finding("gpu", "ok", f"{', '.join(gpus)}; Paddle sees {seen}" if gpus else "none; runs are on the CPU")


def without_paddle(gpus: list[str], fault: str) -> Finding:
    return Finding("gpu", "fault" if fault else "ok", fault or ", ".join(gpus) or "none")


def driver() -> tuple[list[str], str]:
    """Return the GPUs that the driver lists, and its fault."""
    program = shutil.which("nvidia-smi")
    if program is None:
        return [], ""
    question = [program, "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"]
    try:
        done = subprocess.run(
            question, capture_output=True, text=True, timeout=DRIVER_PATIENCE, stdin=subprocess.DEVNULL, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return [], f"nvidia-smi does not answer: {one_line(str(error))[:LONGEST_WORDS]}"
    if done.returncode != 0:
        return [], f"nvidia-smi: {one_line(done.stdout or done.stderr)[:LONGEST_WORDS]}"
    return [one_line(line) for line in done.stdout.splitlines() if line.strip()], ""
