"""Test tokens replaced in training: a share of them, differently in each epoch, for any number of processes."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest
from test_train import recipe_file  # noqa: F401

from toolkit.data.batches import collate
from toolkit.errors import UserError
from toolkit.finetune.assembly import assemble
from toolkit.recipe.load import load_recipe
from toolkit.training.sampler import EpochPermutation
from toolkit.training.token_dropout import TokenDropout
from toolkit.training.trainer import Finetuner

PAD, LENGTH = 0, 200
MASK = (np.arange(LENGTH) < LENGTH - 20).astype(np.int64)
EXAMPLES = [
    {"input_ids": np.where(MASK, 7, PAD), "attention_mask": MASK, "labels": np.array(number)} for number in range(12)
]


def read_epoch(share: float, epoch: int, replicas: int = 1, first: int = 0) -> dict[int, list[int]]:
    """Return the tokens of each example that the loaders of all processes give in an epoch, from batch `first` on."""
    tokens_by_example = {}
    for rank in range(replicas):
        sampler = EpochPermutation(len(EXAMPLES), 4, 3, replicas, rank)
        sampler.start_at(epoch, first)
        sampler.set_epoch(epoch)
        recipe = SimpleNamespace(train=SimpleNamespace(token_dropout=share))
        model = SimpleNamespace(config=SimpleNamespace(pad_token_id=PAD))
        of_trainer = {"recipe": recipe, "model": model, "train_dataset": EXAMPLES, "data_collator": collate}
        trainer = SimpleNamespace(**of_trainer, _get_train_sampler=lambda sampler=sampler: sampler)
        for batch in Finetuner.get_train_dataloader(trainer):
            rows = zip(batch["labels"].numpy().tolist(), batch["input_ids"].numpy().tolist(), strict=True)
            tokens_by_example.update(rows)
    return tokens_by_example


def test_a_share_of_the_inner_tokens_is_replaced_differently_in_each_epoch():
    first, second = (read_epoch(0.25, epoch) for epoch in (0, 1))
    tokens = np.array([first[number] for number in range(12)])
    inner = tokens[:, 1 : LENGTH - 21]
    assert (tokens[:, [0, LENGTH - 21]] == 7).all() and (tokens[:, LENGTH - 20 :] == PAD).all()
    assert abs((inner == PAD).mean() - 0.25) < 0.04 and {*inner.flat} == {7, PAD}
    assert first != second and len({tuple(row) for row in first.values()}) == 12
    assert all(EXAMPLES[0]["input_ids"][: LENGTH - 20] == 7)  # evaluation and the gate read the original tokens


@pytest.mark.parametrize("replicas", [2, 3])
def test_the_tokens_are_the_same_for_any_number_of_processes_and_after_a_resume(replicas):
    full_epoch = read_epoch(0.25, 2)
    assert read_epoch(0.25, 2, replicas) == full_epoch
    rest = read_epoch(0.25, 2, first=2)
    assert len(rest) == 4 and rest == {number: full_epoch[number] for number in rest}


def test_texts_are_unchanged_without_token_dropout():
    assert read_epoch(0.0, 0) == {number: row["input_ids"].tolist() for number, row in enumerate(EXAMPLES)}


def test_texts_of_one_or_two_tokens_are_unchanged():
    for count in (0, 1, 2):
        row = {"input_ids": np.full(3, 7), "attention_mask": (np.arange(3) < count).astype(int)}
        assert TokenDropout([row], 0.99, PAD, EpochPermutation(1, 1, 0))[0]["input_ids"].tolist() == [7, 7, 7]


def test_a_model_without_a_pad_token_is_rejected(recipe_file, tmp_path):  # noqa: F811
    overrides = ["train.token_dropout=0.1", "model.config.pad_token_id=null"]
    with pytest.raises(UserError, match=r"train\.token_dropout: needs a pad token"):
        assemble(load_recipe(recipe_file, overrides))
