"""Test this project's ONNX exports, judged by a recorded reference with the run's weights."""

from __future__ import annotations

import io
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from test_exports import language_model
from test_train import recipe_file, train  # noqa: F401

from toolkit.commands.export.export import export_run
from toolkit.parity.bundle.bundle import open_recording
from toolkit.parity.gate import judge_outputs

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("paddle2onnx")

#: A function that changes a value of a graph, or returns None.
Change = Callable[[np.ndarray], np.ndarray | None]


def transpose_matrix(value: np.ndarray) -> np.ndarray | None:
    square = value.dtype == np.float32 and value.ndim == 2 and value.shape[0] == value.shape[1] > 8
    return value.T if square and not np.allclose(value, value.T) else None


def shift_table(rows: int) -> Change:
    """Return a function that moves the first table with this number of rows by one row."""
    return lambda value: np.roll(value, 1, 0) if value.dtype == np.float32 and value.shape[:1] == (rows,) else None


def change_value(graph: Path, change: Change) -> None:
    """Change the first value of a graph that `change` accepts."""
    model = onnx.load(graph)
    for node in model.graph.node:
        if node.op_type == "Constant" and (new := change(onnx.numpy_helper.to_array(node.attribute[0].t))) is not None:
            node.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(new)))
            onnx.save(model, graph)
            return
    raise AssertionError("it holds no such value")


def change_epsilon(graph: Path, epsilon: float) -> None:
    """Change the epsilon of the first layer norm."""
    model = onnx.load(graph)
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    (attribute,) = (candidate for candidate in norm.attribute if candidate.name == "epsilon")
    assert attribute.f < epsilon / 5
    attribute.f = epsilon
    onnx.save(model, graph)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["reformer", "ctrl"])
def test_an_export_passes_and_a_changed_export_drifts(family, recipe_file, tmp_path, command_line):  # noqa: F811
    if family == "reformer":
        run = train(recipe_file, tmp_path / "run", "model.config.attn_layers=[local, local]", "train.max_steps=2")
        options, rows, epsilon = ["--head", "sequence_classification", "--length", "64"], 8, 1e-5
    else:
        run, options, rows, epsilon = language_model(tmp_path), ["--length", "32"], 32, 1e-3
    export_dir = export_run(run, "onnx", tmp_path / "onnx", Console(file=io.StringIO()), overwrite=False)
    bundle = tmp_path / "bundle"
    record_result = command_line(
        "parity", "record", "--model", family, "--weights", run / "model", *options, "-o", bundle
    )
    assert record_result[0] == 0, record_result

    def judge_changed(change: Callable[[Path], None] | None) -> str:
        graph = Path(shutil.copytree(export_dir, tmp_path / "changed", dirs_exist_ok=True)) / "model.onnx"
        if change is not None:
            change(graph)
        judged_output = Console(file=io.StringIO(), width=200)
        judge_outputs(open_recording(bundle), graph, tmp_path / "report", judged_output, None, None)
        return judged_output.file.getvalue()

    correct_output = judge_changed(None)
    assert correct_output.startswith("PARITY 1 tensors of the port agree with the reference (float32)"), correct_output
    for change in (
        lambda graph: change_epsilon(graph, epsilon),
        lambda graph: change_value(graph, transpose_matrix),
        lambda graph: change_value(graph, shift_table(rows)),
    ):
        judged_output = judge_changed(change)
        assert judged_output.startswith("DRIFT logits") and "in evaluation mode (evaluation/logits)" in judged_output, (
            judged_output
        )
