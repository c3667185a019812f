"""Check the frameworks of a run: Paddle, PaddleNLP and the ports, threads and flags, and the gate's reference."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from models import families
from toolkit.commands.doctor.child import run_in_child
from toolkit.commands.doctor.finding import Finding, reinstall_command, split_message
from toolkit.commands.doctor.gpu import gpu_finding, gpu_finding_without_paddle, query_driver
from toolkit.errors import UserError
from toolkit.machine.install import install_command
from toolkit.machine.runtime import distribution_version

PADDLE = """
from toolkit.machine import runtime
device = runtime.configure_paddle("auto")
import paddle
say(version=paddle.__version__, cuda=paddle.is_compiled_with_cuda())
say(gpus=paddle.device.cuda.device_count() if paddle.is_compiled_with_cuda() else 0)
total = float((paddle.ones([8, 8]) @ paddle.ones([8, 8])).sum())
assert total == 512.0, f"the sum of a product of ones is {total}"
say(device=device)
"""


def check_paddle() -> Iterator[Finding]:
    """Check Paddle's wheels, a computation with Paddle, and the GPU as the driver and Paddle see it."""
    from toolkit.machine.runtime import check_paddle_installation

    try:
        check_paddle_installation()
    except UserError as error:
        yield Finding("paddle", "fault", *split_message(error))
        yield gpu_finding_without_paddle(*query_driver())
        return
    answer = run_in_child(PADDLE)
    wheel = "paddlepaddle-gpu" if distribution_version("paddlepaddle-gpu") else "paddlepaddle"
    if answer.failure:
        yield Finding("paddle", "fault", f"{wheel} does not work: {answer.failure}", reinstall_command())
    else:
        yield Finding("paddle", "ok", f"{wheel} {answer.values['version']}, computes on {answer.values['device']}")
    gpus, fault = query_driver()
    if answer.failure and "gpus" not in answer.values:
        yield gpu_finding_without_paddle(gpus, fault)
    else:
        yield gpu_finding(gpus, fault, answer.values.get("gpus", 0), has_cuda=answer.values["cuda"])


PADDLENLP = """
from toolkit.terminal import quiet
from toolkit.machine import runtime
quiet.silence_startup()
runtime.configure_paddle("cpu")
import paddlenlp
from paddlenlp.trainer import Trainer
from models.families import FAMILIES, part
for family in FAMILIES:
    part(family, "modeling")
say(version=paddlenlp.__version__)
"""


def check_paddlenlp() -> Iterator[Finding]:
    """Check that the training loop and the ports can be imported."""
    answer = run_in_child(PADDLENLP)
    if answer.failure:
        yield Finding("paddlenlp", "fault", f"cannot be imported: {answer.failure}", reinstall_command())
    else:
        yield Finding("paddlenlp", "ok", f"{answer.values['version']}, and the ports")


LOOPS = """
from toolkit.machine import runtime
runtime.configure_paddle("cpu")
from toolkit.parity.candidate import loop_errors
from toolkit.parity.judge import loops
errors = loop_errors.cached_errors()
say(count=len({error.loop for error in errors}))
say(faults=[f"{loop} {message}" for loop, message in loops.faults(errors)])
"""


def check_loops() -> Iterator[Finding]:
    """Check the accuracy of the compiled loops on this processor, which the next gates then read from the cache."""
    from models.operations import kernels

    answer = run_in_child(LOOPS)
    remedy = f"export {kernels.VARIABLE}={kernels.COMPOSED}"
    if answer.failure:
        yield Finding("loops", "fault", f"the compiled loops do not work: {answer.failure}", remedy)
        return
    for fault in answer.values["faults"]:
        yield Finding("loops", "fault", f"the compiled loop {fault}", remedy)
    if not answer.values["faults"]:
        count = answer.values["count"]
        yield Finding("loops", "ok", f"{count} compiled loops are accurate" if count else "compiled loops are not used")


def check_environment() -> Iterator[Finding]:
    """Check whether the shell overrides variables that :func:`toolkit.machine.runtime.paddle_environment` sets."""
    from models.operations import kernels
    from toolkit.machine.runtime import count_physical_cores, paddle_environment

    cores = count_physical_cores()
    variables = paddle_environment()
    expected_values = {
        "OMP_NUM_THREADS": (str(cores), f"of {cores} physical cores"),
        "FLAGS_paddle_num_threads": (str(cores), f"of {cores} physical cores"),
        "NVIDIA_TF32_OVERRIDE": ("0", "float32 on a GPU is then not float32"),
        "FLAGS_cudnn_deterministic": ("1", "runs on a GPU are then not reproducible"),
    }
    overridden = {name: reason for name, (value, reason) in expected_values.items() if variables[name] != value}
    if overridden:
        description = "; ".join(f"{name}={variables[name]} is set, {reason}" for name, reason in overridden.items())
        yield Finding("threads", "warn", description, f"unset {' '.join(overridden)}")
    else:
        path = variables.get("MKL_DEBUG_CPU_TYPE")
        yield Finding("threads", "ok", f"{cores} on {cores} physical cores{f', MKL code path {path}' if path else ''}")
    if variables[kernels.VARIABLE] == kernels.PADDLE:
        description = f"{kernels.VARIABLE}={kernels.PADDLE} is set: runs on a CPU are slower and less accurate"
        yield Finding("kernels", "warn", description, f"unset {kernels.VARIABLE}")


#: Classes of transformers that the references use.
REFERENCE_CLASSES = [family.config_class for family in map(families.family, families.FAMILIES) if family.config_class]
REFERENCE = f"""
import torch, transformers
assert all(hasattr(transformers, name) for name in {REFERENCE_CLASSES})
assert float(torch.ones(8, 8).sum()) == 64.0
say(torch=torch.__version__, transformers=transformers.__version__)
"""


def check_reference(python: str | None) -> Iterator[Finding]:
    """Check that the Python of the reference can import torch and transformers.

    Args:
        python: path of the Python that runs the reference; None for the running Python.
    """
    from toolkit.parity import reference_interpreter

    interpreter = reference_interpreter(python) if python else sys.executable
    missing = [] if python else [name for name in ("torch", "transformers") if not distribution_version(name)]
    if missing:
        description = f"{' and '.join(missing)} {'are' if len(missing) > 1 else 'is'} not installed, so no gate can run"
        remedy = f"{install_command('reference')}, or --reference-python PATH of a Python that has them"
        yield Finding("reference", "fault", description, remedy)
        return
    answer = run_in_child(REFERENCE, interpreter)
    if answer.failure:
        yield Finding(
            "reference", "fault", f"torch and transformers do not work: {answer.failure}", install_command("reference")
        )
        return
    location = f" in {interpreter}" if python else ""
    description = f"torch {answer.values['torch']}, transformers {answer.values['transformers']}{location}"
    yield Finding("reference", "ok", description)
