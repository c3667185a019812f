"""Test texts shorter than a checkpoint's position table: the length and the rows that train, and the unchanged rows."""

from __future__ import annotations

import csv
import io
import json
import math
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from gates import PreparedGates
from rich.console import Console
from safetensors.numpy import load_file

from models.port.lengths import LENGTH, LengthError
from models.reformer import lengths, positions, schema
from toolkit.commands import predict
from toolkit.errors import UserError
from toolkit.finetune import model_config
from toolkit.finetune.finetune import finetune
from toolkit.parity.options import make_request
from toolkit.parity.request.gate_options import GateOptions
from toolkit.recipe.load import load_recipe
from toolkit.run_folder import checkpoint as checkpoints

LONGEST = 20_000
ENWIK8 = {
    "hidden_size": 1024, "axial_pos_embds_dim": [256, 768], "axial_pos_shape": [128, 512],
    "max_position_embeddings": 65536, "attn_layers": ["local", "lsh"], "num_buckets": 512,
}  # fmt: skip

#: Name -> the keys of the configuration, and whether they belong to stored weights.
CONFIGURATIONS: dict[str, tuple[dict, bool]] = {
    "new weights": ({}, False),
    "new weights, chunks of 50 and 30": ({"local_attn_chunk_length": 50, "lsh_attn_chunk_length": 30}, False),
    "new weights, chunks of 16 and 64": ({"local_attn_chunk_length": 16}, False),
    "new weights, local attention alone": ({"attn_layers": ["local"], "lsh_attn_chunk_length": 30}, False),
    "new weights, chunked feed-forward": ({"chunk_size_feed_forward": 96, "chunk_size_lm_head": 10}, False),
    "new weights, few positions": ({"max_position_embeddings": 1000}, False),
    "new weights, learned positions": ({"axial_pos_embds": False, "max_position_embeddings": 1000}, False),
    "new weights, a table": ({"axial_pos_shape": [7, 48]}, False),
    "enwik8": (ENWIK8, True),
    "enwik8, chunked feed-forward": ({**ENWIK8, "chunk_size_feed_forward": 4096}, True),
    "a table that no chunk divides": ({"axial_pos_shape": [3, 50], "chunk_size_feed_forward": 64}, True),
    "a table and a limit below a row of it": ({"max_position_embeddings": 20}, True),
    "a small table, chunks of 50 and 30": (
        {"axial_pos_shape": [40, 10], "local_attn_chunk_length": 50, "lsh_attn_chunk_length": 30}, True
    ),
}  # fmt: skip


def reference_trains(config: dict, length: int) -> bool:
    """Return whether transformers accepts a training batch of this length."""
    chunks = [config[f"{kind}_attn_chunk_length"] for kind in set(config["attn_layers"])]
    pads = length % int(np.lcm.reduce(chunks)) != 0 and length > min(chunks)
    in_chunks = all(not config[key] or length % config[key] == 0 for key in lengths.CHUNK_SIZE_KEYS)
    in_table = not config["axial_pos_embds"] or math.prod(config["axial_pos_shape"]) == length
    return not pads and in_chunks and in_table and length <= config["max_position_embeddings"]


def read_suggestions(advice: str, keys: dict, text_length: int) -> list[tuple[dict, int]]:
    """Return the configuration and the length of each suggestion in a message, read as a user would."""
    ways = advice.partition("; set ")[2].split(", or ")
    suggestions = []
    for suggestion in ways:
        changed_keys, length = dict(keys), text_length
        for name, value in re.findall(r"(\S+) to (\[\d+, \d+\]|\d+)", suggestion):
            if name == "data.max_length":
                length = int(value)
            else:
                changed_keys[name.removeprefix("model.config.")] = json.loads(value)
        assert (changed_keys, length) != (keys, text_length), advice
        suggestions.append((changed_keys, length))
    return suggestions


@pytest.mark.parametrize("name", CONFIGURATIONS)
def test_every_length_trains_or_is_refused_with_one_that_trains(name):
    keys, is_stored = CONFIGURATIONS[name]
    config = schema.resolve(keys)
    model_keys = None if is_stored else keys
    num_refused = 0
    for text_length in range(1, LONGEST + 1):
        try:
            length_fit = lengths.fit(config, text_length, model_keys)
        except LengthError as problem:
            num_refused += 1
            if num_refused % 50 != 1:
                continue
            assert problem.ways
            advice = problem.advice({LENGTH: "data.max_length"}, "model.config.")
            for changed_keys, length in read_suggestions(advice, keys, text_length):
                suggested_fit = lengths.fit(schema.resolve(changed_keys), length, None if is_stored else changed_keys)
                assert suggested_fit.length >= length
            continue
        training_config = {**config, **length_fit.keys, **length_fit.cut}
        assert length_fit.length >= text_length and reference_trains(training_config, length_fit.length), (
            text_length,
            length_fit,
        )
        schema.check_training_length(training_config, length_fit.length)
        assert bool(length_fit.padding) == (length_fit.length > text_length)
        if is_stored:  # the run's texts are as long when its saved model is evaluated
            assert lengths.fit(config, length_fit.length).length == length_fit.length
        elif text_length % 97 == 0:
            assert lengths.fit({**config, **length_fit.keys}, text_length).length == length_fit.length


def test_no_shorter_length_trains():
    for name, (keys, is_stored) in CONFIGURATIONS.items():
        config = schema.resolve(keys)
        for text_length in range(1, 400, 23):
            try:
                length_fit = lengths.fit(config, text_length, None if is_stored else keys)
            except LengthError:
                continue
            for shorter in range(text_length, length_fit.length):
                cut = {"axial_pos_shape": [1, shorter]}  # the shape of new weights, or the rows of a table
                if "axial_pos_shape" in keys:
                    columns = keys["axial_pos_shape"][1]
                    if shorter % columns:
                        continue
                    cut = positions.cut_config(config, shorter)
                assert not reference_trains({**config, **length_fit.keys, **cut}, shorter), (name, text_length, shorter)


def test_a_length_is_described():
    config = schema.resolve(ENWIK8)
    length_fit = lengths.fit(config, 4000)
    assert length_fit.length == 4096 and length_fit.cut == {"axial_pos_shape": [8, 512]}
    assert (
        length_fit.positions == "positions: the first 8 of 128 rows of the checkpoint's table (4,096 of 65,536 tokens)"
    )
    assert length_fit.padding == (
        "texts of up to 4,000 tokens are padded to 4,096: a multiple of the 512 columns of axial_pos_shape and the "
        "attention chunks of 64"
    )
    assert lengths.fit(config, 65536).notes == ()
    with pytest.raises(LengthError, match=r"70,000 tokens are more than the 65,536 positions of axial_pos_shape"):
        lengths.fit(config, 70_000)


def test_an_absurd_length_is_refused_at_once():
    with pytest.raises(LengthError, match="more than the 2,147,483,647 positions") as error_info:
        lengths.fit(schema.resolve({}), 10**30, {})
    assert error_info.value.ways == [{LENGTH: 2147483584}]


# -- a checkpoint of the reference ------------------------------------------------------------------------------------

#: 128 positions; texts of up to 60 tokens are padded to 64, so they use the first 4 of 8 rows.
TABLE = {
    "attn_layers": ["local", "lsh"], "hidden_size": 32, "num_attention_heads": 2, "attention_head_size": 16,
    "feed_forward_size": 32, "local_attn_chunk_length": 16, "lsh_attn_chunk_length": 16, "axial_pos_shape": [8, 16],
    "axial_pos_embds_dim": [8, 24], "max_position_embeddings": 128, "vocab_size": 258, "is_decoder": False,
    "local_num_chunks_after": 1, "num_buckets": 4, "hash_seed": 1, "hidden_dropout_prob": 0.05, "pad_token_id": 0,
}  # fmt: skip

#: Saves a classifier, its positions for shorter texts, and whether it trains on each sample of lengths.
REFERENCE = """
import json, sys
import numpy as np, torch
from transformers import ReformerConfig, ReformerForSequenceClassification
folder, keys, samples = sys.argv[1], json.loads(sys.argv[2]), json.loads(sys.argv[3])
torch.manual_seed(0)
model = ReformerForSequenceClassification(ReformerConfig(**keys, num_labels=3)).eval()
model.save_pretrained(folder)
embeddings = model.reformer.embeddings.position_embeddings
with torch.no_grad():
    read = {str(n): embeddings(torch.arange(n)[None])[0].numpy() for n in (16, 64, 112)}
np.savez(folder + "/read.npz", **read)
trained = []
for changed, length in samples:
    model = ReformerForSequenceClassification(ReformerConfig(**{**keys, **changed}, num_labels=3)).train()
    try:
        model(torch.ones((1, length), dtype=torch.long), labels=torch.tensor([1])).loss.backward()
        trained.append(True)
    except (ValueError, AssertionError):
        trained.append(False)
json.dump(trained, open(folder + "/trained.json", "w"))
"""


def length_samples() -> list[tuple[dict, int]]:
    """Return cut shapes of some lengths, which train, and then the same with one token more, which do not."""
    training_samples = []
    for change in ({}, {"lsh_attn_chunk_length": 8, "chunk_size_feed_forward": 8}, {"local_attn_chunk_length": 32}):
        config = schema.resolve({**TABLE, **change})
        for text_length in (1, 17, 60, 100, 128):
            fit = lengths.fit(config, text_length)
            training_samples.append(
                ({**change, "axial_pos_shape": list(fit.cut.get("axial_pos_shape", [8, 16]))}, fit.length)
            )
    return [
        *training_samples,
        *(({**change, "axial_pos_shape": [1, length + 1]}, length + 1) for change, length in training_samples),
    ]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    """Return a classifier that transformers created and saved."""
    folder = tmp_path_factory.mktemp("checkpoint")
    arguments = [str(folder), json.dumps(TABLE), json.dumps(length_samples())]
    subprocess.run([sys.executable, "-c", REFERENCE, *arguments], check=True, capture_output=True, text=True)
    return folder


def load_port(folder: Path, length: int):
    """Return the model that trains on ``length`` tokens, and the complete model, both in evaluation mode."""
    from models.port.weights import dump, load
    from models.reformer.modeling import ReformerForSequenceClassification as Classifier

    whole_model = Classifier.from_pretrained(folder)
    all_weights = dict(dump(whole_model))
    cut = positions.cut_config(vars(whole_model.config), length)
    model = Classifier(type(whole_model.config).from_pretrained(folder, **cut))
    load(model, positions.cut_weights(all_weights, cut))
    model.unreached_rows = positions.unreached_rows(all_weights, cut)
    model.eval()
    whole_model.eval()
    return model, whole_model


def test_solved_shapes_train_in_the_reference_unlike_one_token_more(checkpoint):
    has_trained = json.loads((checkpoint / "trained.json").read_text())
    should_train = [
        reference_trains(schema.resolve({**TABLE, **change}), length) for change, length in length_samples()
    ]
    assert has_trained == should_train and has_trained[: len(has_trained) // 2] == [True] * (len(has_trained) // 2)
    assert False in has_trained


def test_the_cut_table_equals_the_rows_that_the_reference_reads(checkpoint):
    with np.load(checkpoint / "read.npz") as read:
        for length, reference_rows in ((int(name), read[name]) for name in read.files):
            model, _ = load_port(checkpoint, length)
            port_rows = model.reformer.embeddings.position_embeddings.table().numpy().reshape(reference_rows.shape)
            np.testing.assert_array_equal(port_rows.view(np.int32), reference_rows.view(np.int32))


def test_the_whole_model_computes_like_the_cut_one_and_is_saved(checkpoint, tmp_path):
    import paddle

    model, whole_model = load_port(checkpoint, 64)
    tokens = paddle.to_tensor(np.random.default_rng(0).integers(2, 258, (2, 64)))
    mask = paddle.to_tensor((np.arange(64) < np.array([[64], [40]])).astype(np.int64))
    with paddle.no_grad():
        cut_logits, whole_logits = (classifier(tokens, mask).logits.numpy() for classifier in (model, whole_model))
    np.testing.assert_array_equal(cut_logits.view(np.int32), whole_logits.view(np.int32))
    model.save_pretrained(tmp_path)
    saved_weights, first = load_file(tmp_path / "model.safetensors"), load_file(checkpoint / "model.safetensors")
    np.testing.assert_array_equal(saved_weights[positions.ROWS].view(np.int32), first[positions.ROWS].view(np.int32))
    config = json.loads((tmp_path / "config.json").read_text())
    assert config["axial_pos_shape"] == [8, 16] and config["max_position_embeddings"] == 128
    assert model.config.axial_pos_shape == [4, 16]


# -- runs -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def recipe_file(checkpoint, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("recipe")
    draw = np.random.default_rng(0)
    for split_name, count in {"train": 12, "validation": 6, "test": 6}.items():
        with (folder / f"{split_name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            for index in range(count):
                rows.writerow(["abc"[index % 3] * int(draw.integers(20, 90)), "xyz"[index % 3]])
    recipe = {
        "model": {"weights": str(checkpoint)},
        "data": {
            "dataset": "csv",
            "files": {split_name: f"{split_name}.csv" for split_name in ("train", "validation", "test")},
            "max_length": 60,
        },
        "train": {"max_steps": 4, "batch_size": 3, "learning_rate": 1e-2, "weight_decay": 0.5, "eval_steps": 2},
        "parity": {"dtype": "float64"},
    }
    (folder / "short.yaml").write_text(yaml.safe_dump(recipe))
    return folder / "short.yaml"


def train(recipe_file: Path, folder: Path, *overrides: str, skip: str | None = "a test") -> str:
    out = io.StringIO()
    recipe = load_recipe(recipe_file, [f"train.output_dir={folder}", *overrides])
    finetune(recipe, skip, Console(file=out, width=500))
    return out.getvalue()


@pytest.fixture(scope="module")
def run(recipe_file, tmp_path_factory) -> tuple[Path, str]:
    """Return a finished run and its printed output."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    return folder, train(recipe_file, folder)


def assert_only_reached_rows_changed(run: Path, checkpoint: Path) -> None:
    final_rows = load_file(run / "model/model.safetensors")[positions.ROWS]
    initial_rows = load_file(checkpoint / "model.safetensors")[positions.ROWS]
    assert final_rows.shape == initial_rows.shape
    np.testing.assert_array_equal(final_rows[4:].view(np.int32), initial_rows[4:].view(np.int32))
    assert (final_rows[:4] != initial_rows[:4]).all()


def test_a_run_changes_only_the_rows_that_its_texts_use(run, checkpoint):
    folder, output = run
    assert "note   positions: the first 4 of 8 rows of the checkpoint's table (64 of 128 tokens)" in output
    assert output.count("texts of up to 60 tokens are padded to 64") == 1
    assert_only_reached_rows_changed(folder, checkpoint)
    assert json.loads((folder / "model/config.json").read_text())["axial_pos_shape"] == [8, 16]
    assert "cut to 60 tokens, padded with 0 on the right to 64" in (folder / "README.md").read_text()
    results = json.loads((folder / "metrics.json").read_text())
    sizes = [value.size for value in load_file(folder / "model/model.safetensors").values()]
    assert results["parameters"] == sum(sizes)


@pytest.mark.parametrize("split_name", ["validation", "test"])
def test_the_saved_model_reproduces_the_metrics(run, split_name):
    folder, _ = run
    metrics = predict.evaluate(folder, Console(file=io.StringIO()), split_name)
    assert metrics == json.loads((folder / "metrics.json").read_text())[split_name]


def test_a_text_is_cut_and_padded_as_in_training(run):
    folder, _ = run
    long, cut = predict.predict(folder, Console(file=io.StringIO()), texts=["a" * 70, "a" * 60])
    assert long.is_truncated and not cut.is_truncated and long.probability == cut.probability


def test_an_interrupted_run_resumes_and_ends_equally(run, recipe_file, tmp_path, monkeypatch):
    save = checkpoints.Checkpoints.save

    def interrupt(self, step, *arguments, **options):
        save(self, step, *arguments, **options)
        raise KeyboardInterrupt

    monkeypatch.setattr(checkpoints.Checkpoints, "save", interrupt)
    with pytest.raises(KeyboardInterrupt):
        train(recipe_file, tmp_path / "run")
    monkeypatch.undo()
    assert "resuming" in train(recipe_file, tmp_path / "run")
    weights, expected_weights = (load_file(folder / "model/model.safetensors") for folder in (tmp_path / "run", run[0]))
    for name in expected_weights:
        np.testing.assert_array_equal(weights[name], expected_weights[name], err_msg=name)


@pytest.mark.slow
def test_the_gate_of_a_run_passes_and_describes_the_comparison(recipe_file, checkpoint, tmp_path):
    train(recipe_file, tmp_path / "run", skip=None)
    assert_only_reached_rows_changed(tmp_path / "run", checkpoint)
    notes = [note["text"] for note in json.loads((tmp_path / "run/parity/parity.json").read_text())["notes"]]
    assert "positions: the first 4 of 8 rows of the checkpoint's table (64 of 128 tokens)" in notes


@pytest.mark.slow
def test_the_gate_judges_the_cut(checkpoint, tmp_path):
    """Check the rows: both sides take the same weights, so a cut at the wrong end shows only here."""
    options = GateOptions(model="reformer", length=60, batch_size=1, weights_from=str(checkpoint), dtype="float64")
    request = make_request(replace(options, head="sequence_classification"))
    assert request.batch["input_ids"].shape == (1, 64) and request.config["axial_pos_shape"] == [4, 16]
    rows = load_file(checkpoint / "model.safetensors")[positions.ROWS]
    wrong_request = replace(request, weights={**request.weights, positions.ROWS: rows[4:]})
    gates = PreparedGates(tmp_path / "jobs", [request, wrong_request])
    correct_report, output = gates.run(request, tmp_path / "right")
    assert correct_report.passed, correct_report.summary()
    assert "positions: the first 4 of 8 rows of the checkpoint's table" in output
    report, _ = gates.run(wrong_request, tmp_path / "wrong")
    assert not report.passed
    assert report.candidate.loading_problems == {
        positions.ROWS: "cut to fewer positions (models/reformer/positions.py): 32 of 32 values are not those that the "
        "reference reads"
    }


# -- mistakes ---------------------------------------------------------------------------------------------------------


def test_a_text_longer_than_the_table_is_refused_with_the_maximum(recipe_file):
    line = recipe_file.read_text().splitlines().index("  max_length: 60") + 1
    longer = recipe_file.with_name("longer.yaml")
    longer.write_text(recipe_file.read_text().replace("max_length: 60", "max_length: 200"))
    with pytest.raises(UserError) as error_info:
        model_config.check_model(load_recipe(longer))
    assert str(error_info.value) == (
        f"{longer}:{line}: data.max_length: 200: model.config.axial_pos_shape: 200 tokens are more than the 128 "
        "positions of axial_pos_shape [8, 16]; set data.max_length to 128"
    )
    assert model_config.check_model(load_recipe(longer, ["data.max_length=128"])) == []


def test_a_checkpoint_s_table_keeps_its_shape(recipe_file):
    recipe = load_recipe(recipe_file, ["model.config.axial_pos_shape=[4, 16]"])
    with pytest.raises(
        UserError, match=r"model\.config\.axial_pos_shape: \[4, 16\] is not the checkpoint's \[8, 16\]; "
    ):
        model_config.check_model(recipe)
    assert model_config.check_model(load_recipe(recipe_file, ["model.config.axial_pos_shape=[8, 16]"])) != []


def test_new_weights_get_a_shape_for_their_length(recipe_file):
    text = recipe_file.read_text().replace(
        f"weights: {yaml.safe_load(recipe_file.read_text())['model']['weights']}", ""
    )
    keys = {"hidden_size": 32, "axial_pos_embds_dim": [8, 24]}
    new = recipe_file.with_name("new.yaml")
    content = yaml.safe_load(text)
    new.write_text(yaml.safe_dump({**content, "model": {"config": keys}}))
    recipe = load_recipe(new, ["data.max_length=5000"])
    config = model_config.resolve(recipe, {})
    assert config["axial_pos_shape"] == [64, 79] and config["max_position_embeddings"] == 5056
    assert model_config.check_model(recipe) == [
        "texts of up to 5,000 tokens are padded to 5,056: a multiple of the attention chunks of 64"
    ]
