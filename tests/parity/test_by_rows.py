"""Test the gradient of a large matrix that is computed in groups of rows: it equals torch's to the last bit."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from toolkit.parity.measure.naming import TensorName
from toolkit.parity.reference import reordered_sums, row_gradients
from toolkit.parity.reference.recorder import Draws
from toolkit.parity.reference.reordered_sums import ReorderedSums
from toolkit.parity.reference.row_gradients import GradientByRows

WORDS, WIDTH = 50, 8


def compute_gradients(
    rows: int | None, sums: ReorderedSums | None, monkeypatch, examples: int = 3
) -> dict[str, torch.Tensor]:
    """Return the gradients of a small head.

    With `rows`, the gradient of its weight is computed in groups of this size.
    """
    torch.manual_seed(0)
    norm, head = nn.LayerNorm(WIDTH).double(), nn.Linear(WIDTH, WORDS).double()
    x = torch.randn(examples, 5, WIDTH, dtype=torch.float64, requires_grad=True)
    parts: list[torch.Tensor] = []

    def take(start: int, part: torch.Tensor) -> None:
        assert start == sum(map(len, parts)) and len(part) <= rows
        parts.append(part.clone())

    weight = head.weight
    with sums or contextlib.nullcontext():
        watch = contextlib.nullcontext()
        if rows is not None:
            monkeypatch.setattr(row_gradients, "ROWS", rows)
            watch = GradientByRows(weight.detach(), take, sums)
            del head.weight
            head.weight = watch.used
        loss = torch.log_softmax(head(norm(x)), -1)[..., 1].mean()
        with watch:
            loss.backward()
    other_gradients = {"x": x.grad, "bias": head.bias.grad, "gain": norm.weight.grad, "norm bias": norm.bias.grad}
    return {**other_gradients, "weight": torch.cat(parts) if rows else weight.grad}


@pytest.mark.parametrize("examples", [3, 10])  # 10 x 5 tokens are as many as there are words
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("rows", [16, 50, 64])
def test_it_equals_the_whole_gradient_and_changes_no_other(rows, seed, examples, monkeypatch):
    full_gradients, partial_gradients = (
        compute_gradients(by, None if seed is None else ReorderedSums(seed), monkeypatch, examples)
        for by in (None, rows)
    )
    assert full_gradients.keys() == partial_gradients.keys()
    for name, gradient in full_gradients.items():
        assert torch.equal(gradient, partial_gradients[name]), name


def test_a_gradient_of_another_operation_is_passed_on_when_it_exists(monkeypatch):
    monkeypatch.setattr(row_gradients, "ROWS", 16)
    matrix, parts = torch.arange(50.0).reshape(25, 2), []
    watch = GradientByRows(matrix, lambda start, part: parts.append((start, part)))
    with watch:
        (watch.used * watch.used).sum().backward()
    assert [start for start, _ in parts] == [0, 16]
    assert torch.equal(torch.cat([part for _, part in parts]), 2 * matrix)


@pytest.mark.parametrize("dim", [0, 1])
def test_log_softmax_is_decomposed_like_torchs(dim):
    """With the same order of its sums, the result is equal to the last bit."""
    aten = torch.ops.aten
    theirs = torch._decomp.get_decompositions([aten._log_softmax, aten._log_softmax_backward_data])
    x, gradient = torch.randn(6, 9, dtype=torch.float64).T, torch.randn(9, 6, dtype=torch.float64)
    for operation, arguments in {
        aten._log_softmax.default: (x, dim, False),
        aten._log_softmax_backward_data.default: (gradient, x.log_softmax(dim), dim, torch.float64),
    }.items():
        copies = [argument.clone() for argument in arguments if isinstance(argument, torch.Tensor)]
        assert torch.equal(reordered_sums.DECOMPOSITIONS[operation](*arguments), theirs[operation](*arguments))
        assert all(torch.equal(argument, now) for argument, now in zip(copies, arguments, strict=False))


def test_empty_tensors_pass_through_every_reordered_sum():
    """An expert that no token chose has such tensors."""
    x = torch.zeros(0, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(6, 6, dtype=torch.float64, requires_grad=True)
    with ReorderedSums(0):
        products = torch.nn.functional.linear(x, weight, weight[0]) + x @ weight + (x[None] @ weight[None])[0]
        norm = torch.nn.functional.layer_norm(products, (6,))
        (norm.softmax(-1) + norm.log_softmax(-1) + norm.T.log_softmax(-1).T).mean(1).sum().backward()
    assert x.grad.shape == (0, 6) and weight.grad.abs().max() == 0


def test_a_relu_or_a_choice_without_rows_has_moved_by_zero():
    draws, x = Draws(0), torch.zeros(0, 6, dtype=torch.float64)
    for _ in range(2):
        draws.positive(TensorName("relu", "expert"), x)
        draws.choose(TensorName("choice", "expert"), x, x.argmax(-1))
    assert draws.moved == draws.choices_moved == {"expert": 0.0}
