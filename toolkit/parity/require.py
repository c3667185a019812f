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
    """Compare a Paddle port with its torch reference, as ``toolkit parity --port P --reference-model R`` does.

    Args:
        port, reference_model: a Python file or a module's name; both have ``build(config)``, one of them
            ``batch(config, rng)``, and each may have ``loss(model, batch)``.
        config: given to both.
        reference_python, port_python: the interpreters that run the two sides; None for this one.
        forward_only: compare what both compute in evaluation mode, and nothing that trains them.
        reuse: judge from what was measured before, if the files, what they import, the map and all versions are
            unchanged. Data that they read is not seen.
        folder: the report's.
        console: prints the report; nothing is printed without one.

    Returns:
        The report of a port that agrees.

    Raises:
        ParityDrift: the port differs, with where.
        Inconclusive: nothing can be said.
        UserError: a file is no side of a pair.
    """
    request = pair_request(
        port=port,
        reference_model=reference_model,
        config=dict(config or {}),
        seed=seed,
        dtypes=dtypes_of(dtype),
        map_file=map_file,
        reference_python=reference_python,
        port_python=port_python,
        forward_only=forward_only,
    )
    silent = LiteralConsole(file=io.StringIO())
    report = run_gate(replace(request, reuse=reuse), folder, silent if console is None else console)
    if report.passed:
        return report
    wrong = Inconclusive if report.verdict.inconclusive else ParityDrift
    raise wrong(f"{report.summary()}; see {folder / JSON}")
