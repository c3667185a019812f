"""Test that the port's tokenizers give the reference's ids.

The reference runs in a separate process, because the process of the tests does not import torch.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import sentencepiece

from models.reformer.tokenizer import ByteTokenizer, ReformerTokenizer, load_tokenizer, train_sentencepiece

ADVERSARIAL = [
    "",
    " ",
    "   leading",
    "trailing   ",
    "two  spaces   three",
    "tab\tnew\nline\r\nreturn",
    "nul \x00 bell \x07 escape \x1b delete \x7f",
    "combining e\u0301 a\u030a\u0323 \u0301alone",
    "precomposed é å ﬁ ﬂ Ⅷ ① ｆｕｌｌ ½",
    "emoji 👩‍👩‍👧‍👦 🇫🇮 👍🏽 🏴󠁧󠁢󠁥󠁮󠁧󠁿",
    "שלום עולם مرحبا بالعالم \u202eoverride\u202c",
    "zero\u200bwidth\u200c\u200d\ufeffjoiner",
    "日本語のテキスト 中文文本 한국어 텍스트",
    "x" * 3000,
    "word" * 700 + " end",
    "before</s>after",
    " </s> spaced </s> ",
    "</s></s>",
    "<unk> and <unk><unk>",
    "<s> <pad> < unk > </s",
    "▁ ▁▁ a▁b",
    "ŝĉĝ unknown ŝŝŝ",
    "\ufffd replacement \ue000 private \U0010ffff last",
    "1234567890 3.14 1e-12",
    "!?.,;:'\"()[]{}",
    "\u00a0no\u2003break\u3000ideographic",
]

REFERENCE = """
import json, sys
from transformers import ReformerTokenizer
job = json.load(open(sys.argv[1]))
theirs = ReformerTokenizer.from_pretrained(job["folder"]) if job.get("folder") else ReformerTokenizer(job["model"])
ids = [theirs(text)["input_ids"] for text in job["texts"]]
result = {"ids": ids, "vocab_size": theirs.vocab_size, "eos": theirs.eos_token_id, "unk": theirs.unk_token_id}
result["decoded"] = [theirs.decode(row) for row in ids]
result["decoded_plain"] = [theirs.decode(row, skip_special_tokens=True) for row in ids]
theirs.pad_token = "<unk>"  # the reference has none of its own; id 0 is the model's pad_token_id
for side in ("left", "right"):
    theirs.padding_side = side
    batch = theirs(job["texts"], max_length=job["max_length"], padding="max_length", truncation=True)
    result[side] = {key: batch[key] for key in ("input_ids", "attention_mask")}
print(json.dumps(result))
"""


def run_reference(tmp_path: Path, **job) -> dict:
    """Run transformers.ReformerTokenizer on the job's texts in a separate process, and return its results."""
    pytest.importorskip("sentencepiece")
    (tmp_path / "job.json").write_text(json.dumps(job))
    command = [sys.executable, "-c", REFERENCE, str(tmp_path / "job.json")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named 'transformers'" in process.stderr:
        pytest.skip("transformers is not installed (extra: reference)")
    assert process.returncode == 0, process.stderr
    return json.loads(process.stdout.splitlines()[-1])


def assert_equal_to_the_reference(ours: ReformerTokenizer, theirs: dict, texts: list[str], max_length: int) -> None:
    assert ours.vocab_size == theirs["vocab_size"]
    ids = ours(texts)["input_ids"]
    for text, mine, reference_ids in zip(texts, ids, theirs["ids"], strict=True):
        assert mine == reference_ids, text[:80]
    assert [ours.decode(row) for row in ids] == theirs["decoded"]
    assert [ours.decode(row, skip_special_tokens=True) for row in ids] == theirs["decoded_plain"]
    for side in ("left", "right"):
        batch = ours(texts, max_length=max_length, padding="max_length", padding_side=side)
        for key in ("input_ids", "attention_mask"):
            assert batch[key].dtype == np.int64 and batch[key].shape == (len(texts), max_length)
            assert batch[key].tolist() == theirs[side][key]


@pytest.fixture(scope="module")
def sentences() -> list[str]:
    """Text that exists on every machine: the source of Python's standard library."""
    modules = [sys.modules[name] for name in ("argparse", "json", "subprocess", "re", "os") if name in sys.modules]
    return [line for module in modules for line in Path(module.__file__).read_text().splitlines() if line.strip()]


@pytest.fixture(scope="module")
def trained_folder(sentences, tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("trained")
    train_sentencepiece(sentences, 300, folder)
    return folder


def test_a_trained_tokenizer_gives_the_references_ids(trained_folder, sentences, tmp_path):
    texts = ADVERSARIAL + sentences[:300]
    theirs = run_reference(tmp_path, folder=str(trained_folder), texts=texts, max_length=24)
    assert_equal_to_the_reference(load_tokenizer(trained_folder), theirs, texts, 24)


@pytest.mark.shared_data
def test_the_published_tokenizer_gives_the_references_ids(shared_data, tmp_path):
    model = shared_data / "reformer-tokenizer" / "spiece.model"
    texts = ADVERSARIAL + (shared_data / "text" / "dracula.txt").read_text().splitlines()[:2000]
    theirs = run_reference(tmp_path, model=str(model), texts=texts, max_length=24)
    assert_equal_to_the_reference(ReformerTokenizer.from_file(model), theirs, texts, 24)


@pytest.mark.shared_data
def test_the_published_tokenizer_gives_the_documented_ids(shared_data):
    ours = ReformerTokenizer.from_file(shared_data / "reformer-tokenizer" / "spiece.model")
    for vector in json.loads((shared_data / "reformer-tokenizer" / "vectors.json").read_text()):
        assert ours.encode(vector["text"]) == vector["ids"]


def test_a_word_spelled_like_a_control_token_has_the_references_id(tmp_path):
    """A vocabulary without <, s and > reads "<s>" as one unknown piece, which is spelled like the control token."""
    train_sentencepiece(["ab ba abba baab"] * 50, 8, tmp_path)
    texts = ["<s>", "a <s> b", "<s><s>", "zzz"]
    theirs = run_reference(tmp_path, folder=str(tmp_path), texts=texts, max_length=8)
    assert_equal_to_the_reference(load_tokenizer(tmp_path), theirs, texts, 8)


def test_no_text_of_a_data_set_can_stop_a_run(trained_folder):
    for tokenizer in (load_tokenizer(trained_folder), ByteTokenizer()):
        for text in [*ADVERSARIAL, "lone \ud800 surrogate \udfff"]:
            ids, spans = tokenizer.encode_with_offsets(text)
            assert ids == tokenizer.encode(text)
            assert len(ids) == len(spans)
            assert all(0 <= index < tokenizer.vocab_size for index in ids)


def test_byte_ids_equal_the_model_card():
    """Check encode and decode of the model card of google/reformer-enwik8: id = byte + 2, and 0 is padding."""
    texts = ["In 1965, Brooks left IBM", "näin 日本"]
    batch = ByteTokenizer()(texts, max_length=30, padding="max_length")
    for text, ids, mask in zip(texts, batch["input_ids"], batch["attention_mask"], strict=True):
        card = [byte + 2 for byte in text.encode()]
        assert ids.tolist() == card + [0] * (30 - len(card))
        assert mask.tolist() == [1] * len(card) + [0] * (30 - len(card))
    assert ByteTokenizer.vocab_size == 258


def test_bytes_survive_a_round_trip():
    tokenizer = ByteTokenizer()
    for text in [*ADVERSARIAL, "lone \ud800 surrogate"]:
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert tokenizer.decode([0, 1, *tokenizer.encode("né")[:-1], 0]) == "n\ufffd"


def test_offsets_are_the_characters_of_a_token(trained_folder):
    text = "  Hello  wörld</s> 日本"
    for tokenizer in (ByteTokenizer(), load_tokenizer(trained_folder)):
        _, spans = tokenizer.encode_with_offsets(text)
        assert all(0 <= start <= end <= len(text) for start, end in spans)
        covered_indices = {index for start, end in spans for index in range(start, end)}
        assert covered_indices >= {index for index, character in enumerate(text) if not character.isspace()}
    ids, spans = ByteTokenizer().encode_with_offsets("é!")
    assert spans == [(0, 1), (0, 1), (1, 2)] and len(ids) == 3
    ids, spans = tokenizer.encode_with_offsets(text)
    assert [text[start:end] for start, end in spans].count("</s>") == 1
    assert "".join(text[start:end] for start, end in spans) == "Hellowörld</s>日本"


def test_offsets_are_exact_if_normalization_changes_the_length(trained_folder):
    """Check texts whose length normalization changes; later offsets must not shift.

    NFKC turns a ligature into two letters, a letter and its accent into one letter, and many spaces into one. The words
    of a sentence are found by their tokens, whatever precedes them.
    """
    text = "The ﬁrst  ½ e\u0301t\u0301 \u200b\u3000ｆｕｌｌ １２ \u212b…  ㎏ x\u0323\u0301 parser, it said: argument."
    for tokenizer in (ByteTokenizer(), load_tokenizer(trained_folder)):
        _, spans = tokenizer.encode_with_offsets(text)
        for word in ("The", "ﬁrst", "e\u0301t\u0301", "ｆｕｌｌ", "parser", "said", "argument"):
            start, end = text.index(word), text.index(word) + len(word)
            tokens = [span for span in spans if span[0] < end and span[1] > start]
            assert text[tokens[0][0] : tokens[-1][1]] == word
        assert [start for start, _ in spans] == sorted(start for start, _ in spans)


def test_a_control_character_before_a_word_is_not_part_of_it(trained_folder):
    """Normalization drops it like a blank, and answers are cut out of the text with these spans."""
    ids, spans = load_tokenizer(trained_folder).encode_with_offsets("\x01the \x02\x7fparser")
    text = "\x01the \x02\x7fparser"
    assert "".join(text[start:end] for start, end in spans) == "theparser" and len(ids) == len(spans)


def test_offsets_equal_those_from_sentencepiece(trained_folder, sentences):
    """SentencePiece counts bytes, with the space in front; special tokens are removed before it sees the text."""
    model = load_tokenizer(trained_folder)
    pieces = sentencepiece.SentencePieceProcessor(model_proto=model.model)
    for text in [*(text for text in ADVERSARIAL if "</s>" not in text and "<unk>" not in text), *sentences[:300]]:
        theirs = pieces.encode(text, out_type="proto").pieces
        ids, spans = model.encode_with_offsets(text)
        assert ids == pieces.piece_to_id([piece.piece for piece in theirs])
        for piece, (start, end) in zip(theirs, spans, strict=True):
            surface = text.encode()[piece.begin : piece.end].decode()
            assert surface.endswith(text[start:end]) and len(text[:end].encode()) == piece.end
            assert not pieces.normalize(surface.removesuffix(text[start:end])).strip(" \u2581")


OFFSETS = """
import json, sys
from transformers import ReformerTokenizer
from transformers.convert_slow_tokenizer import convert_slow_tokenizer
job = json.load(open(sys.argv[1]))
theirs = convert_slow_tokenizer(ReformerTokenizer(job["model"]))
found = [theirs.encode(text) for text in job["texts"]]
print(json.dumps([[row.ids, row.offsets] for row in found]))
"""


@pytest.mark.shared_data
def test_offsets_equal_the_references_fast_tokenizer_on_real_text(shared_data, tmp_path):
    """The slow tokenizer, which the port follows, has no offsets.

    The fast tokenizer counts the space in front of a word as part of the word. The space that it adds before a text
    gets the position of the first character. Otherwise they agree.
    """
    model = shared_data / "reformer-tokenizer" / "spiece.model"
    articles = json.loads((shared_data / "squad" / "dev-v1.1.json").read_text())["data"][::4]
    texts = [paragraph["context"] for article in articles for paragraph in article["paragraphs"]]
    (tmp_path / "job.json").write_text(json.dumps({"model": str(model), "texts": texts}))
    command = [sys.executable, "-c", OFFSETS, str(tmp_path / "job.json")]
    process = subprocess.run(command, capture_output=True, text=True, check=False)
    if "No module named 'transformers'" in process.stderr:
        pytest.skip("transformers is not installed (extra: reference)")
    assert process.returncode == 0, process.stderr
    ours = ReformerTokenizer.from_file(model)
    for text, (ids, offsets) in zip(texts, json.loads(process.stdout.splitlines()[-1]), strict=True):
        mine, spans = ours.encode_with_offsets(text)
        assert mine == ids
        for index, ((start, end), theirs) in enumerate(zip(spans, offsets, strict=True)):
            if index or ours.decode([mine[0]]):
                assert text[slice(*theirs)].lstrip() == text[start:end] and theirs[1] == end


def test_texts_are_truncated_and_padded(trained_folder):
    tokenizer = load_tokenizer(trained_folder)
    long, short = tokenizer.encode("the arguments of the parser"), tokenizer.encode("the")
    batch = tokenizer(["the arguments of the parser", "the"], max_length=4)
    assert batch["input_ids"] == [long[:4], short]
    with pytest.raises(ValueError, match="not to be cut"):
        tokenizer(["the arguments of the parser"], max_length=2, padding="max_length", truncation=False)
    with pytest.raises(ValueError, match="needs max_length"):
        tokenizer(["a"], padding="max_length")
    with pytest.raises(TypeError, match="list of texts"):
        tokenizer("a")


def test_a_saved_tokenizer_is_the_same_tokenizer(trained_folder, tmp_path):
    for name, tokenizer in (("bytes", ByteTokenizer()), ("pieces", load_tokenizer(trained_folder))):
        (tmp_path / name).mkdir()
        tokenizer.save(tmp_path / name)
        loaded_tokenizer = load_tokenizer(tmp_path / name)
        assert loaded_tokenizer.fingerprint() == tokenizer.fingerprint()
        assert loaded_tokenizer(ADVERSARIAL)["input_ids"] == tokenizer(ADVERSARIAL)["input_ids"]
    assert ByteTokenizer().fingerprint() != load_tokenizer(trained_folder).fingerprint()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ('{"additional_special_tokens": ["<x>"]}', "additional_special_tokens"),
        ('{"added_tokens_decoder": {"9": {"content": "<x>"}}}', "'<x>'"),
        ('{"added_tokens_decoder": {"0": {"content": "<unk>", "lstrip": true}}}', "lstrip"),
        ('{"eos_token": "<end>"}', "'<end>' is not one of"),
        ("{", "is not JSON"),
        ("[]", "is not a JSON object"),
    ],
)
def test_settings_that_would_change_ids_are_rejected(trained_folder, tmp_path, settings, message):
    load_tokenizer(trained_folder).save(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(settings)
    with pytest.raises(ValueError, match=message):
        load_tokenizer(tmp_path)


def test_a_folder_without_a_tokenizer_is_rejected(tmp_path):
    with pytest.raises(ValueError, match="holds no tokenizer"):
        load_tokenizer(tmp_path)
    for junk in (b"", b"not a model"):
        with pytest.raises(ValueError, match="not a SentencePiece model"):
            ReformerTokenizer(junk)


def test_training_is_repeatable_and_uses_long_documents_completely(sentences, tmp_path):
    document = " ".join(sentences)  # one line far beyond SentencePiece's limit of 4192 bytes
    first = train_sentencepiece([document], 200, tmp_path / "first")
    second = train_sentencepiece([document], 200, tmp_path / "second")
    assert first.vocab_size == 200
    assert first.fingerprint() == second.fingerprint()
    assert [first.decode([index]) for index in range(3)] == ["<unk>", "", "</s>"]


@pytest.mark.parametrize(("texts", "size"), [(["abc"], 500), ([], 50), ([" ", ""], 50), (["abcdefghijkl"], 5)])
def test_texts_too_short_for_a_vocabulary_are_reported_with_a_reason(texts, size, tmp_path):
    with pytest.raises(ValueError, match="cannot train"):
        train_sentencepiece(texts, size, tmp_path)
    assert not list(tmp_path.iterdir())


def test_the_tokenizer_needs_no_framework():
    code = "import sys, models.reformer.tokenizer; print([m for m in ('paddle', 'torch') if m in sys.modules])"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout.strip() == "[]"
