"""The pytest fixture ``parity``, which runs the gate in a user's own tests.

::

    def test_port(parity):
        parity("port.py", "reference.py", hidden=32)

The gate is imported when a test uses the fixture, since pytest loads this file in every project of an environment.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: Number of lines of the gate's report that a failing test shows.
MAX_LINES = 14


@pytest.fixture
def parity(request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]) -> Callable:
    """Return ``parity(port, reference_model, **config)``, which fails the test unless the port agrees.

    Paths are relative to the test's file. ``map_file``, ``dtype``, ``seed``, ``forward_only`` and ``reuse`` are
    arguments of :func:`.require.require_parity`. All other keywords are the configuration of both sides. An unchanged
    pair is judged from earlier measurements. JUnit's report gets the verdict, the number of tensors, and the tensor
    nearest to its bound.
    """

    def check(
        port: str, reference_model: str, *, map_file: str | None = None, dtype: str = "both", seed: int = 0,
        forward_only: bool = False, reuse: bool = True, **config: Any,
    ) -> Any:  # fmt: skip
        from toolkit.errors import ToolkitError
        from toolkit.parity.require import require_parity
        from toolkit.terminal.console import LiteralConsole

        output = io.StringIO()
        test_folder = request.path.parent
        try:
            report = require_parity(
                _resolve_source(test_folder, port),
                _resolve_source(test_folder, reference_model),
                config,
                dtype=dtype,
                seed=seed,
                map_file=None if map_file is None else test_folder / map_file,
                forward_only=forward_only,
                reuse=reuse,
                folder=tmp_path / "parity",
                console=LiteralConsole(file=output, width=120),
            )
        except ToolkitError as error:
            record_property("parity", type(error).__name__)
            report_lines = output.getvalue().splitlines()[:MAX_LINES]
            pytest.fail("\n".join([*report_lines, str(error)]), pytrace=False)
        nearest_comparison = max(
            (comparison for comparison in report.verdict.comparisons if comparison.informative),
            key=lambda comparison: comparison.margin,
        )
        record_property("parity", "agrees, as measured before" if report.cached else "agrees")
        record_property("parity_tensors", len(report.verdict.comparisons))
        record_property(
            "parity_nearest",
            f"{nearest_comparison.name} in {nearest_comparison.dtype}: {nearest_comparison.margin:.2g} of its bound",
        )
        return report

    return check


def _resolve_source(folder: Path, source: str) -> str:
    """Return the path of a file in the test's folder, or a module's dotted name unchanged."""
    return str(folder / source) if source.endswith(".py") else source
