"""This project's own ONNX exports, judged by a recorded reference with the run's weights."""

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

#: Changes a value of a graph, or returns None.
Change = Callable[[np.ndarray], np.ndarray | None]


def transpose_matrix(value: np.ndarray) -> np.ndarray | None:
    square = value.dtype == np.float32 and value.ndim == 2 and value.shape[0] == value.shape[1] > 8
    return value.T if square and not np.allclose(value, value.T) else None


def shift_table(rows: int) -> Change:
    """Moves the first table of so many positions by one."""
    return lambda value: np.roll(value, 1, 0) if value.dtype == np.float32 and value.shape[:1] == (rows,) else None


def with_value(graph: Path, change: Change) -> None:
    """Change the first value of a graph that is of the kind."""
    model = onnx.load(graph)
    for node in model.graph.node:
        if node.op_type == "Constant" and (new := change(onnx.numpy_helper.to_array(node.attribute[0].t))) is not None:
            node.attribute[0].t.CopyFrom(onnx.numpy_helper.from_array(np.ascontiguousarray(new)))
            onnx.save(model, graph)
            return
    raise AssertionError("it holds no such value")


def with_epsilon(graph: Path, epsilon: float) -> None:
    """Give the first layer norm another epsilon."""
    model = onnx.load(graph)
    norm = next(node for node in model.graph.node if node.op_type == "LayerNormalization")
    (attribute,) = (one for one in norm.attribute if one.name == "epsilon")
    assert attribute.f < epsilon / 5
    attribute.f = epsilon
    onnx.save(model, graph)


@pytest.mark.slow
@pytest.mark.parametrize("family", ["reformer", "ctrl"])
def test_an_export_is_judged_as_it_is_and_a_changed_one_is_a_drift(family, recipe_file, tmp_path, command_line):  # noqa: F811
    if family == "reformer":
        run = train(recipe_file, tmp_path / "run", "model.config.attn_layers=[local, local]", "train.max_steps=2")
        asked, rows, epsilon = ["--head", "sequence_classification", "--length", "64"], 8, 1e-5
    else:
        run, asked, rows, epsilon = language_model(tmp_path), ["--length", "32"], 32, 1e-3
    exported = export_run(run, "onnx", tmp_path / "onnx", Console(file=io.StringIO()), overwrite=False)
    bundle = tmp_path / "bundle"
    recorded = command_line("parity", "record", "--model", family, "--weights", run / "model", *asked, "-o", bundle)
    assert recorded[0] == 0, recorded

    def judged(change: Callable[[Path], None] | None) -> str:
        graph = Path(shutil.copytree(exported, tmp_path / "changed", dirs_exist_ok=True)) / "model.onnx"
        if change is not None:
            change(graph)
        said = Console(file=io.StringIO(), width=200)
        judge_outputs(open_recording(bundle), graph, tmp_path / "report", said, None, None)
        return said.file.getvalue()

    right = judged(None)
    assert right.startswith("PARITY 1 tensors of the port agree with the reference (float32)"), right
    for change in (
        lambda graph: with_epsilon(graph, epsilon),
        lambda graph: with_value(graph, transpose_matrix),
        lambda graph: with_value(graph, shift_table(rows)),
    ):
        said = judged(change)
        assert said.startswith("DRIFT logits") and "in evaluation mode (evaluation/logits)" in said, said
