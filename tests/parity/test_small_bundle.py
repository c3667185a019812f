"""Test bundles without weights, which store sums of large tensors instead of their values."""

from __future__ import annotations

import io
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console
from safetensors.numpy import load_file, save_file

from toolkit.parity.bundle.bundle import check_weights_free
from toolkit.parity.exchange import files
from toolkit.parity.exchange.tensor_file import TensorFile, TensorWriter
from toolkit.parity.measure import error_stats
from toolkit.parity.measure.sketch import COUNT, Sketch
from toolkit.parity.pairs.options import pair_request
from toolkit.parity.pairs.recording import record_pair

PAIR = Path(__file__).parents[1] / "pairs" / "mlp"


def make_difference(*places) -> np.ndarray:
    """Return a difference at these rows and columns of a matrix, and zero elsewhere."""
    difference = np.zeros((300, 512))
    difference[places] = np.random.default_rng(1).standard_normal(difference[places].shape)
    return difference


@pytest.mark.parametrize(
    ("difference", "within"),
    [
        (make_difference(slice(None)), 0.05),
        (make_difference(17), 0.05),
        (make_difference(slice(None), 17), 0.02),
        (make_difference([3, 200], [5, 511]), 1e-6),
    ],
    ids=["dense", "row", "column", "two elements"],
)
def test_a_sketch_measures_the_size_of_any_difference(difference, within):
    truth = np.random.default_rng(0).standard_normal(difference.shape)
    sketch_stats = error_stats.measure_error(truth + 1e-6 * difference, Sketch.of(truth))
    exact_stats = error_stats.measure_error(truth + 1e-6 * difference, truth)
    assert sketch_stats.rms == pytest.approx(exact_stats.rms, rel=within) and sketch_stats.shape == [300, 512]


def test_sums_are_exact_up_to_rounding_in_any_order():
    truth = np.random.default_rng(0).standard_normal((1000, 1000))
    pieces = np.split(truth.ravel(), [7, 300_001])
    assert np.array_equal(Sketch.of_pieces(pieces, truth.shape).values, Sketch.of(truth).values)
    error_of_sums = error_stats.measure_error(np.nextafter(truth, np.inf), Sketch.of(truth))
    assert error_of_sums.rms < 3 * error_stats.measure_error(np.nextafter(truth, np.inf), truth).rms
    assert error_stats.measure_error(truth, Sketch.of(truth)).max == 0.0
    truth[5, 5] = np.inf
    assert not error_stats.describe(Sketch.of(truth)).finite


def test_another_shape_has_no_error():
    stats = error_stats.measure_error(np.ones((512, 300)), Sketch.of(np.ones((300, 512))))
    assert stats.rms is None and stats.shape == [512, 300]


def test_sketches_and_their_duplicates_are_read_back(tmp_path):
    truth = np.arange(20_000.0).reshape(100, 200)
    with TensorWriter(tmp_path / "x.safetensors") as writer:
        writer.add("small", truth[:2])
        writer.add("large", Sketch.of(truth))
        writer.repeat("again", "large")
    read = TensorFile(tmp_path / "x.safetensors")
    assert read["again"].shape == (100, 200) and np.array_equal(read["again"].values, Sketch.of(truth).values)
    assert np.array_equal(read["small"], truth[:2])
    assert load_file(tmp_path / "x.safetensors")["large"].shape == (COUNT,)


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Path:
    """Return a small bundle, with its weights next to it."""
    folder = tmp_path_factory.mktemp("small") / "bundle"
    reference = str(PAIR / "reference.py")
    request = pair_request(port=None, reference_model=reference, model_config={"hidden": 128}, seed=0, small=True)
    output = io.StringIO()
    record_pair(request, folder, Console(file=output))
    assert output.getvalue().endswith(f"replay {folder} --port FILE --weights {find_weights(folder)}\n")
    return folder


def find_weights(bundle: Path) -> Path:
    return bundle.with_name("bundle.weights.safetensors")


def run_replay(command_line, bundle: Path, port: Path, weights: object, output: Path) -> tuple[int, str, str]:
    return command_line("parity", "replay", bundle, "--port", port, "--weights", weights, "--output", output)


def test_the_figures_equal_a_gate_on_whole_tensors(bundle, command_line, tmp_path):
    assert not (bundle / "weights.safetensors").exists()
    status, out, err = run_replay(command_line, bundle, PAIR / "port.py", find_weights(bundle), tmp_path / "small")
    assert status == 0 and "note: recorded --small: of a tensor of 16,372 elements and more, 4,093 sums" in out, err
    sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py", "hidden=128")
    assert command_line("parity", *sides, "--output", tmp_path / "whole")[0] == 0
    small_tensors, full_tensors = (
        {(tensor["name"], tensor["dtype"]): tensor for tensor in json.loads(path.read_text())["tensors"]}
        for path in (tmp_path / "small/cpu/parity.json", tmp_path / "whole/cpu/parity.json")
    )
    assert small_tensors.keys() == {key for key in full_tensors if not key[0].startswith("updated:")}
    large = {key for key in small_tensors if small_tensors[key]["error"] != full_tensors[key]["error"]}
    assert {name for name, _ in large} == {"gradient:ffn.0.weight", "gradient:ffn.3.weight"}
    for key in large:
        for figure in ("rms", "error"):
            assert small_tensors[key][figure] == pytest.approx(full_tensors[key][figure], rel=0.1), (key, figure)


@pytest.mark.parametrize(
    ("original_code", "faulty_code", "culprit"),
    [
        ("2 * hidden)\n", "2 * hidden)\n        self.first.weight.register_hook(swapped)\n", "ffn.0 (Linear"),
        ("nn.LayerNorm(hidden)", "nn.LayerNorm(hidden, 1e-6)", "ln (LayerNorm"),
    ],
)
def test_a_fault_of_a_port_is_named(original_code, faulty_code, culprit, bundle, command_line, tmp_path):
    """Include a fault that swaps two of the 32,768 elements of a gradient."""
    port = (PAIR / "port.py").read_text()
    assert original_code in port
    swap_code = (
        "def swapped(g):\n    g = g.clone()\n    g[0, 0], g[1, 1] = g[1, 1].clone(), g[0, 0].clone()\n    return g\n"
    )
    (tmp_path / "port.py").write_text(port.replace(original_code, faulty_code, 1) + "\n\n" + swap_code)
    status, out, err = run_replay(command_line, bundle, tmp_path / "port.py", find_weights(bundle), tmp_path / "out")
    assert status == 1 and out.startswith(f"DRIFT {culprit}"), out + err


def test_the_weights_may_come_from_a_checkpoint(bundle, command_line, tmp_path):
    weights = load_file(find_weights(bundle))
    (tmp_path / "saved").mkdir()
    save_file({**weights, "more": np.zeros(3, np.float32)}, tmp_path / "saved" / "model.safetensors")
    status, _, err = run_replay(command_line, bundle, PAIR / "port.py", tmp_path / "saved", tmp_path / "out")
    assert status == 0, err


def test_other_weights_are_rejected(bundle, command_line, tmp_path):
    def replay_error(**changes: np.ndarray | None) -> str:
        tensors = {**load_file(find_weights(bundle)), **changes}
        save_file({name: value for name, value in tensors.items() if value is not None}, tmp_path / "w.safetensors")
        status, _, err = run_replay(
            command_line, bundle, PAIR / "port.py", tmp_path / "w.safetensors", tmp_path / "out"
        )
        assert status == 2 and len(err.splitlines()) == 1
        return err

    head = load_file(find_weights(bundle))["classifier.bias"]
    message = "is not what the reference was recorded with"
    assert f"w.safetensors: classifier.bias {message}" in replay_error(**{"classifier.bias": np.nextafter(head, 1)})
    assert f"classifier.bias {message}" in replay_error(**{"classifier.bias": head[None]})
    assert "has no classifier.bias, with which the reference was recorded" in replay_error(**{"classifier.bias": None})
    status, _, err = run_replay(command_line, bundle, PAIR / "port.py", tmp_path / "none", tmp_path / "out")
    assert status == 2 and "none" in err


def test_limits_of_a_small_bundle_are_reported_in_one_line(bundle, command_line, tmp_path):
    def run_to_error(*arguments: object) -> str:
        status, _, err = command_line("parity", *arguments)
        assert status == 2
        return err

    assert "is recorded --small, without weights; name them with --weights" in run_to_error(
        "replay", bundle, "--port", PAIR / "port.py"
    )
    assert "exists and is not a bundle" in run_to_error(
        "record", "--reference-model", PAIR / "reference.py", "--small", "-o", "."
    )
    assert "--small: is for a --port and a --reference-model" in run_to_error(
        "record", "--model", "ctrl", "--small", "-o", tmp_path / "b"
    )
    existing_file = tmp_path / "b.weights.safetensors"
    existing_file.write_text("mine")
    arguments = ("record", "--reference-model", PAIR / "reference.py", "--small", "-o", tmp_path / "b")
    assert (
        "b.weights.safetensors: is there, and not of a bundle" in run_to_error(*arguments)
        and existing_file.read_text() == "mine"
    )
    check_weights_free(bundle)
    forged_bundle = shutil.copytree(bundle, tmp_path / "forged")
    for content in (b"mine", find_weights(bundle).read_bytes()[:-1] + b"\1"):
        (tmp_path / "forged.weights.safetensors").write_bytes(content)
        assert "forged.weights.safetensors: is there, and not of" in run_to_error(*arguments[:-1], forged_bundle)
    manifest = json.loads((forged_bundle / "bundle.json").read_text())
    del manifest["weights"]
    (forged_bundle / "bundle.json").write_text(json.dumps(manifest))
    assert "does not list weights.safetensors" in run_to_error("replay", forged_bundle, "--port", PAIR / "port.py")


def test_a_forged_bundle_does_not_judge_a_port_without_weights(bundle, command_line, tmp_path):
    forged_bundle = shutil.copytree(bundle, tmp_path / "forged")
    forge_job(forged_bundle)
    status, _, err = command_line("parity", "replay", forged_bundle, "--port", PAIR / "port.py")
    assert status == 2 and "is recorded --small, without weights; name them with --weights" in err


def forge_job(folder: Path) -> None:
    """Set `small` to false in job.json, and update the manifest."""
    job = json.loads((folder / "job.json").read_text())
    job["pair"]["small"] = False
    (folder / "job.json").write_text(json.dumps(job))
    manifest = json.loads((folder / "bundle.json").read_text())
    size, digest = (folder / "job.json").stat().st_size, files.file_sha256(folder / "job.json")
    manifest["files"]["job.json"] = {"bytes": size, "sha256": digest}
    (folder / "bundle.json").write_text(json.dumps(manifest))


def test_a_small_bundle_judges_saved_outputs_but_no_port_that_needs_weights(command_line, tmp_path):
    reference, bundle = str(PAIR / "reference.py"), tmp_path / "any"
    options = {"model_config": {"hidden": 128}, "seed": 0, "small": True, "any_framework": True}
    verdict = io.StringIO()
    record_pair(pair_request(port=None, reference_model=reference, **options), bundle, Console(file=verdict))
    assert verdict.getvalue().endswith(f"judge {bundle} FOLDER\n")
    status, _, err = command_line("parity", "judge", bundle, reference)
    assert status == 2 and "is recorded --small, without weights; judge a folder of the port's outputs" in err
    outputs = {"loss": TensorFile(bundle / "reference" / "float64.safetensors")["loss"]}
    for added_outputs, verdict in ({}, "PARITY 1 tensor"), ({"gradient:ffn.0.weight": np.zeros((256, 128))}, "DRIFT"):
        save_file({**outputs, **added_outputs}, tmp_path / "float64.safetensors")
        _, out, err = command_line("parity", "judge", bundle, tmp_path, "--output", tmp_path / "out")
        assert out.startswith(verdict), out + err
    assert out.startswith("DRIFT gradient:ffn.0.weight") and "off by 1.0e+00 of its size" in out
