"""Test how parameters and draws of two sides are matched if their names, orders or layouts differ."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from test_pairs import make_description, make_parameter

from toolkit.parity.job.pair import DrawFacts
from toolkit.parity.measure.square_weights import SquareWeights
from toolkit.parity.pairs.match import match_draws, propose_map
from toolkit.parity.pairs.words import split_words


def match_names(reference, port) -> dict[str, str]:
    return {
        match.reference: match.port
        for match in propose_map(make_description(*reference), make_description(*port)).parameters
    }


def test_a_layer_scale_called_gamma_does_not_match_a_norms_weight():
    """ConvNeXt's layer scale is `gamma` in its authors' code, and the norms of a port have a `weight`."""
    reference = [
        make_parameter("stages.0.layers.0.layernorm.weight", [8], 0, "other"),
        make_parameter("stages.0.layers.0.layer_scale_parameter", [8], 1, "other"),
        make_parameter("stages.1.downsampling_layer.0.weight", [8], 2, "other"),
    ]
    port = [
        make_parameter("stage0.0.norm.weight", [8], 0, "norm"),
        make_parameter("stage0.0.gamma", [8], 1, "other"),
        make_parameter("downsample.0.weight", [8], 2, "other"),
    ]
    expected_names = ["stage0.0.norm.weight", "stage0.0.gamma", "downsample.0.weight"]
    assert [*match_names(reference, port).values()] == expected_names


def test_the_gamma_of_a_norm_matches_its_weight():
    reference = [make_parameter("norm.weight", [8], 0, "norm"), make_parameter("norm.bias", [8], 0, "norm")]
    port = [make_parameter("norm.gamma", [8], 0, "other"), make_parameter("norm.beta", [8], 0, "other")]
    assert match_names(reference, port) == {"norm.weight": "norm.gamma", "norm.bias": "norm.beta"}


def test_names_with_common_numbers_have_a_smaller_distance():
    """Swin's merging of patches is in a numbered stage in transformers, but not in many ports."""
    reference = [
        make_parameter("encoder.layers.0.downsample.reduction.weight", [16, 32], 0),
        make_parameter("encoder.layers.1.blocks.0.output.dense.weight", [16, 32], 1),
    ]
    port = [
        make_parameter("downsample.reduction.weight", [16, 32], 1),
        make_parameter("stage1.0.fc2.weight", [16, 32], 0),
    ]
    assert [*match_names(reference, port).values()] == ["downsample.reduction.weight", "stage1.0.fc2.weight"]


@pytest.mark.parametrize(
    ("name", "parts"),
    [("stage1.0.norm2", ["stage", "1", "0", "norm", "2"]), ("fc1", ["intermediate"]), ("ln_1", ["norm", "1"])],
)
def test_a_number_at_the_end_of_a_word_is_split_off(name, parts):
    assert split_words(name) == parts


def make_encoder(name: str, first: int, block: str, norm: str) -> list:
    """Return the parameters of an encoder of two blocks whose order starts at `first`."""
    names = [f"{name}.{block}.{number}.{word}" for number in range(2) for word in (f"{norm}1", "proj", f"{norm}2")]
    return [make_parameter(f"{layer_name}.weight", [4, 4], first + place) for place, layer_name in enumerate(names)]


def test_two_encoders_that_run_in_another_order_are_matched():
    reference = [
        *make_encoder("text_model", 6, "layers", "layer_norm"),
        *make_encoder("vision_model", 0, "layers", "layer_norm"),
    ]
    port = [*make_encoder("text_model", 0, "blocks", "ln_"), *make_encoder("vision_model", 6, "blocks", "ln_")]
    assert [*match_names(reference, port).values()] == [fact.name for fact in port]


MODULES = {f"{name}.layers.{number}": f"{name}.blocks.{number}" for name in ("text", "vision") for number in (0, 1)}


@pytest.mark.parametrize("length", [7, 5], ids=["of another length", "of one length"])
def test_the_draws_of_two_encoders_in_another_order_are_matched(length):
    lengths = {"text": length, "vision": 5}
    reference = [
        DrawFacts(f"dropout:{name}.layers.{number}", [lengths[name]])
        for name in ("vision", "text")
        for number in (0, 1)
    ]
    port = [
        DrawFacts(f"dropout:{name}.blocks.{number}.drop", [lengths[name]])
        for name in ("text", "vision")
        for number in (0, 1)
    ]
    draws = match_draws(reference, port, MODULES)
    assert draws == {f"dropout:{ours}.drop": f"dropout:{theirs}" for theirs, ours in MODULES.items()}


def linear_gradient(x: np.ndarray, output: np.ndarray, place: int, columns: bool) -> np.ndarray:
    """Return the gradient of an element of a linear layer's output with respect to its weight."""
    size = output.shape[-1]
    row, channel = divmod(place, size)
    gradient = np.zeros((size, size))
    gradient[(slice(None), channel) if columns else (channel, slice(None))] = x[row]
    return gradient


@pytest.mark.parametrize("columns", [True, False])
def test_the_axis_of_the_outputs_of_a_square_weight_follows_from_gradients(columns):
    x, weight = np.random.default_rng(0).normal(size=(3, 4)), np.ones((4, 4))
    squares = SquareWeights(lambda output, place, _: linear_gradient(x, output, place, columns))
    squares.examine_layer("layer", {"weight": weight, "bias": np.ones(4), "wide": np.ones((4, 5))}, np.ones((3, 4)))
    assert squares.with_output_columns == ({"layer.weight"} if columns else set())


def test_an_embedding_table_has_no_output_axis():
    def gradient_of(output: np.ndarray, place: int, weight: np.ndarray) -> np.ndarray:
        return (np.arange(weight.size) == place).reshape(weight.shape)

    squares = SquareWeights(gradient_of)
    squares.examine_layer("positions", {"table": np.ones((4, 4))}, np.ones((2, 4, 4)))
    assert squares.with_output_columns == set()


def test_square_weights_of_a_users_layer_are_matched_by_their_output_axis():
    weight = make_parameter("layer.weight", [4, 4], 0, "other")
    [match] = propose_map(make_description(weight), make_description(replace(weight, transposed=True))).parameters
    assert match.transpose
    [match] = propose_map(make_description(weight), make_description(weight)).parameters
    assert not match.transpose


OWN = """
import FRAMEWORK
from FRAMEWORK import nn

class Table(nn.MODULE):
    def __init__(self):
        super().__init__()
        STORE

    def forward(self, x):
        return x + self.positions.weight[: x.shape[1]]

class Own(nn.MODULE):
    def __init__(self):
        super().__init__()
        self.weight = WEIGHT

    def forward(self, x):
        return PRODUCT

class Net(nn.MODULE):
    def __init__(self):
        super().__init__()
        self.table, self.own, self.last = Table(), Own(), nn.Linear(6, 6)

    def forward(self, x):
        return (self.last(self.own(self.table(x))) ** 2).mean()

def build(config):
    return Net()
"""
REFERENCE = (
    OWN.replace("FRAMEWORK", "torch").replace("MODULE", "Module")
    .replace("STORE", "self.positions = nn.Embedding.from_pretrained(torch.arange(36.0).view(6, 6) / 36)")
    .replace("WEIGHT", "nn.Parameter(torch.randn(6, 6))").replace("PRODUCT", "nn.functional.linear(x, self.weight)")
    + "\ndef batch(config, rng):\n    return {'x': rng.standard_normal((2, 5, 6))}\n"
)  # fmt: skip
STORE = """self.positions = nn.Embedding(6, 6)
        self.positions.weight.set_value((np.arange(36).reshape(6, 6) / 36).astype("float32"))
        self.positions.weight.stop_gradient = True"""
PORT = "import numpy as np\n" + (
    OWN.replace("FRAMEWORK", "paddle").replace("MODULE", "Layer").replace("STORE", STORE)
    .replace("WEIGHT", "self.create_parameter([6, 6])")
)  # fmt: skip


@pytest.mark.parametrize("product", ["x @ self.weight", "x @ self.weight.T"])
def test_square_weights_of_both_layouts_and_a_float32_table_are_correct(product, command_line, tmp_path):
    (tmp_path / "reference.py").write_text(REFERENCE)
    (tmp_path / "port.py").write_text(PORT.replace("PRODUCT", product))
    sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    status, out, err = command_line("parity", *sides, "--output", tmp_path / "out")
    assert status == 0 and out.startswith("PARITY "), out + err
    (tmp_path / "port.py").write_text(PORT.replace("PRODUCT", f"1.001 * {product}"))
    status, out, err = command_line("parity", *sides, "--dtype", "float64", "--output", tmp_path / "out")
    assert status == 1 and "port.py:22), on the way to output of own" in out.splitlines()[0], out + err
