"""Test the gate's batches: they contain padding, the pad token, repetitions, and ends of chunks and blocks."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from gates import TINY_REFORMER, copied_source, request_for, run, toolkit_in

from models.families import FAMILIES, part
from models.operations.kernels import BLOCK_ROWS as BLOCK
from toolkit.parity.families.ctrl.trial import CONFIG as CTRL_TRIAL
from toolkit.parity.inputs.synthetic import random_batch
from toolkit.parity.inputs.texts import FULL, LAYOUTS
from toolkit.parity.job.family import ported_family
from toolkit.parity.options import make_request
from toolkit.parity.request import build
from toolkit.parity.request.gate_options import GateOptions
from toolkit.parity.request.request import GateRequest
from toolkit.parity.trials.mutation import trial_request

CONFIGS = {"reformer": TINY_REFORMER, "ctrl": CTRL_TRIAL}
HEADS = [(model, head) for model in CONFIGS for head in part(model, "weights").HEADS]


def make_config(model: str, head: str) -> dict:
    config = {**CONFIGS[model], "num_labels": 2 if head == "question_answering" else 3}
    return {**config, "is_decoder": head == "causal_lm"} if model == "reformer" else config


def default_batch(model: str, length: int | None = None) -> dict[str, np.ndarray]:
    return dict(make_request(GateOptions(model=model, layers=2, length=length, weights_from="random")).batch)


@pytest.mark.parametrize("model", CONFIGS)
@pytest.mark.parametrize("make_batch", [default_batch, lambda model: trial_request(model, "random", 0).batch])
def test_the_default_batch_covers_the_critical_cases(model, make_batch):
    """Check the batches of the plain command and of the trial of mutants."""
    batch = make_batch(model)
    ids, mask = batch["input_ids"], batch["attention_mask"].astype(bool)
    assert ids.size % BLOCK and ids.size > BLOCK
    assert mask[-1].all(), "what lies beyond the last block has no gradient"
    assert mask.mean(1).min() < 0.3
    assert (ids == 0)[~mask].any() and (ids != 0)[~mask].any()
    texts = [row[row_mask] for row, row_mask in zip(ids, mask, strict=True)]
    assert all((text[1:-1] == 0).any() for text in texts)
    assert any(text[-1] == 0 for text in texts) and any(text[-1] != 0 for text in texts)
    assert all((np.diff(text) == 0).any() for text in texts)
    if model == "ctrl":
        assert {(bool(row[0]), bool(row[-1])) for row in mask} == {(True, True), (True, False), (False, True)}
        assert (batch["labels"] == -100).all(1).any() and (batch["labels"][mask] == -100).any()
    else:
        chunk, ends = (64, {0, 1}) if make_batch is default_batch else (16, {0, 1, 15})
        assert {size % chunk for size in mask.sum(1)} == ends


@pytest.mark.parametrize(("length", "count"), [(1024, 3), (4096, 2), (2**14, 2)])
def test_a_batch_of_long_texts_has_fewer_texts_and_padding(length, count):
    mask = default_batch("reformer", length)["attention_mask"]
    assert len(mask) == count and mask.mean(1).min() < 0.3 and mask[-1].all()


def test_without_padding_on_the_left_a_text_begins_its_row():
    mask = random_batch(TINY_REFORMER, "sequence_classification", 5, 128, 0)["attention_mask"]
    assert mask[:, 0].all() and (np.diff(mask, axis=1) <= 0).all()


def test_answers_are_at_the_start_at_the_end_and_outside_of_the_text():
    batch = random_batch(make_config("reformer", "question_answering"), "question_answering", 5, 128, 0)
    ends = batch["attention_mask"].sum(1)
    first, last = batch["start_positions"], batch["end_positions"]
    assert (first == 0).any() and (last == ends - 1).any() and (last >= 128).any() and (first <= last).all()


@pytest.mark.parametrize(("model", "head"), HEADS)
@pytest.mark.parametrize("length", [8, 128])
def test_synthetic_batches_are_valid(model, head, length):
    config = {**make_config(model, head), "axial_pos_embds": False} if model == "reformer" else make_config(model, head)
    for count in (1, 2, 5, 7):
        batch = random_batch(config, head, count, length, count, model)
        tokens, mask = batch["input_ids"], batch["attention_mask"]
        assert tokens.shape == mask.shape == (count, length) and mask.any(1).all()
        assert tokens.min() >= 0 and tokens.max() < config["vocab_size"]
        if head == "sequence_classification":
            assert batch["labels"].min() >= 0 and batch["labels"].max() < config["num_labels"]
        elif head == "token_classification":
            is_counted = batch["labels"] != -100
            assert (
                is_counted.any() and not is_counted[mask == 0].any() and is_counted.sum() < mask.sum() + (length == 8)
            )
            assert batch["labels"][is_counted].min() >= 0 and batch["labels"].max() < config["num_labels"]
        elif head != "question_answering":
            assert (batch["labels"] != -100).any()
            assert ((batch["labels"] == -100) | ((batch["labels"] == tokens) & (mask == 1))).all()


def widened_request(model: str, head: str, examples: int, length: int, **options) -> GateRequest:
    config = make_config(model, head)
    batch = random_batch(config, head, examples, length, 1, model, [FULL] * examples)
    return GateRequest(model, head, config, {}, batch, **{"widened": True, **options})


@pytest.mark.parametrize(("model", "head"), HEADS)
@pytest.mark.parametrize("examples", [1, 2])
def test_synthetic_examples_follow_the_examples_of_a_run(model, head, examples):
    request = widened_request(model, head, examples, 128)
    batch = build.batch_of(request)
    assert batch.keys() == request.batch.keys()
    for name, value in request.batch.items():
        assert np.array_equal(batch[name][:examples], value) and batch[name].dtype == value.dtype
    mask = batch["attention_mask"]
    assert len(mask) % 2 and len(mask) >= examples + build.NUM_ADDED
    assert mask.mean(1).min() < 0.3 and mask[-1].all()
    assert np.array_equal(build.batch_of(request)["input_ids"], batch["input_ids"])
    own_batch = build.batch_of(dataclasses.replace(request, widened=False))
    assert all(np.array_equal(own_batch[name], value) for name, value in request.batch.items())


def test_synthetic_examples_have_no_padding_if_the_run_has_no_mask():
    request = widened_request("ctrl", "causal_lm", 2, 64)
    del request.batch["attention_mask"]
    batch = build.batch_of(request)
    assert batch.keys() == {"input_ids", "labels"} and (batch["labels"] != -100).mean(1).min() > 0.5


@pytest.mark.parametrize(
    ("examples", "length", "is_streamed", "is_added"),
    [
        (1, 128, False, 4),
        (2, 128, False, 3),
        (1, 2048, False, 3),
        (1, 4096, False, 1),
        (1, 8192, False, 0),
        (3, 4096, False, 1),
        (2, 2**14, False, 1),
        (1, 256, True, 1),
    ],
)
def test_examples_that_exceed_the_memory_are_not_added(examples, length, is_streamed, is_added):
    request = widened_request("ctrl", "causal_lm", examples, 8, streamed=is_streamed)
    request = dataclasses.replace(
        request, batch={name: np.zeros((examples, length), np.int64) for name in request.batch}
    )
    assert build.added_examples(request) == is_added
    assert len(build.batch_of(request)["input_ids"]) == examples + is_added


def test_nothing_is_added_if_the_reference_accepts_only_one_text():
    request = widened_request("ctrl", "sequence_classification", 1, 32)
    assert build.added_examples(request) == 4
    assert build.added_examples(dataclasses.replace(request, config={**CTRL_TRIAL, "pad_token_id": None})) == 0


def test_the_gate_of_a_run_compares_on_both_kinds_of_examples(tmp_path):
    request = request_for("ctrl", "causal_lm", CTRL_TRIAL, 24, dtypes=("float64",), widened=True)
    report, text = run(request, tmp_path)
    assert report.passed and "compared on 3 examples of the run and 4 made-up ones" in " ".join(text.split())
    assert len(request.batch["input_ids"]) == 3


@pytest.mark.slow
def test_a_head_that_reads_the_last_column_is_stopped_by_the_default_batch(tmp_path):
    edit = ("if pad_token_id is None else _select_last(scores, input_ids != pad_token_id)", "")
    small = ("--layers", "1", "--dtype", "float64", "n_embd=32", "n_head=2", "dff=48", "vocab_size=200")
    source = copied_source(tmp_path, "models/ctrl/modeling.py", edit)
    process = toolkit_in(source, "parity", "--model", "ctrl", "--head", "sequence_classification", *small)
    assert process.returncode == 1 and process.stdout.startswith("DRIFT logits"), process.stdout + process.stderr


def test_every_layout_is_in_every_trial():
    assert ported_family("ctrl").defaults.batch_size == len(LAYOUTS)
    assert {len(trial_request(model, "random", 0).batch["input_ids"]) for model in FAMILIES} == {len(LAYOUTS)}
