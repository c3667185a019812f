"""The port's part in ``--ops``: one float32 step with the reference's kernels, against R32 bit for bit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from toolkit import runtime
from toolkit.parity.candidate.kernel_client import KernelServer
from toolkit.parity.candidate.measure import make_step
from toolkit.parity.candidate.places import places
from toolkit.parity.job import files
from toolkit.parity.measure import ulp

#: Settings of the port by which it adds as the reference does, and makes its gradients by plain autograd.
PLAIN = {"reformer": {"residual": "plain"}, "ctrl": {}}


def run(job: dict, folder: Path) -> dict[str, Any]:
    """Every tensor of R32 against the port's, with the kernels of ``job["ops"]`` the reference's.

    Returns:
        ``tensors``: by name, as :func:`.last_bit.compare` (``{"missing": ...}`` for one that the port has not);
        ``extra``: names that R32 has not; ``calls``: how often each kernel was asked for; ``places`` of the modules;
        ``versions``.
    """
    with KernelServer(folder, job["ops"]["python"]) as server:
        runtime.configure(job["device"], job["threads"])
        return {**_compared(job, folder, server), "versions": runtime.versions(), "flags": runtime.flags()}


def _compared(job: dict, folder: Path, server: KernelServer) -> dict[str, Any]:
    from toolkit.parity.candidate.kernels import reference_kernels

    files.wait_for(folder / "reference" / "order.json", folder / "reference" / "failed")
    plain = {**job, "config": {**job["config"], **PLAIN[job["model"]]}}
    step = make_step(plain, folder, "float32", "autograd")
    ours: dict[str, np.ndarray] = {}
    with reference_kernels(server, job["ops"]["kinds"]):
        step.run(ours.__setitem__)
    theirs = files.read_tensors(folder / "reference" / "float32.safetensors")
    return {
        "tensors": {name: _compare(name, ours, value) for name, value in theirs.items()},
        "extra": sorted(ours.keys() - theirs.keys()),
        "calls": dict(server.calls),
        "places": places(step.model),
    }


def _compare(name: str, ours: Mapping[str, np.ndarray], theirs: np.ndarray) -> dict[str, Any]:
    if name in ours:
        return ulp.compare(ours[name], theirs)
    return {"missing": True, "differing": theirs.size, "of": theirs.size, "units": ulp.UNORDERED}
