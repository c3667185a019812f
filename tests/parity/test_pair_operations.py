"""Test pairs of one operation each: both sides compute in float64, and a constant that Paddle rounds is not a fault."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from soak import some

from toolkit.parity.pairs.axes import axes_between

PAIR = Path(__file__).parents[1] / "pairs" / "operations"
#: Operations whose Paddle kernel stores a constant in float32.
ROUNDED_CONSTANTS = ("elu", "pow", "hardtanh", "average", "interpolate", "weight")
#: Operations that a side would compute in float32 by default, and layers that need care.
DOUBLE_PRECISION = ("noise", "ramp", "rotary", "group", "lstm", "spectral")
#: Operations with another order of elements or axes.
OTHER_ORDER = ("heads", "image", "time")
#: Operations whose parameters are split differently.
OTHER_PIECES = ("fused", "apart")
FAST = ("elu", "rotary", "fused", "image")
#: Name in the headline: the layer, or the function with its line.
HEADLINES = {
    "elu": ("elu", "F.elu("),
    "pow": ("pow", "x.abs() + 0.1"),
    "hardtanh": ("hardtanh", "F.hardtanh("),
    "average": ("pool2d", "F.avg_pool1d("),
    "interpolate": ("linear_interp", "F.interpolate("),
    "noise": ("mul", "paddle.randn(x.shape)"),
    "ramp": ("truediv", "paddle.arange(x.shape[1]"),
    "rotary": ("indexing", "for table in (self.cos, self.sin)"),
    "fused": ("matmul", "q @ k.transpose("),
    "apart": ("silu", "F.silu(up)"),
    "weight": ("full", "self.layer(x.transpose([0, 2, 1]))"),
    "image": ("leaky_relu", "F.leaky_relu("),
    "time": ("reshape", "x.reshape([4, 6, 12])"),
    "heads": ("transpose", "transpose([0, 2, 1, 3]), wrong)"),
    "group": ("layer (GroupNorm,", "layers[op]()"),
    "spectral": ("matmul", "x = (self.layer or self.operations[self.op])(x)"),
    "lstm": ("layer (LSTM,", "layers[op]()"),
}


def sample_operations(names: tuple[str, ...]) -> list:
    slow = [pytest.param(name, marks=pytest.mark.slow) for name in some([name for name in names if name not in FAST])]
    return [*(name for name in names if name in FAST), *slow]


def run_pair_gate(command_line, tmp_path, *pairs: str) -> tuple[int, dict, str]:
    sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py")
    status, out, _ = command_line("parity", *sides, *pairs, "--output", tmp_path)
    return status, json.loads((tmp_path / "cpu" / "parity.json").read_text()), out


@pytest.mark.parametrize("op", sample_operations((*ROUNDED_CONSTANTS, *DOUBLE_PRECISION, *OTHER_PIECES, *OTHER_ORDER)))
def test_a_correct_port_passes_and_a_rounded_constant_is_noted(op, command_line, tmp_path):
    status, report, out = run_pair_gate(command_line, tmp_path, f"op={op}")
    assert status == 0 and report["passed"], out
    rounding_notes = [note for note in report["notes"] if note["kind"] == "constants-rounded"]
    assert len(rounding_notes) == (op in ROUNDED_CONSTANTS)
    if rounding_notes:
        constants = rounding_notes[0]["data"]["constants"]
        assert rounding_notes[0]["data"]["worst"] < 1e-6 and (
            "reference.py:" in constants or "of a backward" in constants
        )
        assert "which is what rounding the reference's constants to float32 moves" in out


@pytest.mark.parametrize("op", sample_operations((*ROUNDED_CONSTANTS, *DOUBLE_PRECISION, *OTHER_PIECES, *OTHER_ORDER)))
def test_a_wrong_function_is_named_by_its_line(op, command_line, tmp_path):
    status, _, out = run_pair_gate(command_line, tmp_path, f"op={op}", "wrong=true")
    headline_name, code = HEADLINES[op]
    [line] = (number for number, text in enumerate((PAIR / "port.py").read_text().splitlines(), 1) if code in text)
    place = f"tests/pairs/operations/port.py:{line})"
    assert status == 1 and out.startswith(
        f"DRIFT {headline_name} {place if headline_name.endswith(',') else f'({place}, on the way'}"
    ), out


@pytest.mark.parametrize("returns", ["dict", "tuple"])
def test_a_model_may_return_a_mapping_a_tuple_or_a_dataclass(returns, command_line, tmp_path):
    status, report, out = run_pair_gate(command_line, tmp_path, "op=hardtanh", f"returns={returns}")
    assert status == 0 and "logits" in {tensor["name"] for tensor in report["tensors"]}, out


def test_a_layer_with_an_output_of_another_shape_is_named_before_later_layers(command_line, tmp_path):
    _, _, out = run_pair_gate(command_line, tmp_path, "op=stride", "wrong=true")
    assert out.startswith("DRIFT layer (Conv1D")
    assert "structure float64: shape [4, 12, 3], the reference's is [4, 12, 6]" in out


ACCEPT_BUFFERS = """\
accept:
  "buffer:*.running_var": {why: Paddle keeps the biased variance, within: 5e-2}
"""


def test_an_accepted_difference_is_in_every_report(command_line, tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(ACCEPT_BUFFERS)
    assert run_pair_gate(command_line, tmp_path, "op=batch")[0] == 1
    status, report, out = run_pair_gate(command_line, tmp_path, "op=batch", "--map", str(path))
    assert status == 0 and f"; {len(report['accepted'])} known differences are accepted" in out.splitlines()[0]
    first = report["accepted"][0]
    assert first["finding"]["name"] == "buffer:layer.running_var" and 0 < first["relative"] < 5e-2
    assert "accepted by buffer:*.running_var (Paddle keeps the biased variance): up to" in out
    junit = (tmp_path / "cpu" / "junit.xml").read_text()
    assert "<failure" not in junit and junit.count("accepted: Paddle keeps the biased variance") == 2
    status, _, out = run_pair_gate(command_line, tmp_path, "op=batch", "wrong=true", "--map", str(path))
    assert status == 1 and out.startswith("DRIFT layer (BatchNorm1D")


OPTIMIZERS = {
    "reference": "torch.optim.AdamW(model.parameters(), 1e-3)",
    "port": "paddle.optimizer.AdamW(1e-3, parameters=model.parameters())",
    "faulty port": "paddle.optimizer.SGD(0.5, parameters=model.parameters())",
}


@pytest.mark.parametrize(
    ("side", "pattern", "status", "headline"),
    [
        ("port", "buffer:*.running_var", 0, "PARITY"),
        ("faulty port", "buffer:*.running_var", 1, "DRIFT step 1 of training: SGD"),
        ("faulty port", "*", 0, "; training is not judged from step 1 on"),
    ],
)
def test_an_accepted_buffer_does_not_hide_another_optimizer(side, pattern, status, headline, command_line, tmp_path):
    for name, optimizer in (("reference", OPTIMIZERS["reference"]), ("port", OPTIMIZERS[side])):
        source = (PAIR / f"{name}.py").read_text()
        if pattern == "*" and name == "port":  # a difference of the outputs, too
            source = source.replace("logits = self.last(x).mean(1)", "logits = self.last(x).mean(1) * (1 + 1e-9)")
        (tmp_path / f"{name}.py").write_text(f"{source}\n\ndef optimizer(model):\n    return {optimizer}\n")
    map_path = tmp_path / "map.yaml"
    map_path.write_text(ACCEPT_BUFFERS.replace("buffer:*.running_var", pattern))
    sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py", "--map", map_path)
    options = ("op=batch", "--steps", "3", "--dtype", "float64", "--output", tmp_path / "out")
    exit_status, out, _ = command_line("parity", *sides, *options)
    assert exit_status == status and headline in out.splitlines()[0], out


@pytest.mark.slow
def test_mutants_of_a_pair_with_accepted_differences_are_judged(command_line, tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(ACCEPT_BUFFERS)
    sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py", "--map", path, "op=batch")
    status, out, _ = command_line("parity", "mutants", *sides)
    assert status == 0 and " faults caught, " in out
    assert command_line("parity", "limits", *sides)[0] == 0
    assert "drift in 0 of 2 gates" in command_line("parity", "sweep", *sides, "--gates", "2")[1]


@pytest.mark.parametrize(
    ("entry", "message"),
    [
        ("{'loss': 0.1}", "accept: loss does not say why, and within what; write 'buffer:*.running_var': {why: Paddle"),
        ("{'loss': {within: 0.1}}", "accept: loss does not say why"),
        ("{'loss': {why: ' ', within: 0.1}}", "accept: loss does not say why"),
        ("{'loss': {why: x, within: much}}", "accept: loss: within is 'much', which is no part of a size"),
        ("{'loss': {why: x, within: -1}}", "accept: loss: within is -1, which is no part of a size"),
        ("[loss]", "accept: accept does not say why"),
    ],
)
def test_invalid_accept_entries_are_rejected(entry, message, command_line, tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(f"accept: {entry}\n")
    assert message in print_map(command_line, "batch", "--map", path)


def print_map(command_line, op: str, *options: object) -> str:
    sides = ("--port", PAIR / "port.py", "--reference-model", PAIR / "reference.py", f"op={op}")
    status, out, err = command_line("parity", "map", *sides, *options)
    return out if status == 0 else err


def test_a_map_matches_pieces_of_parameters(command_line):
    fused_map, split_map = print_map(command_line, "fused"), print_map(command_line, "apart")
    assert "  layer.qkv.weight: [layer.q.weight, layer.k.weight, layer.v.weight]  # 36x12, transposed\n" in fused_map
    assert "  layer.scale: layer.scale  # 12x1\n" in fused_map
    assert "  layer.up_proj.bias: layer.gate_up.bias[20:40]  # 20\n" in split_map
    assert "  layer.down_proj.weight: layer.down.weight  # 12x20, transposed\n" in split_map


@pytest.mark.parametrize(
    ("pieces", "message"),
    [
        ("[layer.v.weight, layer.k.weight, layer.q.weight]", "layer.qkv.weight: [layer.v.weight, layer.k.weight, "),
        ("[layer.q.weight, layer.k.weight]", "layer.qkv.weight has 36 rows in torch's layout, layer.q.weight and "),
        ("[layer.q.weight, layer.k.weight, no.such]", "the port has no parameter no.such"),
        ("layer.q.weight[0:12]", "layer.qkv.weight is [36, 12] in torch's layout, layer.q.weight[0:12] is [12, 12]"),
        ("[layer.q.weight, 7]", "parameters holds what is no name"),
    ],
)
def test_a_users_pieces_win_and_are_rejected_if_they_do_not_fit(pieces, message, command_line, tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(f"parameters:\n  layer.qkv.weight: {pieces}\n")
    assert message in print_map(command_line, "fused", "--map", path)


def test_a_layer_without_a_line_has_the_line_of_its_parent(command_line, tmp_path):
    port = (PAIR / "port.py").read_text()
    port_code = port.replace("self.first, self.last = nn.Linear(8, 12), nn.Linear(12, 4)",
                          'for name, layer in (("first", nn.Linear(8, 12)), ("last", nn.Linear(12, 4))):\n'
                          "            setattr(self, name, layer)")  # fmt: skip
    assert port_code != port
    (tmp_path / "port.py").write_text(port_code)
    line = next(number for number, text in enumerate(port_code.splitlines(), 1) if text.startswith("class Net("))
    sides = ("--port", tmp_path / "port.py", "--reference-model", PAIR / "reference.py")
    options = ("op=ramp", "wrong=true", "--dtype", "float32")
    status, out, _ = command_line("parity", *sides, *options, "--output", tmp_path / "out")
    assert status == 1 and out.startswith(f"DRIFT last (Linear, {tmp_path / 'port.py'}:{line})"), out


@pytest.mark.parametrize(
    ("theirs", "ours", "last", "axes"),
    [
        ((3, 8, 5, 6), (3, 5, 6, 8), False, [0, 3, 1, 2]),
        ((3, 8, 8, 8), (3, 8, 8, 8), False, None),
        ((3, 8, 8, 8), (3, 8, 8, 8), True, [0, 3, 1, 2]),
        ((3, 8, 5, 6), (3, 8, 5, 6), True, None),
        ((4, 6, 12), (6, 4, 12), False, [1, 0, 2]),
        ((3, 3, 5, 8), (5, 3, 3, 8), False, [1, 2, 0, 3]),
        ((4, 6), (6, 4), False, None),
        ((4, 6, 12), (4, 6, 13), False, None),
        ((4, 6, 12), (24, 12), False, None),
    ],
)
def test_the_order_of_axes_follows_from_shapes_and_channels(theirs, ours, last, axes):
    assert axes_between(theirs, ours, is_channels_last=last) == axes


LAYOUTS = {"right": "{'layer*': [1, 0, 2]}", "wrong": "{layer: as-it-is}"}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_users_layout_wins(layout, command_line, tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(f"layouts: {LAYOUTS[layout]}\n")
    status, _, out = run_pair_gate(command_line, tmp_path, "op=time", "--map", str(path))
    assert status == 0 and ("the outputs of layer (1 in all)" in out) == (layout == "wrong"), out
    assert "#   layer: layer [1, 0, 2]\n" in print_map(command_line, "time")


@pytest.mark.parametrize(
    "layout", ["[layer]", "{layer: NHWC}", "{layer: [0, 1, 1]}", "{layer: [1, 2, 3]}", "{layer: 7}"]
)
def test_an_invalid_order_of_axes_is_rejected(layout, command_line, tmp_path):
    path = tmp_path / "map.yaml"
    path.write_text(f"layouts: {layout}\n")
    output = print_map(command_line, "time", "--map", path)
    assert "is no order of axes; write channels-last, as-it-is or the port's axes in the reference's order" in output


SCALED_SIDE = """
FRAMEWORK


class Net(MODULE):
    def __init__(self, epsilon):
        super().__init__()
        self.first, self.last = nn.Linear(4, 4), nn.Linear(4, 4)
        self.epsilon = epsilon

    def forward(self, x):
        x = self.first(x * 0.3)
        variance = (x * x).mean(-1)
        x = x / (variance + self.epsilon).sqrt().unsqueeze(-1)
        return (self.last(x) ** 2).mean()


def build(config):
    return Net(EPSILON)
"""


@pytest.mark.parametrize(("epsilon", "drifts"), [("0.1", False), ("0.1 * (1 + 3e-7)", True)])
def test_a_rounded_constant_excuses_no_difference_of_another_layer(epsilon, drifts, command_line, tmp_path):
    """The rounding of 0.3 would change the norm as much as the wrong epsilon, but the layer before it agrees."""
    port = SCALED_SIDE.replace("FRAMEWORK", "from paddle import nn").replace("MODULE", "nn.Layer")
    reference = SCALED_SIDE.replace("FRAMEWORK", "from torch import nn").replace("MODULE", "nn.Module")
    reference += '\n\ndef batch(config, rng):\n    return {"x": rng.standard_normal((3, 4))}\n'
    (tmp_path / "port.py").write_text(port.replace("EPSILON", epsilon))
    (tmp_path / "reference.py").write_text(reference.replace("EPSILON", "0.1"))
    sides = ("--port", tmp_path / "port.py", "--reference-model", tmp_path / "reference.py")
    status, out, err = command_line("parity", *sides, "--dtype", "float64", "--output", tmp_path)
    assert status == drifts and ("DRIFT add " in out) == drifts, out + err
