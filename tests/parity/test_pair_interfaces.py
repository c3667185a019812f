"""Ports that hand on something else between their modules, or hold the same numbers differently."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from toolkit.parity.measure.naming import TensorName

#: Both sides: what a framework is called, and how it spells what the sides below use.
SIDES = {
    "reference": "import torch\nfrom torch import nn\nfrom torch.nn import functional as F\n\nLayer = nn.Module\n",
    "port": "import paddle\nfrom paddle import nn\nfrom paddle.nn import functional as F\n\nLayer = nn.Layer\n",
}
BATCH = '\n\ndef batch(config, rng):\n    return {"x": rng.normal(size=(6, 4)), "labels": rng.integers(0, 3, 6)}\n'


def judge_sides(command_line, folder: Path, reference: str, port: str, *words: object, batch: str = BATCH):
    """Return the exit status, the content of ``parity.json`` and what is printed for two sides.

    Args:
        reference, port: code that defines ``Net``.
    """
    for side, code in (("reference", reference), ("port", port)):
        text = SIDES[side] + code + "\n\ndef build(config):\n    return Net()\n"
        (folder / f"{side}.py").write_text(text + (batch if side == "reference" else ""))
    files = ("--port", folder / "port.py", "--reference-model", folder / "reference.py")
    status, out, err = command_line("parity", *files, *words, "--output", folder)
    content = json.loads((folder / "cpu" / "parity.json").read_text()) if status < 2 else {}
    return status, content, out + err


def notes_of(content: dict, kind: str) -> list[dict]:
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
#: What passes through the expert and, after a semicolon, what the expert gives, if that is not ``up``.
#: The reference's -> a port's that does the same.
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
#: Likewise, of ports that do not do the same, or of which nothing tells it.
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


def side_of(passes: str, returns: str = "") -> str:
    passes, _, gives = passes.partition(";")
    code = MODULE.replace("PASSES", passes).replace("GIVES", gives.strip() or "up")
    return code.replace("RETURNS", returns)


@pytest.mark.parametrize("name", INTERFACES)
def test_an_output_behind_which_all_agrees_is_not_compared_and_a_note_names_it(name, command_line, tmp_path):
    sides = map(side_of, INTERFACES[name])
    status, content, out = judge_sides(command_line, tmp_path, *sides)
    assert status == 0, out
    [note] = notes_of(content, "outputs-set-aside")
    assert "expert" in note["names"] and "outputs of" in out.splitlines()[0]
    assert {one["dtype"] for one in content["set_aside"]} == {"float64", "float32"}
    left_out = {one["name"] for one in content["set_aside"]}
    assert left_out.isdisjoint(one["name"] for one in content["tensors"])


@pytest.mark.parametrize("name", FAULTS)
def test_an_output_behind_which_something_differs_or_nothing_is_known_is_drift(name, command_line, tmp_path):
    sides = map(side_of, FAULTS[name])
    status, content, out = judge_sides(command_line, tmp_path, *sides, "--dtype", "float64")
    assert status == 1 and content["set_aside"] == [], out


def test_an_output_that_the_model_itself_returns_is_compared(command_line, tmp_path):
    """Its caller may read it in the reference's order, which the loss does not show."""
    returns = ", self.head(y), x"
    theirs, ours = side_of("self.expert(x)", returns), side_of("self.expert(x.flip([0]))", returns)
    ours = ours.replace("self.first(x)", "self.first(x.flip([0]))")
    status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64")
    assert status == 1 and {one["name"] for one in content["findings"]} >= {"output:first"}, out
    assert "loss" in {one["name"] for one in content["tensors"] if one["passed"]}


UNPADDED = """

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


@pytest.mark.parametrize(("kept", "status"), [(" * kept", 0), ("", 1)])
def test_layers_may_see_texts_with_padding_or_without_and_the_fault_behind_them_is_named(
    kept, status, command_line, tmp_path
):
    theirs = UNPADDED.replace("PASSES", WITHOUT_PADDING)
    ours = UNPADDED.replace("PASSES", WITH_PADDING.replace("KEPT", kept))
    found, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64", batch=TEXTS)
    assert found == status, out
    if status:
        assert content["culprit"]["place"].startswith("sum (") and "on the way to output of head" in out
        assert "output:embed" in {one["name"] for one in content["findings"]}  # and is not the fault
    else:
        assert notes_of(content, "outputs-set-aside") == [{"count": 2, "names": "embed, up"}]


def test_a_fault_behind_an_output_of_another_shape_is_named(command_line, tmp_path):
    theirs, ours = INTERFACES["fewer columns"]
    faulty = ours.replace("* x[:, :1]", "* x[:, :1] * 1.001")
    assert faulty != ours
    status, content, out = judge_sides(command_line, tmp_path, side_of(theirs), side_of(faulty), "--dtype", "float64")
    assert status == 1 and content["culprit"]["place"].endswith("on the way to output of head"), out


PACKED = """

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
    theirs = PACKED.replace("PASSES", PACKS).replace("BATCH_FIRST", ", batch_first=True")
    lengths = "lengths" if has_lengths else "None"
    ours = PACKED.replace("PASSES", f"x = self.rnn(x, sequence_length={lengths})[1][0]").replace("BATCH_FIRST", "")
    status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64", batch=SEQUENCES)
    assert status == (0 if has_lengths else 1), out
    [rnn] = [one for one in content["tensors"] if one["name"] == "output:rnn"]
    assert rnn["passed"] == has_lengths and content["set_aside"] == []
    assert has_lengths or content["culprit"]["place"].startswith("rnn (GRU")


@pytest.mark.parametrize(("factor", "status"), [("1", 0), ("1.001", 1)])
def test_the_trace_leaves_out_the_gradient_into_padding(factor, status, command_line, tmp_path):
    """The port's sum over padded places has a gradient there; the reference's packed output has no such places."""
    total = "x = total.sum(1) * FACTOR"
    packs = PACKS.removesuffix("[1][0]").replace("x = self", "total = self") + "[0]\n        "
    unpacks = "total = nn.utils.rnn.pad_packed_sequence(total, batch_first=True)[0]\n        "
    theirs = PACKED.replace("PASSES", packs + unpacks + total.replace("FACTOR", "1"))
    pads = "total = self.rnn(x, sequence_length=lengths)[0]\n        "
    ours = PACKED.replace("PASSES", pads + total.replace("FACTOR", factor)).replace("BATCH_FIRST", "")
    theirs = theirs.replace("BATCH_FIRST", ", batch_first=True")
    found, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--trace", batch=SEQUENCES)
    assert found == status, out
    faulty = [one["name"] for one in content["trace"]["faulty"]]
    assert ("gradient:output:rnn" in faulty) == bool(status), out


SORTED = """order = lengths.argsort(descending=True)
        packed = nn.utils.rnn.pack_padded_sequence(x[order], lengths[order], batch_first=True)
        x = self.rnn(packed)[1][0][order.argsort()]"""


@pytest.mark.parametrize(("lengths", "status"), [("lengths", 0), ("lengths - 1", 1)])
def test_sequences_that_are_sorted_by_length_are_compared_by_what_is_read_of_them(
    lengths, status, command_line, tmp_path
):
    theirs = PACKED.replace("PASSES", SORTED).replace("BATCH_FIRST", ", batch_first=True")
    ours = PACKED.replace("PASSES", f"x = self.rnn(x, sequence_length={lengths})[1][0]").replace("BATCH_FIRST", "")
    found, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64", batch=SEQUENCES)
    assert found == status, out
    assert notes_of(content, "outputs-set-aside") == ([] if status else [{"count": 1, "names": "rnn"}])


def test_with_a_loss_of_the_files_own_the_last_output_is_compared(command_line, tmp_path):
    """A shift of all scores changes neither the loss nor a gradient, but what the caller gets."""
    code = side_of("self.expert(x)").replace("F.cross_entropy(self.head(y), labels)", "self.head(y) * 2")
    theirs = code + "\n\ndef loss(model, batch):\n    return F.cross_entropy(model(**batch), batch['labels'])\n"
    ours = HEAD + theirs.replace("Expert(), nn.Linear(4, 3)", "Expert(), Head()")
    status, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64")
    assert status == 1 and {TensorName.parse(one["name"]).module for one in content["findings"]} == {"head"}, out


def test_a_layer_that_moves_rows_is_named_if_nothing_moves_them_back(command_line, tmp_path):
    sides = side_of("self.expert(x) * x"), side_of("self.expert(x) * x; up.flip([0])")
    status, content, out = judge_sides(command_line, tmp_path, *sides, "--dtype", "float64")
    assert status == 1 and content["culprit"]["name"] == "output:expert", out
    assert content["culprit"]["place"].startswith("flip ("), out


def test_a_fault_behind_rows_in_another_order_is_named(command_line, tmp_path):
    theirs, ours = INTERFACES["rows in another order"]
    sides = side_of(f"{theirs} * x"), side_of(f"{ours} * x * 1.001")
    status, content, out = judge_sides(command_line, tmp_path, *sides, "--dtype", "float64")
    assert status == 1 and content["trace"]["interfaces"] == ["expert"], out
    assert content["culprit"]["place"].endswith("on the way to output of head"), out


@pytest.mark.parametrize("ours", ["self.expert(x[:0])", "self.expert(x[:0] * 2)"])
def test_outputs_without_elements_agree(ours, command_line, tmp_path):
    sides = side_of("x + self.expert(x[:0]).sum(0)"), side_of(f"x + {ours}.sum(0)")
    status, content, out = judge_sides(command_line, tmp_path, *sides)
    assert status == 0, out
    assert "output:expert" in {one["name"] for one in content["tensors"]}


# -- the same numbers, held differently -------------------------------------------------------------------------------

HELD = """

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


def held_as(words: dict[str, str], **more: str) -> str:
    code = HELD
    for word, text in {**words, **more}.items():
        code = code.replace(word, text)
    return code


def write_map(folder: Path, **parameters: str) -> tuple[str, Path]:
    lines = [f"  {name.replace('_', '.')}: {said}" for name, said in parameters.items()]
    (folder / "map.yaml").write_text("\n".join(["parameters:", *lines]) + "\n")
    return "--map", folder / "map.yaml"


def test_a_weight_that_a_loader_shifts_needs_a_map_that_says_so_and_a_hint_names_the_line(command_line, tmp_path):
    status, content, out = judge_sides(command_line, tmp_path, held_as(DISTANCE), held_as(WHOLE), "--dtype", "float64")
    [hint] = notes_of(content, "other-initial-value")
    assert status == 1 and hint["map"] == "norm.weight: 1 + norm.weight" and hint["map"] in out
    said = write_map(tmp_path, norm_weight="1 + norm.weight")
    status, content, out = judge_sides(command_line, tmp_path, held_as(DISTANCE), held_as(WHOLE), *said)
    assert status == 0 and notes_of(content, "shifted") == [{"names": "norm.weight"}], out
    assert "updated:norm.weight#2" in {one["name"] for one in content["tensors"]}


@pytest.mark.parametrize(
    ("said", "norm"),
    [("2 + norm.weight", "self.weight"), ("-1 + norm.weight", "self.weight"), ("1 + norm.weight", "(1 + self.weight)")],
)
def test_a_map_that_shifts_by_another_number_passes_no_port(said, norm, command_line, tmp_path):
    words = write_map(tmp_path, norm_weight=said)
    ours = held_as(WHOLE, NORM=norm)
    status, _, out = judge_sides(command_line, tmp_path, held_as(DISTANCE), ours, *words, "--dtype", "float64")
    assert status == 1, out


@pytest.mark.parametrize(("order", "status"), [(".flip(-1)", 0), ("", 1)])
def test_rows_that_a_map_permutes_are_compared_in_its_order(order, status, command_line, tmp_path):
    rows = {f"up_{leaf}": f"[{BACKWARDS.format(f'up.{leaf}')}]" for leaf in ("weight", "bias")}
    said = write_map(tmp_path, norm_weight="1 + norm.weight", **rows)
    sides = held_as(DISTANCE), held_as(WHOLE, ORDER=order)
    found, content, out = judge_sides(command_line, tmp_path, *sides, *said, "--dtype", "float64")
    assert found == status, out
    [up] = [one for one in content["tensors"] if one["name"] == "output:up"]
    assert up["passed"] and content["set_aside"] == []


SHAPED = """

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


@pytest.mark.parametrize(("said", "status"), [("q.weight.T", 0), ("q.weight", 1)])
def test_a_map_says_how_a_parameter_of_another_shape_is_reshaped(said, status, command_line, tmp_path):
    theirs, ours = (
        SHAPED.replace("MADE", words["MADE"]).replace("PASSES", words["PASSES"]) for words in (HEADS, MATRIX)
    )
    found, content, out = judge_sides(command_line, tmp_path, theirs, ours, "--dtype", "float64")
    [hint] = notes_of(content, "other-shape")
    assert found == 1 and (hint["name"], hint["port"]) == ("q", "q.weight") and "q: q.weight.T" in out
    words = write_map(tmp_path, q=said)
    found, content, out = judge_sides(command_line, tmp_path, theirs, ours, *words, "--dtype", "float64")
    assert found == status, out
    assert notes_of(content, "other-shape") == []


@pytest.mark.parametrize(
    ("said", "message"),
    [
        ("up.weight[0:3]", "up.weight is [6, 4] in torch's layout, up.weight[0:3] is [3, 4]"),
        (
            "['up.weight[0:3]', 'up.weight[2:5]']",
            "up.weight of the port has the rows 0:6, of which the map takes 0:3, 2:5",
        ),
        ("1 + up.wait", "the port has no parameter up.wait"),
    ],
)
def test_a_map_that_does_not_fit_is_one_line(said, message, command_line, tmp_path):
    words = write_map(tmp_path, up_weight=said)
    status, _, out = judge_sides(command_line, tmp_path, held_as(DISTANCE), held_as(WHOLE), *words)
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
#: How a side holds a table of its own.
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


def with_table(name: str) -> str:
    made, held = TABLES[name]
    return TABLE.replace("MADE", made).replace("HELD", held)


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("frozen", "buffer"), ("drawn", "zeros"), ("buffer of torch", "frozen in Paddle"), ("frozen", "frozen in Paddle")],
)
def test_a_frozen_table_may_be_a_buffer_of_the_other_side(theirs, ours, command_line, tmp_path):
    status, content, out = judge_sides(command_line, tmp_path, with_table(theirs), with_table(ours))
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
    status, _, out = judge_sides(command_line, tmp_path, with_table("frozen"), with_table(ours), "--dtype", "float64")
    assert status == 1 and message in "".join(out.splitlines()[:2]), out
