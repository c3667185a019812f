"""Test the report on tensors that are noise in float32: where the noise begins, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from toolkit.parity.judge import diagnosis, notes
from toolkit.parity.measure.error_stats import TensorRecord

LAYERS = [f"transformer.h.{index}" for index in range(4)]
SATURATED_MODULE = "transformer.h.2.multi_head_attention"


def make_record(rms: float = 1.0, noise64: float = 1e-15) -> TensorRecord:
    return TensorRecord(shape=[4], rms=rms, noise={"float64": [noise64], "float32": [1.0]})


def diagnose_lost(
    tensors: Mapping[str, TensorRecord], saturation: Mapping[str, float], names: Sequence[str]
) -> list[str]:
    """Return the sentences after the first, which has the number of tensors without information in float32."""
    first, *sentences = map(notes.text, diagnosis.explain_lost_digits(tensors, saturation, names))
    assert first.startswith(f"float32 carries no information in {len(names)} tensors")
    assert f"the first of them {names[0]};" in first
    return sentences


@pytest.fixture
def tensors() -> dict[str, TensorRecord]:
    outputs = {f"output:{layer}": make_record() for layer in LAYERS}
    return {**outputs, "loss": make_record(), **{f"gradient:{layer}.ffn.0.weight": make_record() for layer in LAYERS}}


def test_informative_float32_gives_no_diagnosis(tensors):
    assert diagnosis.explain_lost_digits(tensors, {SATURATED_MODULE: 1.0}, []) == []


def test_gradients_are_lost_from_the_last_affected_layer_downwards(tensors):
    names = [f"gradient:{layer}.ffn.0.weight" for layer in LAYERS[:3]]
    (sentence,) = diagnose_lost(tensors, {SATURATED_MODULE: 0.4, "transformer.h.0.multi_head_attention": 0.9}, names)
    assert sentence.startswith("float32 loses 3 gradients, from transformer.h.2 down: attention is saturated in")
    assert f"{SATURATED_MODULE}, where 40% of the rows" in sentence  # not layer 0: its gradient comes after
    assert "residual stream" not in sentence


def test_a_grown_residual_stream_is_a_cause(tensors):
    tensors["output:transformer.h.3"].rms = 5e4
    (sentence,) = diagnose_lost(tensors, {SATURATED_MODULE: 0.01}, ["gradient:transformer.h.1.ffn.0.weight"])
    assert sentence.endswith("the residual stream grows 5e+04 times, to 5.0e+04, by transformer.h.3")


def test_outputs_are_lost_from_the_first_affected_layer_onwards(tensors):
    (sentence,) = diagnose_lost(tensors, {}, ["output:transformer.h.1", "output:transformer.h.3"])
    assert sentence.startswith("float32 loses 2 outputs, from transformer.h.1 on: neither saturated attention nor")


def test_a_gradient_that_is_rounding_even_in_float64_is_zero_by_cancellation(tensors):
    name = "gradient:transformer.h.1.ffn.0.weight"
    tensors[name] = make_record(1e-17, 1e-17)
    (sentence,) = diagnose_lost(tensors, {}, [name])
    assert "zero by cancellation" in sentence and name in sentence
