"""The gate as a call before any training loop."""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from toolkit.errors import Inconclusive, ParityDrift
from toolkit.parity.gate import run_gate
from toolkit.parity.options import dtypes_of
from toolkit.parity.pairs.options import pair_request
from toolkit.parity.report.report import JSON, Report
from toolkit.terminal.console import LiteralConsole


def require_parity(
    port: str,
    reference_model: str,
    config: Mapping[str, Any] | None = None,
    *,
    dtype: str = "both",
    seed: int = 0,
    map_file: Path | None = None,
    reference_python: str | None = None,
    port_python: str | None = None,
    forward_only: bool = False,
    reuse: bool = True,
    folder: Path = Path("runs/parity/cpu"),
    console: Console | None = None,
) -> Report:
    """Compare a Paddle port with its torch reference, like ``toolkit parity --port P --reference-model R``.

    Args:
        port: Python file or module name of the port. Both sides have ``build(config)``, one of them has
            ``batch(config, rng)``, and each may have ``loss(model, batch)``.
        reference_model: Python file or module name of the reference.
        config: configuration of both sides.
        dtype: ``float64``, ``float32`` or ``both``.
        seed: seed of the weights, the batch and all draws.
        map_file: map of the parameters; None to match them by name and order.
        reference_python: interpreter of the reference; None for this interpreter.
        port_python: interpreter of the port; None for this interpreter.
        forward_only: whether to compare only the forward in evaluation mode.
        reuse: whether to use earlier measurements if the files, their imports, the map and all versions are unchanged.
            Changes of data that the files read are not detected.
        folder: folder of the report.
        console: console for the report; None to print nothing.

    Returns:
        The report of a port that agrees.

    Raises:
        ParityDrift: the port differs; the message names the culprit.
        Inconclusive: the port cannot be judged.
        UserError: a file does not define a side of a pair.
    """
    request = pair_request(
        port=port,
        reference_model=reference_model,
        model_config=dict(config or {}),
        seed=seed,
        dtypes=dtypes_of(dtype),
        map_file=map_file,
        reference_python=reference_python,
        port_python=port_python,
        forward_only=forward_only,
    )
    silent_console = LiteralConsole(file=io.StringIO())
    report = run_gate(replace(request, reuse=reuse), folder, silent_console if console is None else console)
    if report.passed:
        return report
    error_class = Inconclusive if report.verdict.inconclusive else ParityDrift
    raise error_class(f"{report.summary()}; see {folder / JSON}")
