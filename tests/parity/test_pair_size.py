"""Test large pairs: they give the same figures in less memory, or one line with the memory that they need."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from toolkit.errors import Inconclusive
from toolkit.machine import model_memory
from toolkit.parity.job.pair import ParameterFacts
from toolkit.parity.pairs import size
from toolkit.parity.pairs.options import pair_request

PAIRS = Path(__file__).parents[1] / "pairs"
DECODER = "family=Llama vocab_size=101 hidden_size=32 num_hidden_layers=2 num_attention_heads=4 intermediate_size=64"
FUSED_KEYS = "fuse_attention_qkv=true fuse_attention_ffn=true"


@pytest.fixture
def run_gate(command_line, tmp_path, monkeypatch):
    """Return a function that runs a gate of two files, optionally as a large model, and returns its `parity.json`."""

    def run(pair: str, options: str, is_large: bool, **changes: str) -> dict:
        monkeypatch.setattr(size, "MAX_PAIR_PARAMETERS", 0 if is_large else 10**9)
        files = {}
        for side in ("port", "reference"):
            files[side] = tmp_path / f"{side}.py"
            files[side].write_text((PAIRS / pair / f"{side}.py").read_text() + changes.get(side, ""))
        sides = ("--port", files["port"], "--reference-model", files["reference"])
        _, out, err = command_line("parity", *sides, *options.split(), "--output", tmp_path / "out")
        assert ("note: a model this large" in out) == is_large, err
        return json.loads((tmp_path / "out" / "cpu" / "parity.json").read_text())

    return run


@pytest.mark.parametrize(("pair", "options"), [("mlp", ""), ("decoders", f"{DECODER} {FUSED_KEYS}")])
def test_a_large_pair_compares_fewer_tensors_with_the_same_figures(pair, options, run_gate):
    small_content, large_content = run_gate(pair, options, False), run_gate(pair, options, True)
    assert small_content["passed"] and large_content["passed"]
    figures = [
        {
            (entry["name"], entry["dtype"]): (entry["error"], entry["error_max"], entry["rms"])
            for entry in content["tensors"]
        }
        for content in (small_content, large_content)
    ]
    assert figures[1] == {key: figure for key, figure in figures[0].items() if not key[0].startswith("updated:")}
    kinds = {name.partition(":")[0] for name, _ in figures[1]}
    assert {"output", "gradient", "loss"} <= kinds
    orders = [
        [entry["name"] for entry in content["tensors"] if entry["kind"] == "gradient"]
        for content in (small_content, large_content)
    ]
    assert orders[0] == orders[1]
    tables = [entry["data"]["names"] for entry in small_content["notes"] if entry["kind"] == "buffers-alone"]
    assert pair == "mlp" or "llama.layers.*.self_attn.rotary_emb.cos_cached" in tables[0].split(", ")
    assert all(".0." not in names for names in tables)


@pytest.mark.parametrize(
    ("fault", "culprit"),
    [
        ("nn.functional.relu6 = None\nnn.ReLU = nn.Softsign\n", ": softsign ("),
        (
            "def build(config, made=build):\n    net = made(config)\n"
            "    net.head.weight.register_hook(lambda g: 2 * g)\n    return net\n",
            "the gradient of classifier.weight (",
        ),
    ],
)
def test_a_fault_of_a_large_pair_is_named(fault, culprit, run_gate):
    content = run_gate("mlp", "", True, port=f"\n\n{fault}")
    assert not content["passed"] and culprit in content["summary"], content["summary"]


@pytest.mark.slow
def test_a_large_pair_is_trained_like_a_small_pair(run_gate):
    training = [run_gate("mlp", "--steps 3", is_large)["training"] for is_large in (False, True)]
    assert training[0]["losses"] == training[1]["losses"] and len(set(training[0]["losses"]["P64"])) == 3


def test_a_pair_that_exceeds_the_memory_is_rejected_before_the_comparison(command_line, tmp_path, monkeypatch):
    sides = ("--port", PAIRS / "mlp" / "port.py", "--reference-model", PAIRS / "mlp" / "reference.py")
    monkeypatch.setattr(model_memory, "WORKER_BYTES", 2e9)
    status, out, err = command_line("parity", *sides, "--max-memory", "1", "--output", tmp_path / "out")
    message = "a model of 1,989 parameters takes about 2.0 GB of memory besides its activations; it may take 1.0 GB"
    assert status == 3 and message in (out + err) and not (tmp_path / "out" / "cpu" / "parity.json").exists()


def test_fewer_tensors_are_compared_if_all_would_exceed_the_memory():
    port, reference = (str(PAIRS / "mlp" / f"{side}.py") for side in ("port", "reference"))
    request = pair_request(port=port, reference_model=reference, model_config={}, seed=0)
    fact = ParameterFacts("w", [10**7], "linear", False, "", "Linear", 0)
    assert not size.is_large([fact], replace(request, max_memory=4))
    assert size.is_large([fact], replace(request, max_memory=2))
    assert size.is_large([fact] * 4, replace(request, max_memory=16))
    with pytest.raises(Inconclusive, match=r"10,000,000 parameters takes about 1\.0 GB"):
        size.is_large([fact], replace(request, max_memory=1))
