"""Means over batches of uneven size that several processes share: those of one process over all examples."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from test_trainer import Network, examples, finetuner

from toolkit.data.batches import collate, compute_loss_weights
from toolkit.training import ranks, trainer
from toolkit.training.shared_evaluation import EveryNth, evaluate_shared, in_own_order

LOSSES = np.array([1.0, 5.0, 0.25, 2.0, 8.0, 0.5, 3.0, 100.0, 0.125, 7.0, 4.0])


class Team:
    """Processes of a run as threads of this one, whose messages meet at a barrier."""

    def __init__(self, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count, self._own = count, threading.local()
        self._barrier, self._sent = threading.Barrier(count), [None] * count
        monkeypatch.setattr(ranks, "gather", self._gather)
        monkeypatch.setattr(ranks, "total", lambda numbers: np.sum(self._gather(numbers), axis=0).tolist())
        monkeypatch.setattr(trainer, "num_processes", lambda: count)

    def _gather(self, message: object) -> list[object]:
        self._barrier.wait(60)
        self._sent[self._own.rank] = message
        self._barrier.wait(60)
        return list(self._sent)

    def results(self, work: Callable[[int], object]) -> list[object]:
        """Return what each process computes, given its rank."""
        found: list[object] = [None] * self.count

        def run(rank: int) -> None:
            self._own.rank = rank
            found[rank] = work(rank)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return found


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 11, 20])
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_an_evaluation_shared_by_several_is_that_of_one_over_all_examples(batch_size, processes, monkeypatch):
    order = np.random.default_rng(0).permutation(len(LOSSES))

    def measured(rank: int) -> tuple[float, np.ndarray]:
        batches = EveryNth(order, batch_size, rank, processes)

        def step(batch: list[int]) -> tuple[paddle.Tensor, list[paddle.Tensor], None]:
            return paddle.to_tensor(LOSSES[batch].mean()), [paddle.to_tensor(np.array(batch) * 10)], None

        loss, kept = evaluate_shared(batches, step, lambda: None, lambda: False, is_shared=processes > 1)
        return loss, in_own_order(kept, order)[0]

    for loss, kept in Team(processes, monkeypatch).results(measured):
        assert loss == pytest.approx(LOSSES.mean(), rel=1e-12)
        np.testing.assert_array_equal(kept, np.arange(len(LOSSES)) * 10)


def test_one_that_is_asked_to_stop_stops_all(monkeypatch):
    def stopped(rank: int) -> bool:
        step = lambda batch: (paddle.to_tensor(0.0), [paddle.to_tensor([0])], None)  # noqa: E731
        try:
            evaluate_shared([[0]], step, lambda: None, lambda: rank == 1, is_shared=True)
        except trainer.SignalInterrupt:
            return True
        return False

    assert Team(2, monkeypatch).results(stopped) == [True, True]


def test_a_micro_batch_weighs_as_much_as_its_terms_of_those_of_all_processes(tmp_path, monkeypatch):
    """Of nine labels one process has 4 and 2, another 3, and a third none that counts."""
    terms = [[4, 2], [3], [1]]

    def weights(rank: int) -> list[float]:
        one = SimpleNamespace(
            sampler=SimpleNamespace(has_examples=lambda batch: rank < 2),
            state=SimpleNamespace(global_step=0),
            schedule=SimpleNamespace(steps_per_epoch=5),
            num_loss_terms=lambda batch: batch,
        )
        return trainer.Finetuner._loss_weights(one, terms[rank])

    assert Team(3, monkeypatch).results(weights) == [pytest.approx([4 / 9, 2 / 9]), pytest.approx([3 / 9]), [0.0]]


@pytest.mark.parametrize(
    ("terms", "total", "weights"),
    [([4, 2], None, [2 / 3, 1 / 3]), ([4, 2], 12, [1 / 3, 1 / 6]), ([0, 0], None, [0, 0]), ([0, 3], 3, [0, 1])],
)
def test_weights_are_shares_of_the_whole_batch(terms, total, weights):
    assert compute_loss_weights(terms, total) == pytest.approx(weights)


def test_the_loss_of_uneven_parts_in_two_processes_is_that_of_the_whole_batch(tmp_path, monkeypatch):
    """Parts of 4 and 3 examples, in micro-batches of 2, of which one has no label that counts."""
    rows = examples(7)
    rows[2]["labels"] = rows[3]["labels"] = -100
    whole = finetuner(tmp_path / "whole", Network(dropout=0.0), batch_size=7)
    whole.create_optimizer_and_scheduler(1)
    loss = float(whole.training_step(whole.model, batch_of(rows)))
    gradient = whole.model.output.weight.grad.numpy()
    parts = [rows[:4], rows[4:]]
    made = [finetuner(tmp_path / str(n), Network(dropout=0.0), batch_size=2) for n in range(2)]
    for one in made:
        one.create_optimizer_and_scheduler(1)
    monkeypatch.setattr(trainer, "num_processes", lambda: 2)
    monkeypatch.setattr(ranks, "total", lambda numbers: [5.0])  # labels that count, of both
    monkeypatch.setattr(ranks, "sum_gradients", lambda parameters, numbers: list(numbers))
    losses = []
    for one, part in zip(made, parts, strict=True):
        one.sampler = SimpleNamespace(has_examples=lambda batch: True)
        losses.append(float(one.training_step(one.model, batch_of(part))))
    assert sum(losses) == pytest.approx(loss, rel=1e-6)
    summed = sum(one.model.output.weight.grad.numpy() for one in made)
    np.testing.assert_allclose(summed, gradient, rtol=1e-5, atol=1e-8)


def batch_of(rows: list[dict]) -> dict[str, paddle.Tensor]:
    return {name: paddle.to_tensor(value) for name, value in collate(rows).items()}
