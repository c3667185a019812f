"""Distance of the two sides over the depth of the model, as a table like in alignment reports."""

from __future__ import annotations

import re
from typing import Any

from rich.table import Table

from toolkit.parity.exchange.results import CandidateResult, ReferenceResult
from toolkit.parity.job.family import family
from toolkit.parity.judge.bounds import is_measured, largest_noise

#: Matches the end of the name of a layer's output.
LAYER = re.compile(r"\.(\d+)$")
#: Number of layers to show between the first and the last.
NUM_BETWEEN = 3


def depth_rows(model: str, reference: ReferenceResult, candidate: CandidateResult) -> list[dict[str, Any]]:
    """Return a row for each hidden state, the last norm, the logits and the loss.

    ``float64`` and ``float32`` are the mean and the maximum of |port - reference| in this dtype. ``ratio`` is the
    port's float32 error over the reference's float32 error, both measured from the reference's float64. It is about 1
    if the distance is rounding. There are no rows unless the model was computed stage by stage.
    """
    sides = candidate.dtypes
    if not reference.streamed:
        return []
    distances = {dtype: side.apart for dtype, side in sides.items()}
    if "float64" in sides:
        distances["float64"] = sides["float64"].tensors  # the truth is the reference's float64
    model_family, rows = family(model), []
    for name, theirs in reference.tensors.items():
        stats_by_dtype = {dtype: stats[name] for dtype, stats in distances.items() if name in stats}
        if not (model_family.is_shown(name) and stats_by_dtype):
            continue
        row: dict[str, Any] = {"name": name}
        row.update({dtype: {"mean": stats.mean, "max": stats.max} for dtype, stats in stats_by_dtype.items()})
        if "float32" in sides and is_measured(theirs, "float32"):
            row["ratio"] = (sides["float32"].tensors[name].rms or 0.0) / max(largest_noise(theirs, "float32"), 1e-300)
        rows.append(row)
    return rows


def depth_table(rows: list[dict[str, Any]]) -> Table:
    """Return a table of some of the rows, evenly spaced over the layers."""
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("port - reference")
    dtypes = [dtype for dtype in ("float64", "float32") if any(dtype in row for row in rows)]
    for dtype in dtypes:
        for title in (f"{dtype} mean", "max"):
            table.add_column(title, justify="right", no_wrap=True)
    table.add_column("its float32 error / the reference's", justify="right")
    layers = [row for row in rows if LAYER.search(row["name"])]
    last = max(len(layers) - 1, 0)
    indices = sorted({round(last * step / (NUM_BETWEEN + 1)) for step in range(NUM_BETWEEN + 2)}) if layers else []
    for row in [layers[index] for index in indices] + [row for row in rows if row not in layers]:
        figures = [f"{row[dtype][key]:.1e}" if dtype in row else "" for dtype in dtypes for key in ("mean", "max")]
        table.add_row(_title(row["name"]), *figures, f"{row['ratio']:.2f}" if "ratio" in row else "")
    return table


def _title(name: str) -> str:
    """Return the words for a tensor on the depth axis, such as ``after layer 3``."""
    if layer := LAYER.search(name):
        return f"after layer {int(layer[1]) + 1}"
    return "after last norm" if name.endswith("norm") else name
