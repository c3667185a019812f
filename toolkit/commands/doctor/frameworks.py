"""What a run computes with: Paddle, PaddleNLP and the ports, threads and flags, and the gate's reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from models import families
from toolkit.commands.doctor.child import ask
from toolkit.commands.doctor.finding import Finding, reinstall, told
from toolkit.commands.doctor.gpu import driver, gpu_finding, without_paddle
from toolkit.errors import UserError
from toolkit.machine.install import install_command
from toolkit.machine.runtime import version_of

PADDLE = """
from toolkit.machine import runtime
device = runtime.configure("auto")
import paddle
say(version=paddle.__version__, cuda=paddle.is_compiled_with_cuda())
say(gpus=paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0)
total = float((paddle.ones([8, 8]) @ paddle.ones([8, 8])).sum())
assert total == 512.0, f"the sum of a product of ones is {total}"
say(device=device)
"""


def check_paddle() -> Iterator[Finding]:
    """Check Paddle's wheels, that it computes, and the GPU as the driver and Paddle see it."""
    from toolkit.machine.runtime import explain_paddle_installation

    try:
        explain_paddle_installation()
    except UserError as error:
        yield Finding("paddle", "fault", *told(error))
        yield without_paddle(*driver())
        return
    answer = ask(PADDLE)
    wheel = "paddlepaddle-gpu" if version_of("paddlepaddle-gpu") else "paddlepaddle"
    if answer.failed:
        yield Finding("paddle", "fault", f"{wheel} does not work: {answer.failed}", reinstall())
    else:
        yield Finding("paddle", "ok", f"{wheel} {answer.said['version']}, computes on {answer.said['device']}")
    gpus, fault = driver()
    if answer.failed and "gpus" not in answer.said:
        yield without_paddle(gpus, fault)
    else:
        yield gpu_finding(gpus, fault, answer.said["cuda"], answer.said.get("gpus", 0))


PADDLENLP = """
from toolkit.terminal import quiet
from toolkit.machine import runtime
quiet.silence_startup()
runtime.configure("cpu")
import paddlenlp
from paddlenlp.trainer import Trainer
from models.families import FAMILIES, part
for family in FAMILIES:
    part(family, "modeling")
say(version=paddlenlp.__version__)
"""


def check_paddlenlp() -> Iterator[Finding]:
    """Check that the training loop and the ports can be imported."""
    answer = ask(PADDLENLP)
    if answer.failed:
        yield Finding("paddlenlp", "fault", f"cannot be imported: {answer.failed}", reinstall())
    else:
        yield Finding("paddlenlp", "ok", f"{answer.said['version']}, and the ports")


def check_environment() -> Iterator[Finding]:
    """Check whether the shell overrides variables that :func:`toolkit.machine.runtime.environment` sets."""
    from models.operations import kernels
    from toolkit.machine import allocator
    from toolkit.machine.runtime import environment, physical_cores

    cores = physical_cores()
    set_here = environment()
    wanted = {
        "OMP_NUM_THREADS": (str(cores), f"of {cores} physical cores"),
        "FLAGS_paddle_num_threads": (str(cores), f"of {cores} physical cores"),
        "NVIDIA_TF32_OVERRIDE": ("0", "float32 on a GPU is then not float32"),
        "FLAGS_cudnn_deterministic": ("1", "runs on a GPU are then not reproducible"),
    }
    wrong = {name: reason for name, (value, reason) in wanted.items() if set_here[name] != value}
    if wrong:
        what = "; ".join(f"{name}={set_here[name]} is set, {reason}" for name, reason in wrong.items())
        yield Finding("threads", "warn", what, f"unset {' '.join(wrong)}")
    else:
        path = set_here.get("MKL_DEBUG_CPU_TYPE")
        yield Finding("threads", "ok", f"{cores} on {cores} physical cores{f', MKL code path {path}' if path else ''}")
    if set_here[kernels.VARIABLE] == kernels.PADDLE:
        what = f"{kernels.VARIABLE}={kernels.PADDLE} is set: runs on a CPU are slower and less accurate"
        yield Finding("kernels", "warn", what, f"unset {kernels.VARIABLE}")
    try:
        whose = allocator.chosen()
    except UserError as error:
        yield Finding("memory", "fault", str(error), f"unset {allocator.VARIABLE}")
    else:
        said = "glibc's allocator, without its caches" if whose == allocator.UNCACHED else "the C library's allocator"
        yield Finding("memory", "ok", said)


#: Classes of transformers that references have.
CLASSES = [known.in_transformers for known in map(families.family, families.FAMILIES) if known.in_transformers]
REFERENCE = f"""
import torch, transformers
assert all(hasattr(transformers, name) for name in {CLASSES})
assert float(torch.ones(8, 8).sum()) == 64.0
say(torch=torch.__version__, transformers=transformers.__version__)
"""


def check_reference(python: str | None) -> Iterator[Finding]:
    """Check that the reference's process has what it needs for a gate."""
    from toolkit.parity import reference_interpreter

    place = reference_interpreter(python) if python else sys.executable
    missing = [] if python else [name for name in ("torch", "transformers") if not version_of(name)]
    if missing:
        what = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed, so no gate can run"
        mend = f"{install_command('reference')}, or --reference-python PATH of a Python that has them"
        yield Finding("reference", "fault", what, mend)
        return
    answer = ask(REFERENCE, place)
    if answer.failed:
        yield Finding(
            "reference", "fault", f"torch and transformers do not work: {answer.failed}", install_command("reference")
        )
        return
    where = f" in {place}" if python else ""
    what = f"torch {answer.said['torch']}, transformers {answer.said['transformers']}{where}"
    yield Finding("reference", "ok", what)
