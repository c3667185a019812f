"""The gradient of a large matrix, some rows after the others: torch's own, to the last bit."""

from __future__ import annotations

import contextlib

import pytest
import torch
from torch import nn

from toolkit.parity.measure.naming import TensorName
from toolkit.parity.reference import by_rows, reordered
from toolkit.parity.reference.by_rows import GradientByRows
from toolkit.parity.reference.recorder import Draws
from toolkit.parity.reference.reordered import ReorderedSums

WORDS, WIDTH = 50, 8


def gradients(rows: int | None, sums: ReorderedSums | None, monkeypatch, examples: int = 3) -> dict[str, torch.Tensor]:
    """Of a small head; with ``rows`` its weight's are made by so many, which come in order."""
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
            monkeypatch.setattr(by_rows, "ROWS", rows)
            watch = GradientByRows(weight.detach(), take, sums)
            del head.weight
            head.weight = watch.used
        loss = torch.log_softmax(head(norm(x)), -1)[..., 1].mean()
        with watch:
            loss.backward()
    found = {"x": x.grad, "bias": head.bias.grad, "gain": norm.weight.grad, "norm bias": norm.bias.grad}
    return {**found, "weight": torch.cat(parts) if rows else weight.grad}


@pytest.mark.parametrize("examples", [3, 10])  # 10 x 5 tokens are as many as there are words
@pytest.mark.parametrize("seed", [None, 7])
@pytest.mark.parametrize("rows", [16, 50, 64])
def test_it_is_that_of_the_whole_and_changes_no_other(rows, seed, examples, monkeypatch):
    whole, parts = (
        gradients(by, None if seed is None else ReorderedSums(seed), monkeypatch, examples) for by in (None, rows)
    )
    assert whole.keys() == parts.keys()
    for name, gradient in whole.items():
        assert torch.equal(gradient, parts[name]), name


def test_one_that_is_made_otherwise_is_handed_on_when_it_is_there(monkeypatch):
    monkeypatch.setattr(by_rows, "ROWS", 16)
    matrix, parts = torch.arange(50.0).reshape(25, 2), []
    watch = GradientByRows(matrix, lambda start, part: parts.append((start, part)))
    with watch:
        (watch.used * watch.used).sum().backward()
    assert [start for start, _ in parts] == [0, 16]
    assert torch.equal(torch.cat([part for _, part in parts]), 2 * matrix)


@pytest.mark.parametrize("dim", [0, 1])
def test_log_softmax_is_taken_apart_as_torch_does_it(dim):
    """With one order of its sums: then it is the same to the last bit."""
    aten = torch.ops.aten
    theirs = torch._decomp.get_decompositions([aten._log_softmax, aten._log_softmax_backward_data])
    x, gradient = torch.randn(6, 9, dtype=torch.float64).T, torch.randn(9, 6, dtype=torch.float64)
    for operation, arguments in {
        aten._log_softmax.default: (x, dim, False),
        aten._log_softmax_backward_data.default: (gradient, x.log_softmax(dim), dim, torch.float64),
    }.items():
        given = [one.clone() for one in arguments if isinstance(one, torch.Tensor)]
        assert torch.equal(reordered.DECOMPOSITIONS[operation](*arguments), theirs[operation](*arguments))
        assert all(torch.equal(one, now) for one, now in zip(given, arguments, strict=False))


def test_tensors_without_rows_pass_through_every_sum_that_is_reordered():
    """As those of an expert that no token chose."""
    x = torch.zeros(0, 6, dtype=torch.float64, requires_grad=True)
    weight = torch.rand(6, 6, dtype=torch.float64, requires_grad=True)
    with ReorderedSums(0):
        products = torch.nn.functional.linear(x, weight, weight[0]) + x @ weight + (x[None] @ weight[None])[0]
        norm = torch.nn.functional.layer_norm(products, (6,))
        (norm.softmax(-1) + norm.log_softmax(-1) + norm.T.log_softmax(-1).T).mean(1).sum().backward()
    assert x.grad.shape == (0, 6) and weight.grad.abs().max() == 0


def test_a_relu_or_a_choice_among_no_rows_has_moved_by_nothing():
    draws, x = Draws(0), torch.zeros(0, 6, dtype=torch.float64)
    for _ in range(2):
        draws.positive(TensorName("relu", "expert"), x)
        draws.choose(TensorName("choice", "expert"), x, x.argmax(-1))
    assert draws.moved == draws.choices_moved == {"expert": 0.0}
