"""Test that in evaluation, the last layer of a Reformer classifier computes only the positions that its head reads."""

from __future__ import annotations

import contextlib

import numpy as np
import paddle
import pytest
from small_reformers import WHOLE, reformer, texts

from models.operations import kernels
from models.reformer import reversible
from models.reformer.modeling import ReformerForQuestionAnswering, ReformerForSequenceClassification
from toolkit.parity.candidate.family_step import ported_class

SHAPES = {
    "lsh-last": {"attn_layers": ["local", "lsh"]},
    "local-last": {"attn_layers": ["lsh", "local"]},
    "one-layer": {"attn_layers": ["lsh"]},
    "several-rounds": {"attn_layers": ["local", "lsh"], "num_hashes": 3},
    "chunks-of-feed-forward": {"attn_layers": ["local", "lsh"], "chunk_size_feed_forward": 16},
    "plain": {"attn_layers": ["local", "lsh"], "residual": "plain"},
    "learned-positions": {
        "attn_layers": ["local", "local"],
        "axial_pos_embds": False,
        "max_position_embeddings": WHOLE,
    },
}


def make_classifier(**keys):
    return reformer(ReformerForSequenceClassification, **keys)


@contextlib.contextmanager
def record_positions(layer):
    """Record the number of positions of each call of a layer inside the `with` block."""
    num_positions: list[int] = []
    hook = layer.register_forward_post_hook(lambda layer, inputs, output: num_positions.append(output.shape[1]))
    try:
        yield num_positions
    finally:
        hook.remove()


@pytest.mark.parametrize("is_compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_scores_equal_those_of_a_complete_last_layer(monkeypatch, shape, dtype, is_compiled):
    if not is_compiled:
        monkeypatch.setenv(kernels.VARIABLE, kernels.PADDLE)
    model = make_classifier(**SHAPES[shape])
    model.to(dtype=dtype)
    bound = 1e-12 if dtype == "float64" else 1e-5
    whole_texts = texts([WHOLE, 40, 3])
    shorter = {name: value[1:, : 48 if "chunk" in shape else 45] for name, value in whole_texts.items()}
    for batch in (whole_texts, shorter):
        with paddle.no_grad(), record_positions(model.reformer.encoder.layers[-1].feed_forward.dense) as num_positions:
            logits = model(**batch).logits.numpy()
            assert num_positions == [1]
            model.leaves_out_unread = False
            full_logits = model(**batch).logits.numpy()
            del model.leaves_out_unread
        np.testing.assert_allclose(logits, full_logits, rtol=bound, atol=bound)
        assert np.abs(full_logits).max() > 0.1


def test_the_layers_before_the_last_compute_all_positions():
    model = make_classifier(attn_layers=["local", "lsh", "local"])
    with contextlib.ExitStack() as exit_stack:
        num_positions = [
            exit_stack.enter_context(record_positions(layer.feed_forward)) for layer in model.reformer.encoder.layers
        ]
        model(**texts([WHOLE]))
    assert num_positions == [[WHOLE], [WHOLE], [1]]


@pytest.mark.parametrize("backward", ["autograd", "reversible"])
def test_training_computes_all_positions(backward):
    """Otherwise dropout would draw other numbers, and the gate compares all positions."""
    model = make_classifier(attn_layers=["local", "lsh"], backward=backward)
    model.train()
    with record_positions(model.reformer.encoder) as num_positions:
        model(**texts([WHOLE]))
    assert num_positions == [WHOLE]


def test_a_head_that_reads_all_positions_gets_all_positions():
    model = reformer(ReformerForQuestionAnswering, attn_layers=["local", "lsh"], num_labels=2)
    assert not hasattr(model, "leaves_out_unread")
    assert model(**texts([WHOLE])).start_logits.shape == [1, WHOLE]
    all_states = model.reformer(**texts([WHOLE])).last_hidden_state
    first_states = model.reformer(**texts([WHOLE]), num_positions=5).last_hidden_state
    np.testing.assert_allclose(first_states.numpy(), all_states.numpy()[:, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("residual", ["wide", "plain"])
def test_gradients_in_evaluation_equal_those_of_a_complete_last_layer(residual):
    """A caller may want the gradient of the scores with respect to the tokens without training."""
    gradients = []
    model = make_classifier(attn_layers=["local", "lsh"], residual=residual)
    for leaves_out in (True, False):
        model.leaves_out_unread = leaves_out
        model(**texts([WHOLE, 20])).logits[:, 0].sum().backward()
        gradients.append({name: p.grad.numpy() for name, p in model.named_parameters()})
        model.clear_gradients()
    assert np.abs(gradients[0]["reformer.embeddings.word_embeddings.weight"]).max() > 1e-3
    for name, full_gradient in gradients[1].items():
        np.testing.assert_allclose(gradients[0][name], full_gradient, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("residual", ["wide", "plain"])
def test_the_first_positions_of_a_stream_are_computed_as_in_the_whole_stream(residual, dtype):
    paddle.seed(0)
    x, update = (paddle.randn([2, 9, 4]).astype(dtype) for _ in range(2))
    stream = reversible.open_stream(x, residual)
    full_stream = stream.plus(update).plus(update)
    part = stream.plus(update).first(3).plus(update[:, :3])
    assert (part.value == full_stream.value[:, :3]).all()
    back = part.minus(update[:, :3]).minus(update[:, :3])
    assert (back.value == reversible.open_stream(x, residual).value[:, :3]).all() or residual == "plain"


def test_the_gate_knows_which_models_skip_positions():
    from models.families import FAMILIES, part

    leaving = {
        (model, head)
        for model in FAMILIES
        for head, kind in part(model, "modeling").CLASSES.items()
        if hasattr(kind, "leaves_out_unread")
    }
    assert leaving == {(model, head) for model in FAMILIES for head in ported_class(model).narrowed_heads}
