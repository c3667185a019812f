"""Test records sent between processes of the gate: they arrive unchanged, or the faulty place is named."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from typing import Any

import pytest

from toolkit.parity.exchange.records import as_json, from_json, text_of
from toolkit.parity.exchange.results import (
    CandidateDtype,
    CandidateResult,
    Execution,
    Flips,
    GeneratorStats,
    MaskStats,
    Note,
    Place,
    ReferenceFacts,
    ReferenceResult,
    RotationStats,
    Tokens,
)
from toolkit.parity.job.job import Job, TokenizerJob, TrainingSettings
from toolkit.parity.measure.error_stats import TensorRecord, TensorStats


@dataclass(frozen=True)
class Inner:
    number: float
    words: tuple[str, ...] = ()


@dataclass
class Outer:
    name: str
    count: int = 0
    inner: Inner | None = None
    by_name: dict[str, Inner | None] = field(default_factory=dict)
    rows: list[list[int]] = field(default_factory=list)
    runs: dict[str, list[float | None]] = field(default_factory=dict)
    anything: Any = None
    sure: bool = True


def send_through_file(record: Any) -> Any:
    """Return the record that the other process reads."""
    text = text_of(record)
    assert text == json.dumps(as_json(record), allow_nan=True)
    return json.loads(text)


@pytest.mark.parametrize(
    "record",
    [
        Outer("x"),
        Outer("x", inner=Inner(0.5, ("a", "b"))),
        Outer("x", by_name={"none": None, "some": Inner(-0.0)}),
        Outer("x", 3, rows=[[], [1, 2]], runs={"float64": [None, 1e-300], "float32": []}, sure=False),
        Outer("\ud800 Ünïcode", anything={"a": [1, 2.5, None, {"b": True}]}),
        Inner(math.inf),
        TokenizerJob("bytes", ["a", "\ud800"], 8, offsets=True),
        Job(
            model="ctrl",
            head="causal_lm",
            config={"n_layer": 2, "nested": {"a": [1, None]}},
            dtypes=("float64",),
            device="cpu",
            seed=7,
            noise_runs={"float64": 2},
            updates=2,
            spare_memory=False,
            brief=False,
            port={"recompute": True},
            training=TrainingSettings(max_grad_norm=None),
            threads=2,
            reference_python="/usr/bin/python",
            tokenizer=TokenizerJob("ctrl", ["a"], 8, "folder"),
            kernels=["matmul"],
        ),
        ReferenceResult(
            tensors={"loss": TensorRecord([], rms=1.0, noise={"float32": [1e-7, None]})},
            facts=ReferenceFacts(num_buckets=[2, 4], bucket_slack={"a": math.inf}),
            notes=[Note("reference-bias"), Note("remeasured", {"margin": 1.5, "name": "loss"})],
            tokens=[Tokens("a", [1], "a", [[1, 0], [1, 0]], [[0, 1], [0, 1]], [[1, 0, 1]]), Tokens(error="refused")],
        ),
        CandidateResult(
            dtypes={
                "float32": CandidateDtype(
                    tensors={"loss": TensorStats([], finite=False)}, places={"a": Place("Linear", "a.py:1")}
                )
            },
            generators=GeneratorStats({"dropout:a": MaskStats([2, 3], rate=0.1)}, {"normal:a": RotationStats([2])}),
            execution=Execution({"python": "3.11"}, {"FLAGS_x": 1}, 2.5, None),
        ),
        Flips(shape=[2]),
    ],
    ids=lambda record: type(record).__name__,
)
def test_a_record_is_received_unchanged(record):
    assert from_json(type(record), send_through_file(record)) == record


def test_nan_is_received_as_nan():
    assert math.isnan(from_json(Inner, send_through_file(Inner(math.nan))).number)


def test_an_integer_is_read_as_a_float_if_the_type_is_float():
    record = from_json(Inner, {"number": 3})
    assert record == Inner(3.0) and type(record.number) is float


def test_records_in_dictionaries_and_lists_are_received_unchanged():
    by_name = {"a": TensorStats([2], rms=1.0), "b": TensorStats([], missing=True)}
    assert from_json(dict[str, TensorStats], send_through_file(by_name)) == by_name
    assert from_json(list[Tokens], send_through_file([Tokens("a", [1])])) == [Tokens("a", [1])]
    assert from_json(dict[str, dict[str, TensorStats]], send_through_file({"matmul": by_name})) == {"matmul": by_name}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "Outer: expected dict, found list"),
        (None, "Outer: expected dict, found NoneType"),
        ({}, "Outer: lacks name"),
        ({"name": "x", "nmae": "y"}, "Outer: has nmae, which is none of name, count, inner"),
        ({"name": 3}, "Outer.name: expected str, found int"),
        ({"name": None}, "Outer.name: expected str, found NoneType"),
        ({"name": "x", "count": 1.0}, "Outer.count: expected int, found float"),
        ({"name": "x", "count": True}, "Outer.count: expected int, found bool"),
        ({"name": "x", "sure": 1}, "Outer.sure: expected bool, found int"),
        ({"name": "x", "inner": {}}, "Outer.inner: lacks number"),
        ({"name": "x", "inner": {"number": "1"}}, "Outer.inner.number: expected float, found str"),
        ({"name": "x", "inner": {"number": True}}, "Outer.inner.number: expected float, found bool"),
        ({"name": "x", "inner": {"number": 1, "words": "ab"}}, "Outer.inner.words: expected list, found str"),
        ({"name": "x", "inner": {"number": 1, "words": ["a", 2]}}, "Outer.inner.words[1]: expected str, found int"),
        ({"name": "x", "by_name": []}, "Outer.by_name: expected dict, found list"),
        ({"name": "x", "by_name": {"a": None, "b": 1}}, "Outer.by_name.b: expected dict, found int"),
        ({"name": "x", "rows": [[1], [2, None]]}, "Outer.rows[1][1]: expected int, found NoneType"),
        ({"name": "x", "runs": {"float32": [None, "1"]}}, "Outer.runs.float32[1]: expected float, found str"),
    ],
)
def test_content_of_a_wrong_type_is_rejected_with_its_place(content, message):
    with pytest.raises(ValueError) as raised_error:
        from_json(Outer, content)
    assert str(raised_error.value).startswith(message)


def test_the_file_is_named_if_its_content_is_wrong(tmp_path):
    from toolkit.parity.exchange import files

    files.write_json(tmp_path / "job.json", {"model": "ctrl"})
    with pytest.raises(ValueError, match=r"^job\.json: lacks "):
        files.read_job(tmp_path)
    files.write_json(tmp_path / "reference.json", {"loss": {"shape": [None]}})
    with pytest.raises(ValueError, match=r"^reference\.json\.loss\.shape\[0\]: expected int, found NoneType$"):
        files.read(tmp_path / "reference.json", dict[str, TensorStats])
