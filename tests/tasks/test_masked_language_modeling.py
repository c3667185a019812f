"""Test pretraining on masked tokens, from the recipe to a classifier that starts from its model."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import shlex

import numpy as np
import pytest
import sentencepiece
import yaml
from gates import copied_source, toolkit_in
from rich.console import Console
from safetensors.numpy import load_file
from small_reformers import SMALL_CONFIG

from models.reformer.tokenizer import ByteTokenizer, ReformerTokenizer, train_sentencepiece
from toolkit.commands.predict import evaluate, load_run, predict
from toolkit.commands.recipe_check import check_data
from toolkit.data.batches import collate
from toolkit.errors import UserError
from toolkit.finetune.assembly import assemble
from toolkit.finetune.finetune import finetune
from toolkit.finetune.model_config import check_model
from toolkit.machine import runtime
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.predictions import read_predictions
from toolkit.run_folder.tracking import read_metrics
from toolkit.tasks.masked_language_modeling import task as masked
from toolkit.tasks.masked_language_modeling.masking import MaskedBlocks, Masking

WORDS = {"good": ("fine", "great", "lovely", "superb"), "bad": ("dull", "awful", "boring", "weak")}
RECIPE = {
    "task": "masked_language_modeling",
    "model": {
        "config": {**SMALL_CONFIG, "initializer_range": 0.15}
    },
    "tokenizer": {"kind": "sentencepiece", "vocab_size": 70},
    "data": {
        "dataset": "csv", "files": {"train": "texts.csv"}, "max_length": 32, "validation_fraction": 0.2,
        "test_fraction": 0.1,
    },
    "train": {"max_steps": 30, "batch_size": 8, "gradient_accumulation_steps": 2, "learning_rate": 1e-2,
              "eval_steps": 10},
}  # fmt: skip


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    """Write texts whose words are all good or all bad, and a recipe that pretrains on them."""
    folder, draws = tmp_path_factory.mktemp("mlm"), random.Random(0)
    with (folder / "texts.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["text", "label"])
        for number in range(120):
            label = list(WORDS)[number % 2]
            rows.writerow([" ".join(draws.choices(WORDS[label], k=8)), label])
    (folder / "mlm.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    return folder / "mlm.yaml"


@pytest.fixture(scope="module")
def run(recipe_file, tmp_path_factory):
    """Return the folder of a finished run with its gate, and its printed output."""
    folder, output = tmp_path_factory.mktemp("runs") / "mlm", io.StringIO()
    recipe = load_recipe(recipe_file, [f"train.output_dir={folder}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return finetune(recipe, None, Console(file=output, width=200)), output.getvalue()


def masking(fraction: float = 0.15, begins_word: np.ndarray | None = None) -> Masking:
    return Masking(1, 1000, fraction, begins_word)


def test_tokens_are_chosen_and_masked_as_in_bert():
    ids = np.arange(100_000) % 900 + 50
    masked_ids, labels = masking().mask(ids, np.random.RandomState(0))
    is_chosen = labels != -100
    assert (
        is_chosen.sum() == 15_000
        and (labels[is_chosen] == ids[is_chosen]).all()
        and (masked_ids[~is_chosen] == ids[~is_chosen]).all()
    )
    became_mask, is_unchanged = masked_ids[is_chosen] == 1, masked_ids[is_chosen] == ids[is_chosen]
    assert became_mask.mean() == pytest.approx(0.8, abs=0.01) and is_unchanged.mean() == pytest.approx(0.1, abs=0.01)
    random_tokens = masked_ids[is_chosen][~became_mask & ~is_unchanged]
    assert random_tokens.min() < 10 and random_tokens.max() > 990 and len(set(random_tokens)) > 700


def test_whole_words_are_chosen():
    begins_word = np.zeros(1000, bool)
    begins_word[::2] = True
    ids = np.random.default_rng(0).integers(2, 1000, 400)
    word = np.cumsum(begins_word[ids])
    _, labels = masking(begins_word=begins_word).mask(ids, np.random.RandomState(0))
    is_chosen = labels != -100
    assert 55 <= is_chosen.sum() <= 60
    assert all(len(set(is_chosen[word == word_number])) == 1 for word_number in set(word))
    one_word = masking(begins_word=np.zeros(1000, bool)).mask(ids, np.random.RandomState(0))[1]
    assert (one_word != -100).all()


@pytest.mark.parametrize(("fraction", "num_chosen"), [(0.04, 7), (0.1, 14), (0.12, 14), (0.15, 21), (0.19, 21)])
def test_only_the_first_chosen_word_may_exceed_the_fraction(fraction, num_chosen):
    """Test 140 tokens in words of seven tokens."""
    begins_word, ids = np.arange(1000) == 500, np.tile([500, 2, 3, 4, 5, 6, 7], 20)
    _, labels = masking(fraction, begins_word).mask(ids, np.random.RandomState(0))
    assert (labels != -100).sum() == num_chosen


def test_a_block_has_new_but_repeatable_masks_in_each_epoch():
    documents = [list(range(2, 72)), [5, 6, 7], []]
    blocks = MaskedBlocks(documents, 32, 40, 0, masking(), (42, 4, 0))
    assert blocks.lengths.tolist() == [32, 32, 6, 3] and blocks.stream().tolist() == [*documents[0], *documents[1]]
    first = [blocks[index] for index in range(4)]
    assert all((row["labels"] != -100).sum() >= 1 for row in first)
    assert first[3]["attention_mask"].tolist() == [1] * 3 + [0] * 37 and (first[3]["labels"][3:] == -100).all()
    blocks.set_epoch(1)
    assert any((blocks[0][key] != first[0][key]).any() for key in first[0])
    blocks.set_epoch(0)
    np.testing.assert_equal(blocks[2], first[2])
    other_epoch = MaskedBlocks(documents, 32, 40, 0, masking(), (43, 4, 0))
    assert (other_epoch[0]["labels"] != first[0]["labels"]).any()


def test_no_text_has_the_mask_token_and_words_begin_with_their_blank(tmp_path):
    pieces = train_sentencepiece(["a cat and a dog ran so far"] * 3, 30, tmp_path)
    assert pieces.mask_token_id == 1 and 1 not in pieces.encode("<s> a cat <mask></s><unk>")
    assert ByteTokenizer.mask_token_id not in ByteTokenizer().encode("".join(map(chr, range(600))))
    for tokenizer in (pieces, ByteTokenizer()):
        begins_word = tokenizer.begins_word()[tokenizer.encode(" a cat ran")]
        assert begins_word.sum() == 3 and len(tokenizer.begins_word()) == tokenizer.vocab_size


def test_the_run_passes_its_gate_with_its_masks_and_learns(run):
    folder, output = run
    assert "PARITY" in output and "tensors of the port agree" in output
    assert f'toolkit finetune LABELLED.yaml "model={{weights: {folder}/model}}"' in output.replace("\n", "")
    results = json.loads((folder / "metrics.json").read_text())
    test_metrics, frequencies = results["test"], results["baselines"]["token frequencies"]["test"]
    assert test_metrics["perplexity"] == pytest.approx(math.exp(test_metrics["loss"]))
    assert test_metrics["perplexity"] < frequencies["perplexity"] and 0 < frequencies["accuracy"] < 1
    assert results["best"]["metric"] == "perplexity"
    assert "give the id 1" in (folder / "README.md").read_text()
    evaluated_metrics = evaluate(folder, Console(file=io.StringIO()))
    assert evaluated_metrics == pytest.approx(test_metrics)
    with pytest.raises(UserError, match="is a run of masked language modeling: toolkit finetune"):
        predict(folder, Console(file=io.StringIO()))


def test_the_metrics_cover_the_masked_tokens(run):
    import paddle

    folder, _ = run
    loaded_run = load_run(folder)
    test = masked.prepare(
        loaded_run.recipe, loaded_run.tokenizer, masked.load_splits(loaded_run.recipe), loaded_run.length
    ).test
    batch = collate([test[index] for index in range(len(test))])
    with paddle.no_grad():
        logits = loaded_run.model(**{name: paddle.to_tensor(value) for name, value in batch.items()}).logits.numpy()
    is_masked = batch["labels"] != -100
    scores, labels = logits[is_masked].astype(np.float64), batch["labels"][is_masked]
    losses = np.log(np.exp(scores).sum(1)) - scores[np.arange(len(labels)), labels]
    test_metrics = json.loads((folder / "metrics.json").read_text())["test"]
    assert test_metrics["loss"] == pytest.approx(losses.mean(), rel=0.02)  # LSH draws by batch
    assert test_metrics["accuracy"] == pytest.approx((scores.argmax(1) == labels).mean(), abs=0.05)
    rows = list(read_predictions(folder / "predictions-test.csv"))
    assert sum(int(row["masked_tokens"]) for row in rows) == len(labels) and len(rows) == len(test)
    assert "text" in rows[0] and set(rows[0]["text"].split()) <= {word for words in WORDS.values() for word in words}


def test_training_scores_only_the_masked_positions_with_the_same_gradients(run):
    import paddle

    folder, _ = run
    loaded_run = load_run(folder)
    train = masked.prepare(
        loaded_run.recipe, loaded_run.tokenizer, masked.load_splits(loaded_run.recipe), loaded_run.length
    ).train
    batch = {name: paddle.to_tensor(value) for name, value in collate([train[0], train[1]]).items()}
    gradients = []
    loaded_run.model.train()
    for leaves_out in (True, False):
        loaded_run.model.leaves_out_unread = leaves_out
        runtime.seed_everything(0)
        output = loaded_run.model(**batch)
        assert (output.logits is None) == leaves_out
        output.loss.backward()
        gradients.append({name: p.grad.numpy() for name, p in loaded_run.model.named_parameters()})
        loaded_run.model.clear_gradients()
    for name, full_gradient in gradients[1].items():
        np.testing.assert_allclose(gradients[0][name], full_gradient, rtol=1e-4, atol=1e-6, err_msg=name)
    loaded_run.model.leaves_out_unread = True
    batch_without_labels = {**batch, "labels": paddle.full_like(batch["labels"], -100)}
    assert math.isnan(float(loaded_run.model(**batch_without_labels).loss))


@pytest.mark.parametrize("task", ["classification", "question_answering"])
def test_a_task_with_labels_starts_from_the_body_with_a_new_head(run, recipe_file, tmp_path, task):
    folder, _ = run
    rows = [{"id": str(n), "question": "Which?", "context": "fine great dull",
             "answers": {"text": ["dull"], "answer_start": [11]}} for n in range(20)]  # fmt: skip
    (tmp_path / "squad.json").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {
        "classification": {"dataset": "csv", "files": {"train": str(recipe_file.with_name("texts.csv"))}},
        "question_answering": {"dataset": "json", "files": {"train": "squad.json", "validation": "squad.json"},
                               "stride": 4},
    }[task]  # fmt: skip
    share = {"validation_fraction": 0.3} if task == "classification" else {}
    recipe = {
        "task": task,
        "model": {"weights": str(folder / "model")},
        "tokenizer": {"kind": "sentencepiece", "path": str(folder / "model" / "spiece.model")},
        "data": {**data, **share, "max_length": 32},
        "train": {"max_steps": 10, "batch_size": 8, "learning_rate": 5e-3, "baseline": False},
    }
    (tmp_path / "labeled.yaml").write_text(yaml.safe_dump(recipe))
    job = assemble(load_recipe(tmp_path / "labeled.yaml"))
    body = load_file(folder / "model" / "model.safetensors")
    head = {"classification": "classifier.", "question_answering": "qa_outputs."}[task]
    assert job.new_weights and all(name.startswith(head) for name in job.new_weights)
    reused_names = job.weights.keys() - job.new_weights
    assert reused_names == {name for name in body if not name.startswith("lm_head.")}
    assert all((job.weights[name] == body[name]).all() for name in reused_names)
    if task == "question_answering":
        return
    output, suggested_overrides = io.StringIO(), shlex.split(masked.DESCRIPTION.next_command.format(run=folder))[3:]
    (tmp_path / "labeled.yaml").write_text(yaml.safe_dump({**recipe, "model": RECIPE["model"]}))
    training_recipe = load_recipe(
        tmp_path / "labeled.yaml", [f"train.output_dir={tmp_path / 'run'}", *suggested_overrides]
    )
    run_dir = finetune(training_recipe, "a test", Console(file=output, width=200))
    assert "(new: classifier.dense.weight" in output.getvalue()
    best = max(row["accuracy"] for row in read_metrics(run_dir / "metrics.jsonl") if row["split"] == "validation")
    assert best > 0.9


@pytest.mark.parametrize(
    ("overrides", "expected_error"),
    [
        (
            ["model.config.is_decoder=true", "model.config.local_num_chunks_after=0"],
            "is_decoder: masked_language_modeling needs each position to see the whole text; set false",
        ),
        (["data.mask_fraction=1.5"], "data.mask_fraction"),
        (["data.label=label"], "data.label: is for task classification"),
        (["data.text=body"], "data.text: no column body in the train split; it has text, label"),
        (["train.save_best=f1"], "train.save_best: 'f1' is not one of perplexity, accuracy, loss"),
        (["model={name: ctrl}", "tokenizer={vocab_size: 50}"], "model.name: ctrl cannot do masked_language_modeling"),
    ],
)
def test_a_faulty_pretraining_recipe_is_refused_at_its_line(recipe_file, overrides, expected_error):
    with pytest.raises(UserError, match=r"mlm.yaml|command line") as error_info:
        recipe = load_recipe(recipe_file, overrides)
        check_model(recipe)
        check_data(recipe)
    assert expected_error in str(error_info.value)


def test_a_tokenizer_without_a_spare_piece_is_refused(recipe_file, tmp_path):
    model = io.BytesIO()
    lines = ["fine great dull weak awful boring"] * 5
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type="bpe", vocab_size=40, bos_id=-1, minloglevel=2
    )
    (tmp_path / "spiece.model").write_bytes(model.getvalue())
    assert ReformerTokenizer(model.getvalue()).mask_token_id is None
    recipe = load_recipe(recipe_file, [f"tokenizer={{kind: sentencepiece, path: {tmp_path}/spiece.model}}"])
    with pytest.raises(UserError, match=r"tokenizer.path: has no piece that no text has, such as <s>"):
        assemble(recipe)


FAULTS = {
    "head": (
        "return in_chunks(self.decoder, self.chunk_size_lm_head, hidden_states)",
        "return in_chunks(self.decoder, self.chunk_size_lm_head, hidden_states * 1.0001)",
        "DRIFT lm_head",
    ),
    "training": (
        "logits = self.lm_head.decoder(row_states)",
        "logits = self.lm_head.decoder(row_states * 1.0001)",
        "as training computes it: off by",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_in_the_head_stops_the_run_and_is_named(recipe_file, tmp_path, fault):
    """Test faults of the head, also one only in training, where only masked positions are scored."""
    original_code, faulty_code, expected_text = FAULTS[fault]
    source = copied_source(tmp_path, "models/reformer/modeling.py", (original_code, faulty_code))
    result = toolkit_in(source, "finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}")
    assert result.returncode == 1, result.stderr
    assert expected_text in result.stdout and "no training" in result.stderr
