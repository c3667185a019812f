"""The gate in a user's own tests: a pytest fixture.

::

    def test_port(parity):
        parity("port.py", "reference.py", hidden=32)

Nothing of the gate is imported before a test asks for it: pytest loads this file in every project of an environment.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

#: Lines of a gate's report that a failing test shows.
LINES = 14


@pytest.fixture
def parity(request: pytest.FixtureRequest, tmp_path: Path, record_property: Callable[[str, object], None]) -> Callable:
    """Return ``parity(port, reference_model, **config)``, which fails the test unless the port agrees.

    Paths are relative to the test's file; of :func:`.require.require_parity`'s options, ``map_file``, ``dtype``,
    ``seed``, ``forward_only`` and ``reuse`` are taken as they are there. Whatever else is named goes to both files'
    ``build(config)``. An unchanged pair is judged from what was measured before. JUnit gets the verdict, the number of
    tensors, and the tensor nearest its bound.
    """

    def check(
        port: str, reference_model: str, *, map_file: str | None = None, dtype: str = "both", seed: int = 0,
        forward_only: bool = False, reuse: bool = True, **config: Any,
    ) -> Any:  # fmt: skip
        from toolkit.errors import ToolkitError
        from toolkit.parity.require import require_parity
        from toolkit.terminal.console import LiteralConsole

        said = io.StringIO()
        here = request.path.parent
        try:
            report = require_parity(
                _beside(here, port),
                _beside(here, reference_model),
                config,
                dtype=dtype,
                seed=seed,
                map_file=None if map_file is None else here / map_file,
                forward_only=forward_only,
                reuse=reuse,
                folder=tmp_path / "parity",
                console=LiteralConsole(file=said, width=120),
            )
        except ToolkitError as problem:
            record_property("parity", type(problem).__name__)
            shown = said.getvalue().splitlines()[:LINES]
            pytest.fail("\n".join([*shown, str(problem)]), pytrace=False)
        nearest = max((one for one in report.verdict.comparisons if one.informative), key=lambda one: one.margin)
        record_property("parity", "agrees, as measured before" if report.cached else "agrees")
        record_property("parity_tensors", len(report.verdict.comparisons))
        record_property("parity_nearest", f"{nearest.name} in {nearest.dtype}: {nearest.margin:.2g} of its bound")
        return report

    return check


def _beside(folder: Path, source: str) -> str:
    """Return a file beside the test's; a module's dotted name as it is."""
    return str(folder / source) if source.endswith(".py") else source
