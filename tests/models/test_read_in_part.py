"""In evaluation the last layer of a Reformer that classifies computes what its head reads, and no more."""

from __future__ import annotations

import contextlib

import numpy as np
import paddle
import pytest
from small_reformers import WHOLE, reformer, texts

from models.operations import kernels
from models.reformer import reversible
from models.reformer.modeling import ReformerForQuestionAnswering, ReformerForSequenceClassification
from toolkit.parity.candidate.ported import ported_class

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


def classifier(**keys):
    return reformer(ReformerForSequenceClassification, **keys)


@contextlib.contextmanager
def positions_of(layer):
    """Over how many positions a layer is computed inside the ``with`` block, call by call."""
    seen: list[int] = []
    hook = layer.register_forward_post_hook(lambda layer, given, output: seen.append(output.shape[1]))
    try:
        yield seen
    finally:
        hook.remove()


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("shape", SHAPES)
def test_the_scores_are_those_of_a_whole_last_layer(monkeypatch, shape, dtype, compiled):
    if not compiled:
        monkeypatch.setenv(kernels.VARIABLE, kernels.PADDLE)
    model = classifier(**SHAPES[shape])
    model.to(dtype=dtype)
    bound = 1e-12 if dtype == "float64" else 1e-5
    whole_texts = texts([WHOLE, 40, 3])
    shorter = {name: value[1:, : 48 if "chunk" in shape else 45] for name, value in whole_texts.items()}
    for batch in (whole_texts, shorter):
        with paddle.no_grad(), positions_of(model.reformer.encoder.layers[-1].feed_forward.dense) as computed:
            found = model(**batch).logits.numpy()
            assert computed == [1]
            model.leaves_out_unread = False
            whole = model(**batch).logits.numpy()
            del model.leaves_out_unread
        np.testing.assert_allclose(found, whole, rtol=bound, atol=bound)
        assert np.abs(whole).max() > 0.1


def test_the_layers_before_the_last_compute_all_positions():
    model = classifier(attn_layers=["local", "lsh", "local"])
    with contextlib.ExitStack() as watched:
        seen = [watched.enter_context(positions_of(layer.feed_forward)) for layer in model.reformer.encoder.layers]
        model(**texts([WHOLE]))
    assert seen == [[WHOLE], [WHOLE], [1]]


@pytest.mark.parametrize("backward", ["autograd", "reversible"])
def test_training_computes_all_positions(backward):
    """What dropout draws would be another thing otherwise, and the gate compares all of it."""
    model = classifier(attn_layers=["local", "lsh"], backward=backward)
    model.train()
    with positions_of(model.reformer.encoder) as seen:
        model(**texts([WHOLE]))
    assert seen == [WHOLE]


def test_what_reads_every_position_is_given_every_position():
    model = reformer(ReformerForQuestionAnswering, attn_layers=["local", "lsh"], num_labels=2)
    assert not hasattr(model, "leaves_out_unread")
    assert model(**texts([WHOLE])).start_logits.shape == [1, WHOLE]
    hidden = model.reformer(**texts([WHOLE])).last_hidden_state
    first = model.reformer(**texts([WHOLE]), num_positions=5).last_hidden_state
    np.testing.assert_allclose(first.numpy(), hidden.numpy()[:, :5], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("residual", ["wide", "plain"])
def test_gradients_in_evaluation_are_those_of_a_whole_last_layer(residual):
    """Of what a text's tokens do to its scores, someone may ask without training."""
    gradients = []
    model = classifier(attn_layers=["local", "lsh"], residual=residual)
    for leaves_out in (True, False):
        model.leaves_out_unread = leaves_out
        model(**texts([WHOLE, 20])).logits[:, 0].sum().backward()
        gradients.append({name: p.grad.numpy() for name, p in model.named_parameters()})
        model.clear_gradients()
    assert np.abs(gradients[0]["reformer.embeddings.word_embeddings.weight"]).max() > 1e-3
    for name, whole in gradients[1].items():
        np.testing.assert_allclose(gradients[0][name], whole, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("residual", ["wide", "plain"])
def test_the_first_positions_of_a_stream_go_on_as_they_do_in_the_whole(residual, dtype):
    paddle.seed(0)
    x, update = (paddle.randn([2, 9, 4]).astype(dtype) for _ in range(2))
    stream = reversible.open_stream(x, residual)
    whole = stream.plus(update).plus(update)
    part = stream.plus(update).first(3).plus(update[:, :3])
    assert (part.value == whole.value[:, :3]).all()
    back = part.minus(update[:, :3]).minus(update[:, :3])
    assert (back.value == reversible.open_stream(x, residual).value[:, :3]).all() or residual == "plain"


def test_the_gate_knows_which_models_leave_something_out():
    from models.families import FAMILIES, part

    leaving = {
        (model, head)
        for model in FAMILIES
        for head, kind in part(model, "modeling").CLASSES.items()
        if hasattr(kind, "leaves_out_unread")
    }
    assert leaving == {(model, head) for model in FAMILIES for head in ported_class(model).narrowed_heads}
