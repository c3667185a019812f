"""Test long texts: only the part that the model reads is encoded, with the same tokens as in the whole text."""

from __future__ import annotations

import io
import json
import pickle
import random
import subprocess
import sys
from pathlib import Path

import pytest
import sentencepiece

from models.ctrl.tokenizer import train_bpe
from models.port import tokenization
from models.reformer.tokenizer import ByteTokenizer, ReformerTokenizer
from toolkit.data.load import build_tokenizer
from toolkit.parity.job.job import TokenizerJob
from toolkit.recipe.load import load_recipe

ROOT = Path(__file__).parents[2]
WORDS = "the a cat dog sat on mat with hats and there was nothing left to say of it 12 345 x".split()  # noqa: SIM905
#: Characters and pieces that normalization and tokenizers handle specially.
ODD = [
    "  ", "\n", "\t ", "</s>", "<unk>", "é", "\u0301", "\ufb01", "\u200b", "日本", "\u2581", "\U0001f600", "\ud800",
    "\xa0", "\ufdfa", "x" * 40,
]  # fmt: skip


def pieces(kind: str, **settings) -> ReformerTokenizer:
    draw, model = random.Random(0), io.BytesIO()
    lines = [" ".join(draw.choices(WORDS, k=12)) for _ in range(300)]
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(lines), model_writer=model, model_type=kind, vocab_size=45, minloglevel=2, **settings
    )
    return ReformerTokenizer(model.getvalue())


def bpe(folder: Path):
    draw = random.Random(0)
    return train_bpe([" ".join(draw.choices(WORDS, k=2000))], 80, folder)


TOKENIZERS = {
    "bytes": lambda folder: ByteTokenizer(),
    "bpe": bpe,
    "pieces": lambda folder: pieces("bpe"),
    "unigram": lambda folder: pieces("unigram"),
    "pieces of several words": lambda folder: pieces("bpe", split_by_whitespace=False),
    "blanks behind words": lambda folder: pieces("bpe", treat_whitespace_as_suffix=True),
    "no blank in front": lambda folder: pieces("unigram", add_dummy_prefix=False),
    "blanks as they are": lambda folder: pieces(
        "bpe", normalization_rule_name="identity", remove_extra_whitespaces=False
    ),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_the_first_tokens_of_a_text_equal_those_of_the_whole_text(tmp_path, monkeypatch, name):
    monkeypatch.setattr(tokenization, "MIN_CHARACTERS", 24)
    monkeypatch.setattr(tokenization, "CHARACTERS_PER_TOKEN", 1)
    tokenizer, draw, cut = TOKENIZERS[name](tmp_path), random.Random(1), 0
    for _ in range(400):
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 60)))
        for _ in range(draw.randint(0, 8)):
            place = draw.randrange(len(text) + 1)
            text = text[:place] + draw.choice(ODD) + text[place:]
        count = draw.choice([1, 2, 5, 20, 60])
        all_tokens = tokenizer.encode(text)
        assert tokenizer.encode_prefixes([text, "", text[:9]], count)[0] == all_tokens[:count]
        assert tokenizer([text], count)["input_ids"] == [all_tokens[:count]]
        cut += tokenizer.find_safe_cut(text, 24) < len(text)
    if name in ("bytes", "bpe", "pieces", "unigram"):
        assert cut > 200


@pytest.mark.parametrize("words", [2_000, pytest.param(200_000, marks=pytest.mark.slow)])
def test_the_reference_s_offsets_of_a_long_text_are_computed_in_time(words, tmp_path):
    """Test that offsets do not need a pass over the whole text for each token."""
    tokenizer = pieces("bpe")
    tokenizer.save(tmp_path)
    draw = random.Random(2)
    text = "é".join(draw.choices(WORDS, k=words))
    job = TokenizerJob("sentencepiece", [text], 0, str(tmp_path / "spiece.model"), True)
    script = (
        "import pickle, sys; from toolkit.parity.families.reformer import reference_tokens as t\n"
        "job = pickle.load(sys.stdin.buffer)\n"
    )
    script += "found = t.offsets(t._load_sentencepiece(job.path), job.texts[0])\n"
    script += "import json; print(json.dumps(found))"
    result = subprocess.run(
        [sys.executable, "-c", script], input=pickle.dumps(job), capture_output=True, timeout=60, cwd=ROOT, check=True
    )
    ids, spans = tokenizer.encode_with_offsets(text)
    assert json.loads(result.stdout) == [[index, *span] for index, span in zip(ids, spans, strict=True)]


def test_a_text_of_50_mb_is_checked_and_tokenized_in_little_memory(tmp_path):
    rows = [{"text": f"text {index}", "label": "ab"[index % 2]} for index in range(20)]
    rows.append({"text": "word " * 10_000_000, "label": "a"})
    (tmp_path / "t.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "x.yaml").write_text(
        "train: {epochs: 1, learning_rate: 1e-3}\nmodel: {config: {axial_pos_shape: [4, 16]}}\n"
        f"data: {{dataset: json, files: {{train: {tmp_path}/t.jsonl}}, max_length: 64, validation_fraction: 0.2}}\n"
    )
    script = (
        "import sys\nfrom toolkit.commands.bench.serve import resident_bytes\n"
        "from toolkit.recipe.load import load_recipe\n"
        "from toolkit.tasks.classification import task\n"
        "from toolkit.data.load import build_tokenizer\nrecipe = load_recipe(sys.argv[1])\n"
        "splits = task.load_splits(recipe)\n"
        "found = task.prepare(recipe, build_tokenizer(recipe), splits)\n"
        "print(sum(found.num_truncated.values()), resident_bytes('VmHWM') >> 20)"
    )
    result = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "x.yaml")], capture_output=True, text=True, timeout=120, cwd=ROOT
    )
    assert result.returncode == 0, result.stderr
    num_truncated, memory = map(int, result.stdout.split())
    assert num_truncated == 1
    assert memory < 1500, f"{memory} MiB"


def test_training_a_tokenizer_on_much_text_is_announced(tmp_path, capfd):
    (tmp_path / "x.yaml").write_text(
        "train: {epochs: 1, learning_rate: 1e-3}\ntokenizer: {kind: sentencepiece, vocab_size: 30}\n"
        "data: {dataset: csv, files: {train: t.csv}, max_length: 64}\n"
    )
    recipe = load_recipe(tmp_path / "x.yaml")
    build_tokenizer(recipe, [" ".join(WORDS)] * 20)
    assert capfd.readouterr().err == ""
    build_tokenizer(recipe, [" ".join(WORDS) + " "] * 50_000)
    assert "note: training a tokenizer of 30 pieces on 4,200,000 characters" in capfd.readouterr().err
