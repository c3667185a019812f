"""Test that evaluation omits padding that does not change the outputs of a text."""

from __future__ import annotations

import importlib
import inspect

import numpy as np
import paddle
import pytest
from small_reformers import PAD, WHOLE, reformer, texts

from models import families
from models.ctrl.config import CTRLConfig
from models.ctrl.modeling import CTRLForSequenceClassification
from models.reformer.modeling import ReformerForQuestionAnswering, ReformerForSequenceClassification
from toolkit.data.batches import trim_padding
from toolkit.parity.job.job import TASKS
from toolkit.parity.measure.evaluation import READ_WITHOUT_PADDING
from toolkit.training.shared_evaluation import EveryNth, in_own_order, longest_first

#: The model settings that the tests vary.
SHAPES = {
    "one-round": {},
    "several-rounds": {"num_hashes": 3},
    "wide": {
        "local_num_chunks_before": 2,
        "local_num_chunks_after": 1,
        "lsh_num_chunks_before": 1,
        "lsh_num_chunks_after": 2,
    },
    "unlike-chunks": {"local_attn_chunk_length": 8, "lsh_attn_chunk_length": 12, "lsh_num_chunks_after": 1},
    "local": {"attn_layers": ["local", "local"], "local_num_chunks_after": 1},
    "ahead": {"attn_layers": ["local", "local"], "local_num_chunks_before": 0, "local_num_chunks_after": 2},
    "chunks-of-feed-forward": {"chunk_size_feed_forward": 16},
}


@pytest.mark.parametrize("shape", SHAPES)
def test_less_padding_does_not_change_the_logits_of_a_reformer(shape):
    model = reformer(ReformerForQuestionAnswering, **SHAPES[shape])
    cut = set()
    with paddle.no_grad():
        for lengths in ([3, 1], [20, 17, 9], [31, 32, 33], [48], [64, 5], [80, 90], [96, 2]):
            batch = texts(lengths)
            fewer = trim_padding(batch, model.config)
            cut.add(fewer["input_ids"].shape[1])
            full_logits, trimmed_logits = (model(**inputs).start_logits.numpy() for inputs in (batch, fewer))
            for row, length in enumerate(lengths):
                np.testing.assert_allclose(
                    trimmed_logits[row, :length], full_logits[row, :length], rtol=1e-5, atol=1e-5
                )
    assert len(cut) > 2, "little was cut"


@pytest.mark.parametrize("shape", ["one-round", "local"])
def test_one_chunk_less_of_padding_changes_the_logits_of_a_reformer(shape):
    """Check that the remaining padding is necessary."""
    model = reformer(ReformerForQuestionAnswering, **SHAPES[shape])
    batch = texts([40])
    with paddle.no_grad():
        full_logits = model(**batch).start_logits.numpy()[:, :40]
        trimmed_logits = model(**{name: value[:, :40] for name, value in batch.items()}).start_logits.numpy()
    assert np.abs(trimmed_logits - full_logits).max() > 1e-2
    assert trim_padding(batch, model.config)["input_ids"].shape[1] == 48


@pytest.mark.parametrize(("num_before", "num_after"), [(0, 0), (1, 0), (0, 1), (0, 2), (3, 1), (1, 3)])
def test_a_local_layer_needs_padding_for_its_wider_side(num_before, num_after):
    """Check that at least one chunk of 8 tokens stays."""
    sides = {"local_num_chunks_before": num_before, "local_num_chunks_after": num_after}
    model = reformer(ReformerForSequenceClassification, attn_layers=["local"], **sides)
    fewer = trim_padding(texts([40]), model.config)
    assert fewer["input_ids"].shape[1] == 40 + 8 * max(1, num_before, num_after)


def test_with_an_empty_text_no_padding_is_omitted():
    model = reformer(ReformerForSequenceClassification)
    for lengths, length in (([30, 7], 40), ([30, 0], WHOLE), ([0, 0], WHOLE)):
        assert trim_padding(texts(lengths), model.config)["input_ids"].shape[1] == length


def test_if_the_number_of_buckets_depends_on_the_length_nothing_is_cut():
    model = reformer(ReformerForSequenceClassification, num_buckets=None)
    batch = texts([9])
    assert trim_padding(batch, model.config)["input_ids"].shape == [1, WHOLE]


def test_padding_does_not_change_the_logits_of_a_ctrl():
    config = CTRLConfig(vocab_size=40, n_embd=16, n_head=2, n_layer=2, dff=16, n_positions=WHOLE, pad_token_id=PAD)
    model = CTRLForSequenceClassification(config)
    model.eval()
    batch = texts([30, 7])
    fewer = trim_padding(batch, config)
    assert fewer["input_ids"].shape == [2, 30]
    with paddle.no_grad():
        np.testing.assert_allclose(model(**fewer).logits.numpy(), model(**batch).logits.numpy(), rtol=1e-5, atol=1e-5)


def test_labels_as_long_as_a_text_are_not_padding():
    config = CTRLConfig(n_positions=WHOLE, pad_token_id=PAD)
    labels = np.ones((1, WHOLE), np.float32)
    fewer = trim_padding({**texts([30]), "labels": labels}, config)
    assert fewer["input_ids"].shape == [1, 30] and fewer["labels"] is labels


@pytest.mark.parametrize("model", ["reformer", "ctrl"])
def test_the_equivalent_length_is_at_most_the_whole_length(model):
    config = vars(reformer(ReformerForSequenceClassification).config) if model == "reformer" else {}
    lengths = families.part(model, "lengths")
    assert [lengths.equivalent_length(config, length, WHOLE) for length in (89, WHOLE)] == (
        [WHOLE, WHOLE] if model == "reformer" else [89, WHOLE]
    )


def test_texts_of_similar_length_are_batched_and_returned_in_order():
    counts = np.array([5, 9, 1, 9, 7])
    order = longest_first(counts, 5)
    assert order.tolist() == [1, 3, 4, 0, 2]
    assert list(EveryNth(order, 2)) == [[1, 3], [4, 0], [2]]
    assert list(EveryNth(order, 2, 1, 2)) == [[4, 0]]
    (back,) = in_own_order([counts[order]], order)
    assert back.tolist() == counts.tolist()
    assert longest_first(None, 3).tolist() == [0, 1, 2]


def test_masked_tokens_that_are_not_padding_stay():
    """CTRL reads the last token that is not the pad token, for any mask; the gate has detected this."""
    config = CTRLConfig(vocab_size=40, n_embd=16, n_head=2, n_layer=2, dff=16, n_positions=WHOLE, pad_token_id=PAD)
    model = CTRLForSequenceClassification(config)
    model.eval()
    batch = texts([30, 7])
    batch["input_ids"][0, 50] = 5
    fewer = trim_padding(batch, config)
    assert fewer["input_ids"].shape == [2, 51]
    with paddle.no_grad():
        np.testing.assert_allclose(model(**fewer).logits.numpy(), model(**batch).logits.numpy(), rtol=1e-5, atol=1e-5)
    assert trim_padding(batch, CTRLConfig(n_positions=WHOLE))["input_ids"].shape == [2, WHOLE]


def test_the_gate_omits_padding_like_the_evaluations_of_tasks():
    tasks = {head: importlib.import_module(f"toolkit.tasks.{task}.task") for head, task in TASKS.items()}
    heads_without_counts = {
        head for head, task in tasks.items() if inspect.signature(task.token_counts).return_annotation == "None"
    }
    assert heads_without_counts and set(READ_WITHOUT_PADDING) == set(TASKS) - heads_without_counts
