"""Options of `toolkit parity` and its subcommands that select the comparison.

This module imports only the standard library, so that `--help` is instant.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

#: Default of ``--weights``: the kind of synthetic weights.
DEFAULT_WEIGHTS = "heavy-tailed"


@dataclass(frozen=True)
class GateOptions:
    """Options that select a comparison. A command sets its own options; the others keep their defaults.

    The first group describes one of the toolkit's own ports, the second group any comparison, and the last group a pair
    of the user's files.

    Attributes:
        weights_from: value of ``--weights``; None for a sweep over all kinds.
        overrides: ``KEY=VALUE`` arguments, which change the configuration.
        map_file: value of ``--map``.
    """

    model: str | None = None
    head: str | None = None
    layers: int | None = None
    attention: str | None = None
    length: int | None = None
    batch_size: int | None = None
    reference_reversible: bool = False
    weights_from: str | None = DEFAULT_WEIGHTS

    overrides: Sequence[str] = ()
    seed: int = 0
    dtype: str = "both"
    reference_python: str | None = None

    port: str | None = None
    reference_model: str | None = None
    map_file: Path | None = None
    port_python: str | None = None
    time_limit: float | None = None
    forward_only: bool = False
    any_framework: bool = False
    small: bool = False
    steps: int | None = None
