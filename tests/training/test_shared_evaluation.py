"""Test means over uneven batches that several processes share: they equal the means of one process."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import paddle
import pytest
from test_trainer import Network, make_examples, make_finetuner

from toolkit.data.batches import collate, compute_loss_weights
from toolkit.training import ranks, trainer
from toolkit.training.shared_evaluation import EveryNth, evaluate_shared, in_own_order

LOSSES = np.array([1.0, 5.0, 0.25, 2.0, 8.0, 0.5, 3.0, 100.0, 0.125, 7.0, 4.0])


class ThreadTeam:
    """Processes of a run, simulated by threads whose messages meet at a barrier."""

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
        """Return the results of `work` for each rank."""
        results_by_rank: list[object] = [None] * self.count

        def run(rank: int) -> None:
            self._own.rank = rank
            results_by_rank[rank] = work(rank)

        threads = [threading.Thread(target=run, args=(rank,)) for rank in range(self.count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return results_by_rank


@pytest.mark.parametrize("batch_size", [1, 2, 3, 4, 11, 20])
@pytest.mark.parametrize("processes", [1, 2, 3, 5])
def test_a_shared_evaluation_equals_one_over_all_examples(batch_size, processes, monkeypatch):
    order = np.random.default_rng(0).permutation(len(LOSSES))

    def evaluate(rank: int) -> tuple[float, np.ndarray]:
        batches = EveryNth(order, batch_size, rank, processes)

        def step(batch: list[int]) -> tuple[paddle.Tensor, list[paddle.Tensor], None]:
            return paddle.to_tensor(LOSSES[batch].mean()), [paddle.to_tensor(np.array(batch) * 10)], None

        loss, outputs = evaluate_shared(batches, step, lambda: None, lambda: False, is_shared=processes > 1)
        return loss, in_own_order(outputs, order)[0]

    for loss, outputs in ThreadTeam(processes, monkeypatch).results(evaluate):
        assert loss == pytest.approx(LOSSES.mean(), rel=1e-12)
        np.testing.assert_array_equal(outputs, np.arange(len(LOSSES)) * 10)


def test_a_process_that_is_asked_to_stop_stops_all(monkeypatch):
    def is_interrupted(rank: int) -> bool:
        step = lambda batch: (paddle.to_tensor(0.0), [paddle.to_tensor([0])], None)  # noqa: E731
        try:
            evaluate_shared([[0]], step, lambda: None, lambda: rank == 1, is_shared=True)
        except trainer.SignalInterrupt:
            return True
        return False

    assert ThreadTeam(2, monkeypatch).results(is_interrupted) == [True, True]


def test_a_micro_batch_is_weighted_by_its_share_of_all_terms(tmp_path, monkeypatch):
    """Of nine labels, one process has 4 and 2, another 3, and a third has no label that counts."""
    terms = [[4, 2], [3], [1]]

    def weights(rank: int) -> list[float]:
        finetuner = SimpleNamespace(
            sampler=SimpleNamespace(has_examples=lambda batch: rank < 2),
            state=SimpleNamespace(global_step=0),
            schedule=SimpleNamespace(steps_per_epoch=5),
            num_loss_terms=lambda batch: batch,
        )
        return trainer.Finetuner._loss_weights(finetuner, terms[rank])

    assert ThreadTeam(3, monkeypatch).results(weights) == [pytest.approx([4 / 9, 2 / 9]), pytest.approx([3 / 9]), [0.0]]


@pytest.mark.parametrize(
    ("terms", "total", "weights"),
    [([4, 2], None, [2 / 3, 1 / 3]), ([4, 2], 12, [1 / 3, 1 / 6]), ([0, 0], None, [0, 0]), ([0, 3], 3, [0, 1])],
)
def test_weights_are_shares_of_the_whole_batch(terms, total, weights):
    assert compute_loss_weights(terms, total) == pytest.approx(weights)


def test_uneven_parts_in_two_processes_give_the_gradient_of_the_whole_batch(tmp_path, monkeypatch):
    """Use parts of 4 and 3 examples in micro-batches of 2; one micro-batch has no label that counts."""
    rows = make_examples(7)
    rows[2]["labels"] = rows[3]["labels"] = -100
    single_finetuner = make_finetuner(tmp_path / "whole", Network(dropout=0.0), batch_size=7)
    single_finetuner.create_optimizer_and_scheduler(1)
    loss = float(single_finetuner.training_step(single_finetuner.model, batch_of(rows)))
    gradient = single_finetuner.model.output.weight.grad.numpy()
    parts = [rows[:4], rows[4:]]
    finetuners = [make_finetuner(tmp_path / str(n), Network(dropout=0.0), batch_size=2) for n in range(2)]
    for finetuner in finetuners:
        finetuner.create_optimizer_and_scheduler(1)
    monkeypatch.setattr(trainer, "num_processes", lambda: 2)
    monkeypatch.setattr(ranks, "total", lambda numbers: [5.0])  # labels that count, of both processes
    monkeypatch.setattr(ranks, "sum_gradients", lambda parameters, numbers: list(numbers))
    losses = []
    for finetuner, part in zip(finetuners, parts, strict=True):
        finetuner.sampler = SimpleNamespace(has_examples=lambda batch: True)
        losses.append(float(finetuner.training_step(finetuner.model, batch_of(part))))
    assert sum(losses) == pytest.approx(loss, rel=1e-6)
    gradient_sum = sum(finetuner.model.output.weight.grad.numpy() for finetuner in finetuners)
    np.testing.assert_allclose(gradient_sum, gradient, rtol=1e-5, atol=1e-8)


def batch_of(rows: list[dict]) -> dict[str, paddle.Tensor]:
    return {name: paddle.to_tensor(value) for name, value in collate(rows).items()}
