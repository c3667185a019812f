"""Test ports whose modules exchange other tensors than the reference's, or store the same numbers differently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.parity.measure.naming import TensorName

#: By side, the name of its framework and the spelling of the functions that the sides below use.
SIDES = {
    "reference": "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\nLayer = nn.Module\n",
    "port": "import paddle\nfrom paddle import nn\nfrom paddle.nn import functional as F\n\nLayer = nn.Layer\n",
}
BATCH = '\n\ndef batch(config, rng):\n    return {"x": rng.normal(size=(6, 4)), "labels": rng.integers(0, 3, 6)}\n'


def judge_sides(command_line, folder: Path, reference: str, port: str, *options: object, batch: str = BATCH):
    """Run a gate of two sides; return the exit status, the content of ``parity.json`` and the output.

    Args:
        reference, port: code that defines ``Net``.
    """
    for side, code in (("reference", reference), ("port", port)):
        text = SIDES[side] + code + "\n\ndef build(config):\n    return Net()\n"
        (folder / f"{side}.py").write_text(text + (batch if side == "reference" else ""))
    files = ("--port", folder / "port.py", "--reference-model", folder / "reference.py")
    status, out, err = command_line("parity", *files, *options, "--output", folder)
    content = json.loads((folder / "cpu" / "parity.json").read_text()) if status < 2 else {}
    return status, content, out + err


def find_notes(content: dict, kind: str) -> list[dict]:
    return [note["data"] for note in content["notes"] if note["kind"] == kind]


# -- outputs between modules ------------------------------------------------------------------------------------------

MODULE = """

class Expert(nn.Linear):
    def __init__(self):
        super().__init__(4, 4)

    def forward(self, x):
        up = super().forward(x)
        return GIVES


class Net(Layer):
    def __init__(self):
        super().__init__()
        self.first, self.expert, self.head = nn.Linear(4, 4), Expert(), nn.Linear(4, 3)

    def forward(self, x, labels):
        x = self.first(x)
        y = PASSES
        return F.cross_entropy(self.head(y), labels)RETURNS
"""
HEAD = """class Head(nn.Linear):
    def __init__(self):
        super().__init__(4, 3)

    def forward(self, x):
        return super().forward(x) + 0.5


"""
#: The input of the expert and, after a semicolon, its output if it is not `up`. The keys describe the reference, the
#: values an equivalent port.
INTERFACES = {
    "rows in another order": ("self.expert(x)", "self.expert(x.flip([0])).flip([0])"),
    "more rows": ("self.expert(x)", "self.expert(paddle.concat([x, 2 * x]))[:6]"),
    "fewer rows": ("x + self.expert(x)[:5].sum(0)", "x + self.expert(x[:5]).sum(0)"),
    "fewer columns": (
        "x[:, :1] * self.expert(x); F.softmax(up, -1)",
        "(lambda s: paddle.concat([s, 1 - s.sum(-1, keepdim=True)], -1))(self.expert(x)) * x[:, :1];"
        "F.softmax(up, -1)[:, :3]",
    ),
    "scores and shares": (
        "x[:, :1] * F.softmax(self.expert(x), -1); up",
        "x[:, :1] * self.expert(x); F.softmax(up, -1)",
    ),
    "more calls": ("self.expert(x)", "paddle.concat([self.expert(x[:2]), self.expert(x[2:])])"),
    "fewer calls": ("torch.cat([self.expert(x[:2]), self.expert(x[2:])])", "self.expert(x)"),
}
#: Ports that are not equivalent, or whose equivalence nothing confirms.
FAULTS = {
    "order": ("self.expert(x)", "self.expert(x.flip([0]))"),
    "rows": ("self.expert(x)", "self.expert(paddle.concat([x, x]))[1:7]"),
    "behind it": ("self.expert(x)", "self.expert(x.flip([0])).flip([0]) * (1 + 1e-9)"),
    "no effect": ("self.expert(x) * 0 + x", "self.expert(x.flip([0])) * 0 + x"),
    "no gradient": ("self.expert(x).detach() + x", "self.expert(x.flip([0])).flip([0]).detach() + x"),
    "an unread row": (
        "x + self.expert(x)[:5].sum(0)",
        "x + self.expert(paddle.concat([x[:5], 3 * x[5:]]))[:5].sum(0)",
    ),
    "an unread row of more": (
        "x + self.expert(x)[:5].sum(0)",
        "x + self.expert(paddle.concat([x[:5], 3 * x]))[:5].sum(0)",
    ),
    "a call for nothing": ("self.expert(x)", "self.expert(x) + 0 * self.expert(x + 1)"),
    "shares": (
        "x[:, :1] * F.softmax(self.expert(x), -1); up",
        "x[:, :1] * self.expert(x); F.softmax(up * (1 + 1e-7), -1)",
    ),
}


def make_side(passes: str, returns: str = "") -> str:
    passes, _, gives = passes.partition(";")
    code = MODULE.replace("PASSES", passes).replace("GIVES", gives.strip() or "up")
    return code.replace("RETURNS", returns)


@pytest.mark.parametrize("name", INTERFACES)
def test_an_output_is_skipped_with_a_note_if_all_later_tensors_agree(name, command_line, tmp_path):
    sides = map(make_side, INTERFACES[name])
    status, content, out = judge_sides(command_line, tmp_path, *sides)
    assert status == 0, out
    [note] = find_notes(content, "outputs-set-aside")
    assert "expert" in note["names"] and "outputs of" in out.splitlines()[0]
    assert {entry["dtype"] for entry in content["set_aside"]} == {"float64", "float32"}
    left_out = {entry["name"] for entry in content["set_aside"]}
    assert left_out.isdisjoint(entry["name"] for entry in content["tensors"])


@pytest.mark.parametrize("name", FAULTS)
def test_an_output_is_drift_if_a_later_tensor_differs_or_nothing_confirms_it(name, command_line, tmp_path):
    sides = map(make_side, FAULTS[name])
    status, content, out = judge_sides(command_line, tmp_path, *sides, "--dtype", "float64")
    assert status == 1 and content["set_aside"] == [], out


def test_an_output_of_the_model_itself_is_compared(command_line, tmp_path):
    """A caller may rely on the reference's order, which the loss does not show."""
    returns = ", self.head(y), x"
    theirs, ours = make_side("self.expert(x)", returns), make_side("self.expert(x.flip([0]))", returns)
    ours = ours.replace("self.first(x)", "self.first(x.flip([0]))")
    status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64")
    assert status == 1 and {entry["name"] for entry in content["findings"]} >= {"output:first"}, out
    assert "loss" in {entry["name"] for entry in content["tensors"] if entry["passed"]}


UNPADDED_SIDE = """

class Net(Layer):
    def __init__(self):
        super().__init__()
        self.embed, self.up, self.head = nn.Embedding(20, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, ids, mask, labels):
        PASSES
        return F.cross_entropy(self.head(x), labels)
"""
TEXTS = """

def batch(config, rng):
    mask = (rng.integers(2, 6, (4, 1)) > [list(range(5))]).astype("int64")
    return {"ids": rng.integers(0, 20, (4, 5)), "mask": mask, "labels": rng.integers(0, 3, 4)}
"""
WITHOUT_PADDING = """x = self.up(self.embed(ids[mask.bool()]))
        texts = mask.nonzero()[:, 0]
        x = torch.zeros(4, 4).to(x).index_add(0, texts, x) / mask.sum(1, keepdim=True)"""
WITH_PADDING = """kept = mask.unsqueeze(-1).astype(self.head.weight.dtype)
        x = self.up(self.embed(ids))KEPT
        x = x.sum(1)
        x = x / kept.sum(1)"""


@pytest.mark.parametrize(("mask_code", "status"), [(" * kept", 0), ("", 1)])
def test_layers_with_and_without_padding_match_and_a_later_fault_is_named(mask_code, status, command_line, tmp_path):
    theirs = UNPADDED_SIDE.replace("PASSES", WITHOUT_PADDING)
    ours = UNPADDED_SIDE.replace("PASSES", WITH_PADDING.replace("KEPT", mask_code))
    exit_status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64", batch=TEXTS)
    assert exit_status == status, out
    if status:
        assert content["culprit"]["place"].startswith("sum (") and "on the way to output of head" in out
        assert "output:embed" in {finding["name"] for finding in content["findings"]}  # this tensor is not the fault
    else:
        assert find_notes(content, "outputs-set-aside") == [{"count": 2, "names": "embed, up"}]


def test_a_fault_behind_an_output_of_another_shape_is_named(command_line, tmp_path):
    theirs, ours = INTERFACES["fewer columns"]
    faulty = ours.replace("* x[:, :1]", "* x[:, :1] * 1.001")
    assert faulty != ours
    status, content, out = judge_sides(
        command_line, tmp_path, make_side(theirs), make_side(faulty), "--dtype", "float64"
    )
    assert status == 1 and content["culprit"]["place"].endswith("on the way to output of head"), out


PACKED_SIDE = """

class Net(Layer):
    def __init__(self):
        super().__init__()
        self.rnn, self.head = nn.GRU(4, 3BATCH_FIRST), nn.Linear(3, 3)

    def forward(self, x, lengths, labels):
        PASSES
        return F.cross_entropy(self.head(x), labels)
"""
SEQUENCES = """

def batch(config, rng):
    return {"x": rng.normal(size=(3, 6, 4)), "lengths": rng.permutation([5, 2, 4]), "labels": rng.integers(0, 3, 3)}
"""
PACKS = """packed = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
        x = self.rnn(packed)[1][0]"""


@pytest.mark.parametrize("has_lengths", [True, False])
def test_packed_sequences_are_compared_with_padded_ones(has_lengths, command_line, tmp_path):
    theirs = PACKED_SIDE.replace("PASSES", PACKS).replace("BATCH_FIRST", ", batch_first=True")
    lengths = "lengths" if has_lengths else "None"
    ours = PACKED_SIDE.replace("PASSES", f"x = self.rnn(x, sequence_length={lengths})[1][0]").replace("BATCH_FIRST", "")
    status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64", batch=SEQUENCES)
    assert status == (0 if has_lengths else 1), out
    [rnn] = [entry for entry in content["tensors"] if entry["name"] == "output:rnn"]
    assert rnn["passed"] == has_lengths and content["set_aside"] == []
    assert has_lengths or content["culprit"]["place"].startswith("rnn (GRU")


@pytest.mark.parametrize(("factor", "status"), [("1", 0), ("1.001", 1)])
def test_the_trace_leaves_out_the_gradient_into_padding(factor, status, command_line, tmp_path):
    """The gradient of the port's sum over padding does not exist in the reference's packed output."""
    total = "x = total.sum(1) * FACTOR"
    packs = PACKS.removesuffix("[1][0]").replace("x = self", "total = self") + "[0]\n        "
    unpacks = "total = nn.utils.rnn.pad_packed_sequence(total, batch_first=True)[0]\n        "
    theirs = PACKED_SIDE.replace("PASSES", packs + unpacks + total.replace("FACTOR", "1"))
    pads = "total = self.rnn(x, sequence_length=lengths)[0]\n        "
    ours = PACKED_SIDE.replace("PASSES", pads + total.replace("FACTOR", factor)).replace("BATCH_FIRST", "")
    theirs = theirs.replace("BATCH_FIRST", ", batch_first=True")
    exit_status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--trace", batch=SEQUENCES)
    assert exit_status == status, out
    faulty = [entry["name"] for entry in content["trace"]["faulty"]]
    assert ("gradient:output:rnn" in faulty) == bool(status), out


SORTED_CODE = """order = lengths.argsort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(x[order], lengths[order], batch_first=True)
        x = self.rnn(packed)[1][0][order.argsort()]"""


@pytest.mark.parametrize(("lengths", "status"), [("lengths", 0), ("lengths - 1", 1)])
def test_sequences_sorted_by_length_are_compared_by_their_later_use(lengths, status, command_line, tmp_path):
    theirs = PACKED_SIDE.replace("PASSES", SORTED_CODE).replace("BATCH_FIRST", ", batch_first=True")
    ours = PACKED_SIDE.replace("PASSES", f"x = self.rnn(x, sequence_length={lengths})[1][0]").replace("BATCH_FIRST", "")
    exit_status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64", batch=SEQUENCES)
    assert exit_status == status, out
    assert find_notes(content, "outputs-set-aside") == ([] if status else [{"count": 1, "names": "rnn"}])


def test_the_last_output_is_compared_if_the_file_has_its_own_loss(command_line, tmp_path):
    """A constant added to all scores changes no loss and no gradient, but the output of the model."""
    code = make_side("self.expert(x)").replace("F.cross_entropy(self.head(y), labels)", "self.head(y) * 2")
    theirs = code + "\n\ndef loss(model, batch):\n    return F.cross_entropy(model(**batch), batch['labels'])\n"
    ours = HEAD + theirs.replace("Expert(), nn.Linear(4, 3)", "Expert(), Head()")
    status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64")
    assert status == 1 and {TensorName.parse(entry["name"]).module for entry in content["findings"]} == {"head"}, out


def test_a_layer_that_permutes_rows_is_named_if_nothing_restores_their_order(command_line, tmp_path):
    sides = make_side("self.expert(x) * x"), make_side("self.expert(x) * x; up.flip([0])")
    status, content, out = judge_sides(command_line, tmp_path, *sides, "--dtype", "float64")
    assert status == 1 and content["culprit"]["name"] == "output:expert", out
    assert content["culprit"]["place"].startswith("flip ("), out


def test_a_fault_behind_rows_in_another_order_is_named(command_line, tmp_path):
    theirs, ours = INTERFACES["rows in another order"]
    sides = make_side(f"{theirs} * x"), make_side(f"{ours} * x * 1.001")
    status, content, out = judge_sides(command_line, tmp_path, *sides, "--dtype", "float64")
    assert status == 1 and content["trace"]["interfaces"] == ["expert"], out
    assert content["culprit"]["place"].endswith("on the way to output of head"), out


@pytest.mark.parametrize("ours", ["self.expert(x[:0])", "self.expert(x[:0] * 2)"])
def test_outputs_without_elements_agree(ours, command_line, tmp_path):
    sides = make_side("x + self.expert(x[:0]).sum(0)"), make_side(f"x + {ours}.sum(0)")
    status, content, out = judge_sides(command_line, tmp_path, *sides)
    assert status == 0, out
    assert "output:expert" in {entry["name"] for entry in content["tensors"]}


# -- different storage of the same numbers ----------------------------------------------------------------------------

NORM_SIDE = """

class Norm(Layer):
    def __init__(self):
        super().__init__()
        self.weight = WEIGHT

    def forward(self, x):
        return x * NORM


class Net(Layer):
    def __init__(self):
        super().__init__()
        self.up, self.norm, self.head = nn.Linear(4, 6), Norm(), nn.Linear(6, 3)

    def forward(self, x, labels):
        x = self.norm(self.up(x)ORDER)
        return F.cross_entropy(self.head(x), labels)
"""
DISTANCE = {"WEIGHT": "nn.Parameter(torch.zeros(6))", "NORM": "(1 + self.weight)", "ORDER": ""}
WHOLE = {
    "WEIGHT": "self.create_parameter([6], default_initializer=nn.initializer.Constant(1.0))",
    "NORM": "self.weight",
    "ORDER": "",
}
BACKWARDS = ", ".join(f"'{{0}}[{place}:{place + 1}]'" for place in range(5, -1, -1))


def make_norm_side(words: dict[str, str], **placeholders: str) -> str:
    code = NORM_SIDE
    for word, text in {**words, **placeholders}.items():
        code = code.replace(word, text)
    return code


def write_map(folder: Path, **parameters: str) -> tuple[str, Path]:
    lines = [f"  {name.replace('_', '.')}: {expression}" for name, expression in parameters.items()]
    (folder / "map.yaml").write_text("\n".join(["parameters:", *lines]) + "\n")
    return "--map", folder / "map.yaml"


def test_a_shifted_weight_needs_a_map_and_a_hint_names_its_line(command_line, tmp_path):
    status, content, out = judge_sides(
        command_line, tmp_path, make_norm_side(DISTANCE), make_norm_side(WHOLE), "--dtype", "float64"
    )
    [hint] = find_notes(content, "other-initial-value")
    assert status == 1 and hint["map"] == "norm.weight: 1 + norm.weight" and hint["map"] in out
    options = write_map(tmp_path, norm_weight="1 + norm.weight")
    status, content, out = judge_sides(
        command_line, tmp_path, make_norm_side(DISTANCE), make_norm_side(WHOLE), *options
    )
    assert status == 0 and find_notes(content, "shifted") == [{"names": "norm.weight"}], out
    assert "updated:norm.weight#2" in {entry["name"] for entry in content["tensors"]}


@pytest.mark.parametrize(
    ("expression", "norm"),
    [("2 + norm.weight", "self.weight"), ("-1 + norm.weight", "self.weight"), ("1 + norm.weight", "(1 + self.weight)")],
)
def test_a_map_with_a_wrong_shift_does_not_pass(expression, norm, command_line, tmp_path):
    options = write_map(tmp_path, norm_weight=expression)
    ours = make_norm_side(WHOLE, NORM=norm)
    status, _, out = judge_sides(command_line, tmp_path, make_norm_side(DISTANCE), ours, *options, "--dtype", "float64")
    assert status == 1, out


@pytest.mark.parametrize(("order", "status"), [(".flip(-1)", 0), ("", 1)])
def test_rows_that_a_map_permutes_are_compared_in_its_order(order, status, command_line, tmp_path):
    rows = {f"up_{leaf}": f"[{BACKWARDS.format(f'up.{leaf}')}]" for leaf in ("weight", "bias")}
    options = write_map(tmp_path, norm_weight="1 + norm.weight", **rows)
    sides = make_norm_side(DISTANCE), make_norm_side(WHOLE, ORDER=order)
    exit_status, content, out = judge_sides(command_line, tmp_path, *sides, *options, "--dtype", "float64")
    assert exit_status == status, out
    [up] = [entry for entry in content["tensors"] if entry["name"] == "output:up"]
    assert up["passed"] and content["set_aside"] == []


RESHAPED_SIDE = """

class Net(Layer):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        self.q = MADE

    def forward(self, x, labels):
        return F.cross_entropy(self.head(PASSES), labels)
"""
HEADS = {"MADE": "nn.Parameter(torch.randn(4, 2, 2))", "PASSES": "torch.einsum('bh,hnd->bnd', x, self.q).flatten(1)"}
MATRIX = {"MADE": "nn.Linear(4, 4, bias_attr=False)", "PASSES": "self.q(x)"}


@pytest.mark.parametrize(("expression", "status"), [("q.weight.T", 0), ("q.weight", 1)])
def test_a_map_can_reshape_a_parameter(expression, status, command_line, tmp_path):
    theirs, ours = (
        RESHAPED_SIDE.replace("MADE", options["MADE"]).replace("PASSES", options["PASSES"])
        for options in (HEADS, MATRIX)
    )
    exit_status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64")
    [hint] = find_notes(content, "other-shape")
    assert exit_status == 1 and (hint["name"], hint["port"]) == ("q", "q.weight") and "q: q.weight.T" in out
    options = write_map(tmp_path, q=expression)
    exit_status, content, out = judge_sides(command_line, tmp_path, theirs, ours, *options, "--dtype", "float64")
    assert exit_status == status, out
    assert find_notes(content, "other-shape") == []


@pytest.mark.parametrize(
    ("expression", "message"),
    [
        ("up.weight[0:3]", "up.weight is [6, 4] in torch's layout, up.weight[0:3] is [3, 4]"),
        (
            "['up.weight[0:3]', 'up.weight[2:5]']",
            "up.weight of the port has the rows 0:6, of which the map takes 0:3, 2:5",
        ),
        ("1 + up.wait", "the port has no parameter up.wait"),
    ],
)
def test_an_invalid_map_is_reported_in_one_line(expression, message, command_line, tmp_path):
    options = write_map(tmp_path, up_weight=expression)
    status, _, out = judge_sides(command_line, tmp_path, make_norm_side(DISTANCE), make_norm_side(WHOLE), *options)
    assert status == 2 and out.startswith(f"error: --map: {message}") and out.count("\n") == 1, out


TABLE = """

class Net(Layer):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(4, 3)
        MADE

    def forward(self, x, labels):
        return F.cross_entropy(self.head(x + HELD), labels)
"""
#: By side, code that stores a table.
TABLES = {
    "frozen": (
        "self.table = nn.Embedding(6, 4)\n"
        "        self.table.weight = nn.Parameter(torch.arange(24.0).reshape(6, 4).sin(), requires_grad=False)",
        "self.table.weight",
    ),
    "drawn": ("self.table = nn.Embedding(6, 4).requires_grad_(False)", "self.table.weight"),
    "buffer of torch": ("self.register_buffer('table', torch.arange(24.0).reshape(6, 4).sin())", "self.table"),
    "buffer": ("self.register_buffer('table', paddle.arange(24.0).reshape([6, 4]).sin())", "self.table"),
    "scaled": ("self.register_buffer('table', (paddle.arange(24.0) * 1.001).reshape([6, 4]).sin())", "self.table"),
    "zeros": ("self.register_buffer('table', paddle.zeros([6, 4]))", "self.table"),
    "unread": ("self.register_buffer('table', paddle.arange(24.0).reshape([6, 4]).sin())", "self.table * 1.001"),
    "frozen in Paddle": (
        "self.table = self.create_parameter([6, 4])\n        self.table.stop_gradient = True\n"
        "        self.table.set_value(paddle.arange(24.0).reshape([6, 4]).sin())",
        "self.table",
    ),
}


def make_table_side(name: str) -> str:
    creation, attribute = TABLES[name]
    return TABLE.replace("MADE", creation).replace("HELD", attribute)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("frozen", "buffer"), ("drawn", "zeros"), ("buffer of torch", "frozen in Paddle"), ("frozen", "frozen in Paddle")],
)
def test_a_frozen_table_may_be_a_buffer_on_the_other_side(theirs, ours, command_line, tmp_path):
    status, content, out = judge_sides(command_line, tmp_path, make_table_side(theirs), make_table_side(ours))
    assert status == 0, out
    assert content["randomized_parameters"] == 0


@pytest.mark.parametrize(
    ("ours", "message"),
    [
        ("scaled", "buffer:table.weight: the port's own is off by "),
        ("zeros", "buffer:table.weight: the port's own is off by "),
        ("unread", "on the way to output of head"),
    ],
)
def test_a_buffer_that_is_not_the_frozen_table_is_drift(ours, message, command_line, tmp_path):
    status, _, out = judge_sides(
        command_line, tmp_path, make_table_side("frozen"), make_table_side(ours), "--dtype", "float64"
    )
    assert status == 1 and message in "".join(out.splitlines()[:2]), out
