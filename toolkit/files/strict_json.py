"""JSON that every reader takes: infinities and NaN become null, since JSON cannot express them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(content: Any, indent: int | None = None) -> str:
    """``content`` as strict JSON."""
    return json.dumps(finite(content), indent=indent, allow_nan=False)


def finite(content: Any) -> Any:
    """``content`` with None for each number that is not finite."""
    if isinstance(content, Mapping):
        return {key: finite(value) for key, value in content.items()}
    if isinstance(content, (list, tuple)):
        return [finite(value) for value in content]
    return None if isinstance(content, float) and not math.isfinite(content) else content
