"""Test `toolkit parity bitwise`.

With the reference's kernels, the port equals the reference to the last bit, or the differing place is named. A kernel
that drifts is found.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import shutil
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import paddle
import paddle.nn.functional as F
import pytest
from gates import copied_source, request_for, toolkit_in
from rich.console import Console

from models.operations import activations, losses, ops
from toolkit import cli
from toolkit.parity.bitwise import Bitwise, run_bitwise
from toolkit.parity.candidate.kernel_client import KernelClient
from toolkit.parity.candidate.kernels import REPLACEMENTS, reference_kernels
from toolkit.parity.exchange import files
from toolkit.parity.exchange.kernel_messages import KINDS, receive, send
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.families.reformer.trial import SMALL_REFORMER as REFORMER_TRIAL
from toolkit.parity.followup import attribution
from toolkit.parity.followup.attribution import Substitution
from toolkit.parity.judge.findings import Finding, Verdict
from toolkit.parity.measure import ulp
from toolkit.parity.measure.ulp import BitDifference
from toolkit.parity.options import kernel_kinds
from toolkit.parity.request.build import job_of
from toolkit.parity.request.request import GateRequest

#: A head size whose square root is not a power of two, so that a division by it rounds.
SMALL_REFORMER = {**REFORMER_TRIAL, "attention_head_size": 24, "chunk_size_feed_forward": 32}
#: The same holds for 40 / 4 = 10.
SMALL_CTRL = {**CTRL_TRIAL, "n_embd": 40, "n_head": 4}


def make_small_ctrl_request() -> GateRequest:
    return request_for("ctrl", "causal_lm", SMALL_CTRL, 24, "heavy-tailed")


def run_bitwise_comparison(request: GateRequest, kinds: list[str], folder: Path) -> tuple[Bitwise, str]:
    out = io.StringIO()
    return run_bitwise(request, kinds, folder, Console(file=out, width=200)), out.getvalue()


@pytest.mark.parametrize(
    ("model", "head", "changes", "kind"),
    [
        pytest.param("reformer", "sequence_classification", {}, "heavy-tailed", marks=pytest.mark.slow),
        pytest.param(
            "reformer",
            "causal_lm",
            {"chunk_size_lm_head": 64, "hidden_act": "gelu_new"},
            "random",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            "reformer",
            "question_answering",
            {"num_labels": 2, "hidden_act": "relu"},
            "large-gains",
            marks=pytest.mark.slow,
        ),
        ("ctrl", "causal_lm", {}, "heavy-tailed"),
        pytest.param("ctrl", "sequence_classification", {}, "random", marks=pytest.mark.slow),
    ],
)
def test_every_tensor_is_equal_with_the_references_kernels(tmp_path, model, head, changes, kind):
    base, length = (SMALL_REFORMER, 128) if model == "reformer" else (SMALL_CTRL, 24)
    outcome, text = run_bitwise_comparison(
        request_for(model, head, {**base, **changes}, length, kind), list(KINDS), tmp_path
    )
    assert outcome.is_exact, outcome.summary()
    assert outcome.exit_status == 0 and text.startswith("EXACT")
    assert [path.name for path in tmp_path.iterdir()] == ["bitwise.json"]  # a gate writes another report
    report = json.loads((tmp_path / "bitwise.json").read_text())
    equal_tensors = {name: figures for name, figures in report["tensors"].items() if figures["units"] == 0}
    scores = {"start_logits", "end_logits"} if head == "question_answering" else {"logits"}
    assert {"loss", *scores} <= set(equal_tensors)
    layers = [f"stream:reformer.encoder.layers.{i}#{which}" for i in range(4) for which in ("attention", "hidden")]
    if model == "ctrl":
        layers = [f"output:transformer.h.{index}" for index in range(3)]
    assert set(layers) <= set(equal_tensors)
    assert report["compared"] == report["equal"] == len(equal_tensors)
    # No tensor passes because neither side computed it: each operation of the model was sent to the reference.
    used_kernels = {"linear", "matmul", "layer_norm", "cross_entropy"}
    assert used_kernels | (
        {"attention_weights", "mean", "sum", "rsqrt"} if model == "reformer" else {"softmax"}
    ) <= set(report["calls"])


REFORMER_ARGUMENTS = (
    "--model", "reformer", "--layers", "2", "--length", "128", "--weights", "random", "attention_head_size=24",
    "local_attn_chunk_length=16", "lsh_attn_chunk_length=16", "num_hashes=2",
)  # fmt: skip
CTRL_ARGUMENTS = (
    "--model", "ctrl", "--layers", "2", "--length", "24", "--weights", "random", "n_embd=40", "n_head=4", "dff=48",
    "vocab_size=96",
)  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "edits", "arguments", "place"),
    [
        (
            "models/reformer/attention.py",
            [
                ("at(\"key\", key / math.sqrt(self.attention_head_size))", "key"),
                ("transpose_y=True)", "transpose_y=True) / math.sqrt(self.attention_head_size)"),
            ],
            REFORMER_ARGUMENTS,
            "reformer.encoder.layers.0.attention.self_attention (LocalSelfAttention, models/reformer/modeling.py:",
        ),
        (
            "models/ctrl/layers.py",
            [
                ("product(query, key, transpose_y=True)",
                 "product(query / math.sqrt(self.depth), key, transpose_y=True)"),
                ("divisor = math.sqrt(self.depth)", "divisor = 1.0"),
            ],
            CTRL_ARGUMENTS,
            # The attention's output comes after the output of the projection inside it.
            "transformer.h.0.multi_head_attention.dense (Linear, models/ctrl/layers.py:",
        ),
    ],
    ids=["reformer", "ctrl"],
)  # fmt: skip
def test_a_moved_division_by_sqrt_d_is_named(tmp_path, file, edits, arguments, place):
    """The result is mathematically the same and within every bound; only the last bits differ."""
    process = toolkit_in(copied_source(tmp_path, file, *edits), "parity", "bitwise", "--output", "out", *arguments)
    assert process.returncode == 1, process.stdout + process.stderr
    assert process.stdout.startswith(f"NOT EXACT {place}")
    report = json.loads((tmp_path / "out" / "cpu" / "bitwise.json").read_text())
    first = report["first"]
    assert report["last_equal"].rpartition(".")[2] in ("value", "Wv")  # the last projection into the attention
    assert first["units"] > 0 and 0 < first["differing"] <= first["of"]


EQUAL = BitDifference(0, 4, 0)


@pytest.mark.parametrize(
    ("second", "extra", "message"),
    [
        (BitDifference(1, 4, 3), [], "logits: 1 of 4 elements differ, by at most 3 units"),
        (BitDifference(1, 4, ulp.NAN_DISTANCE), [], "NaN among them"),
        (BitDifference(4, 4, ulp.NAN_DISTANCE, "not computed by the port"), [], "not computed by the port"),
        (BitDifference(4, 4, ulp.NAN_DISTANCE, "float32 [1]"), [], "logits: float32 [1]"),
        (EQUAL, ["output:another"], "2 of 2 float32 tensors"),
    ],
)
def test_any_difference_fails_and_is_reported(second, extra, message):
    kinds = list(KINDS)
    outcome = Bitwise(
        make_small_ctrl_request(), kinds, {"output:transformer.w": EQUAL, "logits": second}, {}, extra, {}, {}
    )
    assert not outcome.is_exact and outcome.exit_status == 1
    assert message in outcome.summary()
    assert outcome.last_equal == (None if second is EQUAL else "output:transformer.w")
    # without a comparison, nothing is proved
    assert not Bitwise(make_small_ctrl_request(), kinds, {}, {}, [], {}, {}).is_exact


@pytest.mark.slow
def test_the_first_missing_kernel_is_named(tmp_path):
    kinds = [kind for kind in KINDS if kind != "layer_norm"]
    outcome, text = run_bitwise_comparison(make_small_ctrl_request(), kinds, tmp_path)
    assert not outcome.is_exact and outcome.exit_status == 1
    assert "layer_norm" not in outcome.calls
    assert text.startswith("NOT EXACT transformer.h.0.layernorm1 (LayerNorm, models/ctrl/layers.py:")
    assert outcome.tensors["output:transformer.dropout"].differing == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("edit", "arguments", "kind"),
    [
        pytest.param(
            ("F.softmax(flat) if", "F.softmax(flat).astype('bfloat16').astype('float32') if"),
            REFORMER_ARGUMENTS,
            "softmax",
            marks=pytest.mark.slow,
        ),
        (
            (
                "return F.layer_norm(x, x.shape[-1:], gain, bias, epsilon)\n\n    @staticmethod",
                "return F.layer_norm(x, x.shape[-1:], gain, bias, epsilon).astype('bfloat16').astype('float32')\n\n"
                "    @staticmethod",
            ),
            CTRL_ARGUMENTS,
            "layer_norm",
        ),
    ],
    ids=["softmax", "layer_norm"],
)
def test_an_inaccurate_kernel_is_named(tmp_path, edit, arguments, kind, monkeypatch):
    """A kernel of Paddle's loses digits only in float32: the port is correct, and the gate names the kernel."""
    monkeypatch.setenv("TOOLKIT_KERNELS", "composed")
    process = toolkit_in(
        copied_source(tmp_path, "models/operations/ops.py", edit), "parity", "--output", "out", *arguments
    )
    assert process.returncode == 1, process.stdout + process.stderr
    assert "rounding float32" in process.stdout
    assert f"with the reference's {kind}: " in process.stdout
    attributions = json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())["attribution"]
    assert attributions[0]["kind"] == kind
    assert attributions[0]["after"] <= 1 < attributions[0]["before"]
    assert (
        all(attribution["after"] > 10 * attributions[0]["after"] for attribution in attributions[1:])
        and len(attributions) > 3
    )


def test_kernels_are_substituted_only_if_float32_alone_drifts():
    dtypes = ["float64", "float32"]
    rounding = Finding("rounding", "loss", "", "float32")
    assert attribution.is_attributable(Verdict(findings=[rounding]), dtypes)
    assert not attribution.is_attributable(Verdict(), dtypes)
    assert not attribution.is_attributable(
        Verdict(findings=[rounding, Finding("semantics", "loss", "", "float64")]), dtypes
    )
    assert not attribution.is_attributable(Verdict(findings=[rounding, Finding("tokenizer", "text 0", "")]), dtypes)
    assert not attribution.is_attributable(Verdict(findings=[rounding]), ["float32"])


def test_the_report_lists_substitutions_with_and_without_effect():
    softmax = Substitution("softmax", before=12.3, after=0.9, tensor="loss")
    matmul = Substitution("matmul", before=12.3, after=12.1, tensor="loss")
    descriptions = attribution.describe_substitutions([softmax, matmul])
    assert descriptions[0] == "with the reference's softmax: 12.3 -> 0.9 of the bound"
    assert descriptions[1].endswith(": matmul 12.1")
    assert "no kind alone brings 12.3 below 1" in attribution.describe_substitutions([matmul])[0]
    assert attribution.describe_substitutions([]) == []


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """Return the reference's kernels, for tests that call single kernels."""
    job = tmp_path_factory.mktemp("job")
    files.write_json(job / "job.json", replace(job_of(make_small_ctrl_request()), threads=1))
    with KernelClient(job, sys.executable) as server:
        yield server


#: By name, an operation as the port calls it: its kind, its kernel, the call, and the shapes of its inputs.
KERNEL_CALLS = {
    "linear": ("matmul", "linear", lambda x, w, b: ops.linear(x, w, b), [(2, 3, 5), (5, 7), (7,)]),
    "linear without bias": ("matmul", "linear", lambda x, w: ops.linear(x, w, None), [(2, 3, 5), (5, 7)]),
    "linear transposed": ("matmul", "linear", lambda x, w, b: ops.linear(x, w, b, True), [(4, 5), (7, 5), (7,)]),
    "linear of a part": (
        "matmul",
        "linear",
        lambda x, w, b: ops.linear(x.split(2, 1)[1], w, b),
        [(2, 6, 5), (5, 7), (7,)],
    ),
    "matmul": ("matmul", "matmul", lambda x, y: paddle.matmul(x, y), [(2, 3, 5), (2, 5, 4)]),
    "matmul y": ("matmul", "matmul", lambda x, y: paddle.matmul(x, y, transpose_y=True), [(2, 3, 5), (2, 4, 5)]),
    "matmul x": ("matmul", "matmul", lambda x, y: paddle.matmul(x, y, transpose_x=True), [(5, 3), (5, 4)]),
    "layer_norm": ("layer_norm", "layer_norm", lambda x, g, b: ops.layer_norm(x, g, b, 1e-3), [(2, 3, 5), (5,), (5,)]),
    "softmax": ("softmax", "softmax", lambda x: ops.softmax(x), [(2, 3, 5)]),
    "masked_softmax": (
        "softmax",
        "attention_weights",
        lambda x: ops.masked_softmax(x, [(paddle.to_tensor([True, False, True, True, False]), -1e5)], True),
        [(2, 3, 5)],
    ),
    "softmax over": ("softmax", "attention_weights", lambda x: ops.softmax_over(x, 1), [(2, 3, 5)]),
    "gelu": ("activation", "activation", lambda x: F.gelu(x), [(3, 5)]),
    "gelu_new": ("activation", "activation", lambda x: activations.tanh_gelu(x), [(3, 5)]),
    "silu": ("activation", "activation", lambda x: activations.silu(x), [(3, 5)]),
    "tanh": ("activation", "activation", lambda x: activations.tanh(x), [(3, 5)]),
    "tanh layer": ("activation", "activation", lambda x: activations.Tanh()(x), [(3, 5)]),
    "sigmoid": ("activation", "activation", lambda x: paddle.nn.Sigmoid()(x), [(3, 5)]),
    "sum": ("sum", "sum", lambda x: x.sum(1), [(2, 3, 5)]),
    "mean": ("sum", "mean", lambda x: x.mean(-1, keepdim=True), [(2, 3, 5)]),
    "rsqrt": ("rsqrt", "rsqrt", lambda x: paddle.rsqrt(x * x + 1.0), [(3, 5)]),
    "cross entropy": (
        "loss",
        "cross_entropy",
        lambda x: losses.cross_entropy(x, paddle.to_tensor([1, -100, 4])),
        [(3, 5)],
    ),
    "mse": ("loss", "mse_loss", lambda x: F.mse_loss(x, paddle.ones([3])), [(3,)]),
    "bce": ("loss", "binary_cross_entropy", lambda x: F.binary_cross_entropy_with_logits(x, paddle.ones([3])), [(3,)]),
}  # fmt: skip


def compute_values_and_gradients(operation, shapes: list[tuple[int, ...]]) -> list[np.ndarray]:
    """Return the outputs and the gradients of a weighted sum of them, in float32."""
    draw = np.random.default_rng(0)
    inputs = [paddle.to_tensor(draw.standard_normal(shape).astype("float32"), stop_gradient=False) for shape in shapes]
    outputs = operation(*inputs)
    outputs = list(outputs) if isinstance(outputs, (list, tuple)) else [outputs]
    weights = [paddle.to_tensor(draw.standard_normal(output.shape).astype("float32")) for output in outputs]
    paddle.autograd.backward(outputs, weights)
    return [output.numpy() for output in outputs] + [x.grad.numpy() for x in inputs]


@pytest.mark.parametrize("name", KERNEL_CALLS)
def test_a_reference_kernel_has_the_values_and_gradients_of_the_port(server, name):
    kind, kernel, operation, shapes = KERNEL_CALLS[name]
    ours = compute_values_and_gradients(operation, shapes)
    num_calls = server.calls[kernel]
    with reference_kernels(server, [kind]):
        theirs = compute_values_and_gradients(operation, shapes)
    assert server.calls[kernel] == num_calls + 1
    for our, their in zip(ours, theirs, strict=True):
        assert our.shape == their.shape
        np.testing.assert_allclose(our, their, rtol=2e-5, atol=1e-6)


def test_float64_and_integers_use_the_ports_own_operations(server):
    calls_before = dict(server.calls)
    with reference_kernels(server, list(KINDS)):
        assert paddle.matmul(paddle.ones([2, 2], "float64"), paddle.ones([2, 2], "float64")).dtype == paddle.float64
        assert int(paddle.to_tensor([1, 2]).sum()) == 3
    assert server.calls == calls_before


def test_the_ports_operations_are_restored_afterwards(server):
    import models.ctrl.layers as ctrl_layers
    import models.ctrl.modeling as ctrl
    import models.reformer.attention as reformer

    places = [(owner, name) for replacements in REPLACEMENTS.values() for owner, name, _ in replacements]
    places += [(ctrl, "linear"), (ctrl_layers, "softmax"), (reformer, "masked_softmax")]
    original_operations = [getattr(owner, name) for owner, name in places]
    with reference_kernels(server, list(KINDS)):
        assert all(
            getattr(owner, name) is not value for (owner, name), value in zip(places, original_operations, strict=True)
        )
    assert all(getattr(owner, name) is value for (owner, name), value in zip(places, original_operations, strict=True))


def test_a_failed_kernel_is_reported_and_the_next_call_works(server):
    with pytest.raises(RuntimeError, match="the reference's kernel failed: matmul: "):
        server.forward("matmul", {"transpose_x": False, "transpose_y": False}, [np.ones((2, 3)), np.ones((2, 3))])
    assert server.forward("rsqrt", {}, [np.float32([4.0])])[0] == 0.5


def test_a_server_that_cannot_start_is_reported_as_unavailable(tmp_path):
    with KernelClient(tmp_path, shutil.which("false")) as dead, pytest.raises(RuntimeError, match="are unavailable"):
        dead.forward("rsqrt", {}, [np.float32([4.0])])


def test_arrays_are_received_unchanged():
    sent_arrays = [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.float64(0.1),
        np.zeros((0, 4)),
        np.array([True, False]),
    ]
    sender, receiver = multiprocessing.Pipe()
    with sender, receiver:
        send(sender, {"kernel": "any"}, sent_arrays)
        header, arrays = receive(receiver)
        assert header == {"kernel": "any"}
        for array, original in zip(arrays, sent_arrays, strict=True):
            assert array.dtype == np.asarray(original).dtype and array.shape == np.shape(original)
            assert np.array_equal(array, original)
        os.write(sender.fileno(), b"\x40")
        sender.close()
        with pytest.raises(OSError, match="during message"):
            receive(receiver)
        with pytest.raises(EOFError):
            receive(receiver)


def test_an_array_of_an_unsupported_dtype_is_rejected():
    sender, receiver = multiprocessing.Pipe()
    with sender, receiver:
        send(sender, {}, [np.zeros(2, np.complex128)])
        with pytest.raises(ValueError, match="arrays of complex128 are not sent"):
            receive(receiver)


def test_units_in_the_last_place_are_counted_across_zero_and_signs():
    number = np.float32(1)
    tiny = np.float32(1e-45)
    ours = np.array([1, np.nextafter(number, np.float32(2)), -1, 0.0, tiny, np.nan, np.nan, np.inf], np.float32)
    theirs = np.array([1, 1, np.nextafter(-number, np.float32(0)), -0.0, -tiny, np.nan, 1, np.inf], np.float32)
    assert ulp.count_ulps(ours, theirs).tolist() == [0, 1, 1, 0, 2, 0, ulp.NAN_DISTANCE, 0]
    assert ulp.compare_bits(ours, theirs) == BitDifference(4, 8, ulp.NAN_DISTANCE)


def test_tensors_of_another_shape_or_dtype_are_never_equal():
    ones = np.ones((2, 1), np.float32)
    assert ulp.compare_bits(ones, ones) == BitDifference(0, 2, 0)
    for other_array in (
        np.ones(2, np.float32),
        np.ones((2, 2), np.float32),
        np.ones((2, 1)),
        np.ones((0, 1), np.float32),
    ):
        assert ulp.compare_bits(other_array, ones).differing > 0
        assert str(other_array.dtype) in ulp.compare_bits(other_array, ones).problem


def test_kinds_are_chosen_by_name():
    assert kernel_kinds(None) == list(KINDS) == list(REPLACEMENTS)
    assert kernel_kinds("softmax,matmul,softmax") == ["softmax", "matmul"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--model", "reformer", "--kernels", "gelu"], "gelu is no kind of kernel; there are matmul, layer_norm"),
        (["--model", "reformer", "--kernels", ""], "nothing is no kind of kernel"),
        (["--model", "reformer", "--kernels", "softmax,"], "nothing is no kind of kernel"),
        (["--model", "ctrl"], "take a smaller one"),  # too large to be held as a whole
    ],
)
def test_impossible_bitwise_comparisons_are_reported_in_one_line(capsys, tmp_path, arguments, message):
    with pytest.raises(SystemExit) as exit_error:
        cli.main(["parity", "bitwise", "--output", str(tmp_path), *arguments])
    error = capsys.readouterr().err
    assert exit_error.value.code == 2
    assert error.startswith("error: ") and message in error and error.count("\n") == 1
