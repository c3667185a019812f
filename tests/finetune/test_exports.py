"""Test `model/` of a run in transformers: the tokenizer gives our ids, and the pipelines give our answers."""

from __future__ import annotations

import io
import json
import os
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console
from test_train import recipe_file, train  # noqa: F401 - the small recipe of texts and labels

from models.ctrl.tokenizer import load_tokenizer as load_ctrl_tokenizer
from models.ctrl.tokenizer import train_bpe
from models.reformer import tokenizer as reformer_tokenizer
from models.reformer.byte_file import is_byte_file, tokenizer_file
from models.reformer.tokenizer import ByteTokenizer, train_sentencepiece
from toolkit.commands.generate import generate_text
from toolkit.commands.predict import load_run
from toolkit.finetune.finetune import finetune
from toolkit.parity.inputs.tokenizer_texts import ADVERSARIAL, random_texts, texts_of_characters
from toolkit.recipe.load import load_recipe
from toolkit.tasks.classification.task import classify
from toolkit.tasks.question_answering.answering import answer_question

LENGTH = 64

#: Runs with transformers, in a process without Paddle.
TOKENS = """
import json, sys
from transformers import AutoTokenizer
job = json.load(open(sys.argv[1]))
found = []
for folder in job["folders"]:
    tokenizer = AutoTokenizer.from_pretrained(folder, use_fast=job["fast"])
    rows = tokenizer(job["texts"], truncation=False)
    padded = tokenizer(job["texts"], truncation=True, padding="max_length")
    decoded = [tokenizer.decode(ids) for ids in rows["input_ids"]]
    cleaned = [tokenizer.decode([tokenizer.pad_token_id, *ids], skip_special_tokens=True) for ids in rows["input_ids"]]
    found.append([sorted(rows), rows["input_ids"], dict(padded), decoded, cleaned, tokenizer.model_max_length])
    tokenizer.save_pretrained(folder + "-again")
json.dump(found, open(sys.argv[2], "w"))
"""

#: Runs the Python blocks of a model card in order, and returns the value of the last line of each block.
CARD = """
import ast, json, sys
job = json.load(open(sys.argv[1]))
found = []
for blocks in job["cards"]:
    names, values = dict(job["names"]), []
    for block in blocks:
        *lines, last = ast.parse(block).body
        exec(compile(ast.Module(lines, []), "card", "exec"), names)
        if isinstance(last, ast.Expr):
            values.append(eval(compile(ast.Expression(last.value), "card", "eval"), names))
        else:
            exec(compile(ast.Module([last], []), "card", "exec"), names)
    found.append([type(names["tokenizer"]).__name__, type(names["model"]).__name__, values])
json.dump(found, open(sys.argv[2], "w"))
"""


def ask_transformers(code: str, folder: Path, torch: bool = True, **job: object) -> list:
    """Return the result of a program in a process without Paddle; a program for tokens needs no torch either."""
    files = [folder / "job.json", folder / "found.json"]
    files[0].write_text(json.dumps(job))
    command = [sys.executable, "-c", code, *map(str, files)]
    env = {**os.environ, "USE_TORCH": str(int(torch)), "HF_HUB_OFFLINE": "1"}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=env)
    if "No module named 'transformers'" in result.stderr or "No module named 'torch'" in result.stderr:
        pytest.skip("transformers is not installed (extra: reference)")
    assert result.returncode == 0, result.stderr
    return json.loads(files[1].read_text())


def python_of(card: Path) -> list[str]:
    """Return the blocks of Python in a model card."""
    return [part.split("```")[0] for part in card.read_text().split("```python\n")[1:]]


# -- tokenizers -----------------------------------------------------------------------------------------------------


def texts() -> list[str]:
    """Return texts of every kind in UTF-8, and pieces with a special meaning for tokenizers."""
    all_texts = [
        *ADVERSARIAL,
        *texts_of_characters(),
        *random_texts(5, 100),
        "a<pad>b<sep>c</s><unk>",
        "\x00\x01\x7f\x85\u2028 \ufffd",
    ]
    return [text for text in all_texts if not any("\ud800" <= letter <= "\udfff" for letter in text)]


def assert_equal(tokenizer, results: list, text_list: list[str]) -> None:
    keys, ids, padded_batch, decoded_texts, cleaned_texts, length = results
    assert keys == ["attention_mask", "input_ids"]
    assert length == LENGTH
    assert ids == tokenizer.encode_batch(text_list)
    expected_batch = tokenizer(text_list, max_length=LENGTH, padding="max_length")
    assert padded_batch["attention_mask"] == expected_batch["attention_mask"].tolist()
    assert padded_batch["input_ids"] == expected_batch["input_ids"].tolist()
    assert decoded_texts == [tokenizer.decode(row) for row in ids]
    assert cleaned_texts == [tokenizer.decode([tokenizer.pad_token_id, *row], skip_special_tokens=True) for row in ids]


def test_auto_tokenizer_gives_the_ids_and_the_texts_of_all_tokenizers(tmp_path):
    corpus = [" ".join(ADVERSARIAL).replace("\x00", ""), *("the quick brown fox jumps over lazy dogs " * 30,) * 4]
    tokenizers_by_name = {
        "bytes": ByteTokenizer(),
        "pieces": train_sentencepiece(corpus, 300, tmp_path / "learned"),
        "words": train_bpe(corpus, 150, tmp_path / "learned-words"),
    }
    for name, tokenizer in tokenizers_by_name.items():
        (tmp_path / name).mkdir()
        tokenizer.save(tmp_path / name, LENGTH)
        family = "ctrl" if name == "words" else "reformer"
        (tmp_path / name / "config.json").write_text(json.dumps({"model_type": family}))
    folders = [str(tmp_path / name) for name in tokenizers_by_name]
    transformers_results = ask_transformers(TOKENS, tmp_path, torch=False, folders=folders, texts=texts(), fast=False)
    for tokenizer, results in zip(tokenizers_by_name.values(), transformers_results, strict=True):
        assert_equal(tokenizer, results, texts())
    for name, tokenizer in tokenizers_by_name.items():  # our tokenizers read the files of transformers
        load = load_ctrl_tokenizer if name == "words" else reformer_tokenizer.load_tokenizer
        assert load(tmp_path / f"{name}-again").encode_batch(texts()) == tokenizer.encode_batch(texts())
        special = json.loads((tmp_path / name / "special_tokens_map.json").read_text())
        assert special["pad_token"] == {"bytes": "<pad>", "pieces": "<unk>", "words": "<unk>"}[name]


def test_the_tokenizers_library_without_transformers_gives_bytes_too(tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    ByteTokenizer().save(tmp_path)
    library_tokenizer, our_tokenizer = tokenizers.Tokenizer.from_file(str(tmp_path / "tokenizer.json")), ByteTokenizer()
    every = "".join(map(chr, (*range(0xD800), *range(0xE000, 0x110000, 37))))
    for text in [*texts(), every]:
        assert library_tokenizer.encode(text).ids == our_tokenizer.encode(text)
    draws = random.Random(0)
    for _ in range(500):  # including bytes that are not UTF-8, and ids without a meaning
        ids = [draws.randrange(258) for _ in range(9)]
        if not any("\ud800" <= letter <= "\udfff" for letter in our_tokenizer.decode(ids)):
            assert library_tokenizer.decode(ids) == our_tokenizer.decode(ids)
    assert library_tokenizer.get_vocab_size() == our_tokenizer.vocab_size


def test_a_tokenizer_file_with_other_ids_is_not_a_byte_tokenizer(tmp_path):
    ByteTokenizer().save(tmp_path)
    assert isinstance(reformer_tokenizer.load_tokenizer(tmp_path), ByteTokenizer)
    for change in ("vocab", "merges", "normalizer"):
        content = tokenizer_file()
        if change == "vocab":
            content["model"]["vocab"] |= {"a": 67, "b": 66}
        elif change == "merges":
            content["model"]["merges"] = [["a", "b"]]
        else:
            content["normalizer"] = {"type": "Lowercase"}
        assert is_byte_file(tokenizer_file()) and not is_byte_file(content)
        (tmp_path / "tokenizer.json").write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"neither spiece\.model nor a byte tokenizer's tokenizer\.json"):
            reformer_tokenizer.load_tokenizer(tmp_path)


def test_a_run_of_an_earlier_version_still_loads(tmp_path):
    (tmp_path / "tokenizer_config.json").write_text('{"tokenizer_class": "ByteTokenizer", "pad_token_id": 0}')
    assert isinstance(reformer_tokenizer.load_tokenizer(tmp_path), ByteTokenizer)


# -- runs -----------------------------------------------------------------------------------------------------------

TEXT = "cat dog cow <pad> lion é horse"
PROMPT = "Numbers one two three"

LANGUAGE_MODEL = {
    "task": "language_modeling",
    "model": {
        "name": "ctrl",
        "config": {"n_layer": 1, "n_embd": 32, "n_head": 2, "dff": 32, "n_positions": 48, "initializer_range": 0.1},
    },
    "tokenizer": {"vocab_size": 60},
    "data": {"dataset": "text", "sources": {"Numbers": "numbers.txt"}, "max_length": 32, "validation_fraction": 0.2},
    "train": {"max_steps": 8, "batch_size": 4, "learning_rate": 1e-2},
}


def language_model(folder: Path) -> Path:
    """Return a finished run of a small CTRL."""
    words = ("one", "two", "three", "four", "five", "six", "seven")
    lines = (" ".join(words[(start + place) % 7] for place in range(30)) for start in range(200))
    (folder / "numbers.txt").write_text("\n\n".join(lines))
    (folder / "lm.yaml").write_text(yaml.safe_dump(LANGUAGE_MODEL))
    recipe = load_recipe(folder / "lm.yaml", [f"train.output_dir={folder / 'lm'}"])
    return finetune(recipe, "a test", Console(file=io.StringIO(), width=120))


def assert_same_labels(run: Path, predictions: list) -> None:
    (prediction,) = classify(
        replace(load_run(run), calibration={}), [TEXT]
    )  # transformers does not apply the temperature
    assert predictions[0]["label"] == prediction.label
    assert predictions[0]["score"] == pytest.approx(prediction.probability, abs=1e-5)


def test_the_card_s_code_equals_predict_and_generate(recipe_file, tmp_path):  # noqa: F811
    # Without LSH attention, whose random numbers differ between PyTorch and our port.
    classifier = train(recipe_file, tmp_path / "cls", "model.config.attn_layers=[local, local]", "train.max_steps=8")
    speaker = language_model(tmp_path)
    cards = [python_of(run / "README.md") for run in (classifier, speaker)]
    names = {"text": TEXT, "prompt": PROMPT}
    labels, words = ask_transformers(CARD, tmp_path, cards=cards, names=names)
    assert labels[:2] == ["PreTrainedTokenizerFast", "ReformerForSequenceClassification"]
    assert_same_labels(classifier, labels[2][0])
    assert words[:2] == ["CTRLTokenizer", "CTRLLMHeadModel"]
    options = {"temperature": None, "top_k": None, "top_p": None, "beams": 1, "stop": None}
    # Up to the maximum length of transformers: all 48 positions.
    generated_text = generate_text(speaker, Console(file=io.StringIO()), "Numbers", "one two three", 44, **options)
    assert len(generated_text.split()) > 10
    assert words[2][0][0]["generated_text"].split() == [*PROMPT.split(), *generated_text.split()]


@pytest.mark.slow
def test_sentencepiece_and_ctrl_predict_equally(recipe_file, tmp_path):  # noqa: F811
    reformer = train(
        recipe_file,
        tmp_path / "pieces",
        "model.config.attn_layers=[local, local]",
        "tokenizer.kind=sentencepiece",
        "tokenizer.vocab_size=48",
        "train.max_steps=8",
    )
    ctrl = train(
        recipe_file,
        tmp_path / "ctrl",
        "model={name: ctrl, config: {n_layer: 1, n_embd: 32, n_head: 2, dff: 32, n_positions: 64}}",
        "tokenizer.vocab_size=70",
        "train.max_steps=8",
    )
    cards = [python_of(run / "README.md") for run in (reformer, ctrl)]
    results = ask_transformers(CARD, tmp_path, cards=cards, names={"text": TEXT})
    assert [entry[0] for entry in results] == ["ReformerTokenizer", "CTRLTokenizer"]
    for run, entry in zip((reformer, ctrl), results, strict=True):
        assert_same_labels(run, entry[2][0])


@pytest.mark.slow
def test_the_pipeline_answers_like_predict(tmp_path):
    import test_question_answering as small

    changes = {"model__config": {**small.RECIPE["model"]["config"], "attn_layers": ["local", "local"]}}
    recipe = small.write_recipe(tmp_path, **changes)
    run = finetune(load_recipe(recipe, [f"train.output_dir={tmp_path / 'qa'}"]), "a test", Console(file=io.StringIO()))
    row = small.rows("validation", 1)[0]
    names = {"question": row["question"], "context": row["context"]}
    ((tokenizer, _, answers),) = ask_transformers(CARD, tmp_path, cards=[python_of(run / "README.md")], names=names)
    assert tokenizer == "PreTrainedTokenizerFast"
    best = answer_question(load_run(run), row["question"], row["context"])[0]
    assert (answers[0]["answer"], answers[0]["start"]) == (best.text, best.start)
