"""How far the two sides lie apart over the depth of the model: the table that alignment reports publish, explained."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from toolkit.parity.job.stages import SHOWN

#: Layers shown between the first and the last.
LAYERS_BETWEEN = 3


def depth_rows(reference: Mapping[str, Any], candidate: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for every hidden state, the last norm, the scores and the loss.

    ``float64`` and ``float32``: mean and maximum of |port - reference| in that dtype; ``ratio``: the port's float32
    error over the reference's own, both against the reference's float64: about 1 where a distance is rounding.
    Empty unless both sides were compared in this way (stage by stage).
    """
    sides = candidate["dtypes"]
    apart = {dtype: side.get("apart") or {} for dtype, side in sides.items()}
    if "float64" in sides and any("apart" in side for side in sides.values()):
        apart["float64"] = sides["float64"]["tensors"]  # the truth is the reference's float64
    names = [
        name
        for name in reference["tensors"]
        if SHOWN.fullmatch(name) and any(name in found for found in apart.values())
    ]
    rows = []
    for name in names:
        row: dict[str, Any] = {"name": name}
        for dtype, found in apart.items():
            if name in found:
                row[dtype] = {key: found[name][key] for key in ("mean", "max")}
        own = reference["tensors"][name]["noise"]["float32"]
        if "float32" in sides and own and None not in own:
            row["ratio"] = sides["float32"]["tensors"][name]["rms"] / max(*own, 1e-300)
        rows.append(row)
    return rows


def depth_table(rows: list[dict[str, Any]]) -> Table:
    """Some of the rows, evenly spaced over the layers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("port - reference")
    dtypes = [dtype for dtype in ("float64", "float32") if any(dtype in row for row in rows)]
    for dtype in dtypes:
        for title in (f"{dtype} mean", "max"):
            table.add_column(title, justify="right", no_wrap=True)
    table.add_column("its float32 error / the reference's", justify="right")
    layers = [row for row in rows if ".h." in row["name"]]
    last = max(len(layers) - 1, 0)
    shown = sorted({round(last * step / (LAYERS_BETWEEN + 1)) for step in range(LAYERS_BETWEEN + 2)}) if layers else []
    for row in [layers[index] for index in shown] + [row for row in rows if ".h." not in row["name"]]:
        figures = [f"{row[dtype][key]:.1e}" if dtype in row else "" for dtype in dtypes for key in ("mean", "max")]
        table.add_row(_title(row["name"]), *figures, f"{row['ratio']:.2f}" if "ratio" in row else "")
    return table


def _title(name: str) -> str:
    layer = re.search(r"\.h\.(\d+)$", name)
    if layer:
        return f"after layer {int(layer[1]) + 1}"
    return {"output:transformer.layernorm": "after last norm"}.get(name, name)
