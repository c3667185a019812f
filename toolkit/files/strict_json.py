"""JSON that every parser accepts: infinities and NaN become null, because JSON cannot express them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def dumps(json_value: Any, indent: int | None = None) -> str:
    """Return a value as strict JSON text, with null for each number that is not finite."""
    return json.dumps(replace_nonfinite(json_value), indent=indent, allow_nan=False)


def replace_nonfinite(json_value: Any) -> Any:
    """Return a value with None for each number that is not finite."""
    if isinstance(json_value, Mapping):
        return {key: replace_nonfinite(value) for key, value in json_value.items()}
    if isinstance(json_value, (list, tuple)):
        return [replace_nonfinite(value) for value in json_value]
    return None if isinstance(json_value, float) and not math.isfinite(json_value) else json_value
