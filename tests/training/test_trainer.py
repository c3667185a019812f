"""Test the training loop on a network so small that a run takes a tenth of a second."""

from __future__ import annotations

import io
import json
import math
import os
import signal
import threading
import time
import types
from pathlib import Path

import numpy as np
import paddle
import pytest
from rich.console import Console

from models.ctrl.config import CTRLConfig
from models.port.base import model_outputs
from toolkit.data.batches import collate
from toolkit.recipe.keys import Data, Train
from toolkit.recipe.recipe import Recipe
from toolkit.run_folder.tracking import Tracker, read_metrics
from toolkit.tasks.classification import task as classification
from toolkit.training.optimizer import decayed_parameters
from toolkit.training.sampler import EpochPermutation
from toolkit.training.schedule import Best
from toolkit.training.trainer import DivergedError, Finetuner, Schedule, SignalInterrupt

CLASSES, LENGTH, VOCABULARY = 3, 8, 50


class Network(paddle.nn.Layer):
    """Mean of embeddings, LayerNorm, dropout, linear; optionally a pause per training step, for signals to arrive."""

    def __init__(self, dropout: float = 0.1, pause: float = 0.0) -> None:
        super().__init__()
        self.embedding = paddle.nn.Embedding(VOCABULARY, 16)
        self.layer_norm = paddle.nn.LayerNorm(16)
        self.output = paddle.nn.Linear(16, CLASSES)
        self.dropout, self.pause = dropout, pause

    def forward(self, input_ids, labels=None):
        hidden_states = self.layer_norm(self.embedding(input_ids).mean(axis=1))  # (B, 16)
        hidden_states = paddle.nn.functional.dropout(hidden_states, self.dropout, training=self.training)
        logits = self.output(hidden_states)  # (B, CLASSES)
        if self.training and self.pause:
            time.sleep(self.pause)
        # Not reduction="mean": with a negative ignore_index, Paddle divides by all labels, torch only by the labels
        # that count.
        total = paddle.nn.functional.cross_entropy(logits, labels, ignore_index=-100, reduction="sum")
        return model_outputs.SequenceClassifierOutput(
            loss=total / (labels != -100).sum().astype("float32"), logits=logits
        )


def make_examples(count: int) -> list[dict]:
    draws = np.random.RandomState(0)
    rows = [{"input_ids": draws.randint(0, VOCABULARY, LENGTH), "labels": i % CLASSES} for i in range(count)]
    for row in rows:
        row["input_ids"][:2] = row["labels"]
    return rows


def compute_metrics(outputs: tuple[np.ndarray, ...], dataset: list[dict]) -> dict[str, float]:
    logits, labels = outputs
    assert len(labels) == len(dataset)
    return {"accuracy": float((logits.argmax(axis=-1) == labels).mean())}


TASK = types.SimpleNamespace(
    num_loss_terms=classification.num_loss_terms,
    outputs=classification.outputs,
    compute_metrics=compute_metrics,
    token_counts=lambda dataset: None,
    LOWER_IS_BETTER=classification.LOWER_IS_BETTER,
)


def make_finetuner(folder: Path, network: Network | None = None, rows: int = 50, output=None, last_step=0, **train):
    """Return a trainer whose network always starts from the same weights."""
    settings = {
        "max_steps": 30,
        "learning_rate": 1e-2,
        "batch_size": 4,
        "eval_batch_size": 16,
        "eval_steps": 7,
        "save_best": "accuracy",
    }
    recipe = Recipe(data=Data(dataset="csv", max_length=LENGTH), train=Train(**{**settings, **train}))
    folder.mkdir(parents=True, exist_ok=True)
    network = network or Network()
    draws = np.random.RandomState(1)
    for parameter in network.parameters():
        parameter.set_value(draws.standard_normal(parameter.shape).astype("float32") * 0.3)
    console = Console(file=output or io.StringIO(), width=200)
    data = make_examples(rows)
    tracker = Tracker(folder, recipe, last_step)
    return Finetuner(network, recipe, folder, TASK, console, data, data[:20], tracker)


def read_weights(trainer: Finetuner) -> dict[str, np.ndarray]:
    return {name: value.numpy() for name, value in trainer.model.state_dict().items()}


def assert_same_weights(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> None:
    assert ours.keys() == theirs.keys()
    for name in ours:
        np.testing.assert_array_equal(ours[name], theirs[name], err_msg=name)


def compute_gradients(trainer: Finetuner, rows: list[dict]) -> tuple[float, dict[str, np.ndarray]]:
    batch = {name: paddle.to_tensor(value) for name, value in collate(rows).items()}
    trainer.create_optimizer_and_scheduler(1)
    loss = float(trainer.training_step(trainer.model, batch))
    return loss, {name: parameter.grad.numpy() for name, parameter in trainer.model.named_parameters()}


@pytest.mark.parametrize("size", [12, 10, 5])
def test_accumulation_gives_the_loss_and_gradient_of_one_large_batch(tmp_path, size):
    """12 rows are three full micro-batches; 10 and 5 end with a short micro-batch, which must weigh less."""
    rows = make_examples(size)
    large_batch_trainer = make_finetuner(tmp_path / "one", Network(dropout=0.0), batch_size=12)
    accumulating_trainer = make_finetuner(
        tmp_path / "many", Network(dropout=0.0), batch_size=4, gradient_accumulation_steps=3
    )
    (loss, large_batch_gradients), (accumulated_loss, accumulated_gradients) = (
        compute_gradients(large_batch_trainer, rows),
        compute_gradients(accumulating_trainer, rows),
    )
    assert accumulated_loss == pytest.approx(loss, rel=1e-6)
    for name in large_batch_gradients:
        np.testing.assert_allclose(
            accumulated_gradients[name], large_batch_gradients[name], rtol=1e-5, atol=1e-8, err_msg=name
        )


def test_a_run_with_accumulation_equals_a_run_with_large_batches(tmp_path):
    """Include an epoch's end, where the last group is incomplete (50 = 4 * 12 + 2)."""
    large_batch_trainer = make_finetuner(tmp_path / "one", Network(dropout=0.0), batch_size=12)
    accumulating_trainer = make_finetuner(
        tmp_path / "many", Network(dropout=0.0), batch_size=4, gradient_accumulation_steps=3
    )
    large_batch_trainer.fit()
    accumulating_trainer.fit()
    assert (
        large_batch_trainer.schedule
        == accumulating_trainer.schedule
        == Schedule(steps_per_epoch=5, max_steps=30, eval_steps=7)
    )
    for name, value in read_weights(large_batch_trainer).items():
        np.testing.assert_allclose(read_weights(accumulating_trainer)[name], value, rtol=1e-3, atol=1e-5, err_msg=name)


@pytest.mark.parametrize("num_ignored", [3, 4])
def test_ignored_labels_do_not_count_when_micro_batches_are_weighed(tmp_path, num_ignored):
    """With 4 of 8 ignored labels, the first micro-batch has no label that counts."""
    rows = make_examples(8)
    for row in rows[:num_ignored]:
        row["labels"] = -100
    large_batch_trainer = make_finetuner(tmp_path / "one", Network(dropout=0.0), batch_size=8)
    many = make_finetuner(tmp_path / "many", Network(dropout=0.0), batch_size=4, gradient_accumulation_steps=2)
    assert compute_gradients(many, rows)[0] == pytest.approx(compute_gradients(large_batch_trainer, rows)[0], rel=1e-6)


def test_the_same_seed_gives_the_same_weights_and_numbers(tmp_path):
    first, second = make_finetuner(tmp_path / "first"), make_finetuner(tmp_path / "second")
    first.fit()
    paddle.randn([7])  # other random draws of the process do not matter
    second.fit()
    assert_same_weights(read_weights(first), read_weights(second))
    assert read_metrics_without_time(tmp_path / "first") == read_metrics_without_time(tmp_path / "second")


def read_metrics_without_time(folder: Path) -> list[dict]:
    return [{key: row[key] for key in row if key != "seconds"} for row in read_metrics(folder / "metrics.jsonl")]


@pytest.mark.parametrize("step", [1, 4, 13, 26, 28, 30])
def test_an_interrupted_run_resumes_bit_for_bit(tmp_path, step):
    """Stop in an epoch, at its end (13, 26), before an evaluation (28), at the last step (30), and in between."""
    uninterrupted_trainer = make_finetuner(tmp_path / "whole")
    uninterrupted_trainer.fit()
    first = make_finetuner(tmp_path / "run")
    stop_after(first, step)
    with pytest.raises(SignalInterrupt):
        first.fit()
    last = first.checkpoints.newest(pytest.fail)
    assert last is not None and last.name == f"step-{step:08d}"
    np.random.seed(5)
    paddle.seed(5)
    second = make_finetuner(tmp_path / "run", last_step=step)
    second.fit(last)
    assert_same_weights(read_weights(uninterrupted_trainer), read_weights(second))
    assert read_metrics_without_time(tmp_path / "whole") == read_metrics_without_time(tmp_path / "run")
    assert second.best == uninterrupted_trainer.best
    uninterrupted_trainer.use_best_weights()
    second.use_best_weights()
    assert_same_weights(read_weights(uninterrupted_trainer), read_weights(second))


def stop_after(trainer: Finetuner, step: int) -> None:
    """Simulate a signal that arrives while the step is computed."""
    original_step = trainer.training_step

    def training_step(model, inputs, step_control=0):
        if trainer.state.global_step + 1 == step:
            signal.raise_signal(signal.SIGTERM)
        return original_step(model, inputs, step_control)

    trainer.training_step = training_step


def test_patience_continues_after_an_interruption(tmp_path):
    settings = {"learning_rate": 1e-9, "eval_steps": 2, "early_stopping_patience": 3}
    uninterrupted_trainer = make_finetuner(tmp_path / "whole", **settings)
    uninterrupted_trainer.fit()
    assert (uninterrupted_trainer.state.global_step, uninterrupted_trainer.best.stopped) == (8, True)
    first = make_finetuner(tmp_path / "run", **settings)
    stop_after(first, 5)
    with pytest.raises(SignalInterrupt):
        first.fit()
    second = make_finetuner(tmp_path / "run", last_step=5, **settings)
    second.fit(first.checkpoints.newest(pytest.fail))
    assert (second.state.global_step, second.best) == (8, uninterrupted_trainer.best)
    finished_trainer = make_finetuner(tmp_path / "run", last_step=8, **settings)
    finished_trainer.fit(finished_trainer.checkpoints.newest(pytest.fail))
    assert finished_trainer.state.global_step == 0  # no steps were left


def test_control_c_stops_after_the_running_step_with_a_checkpoint(tmp_path):
    trainer = make_finetuner(tmp_path, Network(pause=0.02), max_steps=500, eval_steps=500)
    # a shell starts background jobs with a handler that is not Python's default
    original_handler = signal.getsignal(signal.SIGINT)
    threading.Timer(0.3, os.kill, (os.getpid(), signal.SIGINT)).start()
    with pytest.raises(SignalInterrupt):
        trainer.fit()
    assert 0 < trainer.state.global_step < 500
    assert trainer.checkpoints.newest(pytest.fail).name == f"step-{trainer.state.global_step:08d}"
    assert signal.getsignal(signal.SIGINT) is original_handler


def test_the_best_weights_are_kept_not_the_last(tmp_path):
    trainer = make_finetuner(tmp_path, max_steps=28)
    scores = iter([0.5, 0.9, 0.7, 0.6])
    measured_weights = []

    def compute_metrics(output):
        measured_weights.append(read_weights(trainer))
        return {"accuracy": next(scores)}

    trainer.compute_metrics = compute_metrics
    trainer.fit()
    assert (trainer.best.best_step, trainer.best.best_value) == (14, 0.9)
    trainer.use_best_weights()
    assert_same_weights(read_weights(trainer), measured_weights[1])


def test_save_best_loss_keeps_the_lowest_loss(tmp_path):
    trainer = make_finetuner(tmp_path, save_best="loss")
    trainer.fit()
    losses = {row["step"]: row["loss"] for row in read_metrics(tmp_path / "metrics.jsonl") if row["split"] != "train"}
    assert trainer.best.best_step == min(losses, key=losses.get)


def test_examples_are_evaluated_by_length_and_returned_in_their_order(tmp_path):
    shapes = []

    class RecordingNetwork(Network):
        config = CTRLConfig(n_positions=LENGTH, pad_token_id=0)

        def forward(self, input_ids, attention_mask, labels):
            shapes.append(input_ids.shape)
            assert attention_mask.shape == input_ids.shape
            return super().forward(input_ids, labels)

    rows = make_examples(11)
    counts = np.array([3, 8, 2, 5, 5, 1, 8, 4, 4, 2, 3])
    for row, count in zip(rows, counts, strict=True):
        row["attention_mask"] = (np.arange(LENGTH) < count).astype(np.int64)
        row["input_ids"] = np.where(row["attention_mask"], row["input_ids"], 0)
    trainer = make_finetuner(tmp_path, RecordingNetwork(), eval_batch_size=4)
    trainer.task = types.SimpleNamespace(**{**vars(TASK), "token_counts": lambda dataset: counts})
    trainer.measure(rows, "test")
    assert shapes == [[4, 8], [4, 4], [3, 2]]
    assert trainer.outputs[1].tolist() == [row["labels"] for row in rows]


def test_the_last_step_is_always_evaluated(tmp_path):
    make_finetuner(tmp_path, max_steps=5, eval_steps=100).fit()
    assert [row["step"] for row in read_metrics(tmp_path / "metrics.jsonl") if row["split"] == "validation"] == [5]


def test_evaluation_is_repeatable_and_does_not_disturb_the_training(tmp_path):
    """The evaluation draws random numbers, like LSH attention; the same model must get the same score each time."""

    class RandomNetwork(Network):
        def forward(self, input_ids, labels=None):
            output = super().forward(input_ids, labels)
            output.logits = output.logits + paddle.randn(output.logits.shape)
            return output

    often, seldom = (
        make_finetuner(tmp_path / "a", RandomNetwork(), eval_steps=1),
        make_finetuner(tmp_path / "b", RandomNetwork()),
    )
    often.fit()
    seldom.fit()
    assert_same_weights(read_weights(often), read_weights(seldom))
    assert often.measure(often.eval_dataset, "test") == often.measure(often.eval_dataset, "test")


def test_a_nan_loss_stops_the_run_with_advice(tmp_path):
    network = Network()
    trainer = make_finetuner(tmp_path, network)
    network.output.weight.set_value(np.full([16, CLASSES], math.nan, "float32"))
    with pytest.raises(DivergedError, match=r"loss is nan at step 1 \(output\.weight is the first parameter .*; lower"):
        trainer.fit()
    assert not list(tmp_path.glob("checkpoints/step-*"))


class BlindInEvaluation(Network):
    """A network that learns, but whose loss is NaN in each evaluation; its accuracy is a number."""

    def forward(self, input_ids, labels=None):
        output = super().forward(input_ids, labels)
        if not self.training:
            output.loss = output.loss * math.nan
        return output


@pytest.mark.parametrize("save_best", ["accuracy", "loss"])
def test_a_run_without_a_finite_validation_has_no_best_model_and_fails(tmp_path, save_best):
    trainer = make_finetuner(tmp_path, BlindInEvaluation(), save_best=save_best, max_steps=8, eval_steps=4)
    trainer.fit()
    assert trainer.best.best_step is None and not list(tmp_path.glob("checkpoints/best-*"))
    with pytest.raises(
        DivergedError, match=rf"no validation had a finite loss and {save_best}.*lower train.learning_rate"
    ):
        trainer.use_best_weights()
    assert DivergedError.exit_status == 1


def test_an_update_to_nonfinite_weights_is_named_with_its_step(tmp_path):
    """The loss of the only step is finite, but the weights after the update are not."""
    trainer = make_finetuner(tmp_path, max_steps=1, learning_rate=1e38, weight_decay=100.0)
    with pytest.raises(
        DivergedError, match=r"^embedding\.weight is not finite after step 1; lower train.learning_rate"
    ):
        trainer.fit()
    assert not list(tmp_path.glob("checkpoints/*"))


@pytest.mark.parametrize("lower_is_better", [True, False])
@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_value_is_never_the_best(value, lower_is_better):
    assert not Best().better(value, lower_is_better=lower_is_better)
    assert not Best(best_step=1, best_value=0.5).better(value, lower_is_better=lower_is_better)
    assert Best().better(0.5, lower_is_better=lower_is_better)


def test_weight_decay_spares_biases_and_layer_norm(tmp_path):
    network = Network()
    names = {parameter.name: name for name, parameter in network.named_parameters()}
    assert {names[name] for name in decayed_parameters(network)} == {"embedding.weight", "output.weight"}
    trainer = make_finetuner(
        tmp_path, network, weight_decay=0.5, max_steps=1, learning_rate=0.1, lr_scheduler="constant"
    )
    initial_weights = read_weights(trainer)
    trainer.create_optimizer_and_scheduler(1)
    for parameter in network.parameters():  # with a zero gradient, AdamW moves a parameter only by its decay
        parameter.sum().scale(0.0).backward()
    trainer.optimizer.step()
    for name, value in read_weights(trainer).items():
        is_decayed = name in ("embedding.weight", "output.weight")
        np.testing.assert_allclose(
            value, initial_weights[name] * (0.95 if is_decayed else 1.0), rtol=1e-6, err_msg=name
        )


@pytest.mark.parametrize(
    ("scheduler", "warmup", "expected_rates"),
    [
        ("linear", 0.0, [1.0, 0.75, 0.5, 0.25]),
        ("linear", 0.5, [0.0, 0.5, 1.0, 0.5]),
        ("constant", 0.0, [1.0, 1.0, 1.0, 1.0]),
        ("constant", 0.5, [0.0, 0.5, 1.0, 1.0]),
        ("cosine", 0.0, [1.0, 0.853553, 0.5, 0.146447]),
    ],
)
def test_the_learning_rate_follows_the_schedule(tmp_path, scheduler, warmup, expected_rates):
    make_finetuner(tmp_path, max_steps=4, lr_scheduler=scheduler, warmup_ratio=warmup, learning_rate=1.0).fit()
    rows = [row for row in read_metrics(tmp_path / "metrics.jsonl") if row["split"] == "train"]
    assert [row["learning_rate"] for row in rows] == pytest.approx(expected_rates, rel=1e-5)


def test_progress_has_one_line_per_evaluation_and_no_logs(tmp_path, capfd):
    output = io.StringIO()
    make_finetuner(tmp_path, output=output).fit()
    lines = output.getvalue().strip().splitlines()
    assert len(lines) == 5 and all(line.startswith("step ") for line in lines)
    assert capfd.readouterr() == ("", "")


def test_metrics_are_on_disk_as_json_lines_and_csv(tmp_path):
    make_finetuner(tmp_path).fit()
    rows = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert len([row for row in rows if row["split"] == "train"]) == 30
    table = (tmp_path / "metrics.csv").read_text().splitlines()
    assert table[0] == "step,epoch,split,loss,learning_rate,seconds,accuracy"
    assert len(table) == len(rows) + 1


def test_every_epoch_uses_every_example_once_in_a_new_order():
    sampler = EpochPermutation(examples=10, batch_size=4, seed=3)
    orders = []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        batches = list(sampler)
        assert [len(batch) for batch in batches] == [4, 4, 2] and len(sampler) == 3
        orders.append([index for batch in batches for index in batch])
        assert sorted(orders[-1]) == list(range(10))
    assert len({tuple(order) for order in orders}) == 3
    assert orders[0] == [2, 5, 3, 4, 1, 9, 8, 7, 0, 6]  # fixed: another order would break every resume


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_replicas_split_the_batches_of_one_process(replicas):
    """5 replicas share batches of 4 and a last batch of 2.

    The replicas without a part get an example that does not count.
    """
    all_batches = list(EpochPermutation(10, 4, seed=3))
    samplers = [EpochPermutation(10, 4, seed=3, replicas=replicas, rank=rank) for rank in range(replicas)]
    assert [len(sampler) for sampler in samplers] == [3] * replicas
    for number, batches in enumerate(zip(*samplers, strict=True)):
        parts = [part for part, sampler in zip(batches, samplers, strict=True) if sampler.has_examples(number)]
        assert sorted(index for part in parts for index in part) == sorted(all_batches[number])
        assert all(len(part) == 1 for part in batches if part not in parts)


@pytest.mark.parametrize("replicas", [2, 3, 5])
def test_a_replica_without_a_part_of_the_last_batch_gets_an_ignored_example(replicas):
    """Of 13 examples in batches of 6, the last batch has one."""
    for rank in range(replicas):
        part = EpochPermutation(13, 6, 1, replicas, rank)
        batches = list(part)
        assert batches[2] == part.order(0)[12:].tolist() and len(batches) == 3
        assert [part.has_examples(batch) for batch in range(3)] == [True, True, rank == 0]


@pytest.mark.parametrize("num_metrics", [0, 1, 6])
def test_the_validation_line_fits_80_columns_with_the_first_metrics(num_metrics):
    metrics = {"loss": 0.12345, **{f"metric{number}": 0.98765 for number in range(num_metrics)}}
    printed_lines: list[str] = []
    trainer = types.SimpleNamespace(
        state=types.SimpleNamespace(global_step=650, epoch=1.0),
        schedule=types.SimpleNamespace(max_steps=650),
        progress=types.SimpleNamespace(line=printed_lines.append),
        best=types.SimpleNamespace(stopped=False),
    )
    Finetuner.show_evaluation(trainer, [0.25, 0.5], metrics, is_best=True)
    (line,) = printed_lines
    assert line.startswith("step 650/650  epoch 1.00  loss 0.375, validation 0.1235") and line.endswith("  best")
    assert len(line) <= 80 and line.count("metric") == min(num_metrics, 1)
