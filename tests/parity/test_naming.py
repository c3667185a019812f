"""Test names that are equal on both sides: of tensors, of draws, and of recomputed values."""

from __future__ import annotations

import pytest

from toolkit.parity.measure.naming import ModuleStack, TensorName, append_number, is_gradient

ATTENTION = "reformer.encoder.layers.1.attention.self_attention"


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("logits", TensorName("logits")),
        ("start_logits", TensorName("start_logits")),
        ("loss", TensorName("loss")),
        ("loss#2", TensorName("loss", call="#2")),
        ("num_buckets", TensorName("num_buckets")),
        ("output", TensorName("output")),
        ("output:transformer.h.0", TensorName("output", "transformer.h.0")),
        ("output:classifier.dropout#1", TensorName("output", "classifier.dropout", "#1")),
        ("stream:reformer.encoder.layers.0#hidden", TensorName("stream", "reformer.encoder.layers.0", "#hidden")),
        ("stream:reformer.encoder.layers.0@1", TensorName("stream", "reformer.encoder.layers.0", "@1")),
        ("updated:lm_head.bias", TensorName("updated", "lm_head.bias")),
        ("updated:lm_head.bias#2", TensorName("updated", "lm_head.bias", "#2")),
        ("parameter:lm_head.bias", TensorName("parameter", "lm_head.bias")),
        ("epsilon:transformer.layernorm", TensorName("epsilon", "transformer.layernorm")),
        ("relu:transformer.h.0.ffn.1", TensorName("relu", "transformer.h.0.ffn.1")),
        (f"buckets:{ATTENTION}", TensorName("buckets", ATTENTION)),
        ("dropout:classifier.dropout#1", TensorName("dropout", "classifier.dropout", "#1")),
        ("dropout:ff.dense#1@1", TensorName("dropout", "ff.dense", "#1@1")),
        ("dropout:ff.dense#1.2@3", TensorName("dropout", "ff.dense", "#1.2@3")),
        ("dropout:all masks of rate 0.1", TensorName("dropout", "all masks of rate 0.1")),
        (f"normal:{ATTENTION}", TensorName("normal", ATTENTION)),
        ("normal:all rotations", TensorName("normal", "all rotations")),
        ("tokenizer:ids", TensorName("tokenizer", "ids")),
        (f"masked_scores:{ATTENTION}@1", TensorName("masked_scores", ATTENTION, "@1")),
        ("gradient:lm_head.bias", TensorName("gradient", "lm_head.bias")),
        ("gradient:output:lm_head", TensorName("gradient", "lm_head", gradient_of="output")),
        ("gradient:output:classifier.dropout#1", TensorName("gradient", "classifier.dropout", "#1", "output")),
        (f"gradient:masked_scores:{ATTENTION}@1", TensorName("gradient", ATTENTION, "@1", "masked_scores")),
        ("gradient:stream:transformer.h.0", TensorName("gradient", "transformer.h.0", gradient_of="stream")),
    ],
)
def test_a_name_is_parsed_and_written(text, name):
    assert TensorName.parse(text) == name and str(name) == text
    assert is_gradient(text) == (name.kind == "gradient")


def test_an_unknown_name_is_unchanged():
    for text in ("", "a\nb", "output:a\nb#1", "src/a.py:7", "output:<b>'\"&\x00\ud800"):
        assert str(TensorName.parse(text)) == text


@pytest.mark.parametrize(
    ("text", "is_of_training"),
    [
        ("updated:a.weight", True),
        ("trained:labels#2", True),
        ("updated:a.weight#2", True),
        ("loss#2", True),
        ("loss", False),
        ("gradient:a.weight", False),
        ("output:a#1", False),
        ("stream:a#hidden", False),
    ],
)
def test_tensors_of_the_training_are_distinguished_from_the_step(text, is_of_training):
    assert TensorName.parse(text).is_of_training == is_of_training


def test_repeated_tensors_of_the_training_are_numbered_from_the_second():
    assert [append_number("loss", number) for number in (1, 2, 3)] == ["loss", "loss#2", "loss#3"]


def test_a_draw_keeps_its_name_in_a_recomputed_block_and_is_numbered_per_chunk():
    stack = ModuleStack()
    names = []

    def block() -> None:
        stack.enter("ff")
        for _ in range(2):
            stack.enter("ff.dense")
            names.extend([stack.next_name("dropout"), stack.next_name("dropout")])
            stack.leave()
        stack.leave()

    stack.enter("")
    block()
    stack.leave()
    block()
    once = ["dropout:ff.dense", "dropout:ff.dense@1", "dropout:ff.dense#1", "dropout:ff.dense#1@1"]
    assert names == once + once


def test_the_output_of_a_repeated_call_has_the_number_of_the_call():
    stack = ModuleStack()
    names = []
    stack.enter("a")
    for _ in range(2):
        stack.enter("a.b")
        stack.enter("a.b.c")
        names += [stack.leave(), stack.leave()]
    names.append(stack.leave())
    assert names == ["output:a.b.c", "output:a.b", "output:a.b.c#1", "output:a.b#1", "output:a"]


def list_draw_names(*calls: tuple) -> list[str]:
    """Return the names of the draws of nested calls; a call is a module's path and the calls that it makes."""
    stack = ModuleStack()
    names = []

    def run(module: str, *children: tuple) -> None:
        stack.enter(module)
        names.append(stack.next_name("dropout"))
        for child in children:
            run(*child)
        stack.leave()

    for call in calls:
        run(*call)
    return names


FEED_FORWARD = ("ff", ("ff.drop",), ("ff.drop",))


@pytest.mark.parametrize(
    "calls",
    [
        [("", FEED_FORWARD, FEED_FORWARD)],
        [("", FEED_FORWARD), ("", FEED_FORWARD, FEED_FORWARD)],
        [("", ("ff.drop",), FEED_FORWARD, ("ff.drop",))],
        [FEED_FORWARD, FEED_FORWARD, ("", FEED_FORWARD)],
    ],
)
def test_no_two_calls_share_a_name(calls):
    names = list_draw_names(*calls)
    assert len(set(names)) == len(names)


def test_only_a_name_that_is_taken_gets_zeros_and_a_recomputed_block_does_not():
    assert list_draw_names(("", FEED_FORWARD, FEED_FORWARD), FEED_FORWARD) == [
        "dropout",
        *("dropout:ff", "dropout:ff.drop", "dropout:ff.drop#1"),
        *("dropout:ff#1", "dropout:ff.drop#1.0", "dropout:ff.drop#1.1"),
        *("dropout:ff", "dropout:ff.drop", "dropout:ff.drop#1"),
    ]
