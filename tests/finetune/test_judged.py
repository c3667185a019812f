"""Test that a run trains the model of its gate: any difference before the first step stops the run."""

from __future__ import annotations

import contextlib
import io

import pytest
from rich.console import Console
from test_train import recipe_file, train  # noqa: F401 - a small recipe and its data

from models.operations.randomness import Dropout
from toolkit.errors import ParityDrift
from toolkit.finetune import finetune as training
from toolkit.finetune.finetune import finetune
from toolkit.finetune.judged_run import NOT_COMPARED_MESSAGE
from toolkit.recipe.load import load_recipe
from toolkit.training import optimizer

SHORT = ("train.max_steps=2", "train.eval_steps=2", "parity.dtype=float32")
WITH_CLASS_WEIGHTS = ("train.class_weights={animals: 1, fruit: 2, tools: 3}",)
WITH_LORA = ("train.lora={rank: 2}",)
WITH_BFLOAT16 = ("train.precision=bfloat16", "parity.dtype=both")
TWICE_AS_LONG = ("model.config.axial_pos_shape=[16, 8]", "data.max_length=128")
LAYER = "reformer.encoder.layers.0"


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def shared_cache(own_cache, cache, monkeypatch) -> None:
    """Share the verdict of the gate among the tests of a recipe."""
    monkeypatch.setenv("TOOLKIT_CACHE", str(cache))


def layer_of(trainer, path):
    return dict(trainer.model.named_sublayers())[path]


def without_dropout(trainer):
    for layer in trainer.model.sublayers():
        if hasattr(layer, "dropout") and not isinstance(layer.dropout, Dropout):
            layer.dropout = 0.0


def change_attribute(path, attribute, value):
    return lambda trainer: setattr(layer_of(trainer, path), attribute, value)


def change_recipe(key, value):
    """Return a fault that changes the recipe before the trainer is created."""

    def twist(trainer):
        recipe = trainer.recipe.with_values({f"train.{key}": value})
        trainer.__init__(trainer.model, recipe, trainer.checkpoints.folder.parent, trainer.task,
                         trainer.console, trainer.train_dataset, trainer.eval_dataset)  # fmt: skip

    return twist


def without_class_weights(trainer):
    trainer.model.class_weights = None


def freeze_a_weight(trainer):
    next(iter(trainer.model.parameters())).stop_gradient = True


def scaled_twice(trainer):
    path = next(path for path, layer in trainer.model.named_sublayers() if type(layer).__name__ == "LoRALinear")
    layer_of(trainer, path).scale *= 2


def all_decay(trainer):
    original_function = optimizer.decayed_parameters
    optimizer.decayed_parameters = lambda model: {parameter.name for parameter in model.parameters()}
    try:
        trainer.create_optimizer_and_scheduler(trainer.schedule.max_steps)
    finally:
        optimizer.decayed_parameters = original_function


def scaled_by_a_hook(trainer):
    dense = layer_of(trainer, "classifier.dense")
    dense.register_forward_post_hook(lambda layer, args, output: output * 1.0001)


def other_loss(trainer):
    plain = trainer.compute_loss
    trainer.compute_loss = lambda model, batch, **options: plain(model, batch, **options) * 2.0


def labels_shifted(trainer):
    plain = trainer._prepare_inputs
    trainer._prepare_inputs = lambda batch: {
        name: (value + 1) % 3 if name == "labels" else value for name, value in plain(batch).items()
    }


def without_bfloat16(trainer):
    trainer.autocast_smart_context_manager = contextlib.nullcontext


FAULTS = {
    "no dropout": ((), without_dropout, "dropout: 0, where the gate judged 0.1 ("),
    "norm's epsilon": (
        (),
        change_attribute("reformer.encoder.layer_norm", "_epsilon", 1e-5),
        "layer_norm._epsilon: 1e-05, wh",
    ),
    "heads": (
        (),
        change_attribute(f"{LAYER}.attention.self_attention", "num_attention_heads", 1),
        "num_attention_heads: 1, wh",
    ),
    "no class weights": (
        WITH_CLASS_WEIGHTS,
        without_class_weights,
        "class_weights: none, where the gate judged [1, 2, 3]",
    ),
    "frozen": (
        (),
        freeze_a_weight,
        "word_embeddings.weight: paddle.float32 [258, 32], is left as it is, decays, where",
    ),
    "decay": ((), change_recipe("weight_decay", 0.5), "optimizer._weight_decay: 0.5, where the gate judged 0"),
    "groups": ((), all_decay, "is trained, decays, where the gate judged paddle.float32 [32], is trained, does not d"),
    "no clipping": ((), change_recipe("max_grad_norm", None), "clipping: NoneType, where the gate judged ClipGradByG"),
    "micro-batches": ((), change_recipe("batch_size", 2), "train.batch_size: 2, where the gate judged 4"),
    "schedule": ((), change_recipe("lr_scheduler", "constant"), "lr_scheduler_type: "),
    "a hook": ((), scaled_by_a_hook, "the loss of its first step is another"),
    "loss": ((), other_loss, "the loss of its first step is another"),
    "labels": ((), labels_shifted, "the loss of its first step is another"),
    "adapter's scale": (WITH_LORA, scaled_twice, ".scale: "),
    "precision": (WITH_BFLOAT16, without_bfloat16, "the loss of its first step is another"),
}
SLOW = ("adapter's scale", "precision")


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.slow] * (name in SLOW)) for name in FAULTS])
def test_a_run_that_differs_from_its_gate_is_stopped_with_the_difference(
    recipe_file,  # noqa: F811
    tmp_path,
    monkeypatch,
    name,
):
    overrides, twist, expected_difference = FAULTS[name]
    make = training.make_trainer

    def make_another(*arguments):
        trainer = make(*arguments)
        twist(trainer)
        return trainer

    monkeypatch.setattr(training, "make_trainer", make_another)
    with pytest.raises(ParityDrift) as drift:
        train(recipe_file, tmp_path / "run", *SHORT, *overrides, skip=None)
    assert expected_difference in str(drift.value), drift.value
    assert not (tmp_path / "run/metrics.jsonl").exists() and not (tmp_path / "run/checkpoints").exists()


@pytest.mark.parametrize(
    ("overrides", "expected_reason"),
    [
        (
            ("model.config.axial_pos_shape=[16, 8]", "data.max_length=128", "parity.length=64"),
            "the gate read 64 of 128 tokens",
        ),
        (("parity.examples=1",), None),
        (("train.batch_size=1", "train.gradient_accumulation_steps=3"), None),
        (("model.backward=reversible", "model.residual=plain"), None),
    ],
)
def test_a_correct_run_trains_and_reports_an_uncompared_first_step(
    recipe_file,  # noqa: F811
    tmp_path,
    overrides,
    expected_reason,
):
    recipe = load_recipe(recipe_file, [f"train.output_dir={tmp_path / 'run'}", *SHORT, *overrides])
    console = Console(file=io.StringIO(), width=200)
    finetune(recipe, None, console)
    output = console.file.getvalue()
    assert (
        (f"{NOT_COMPARED_MESSAGE}: {expected_reason}" in output)
        if expected_reason
        else "of what trains" not in output and NOT_COMPARED_MESSAGE not in output
    )
