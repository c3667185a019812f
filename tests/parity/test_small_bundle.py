"""Bundles without weights, with sums of large tensors in place of their values."""

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


def at(*places) -> np.ndarray:
    """A difference at some rows and columns of a matrix, elsewhere zero."""
    difference = np.zeros((300, 512))
    difference[places] = np.random.default_rng(1).standard_normal(difference[places].shape)
    return difference


@pytest.mark.parametrize(
    ("difference", "within"),
    [(at(slice(None)), 0.05), (at(17), 0.05), (at(slice(None), 17), 0.02), (at([3, 200], [5, 511]), 1e-6)],
    ids=["dense", "row", "column", "two elements"],
)
def test_a_sketch_tells_the_size_of_any_difference(difference, within):
    truth = np.random.default_rng(0).standard_normal(difference.shape)
    found = error_stats.measure_error(truth + 1e-6 * difference, Sketch.of(truth))
    whole = error_stats.measure_error(truth + 1e-6 * difference, truth)
    assert found.rms == pytest.approx(whole.rms, rel=within) and found.shape == [300, 512]


def test_sums_are_exact_to_rounding_however_the_elements_come():
    truth = np.random.default_rng(0).standard_normal((1000, 1000))
    pieces = np.split(truth.ravel(), [7, 300_001])
    assert np.array_equal(Sketch.of_pieces(pieces, truth.shape).values, Sketch.of(truth).values)
    moved = error_stats.measure_error(np.nextafter(truth, np.inf), Sketch.of(truth))
    assert moved.rms < 3 * error_stats.measure_error(np.nextafter(truth, np.inf), truth).rms
    assert error_stats.measure_error(truth, Sketch.of(truth)).max == 0.0
    truth[5, 5] = np.inf
    assert not error_stats.describe(Sketch.of(truth)).finite


def test_another_shape_is_no_difference():
    found = error_stats.measure_error(np.ones((512, 300)), Sketch.of(np.ones((300, 512))))
    assert found.rms is None and found.shape == [512, 300]


def test_a_file_gives_back_sketches_and_what_repeats_them(tmp_path):
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
    """A small bundle, and its weights beside it."""
    folder = tmp_path_factory.mktemp("small") / "bundle"
    reference = str(PAIR / "reference.py")
    request = pair_request(port=None, reference_model=reference, model_config={"hidden": 128}, seed=0, small=True)
    said = io.StringIO()
    record_pair(request, folder, Console(file=said))
    assert said.getvalue().endswith(f"replay {folder} --port FILE --weights {weights_of(folder)}\n")
    return folder


def weights_of(bundle: Path) -> Path:
    return bundle.with_name("bundle.weights.safetensors")


def replayed(command_line, bundle: Path, port: Path, weights: object, output: Path) -> tuple[int, str, str]:
    return command_line("parity", "replay", bundle, "--port", port, "--weights", weights, "--output", output)


def test_the_figures_are_those_of_a_gate_of_whole_tensors(bundle, command_line, tmp_path):
    assert not (bundle / "weights.safetensors").exists()
    status, out, err = replayed(command_line, bundle, PAIR / "port.py", weights_of(bundle), tmp_path / "small")
    assert status == 0 and "note: recorded --small: of a tensor of 16,372 elements and more, 4,093 sums" in out, err
    sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py", "hidden=128")
    assert command_line("parity", *sides, "--output", tmp_path / "whole")[0] == 0
    small, whole = (
        {(one["name"], one["dtype"]): one for one in json.loads(path.read_text())["tensors"]}
        for path in (tmp_path / "small/cpu/parity.json", tmp_path / "whole/cpu/parity.json")
    )
    assert small.keys() == {key for key in whole if not key[0].startswith("updated:")}
    large = {key for key in small if small[key]["error"] != whole[key]["error"]}
    assert {name for name, _ in large} == {"gradient:ffn.0.weight", "gradient:ffn.3.weight"}
    for key in large:
        for figure in ("rms", "error"):
            assert small[key][figure] == pytest.approx(whole[key][figure], rel=0.1), (key, figure)


@pytest.mark.parametrize(
    ("before", "after", "named"),
    [
        ("2 * hidden)\n", "2 * hidden)\n        self.first.weight.register_hook(swapped)\n", "ffn.0 (Linear"),
        ("nn.LayerNorm(hidden)", "nn.LayerNorm(hidden, 1e-6)", "ln (LayerNorm"),
    ],
)
def test_a_wrong_port_is_named(before, after, named, bundle, command_line, tmp_path):
    """Also if two elements of a gradient of 32,768 are exchanged."""
    port = (PAIR / "port.py").read_text()
    assert before in port
    swapped = (
        "def swapped(g):\n    g = g.clone()\n    g[0, 0], g[1, 1] = g[1, 1].clone(), g[0, 0].clone()\n    return g\n"
    )
    (tmp_path / "port.py").write_text(port.replace(before, after, 1) + "\n\n" + swapped)
    status, out, err = replayed(command_line, bundle, tmp_path / "port.py", weights_of(bundle), tmp_path / "out")
    assert status == 1 and out.startswith(f"DRIFT {named}"), out + err


def test_a_checkpoint_may_have_the_weights(bundle, command_line, tmp_path):
    weights = load_file(weights_of(bundle))
    (tmp_path / "saved").mkdir()
    save_file({**weights, "more": np.zeros(3, np.float32)}, tmp_path / "saved" / "model.safetensors")
    status, _, err = replayed(command_line, bundle, PAIR / "port.py", tmp_path / "saved", tmp_path / "out")
    assert status == 0, err


def test_other_weights_are_refused(bundle, command_line, tmp_path):
    def said(**changes: np.ndarray | None) -> str:
        tensors = {**load_file(weights_of(bundle)), **changes}
        save_file({name: value for name, value in tensors.items() if value is not None}, tmp_path / "w.safetensors")
        status, _, err = replayed(command_line, bundle, PAIR / "port.py", tmp_path / "w.safetensors", tmp_path / "out")
        assert status == 2 and len(err.splitlines()) == 1
        return err

    head = load_file(weights_of(bundle))["classifier.bias"]
    recorded = "is not what the reference was recorded with"
    assert f"w.safetensors: classifier.bias {recorded}" in said(**{"classifier.bias": np.nextafter(head, 1)})
    assert f"classifier.bias {recorded}" in said(**{"classifier.bias": head[None]})
    assert "has no classifier.bias, with which the reference was recorded" in said(**{"classifier.bias": None})
    status, _, err = replayed(command_line, bundle, PAIR / "port.py", tmp_path / "none", tmp_path / "out")
    assert status == 2 and "none" in err


def test_what_a_small_bundle_cannot_do_is_one_line(bundle, command_line, tmp_path):
    def refused(*asked: object) -> str:
        status, _, err = command_line("parity", *asked)
        assert status == 2
        return err

    assert "is recorded --small, without weights; name them with --weights" in refused(
        "replay", bundle, "--port", PAIR / "port.py"
    )
    assert "exists and is not a bundle" in refused(
        "record", "--reference-model", PAIR / "reference.py", "--small", "-o", "."
    )
    assert "--small: is for a --port and a --reference-model" in refused(
        "record", "--model", "ctrl", "--small", "-o", tmp_path / "b"
    )
    taken = tmp_path / "b.weights.safetensors"
    taken.write_text("mine")
    asked = ("record", "--reference-model", PAIR / "reference.py", "--small", "-o", tmp_path / "b")
    assert "b.weights.safetensors: is there, and not of a bundle" in refused(*asked) and taken.read_text() == "mine"
    check_weights_free(bundle)
    forged = shutil.copytree(bundle, tmp_path / "forged")
    for content in (b"mine", weights_of(bundle).read_bytes()[:-1] + b"\1"):
        (tmp_path / "forged.weights.safetensors").write_bytes(content)
        assert "forged.weights.safetensors: is there, and not of" in refused(*asked[:-1], forged)
    manifest = json.loads((forged / "bundle.json").read_text())
    del manifest["weights"]
    (forged / "bundle.json").write_text(json.dumps(manifest))
    assert "does not list weights.safetensors" in refused("replay", forged, "--port", PAIR / "port.py")


def test_a_port_is_not_judged_without_weights_whatever_the_bundle_says_of_itself(bundle, command_line, tmp_path):
    forged = shutil.copytree(bundle, tmp_path / "forged")
    vouch_for_another_job(forged)
    status, _, err = command_line("parity", "replay", forged, "--port", PAIR / "port.py")
    assert status == 2 and "is recorded --small, without weights; name them with --weights" in err


def vouch_for_another_job(folder: Path) -> None:
    """Say in job.json that the bundle is not small, and have the manifest say so, too."""
    job = json.loads((folder / "job.json").read_text())
    job["pair"]["small"] = False
    (folder / "job.json").write_text(json.dumps(job))
    manifest = json.loads((folder / "bundle.json").read_text())
    size, digest = (folder / "job.json").stat().st_size, files.file_sha256(folder / "job.json")
    manifest["files"]["job.json"] = {"bytes": size, "sha256": digest}
    (folder / "bundle.json").write_text(json.dumps(manifest))


def test_saved_outputs_are_judged_by_a_small_bundle_and_a_port_that_needs_weights_is_not(command_line, tmp_path):
    reference, bundle = str(PAIR / "reference.py"), tmp_path / "any"
    asked = {"config": {"hidden": 128}, "seed": 0, "small": True, "any_framework": True}
    said = io.StringIO()
    record_pair(pair_request(port=None, reference_model=reference, **asked), bundle, Console(file=said))
    assert said.getvalue().endswith(f"judge {bundle} FOLDER\n")
    status, _, err = command_line("parity", "judge", bundle, reference)
    assert status == 2 and "is recorded --small, without weights; judge a folder of the port's outputs" in err
    given = {"loss": TensorFile(bundle / "reference" / "float64.safetensors")["loss"]}
    for more, said in ({}, "PARITY 1 tensor"), ({"gradient:ffn.0.weight": np.zeros((256, 128))}, "DRIFT"):
        save_file({**given, **more}, tmp_path / "float64.safetensors")
        _, out, err = command_line("parity", "judge", bundle, tmp_path, "--output", tmp_path / "out")
        assert out.startswith(said), out + err
    assert out.startswith("DRIFT gradient:ffn.0.weight") and "off by 1.0e+00 of its size" in out
