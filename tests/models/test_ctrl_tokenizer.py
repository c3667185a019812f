"""Test that CTRL's tokenizer gives the reference's ids, and that a small vocabulary can be trained in its format."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from soak import some

from models.ctrl.tokenizer import CTRLTokenizer, load_tokenizer, merge_symbols, train_bpe
from toolkit.parity.inputs.tokenizer_texts import ADVERSARIAL

#: In addition to the gate's adversarial texts: special cases of words, line breaks and pieces.
SPECIAL_CASES = (
    "Books\nA tale\n\n of  two\ncities.\r\n\tend\n",
    "\n\n leading breaks",
    "<unk>", "a<unk>b <unk><unk>\n<unk>", "</w> a</w> w@@ @@ @@ @@@ a@@\n",
    "a", "\u00a0", "no\u00a0break\u2003spaces\u3000here", "x\x1cy\x85z", "Wikipedia Links Horror multilingual",
    "aaaaaaa aaaaaaaa abababab\n", "zq" * 700, "https://www.example.com/a/b?c=d#e\n",
)  # fmt: skip

REFERENCE = """
import json, sys
from transformers import CTRLTokenizer
job = json.load(open(sys.argv[1]))
theirs = CTRLTokenizer.from_pretrained(job["folder"])
if theirs.pad_token is None:
    theirs.pad_token = theirs.unk_token
ids = [theirs(text)["input_ids"] for text in job["texts"]]
result = {
    "vocab_size": len(theirs), "ids": ids,
    "decoded": [theirs.decode(row) for row in ids],
    "decoded_plain": [theirs.decode(row, skip_special_tokens=True) for row in ids],
    "single": [theirs.decode([index]) for index in job["indices"]],
}
for side in ("left", "right"):
    theirs.padding_side = side
    batch = theirs(job["texts"], max_length=20, padding="max_length", truncation=True)
    result[side] = {key: batch[key] for key in ("input_ids", "attention_mask")}
json.dump(result, open(sys.argv[2], "w"))
"""


def assert_equal_to_the_reference(folder: Path, texts: list[str], tmp_path: Path) -> CTRLTokenizer:
    """Compare ids, decoding, padding and truncation with transformers, which runs in a separate process."""
    ours = load_tokenizer(folder)
    indices = [0, 1, 7, ours.vocab_size - 1, ours.vocab_size, 10**7, ours.pad_token_id]
    (tmp_path / "job.json").write_text(json.dumps({"folder": str(folder), "texts": texts, "indices": indices}))
    files = [str(tmp_path / name) for name in ("job.json", "result.json")]
    process = subprocess.run([sys.executable, "-c", REFERENCE, *files], capture_output=True, text=True, check=False)
    if "No module named 'transformers'" in process.stderr:
        pytest.skip("transformers is not installed (extra: reference)")
    assert process.returncode == 0, process.stderr
    theirs = json.loads((tmp_path / "result.json").read_text())
    assert ours.vocab_size == theirs["vocab_size"]
    ids = ours(texts)["input_ids"]
    for text, mine, reference_ids in zip(texts, ids, theirs["ids"], strict=True):
        assert mine == reference_ids, text[:80]
    assert [ours.decode(row) for row in ids] == theirs["decoded"]
    assert [ours.decode(row, skip_special_tokens=True) for row in ids] == theirs["decoded_plain"]
    assert [ours.decode([index]) for index in indices] == theirs["single"]
    for side in ("left", "right"):
        batch = ours(texts, max_length=20, padding="max_length", padding_side=side)
        assert {key: value.tolist() for key, value in batch.items()} == theirs[side]
    return ours


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Text that exists on every machine: the source of Python's standard library."""
    modules = [sys.modules[name] for name in ("argparse", "json", "subprocess", "re", "os")]
    return [line for module in modules for line in Path(module.__file__).read_text().splitlines(keepends=True)]


@pytest.fixture(scope="module")
def trained_folder(sentences, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_bpe(sentences, 900, folder, ["Statements", "Types", "Zyzzyva"])
    return folder


def test_a_trained_tokenizer_gives_the_references_ids(trained_folder, sentences, tmp_path):
    texts = [*ADVERSARIAL, *SPECIAL_CASES, *sentences[:300], "".join(sentences[:500])]
    assert_equal_to_the_reference(trained_folder, texts, tmp_path)


@pytest.mark.slow
@pytest.mark.shared_data
def test_the_published_tokenizer_gives_the_references_ids(shared_data, tmp_path):
    """Compare WikiText and a novel, each as one text and split into lines."""
    names = some(["crime_and_punishment", "dracula", "wikitext2_test", "wikitext2_valid"])
    full_texts = [(shared_data / "text" / f"{name}.txt").read_text(encoding="utf-8") for name in names]
    texts = [
        *ADVERSARIAL,
        *SPECIAL_CASES,
        *full_texts,
        *(line for text in full_texts for line in text.splitlines()[:200]),
    ]
    ours = assert_equal_to_the_reference(shared_data / "ctrl-tokenizer", texts, tmp_path)
    assert ours.vocab_size == 246534


@pytest.mark.shared_data
def test_control_codes_of_the_published_vocabulary_are_single_tokens(shared_data):
    ours = load_tokenizer(shared_data / "ctrl-tokenizer")
    for line in (shared_data / "ctrl-tokenizer" / "control_codes.txt").read_text().splitlines():
        code = line.split()[1]
        assert ours.encode(f"{code} Once")[0] == ours.control_code(code)
    assert ours.control_code("Wikipedia") == 37583


def test_a_control_code_that_is_not_a_whole_word_is_rejected(trained_folder):
    ours = load_tokenizer(trained_folder)
    assert ours.decode([ours.control_code("Zyzzyva")]) == "Zyzzyva"
    for code in ("Zyzzyvas", "two words", "", "<unk>", "\u2603"):
        with pytest.raises(ValueError, match="is no control code"):
            ours.control_code(code)


def test_a_saved_tokenizer_is_the_same_and_pads_in_transformers(trained_folder, tmp_path):
    ours = load_tokenizer(trained_folder)
    ours.save(tmp_path)
    loaded_tokenizer = load_tokenizer(tmp_path)
    assert loaded_tokenizer.fingerprint() == ours.fingerprint()
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["pad_token"] == "<unk>"
    batch = ours(["a b"], max_length=6, padding="max_length")
    assert batch["attention_mask"].tolist() == [[1, 1, 0, 0, 0, 0]] and ours.pad_token_id == ours.encode("<unk>")[0]


def test_another_vocabulary_has_another_fingerprint(sentences, trained_folder, tmp_path):
    assert train_bpe(sentences, 901, tmp_path, []).fingerprint() != load_tokenizer(trained_folder).fingerprint()


def test_training_is_repeatable_and_exact_in_size(sentences, trained_folder, tmp_path):
    second_tokenizer = train_bpe(sentences, 900, tmp_path, ["Statements", "Types", "Zyzzyva"])
    assert (
        second_tokenizer.vocab_size == 900
        and second_tokenizer.fingerprint() == load_tokenizer(trained_folder).fingerprint()
    )


def test_training_texts_survive_a_round_trip_without_unknown_tokens(sentences, trained_folder):
    ours = load_tokenizer(trained_folder)
    for line in sentences[:500]:
        assert ours.decode(ours.encode(line)) == " ".join(line.split())


def test_offsets_are_the_positions_of_the_pieces(trained_folder):
    ours = load_tokenizer(trained_folder)
    text = "Types of  unbelievable\u00a0things\n<unk>a\n b"
    ids, spans = ours.encode_with_offsets(text)
    assert ids == ours.encode(text)
    assert [text[start:end] for start, end in spans] == [ours.decode([i]).removesuffix("@@") or "\n" for i in ids]


@pytest.mark.parametrize(
    ("texts", "size", "codes", "message"),
    [
        (["some words of text " * 20], 12, [], "12 pieces are too few: the characters and control codes alone need"),
        (["aaaaa bb aaaaa bbbbb " * 5], 100, [], "cannot train 100 pieces on these texts: they give"),
        (["", " "], 100, [], "they are empty"),
        (["a b c"], 100, ["two words"], "'two words' cannot be a control code"),
    ],
)
def test_an_impossible_vocabulary_is_reported_with_a_reason(tmp_path, texts, size, codes, message):
    with pytest.raises(ValueError, match=message):
        train_bpe(texts, size, tmp_path, codes)


def test_a_very_long_word_is_merged_like_a_short_word():
    ranks = {("a", "a"): 0, ("aa", "aa"): 1, ("b", "a"): 2, ("aaaa", "a</w>"): 3}
    assert merge_symbols([*"baaaa", "a</w>"], ranks) == ["b", "aaaaa</w>"]
    assert merge_symbols(["a"] * 5, ranks) == ["aaaa", "a"]
    assert len(merge_symbols(["a"] * 400_001, ranks)) == 100_001


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"vocab.json": "{}"}, r"there is no merges\.txt"),
        ({"vocab.json": "{}", "merges.txt": ""}, r"merges\.txt is empty"),
        ({"vocab.json": "[]", "merges.txt": "#version: 0.1\n"}, "is not a JSON object"),
        ({"vocab.json": "{", "merges.txt": "#version: 0.1\n"}, r"vocab\.json is not JSON"),
        ({"vocab.json": '{"a": 0, "b": 2}', "merges.txt": "#version: 0.1\n"}, "is not a mapping of pieces"),
        ({"vocab.json": '{"a": 0}', "merges.txt": "#version: 0.1\n"}, "special token '<unk>' is not one of"),
        (
            {
                "vocab.json": '{"<unk>": 0}',
                "merges.txt": "#version: 0.1\n",
                "tokenizer_config.json": '{"eos_token": "</s>"}',
            },
            "the special token '</s>' is not supported",
        ),
    ],
)
def test_a_folder_without_a_tokenizer_is_rejected(tmp_path, files, message):
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)
