"""Test token classification, from files of each layout to the entities that a finished run finds."""

from __future__ import annotations

import csv
import io
import json
import random
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import yaml
from gates import copied_source, toolkit_in
from rich.console import Console
from seqeval.metrics import accuracy_score, f1_score, precision_score, recall_score

from toolkit.errors import UserError
from toolkit.machine import runtime
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.predictions import read_predictions, write_predictions
from toolkit.tasks.token_classification import conll, rows, tags
from toolkit.tasks.token_classification.linear_tagger import METHOD
from toolkit.tasks.token_classification.offsets import CHARACTERS
from toolkit.tasks.token_classification.report import report_sections
from toolkit.terminal.quiet import silence_startup

silence_startup()
runtime.configure_paddle("cpu")

from models.reformer.tokenizer import ByteTokenizer  # noqa: E402
from toolkit.commands.export.export import export_run  # noqa: E402
from toolkit.commands.label_file import label_file  # noqa: E402
from toolkit.commands.predict import evaluate, load_run, predict  # noqa: E402
from toolkit.commands.recipe_check import check_data  # noqa: E402
from toolkit.commands.recipe_new.recipe_new import new_recipe  # noqa: E402
from toolkit.commands.serve.requests import make_service  # noqa: E402
from toolkit.data.batches import trim_padding  # noqa: E402
from toolkit.finetune.finetune import finetune  # noqa: E402
from toolkit.finetune.model_config import check_model  # noqa: E402
from toolkit.tasks.token_classification import task as tokens  # noqa: E402
from toolkit.tasks.token_classification.windows import NO_POSITION, TaggedWindows  # noqa: E402

RECIPE = {
    "task": "token_classification",
    "model": {
        "config": {
            "attn_layers": ["local"],
            "hidden_size": 32,
            "num_attention_heads": 2,
            "attention_head_size": 16,
            "feed_forward_size": 32,
            "local_attn_chunk_length": 8,
            "local_num_chunks_after": 1,
            "axial_pos_embds_dim": [8, 24],
            "axial_norm_std": 0.02,
            "initializer_range": 0.15,
        }
    },
    "tokenizer": {"kind": "sentencepiece", "vocab_size": 60},
    "data": {"dataset": "text", "files": {"train": "train.conll", "test": "test.conll"}, "max_length": 32, "stride": 8,
             "validation_fraction": 0.2},
    "train": {"max_steps": 200, "batch_size": 8, "learning_rate": 1e-2, "eval_steps": 100},
}  # fmt: skip
#: A word is a person after "Mr" and a place after "in", so the word alone does not decide.
NAMES = ("Rome", "Paris", "Lee", "Oslo", "Kent")


def draw_sentence(draws: random.Random) -> list[tuple[str, str]]:
    tagged_words = []
    for _ in range(draws.randint(1, 4)):
        first, second = draws.sample(NAMES, 2)
        person = [("Mr", "O"), (first, "B-PER"), *([(second, "I-PER")] if draws.random() < 0.3 else [])]
        tagged_words += draws.choice([person, [("in", "O"), (first, "B-LOC")], [("so", "O"), ("and", "O")]])
    return tagged_words


def conll_text(sentences: list[list[tuple[str, str]]]) -> str:
    return "\n\n".join("\n".join(" ".join(pair) for pair in tagged_words) for tagged_words in sentences) + "\n"


def write_recipe(folder: Path) -> Path:
    draws = random.Random(0)
    for name, count in (("train", 250), ("test", 40)):
        (folder / f"{name}.conll").write_text(conll_text([draw_sentence(draws) for _ in range(count)]))
    (folder / "ner.yaml").write_text(yaml.safe_dump(RECIPE, sort_keys=False))
    return folder / "ner.yaml"


@pytest.fixture(scope="module")
def recipe_file(tmp_path_factory):
    return write_recipe(tmp_path_factory.mktemp("ner"))


@pytest.fixture(scope="module")
def run(recipe_file, tmp_path_factory):
    """Return the folder of a finished run with its gate, and its printed output."""
    folder, output = tmp_path_factory.mktemp("runs") / "ner", io.StringIO()
    recipe = load_recipe(recipe_file, [f"train.output_dir={folder}"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        return finetune(recipe, None, Console(file=output, width=200)), output.getvalue()


# -- tags -----------------------------------------------------------------------------------------------------------

IOB2 = ["B-PER", "I-PER", "B-PER", "O", "B-LOC", "I-LOC", "I-LOC", "B-PER", "O", "B-LOC"]
SCHEMES = {
    "IOB2": IOB2,
    "IOB1": ["I-PER", "I-PER", "B-PER", "O", "I-LOC", "I-LOC", "I-LOC", "I-PER", "O", "I-LOC"],
    "BIOES": ["B-PER", "E-PER", "S-PER", "O", "B-LOC", "I-LOC", "E-LOC", "S-PER", "O", "S-LOC"],
    "BILOU": ["B-PER", "L-PER", "U-PER", "O", "B-LOC", "I-LOC", "L-LOC", "U-PER", "O", "U-LOC"],
}


@pytest.mark.parametrize("mark", "ESLU")
def test_a_tag_after_the_end_of_an_entity_begins_another(mark):
    assert tags.iob2(["B-PER", f"{mark}-PER", "I-PER"])[2] == "B-PER"
    assert [entity[0] for entity in tags.entities([f"{mark}-PER", "I-PER", "I-PER"])] == [0, 1]


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_gives_the_same_entities(scheme):
    assert tags.iob2(SCHEMES[scheme]) == IOB2
    expected_entities = [(0, 2, "PER"), (2, 3, "PER"), (4, 7, "LOC"), (7, 8, "PER"), (9, 10, "LOC")]
    assert tags.entities(SCHEMES[scheme]) == expected_entities


def test_scores_equal_those_of_seqeval():
    draws, names = np.random.default_rng(0), ["O", "B-A", "I-A", "B-B", "I-B", "I-C"]
    for _ in range(30):
        sizes = draws.integers(1, 9, 12)
        true, predicted_tags = ([[names[n] for n in draws.integers(0, 6, size)] for size in sizes] for _ in range(2))
        predicted_tags = [
            true_tags if draws.random() < 0.4 else random_tags
            for true_tags, random_tags in zip(true, predicted_tags, strict=True)
        ]
        seqeval_functions = {
            "f1": f1_score,
            "precision": precision_score,
            "recall": recall_score,
            "accuracy": accuracy_score,
        }
        assert tags.score(true, predicted_tags) == pytest.approx(
            {name: of(true, predicted_tags) for name, of in seqeval_functions.items()}
        )
    zero_scores = {"f1": 0.0, "precision": 0.0, "recall": 0.0}
    assert tags.score([["O"]], [["O"]]) == {**zero_scores, "accuracy": 1.0} and tags.score([], []) == {
        **zero_scores,
        "accuracy": 0.0,
    }


# -- files and rows -------------------------------------------------------------------------------------------------


def test_conll_is_read_with_more_columns_comments_and_documents():
    text = "-DOCSTART- -X- -X- O\n\nEU NNP B-NP B-ORG\n# O\nruns VBZ B-VP O\n\n\n# id 7 domain=x\nNew York\tB-LOC\n \n"
    assert conll.read_sentences(text) == [(["EU", "#", "runs"], ["B-ORG", "O", "O"]), (["New York"], ["B-LOC"])]
    assert conll.looks_tagged(text) and not conll.looks_tagged("a O\nb O\n") and not conll.looks_tagged("a b\n")


@pytest.mark.parametrize(
    ("text", "error_pattern"),
    [
        ("a O\n\nb\n", "3: 'b' stands alone, without a tag"),
        ("The DT\n", "1: 'DT' is no tag; a line is a token and its tag"),
        ("1 a O\n2 b B-X\n\n1 c O\n", "1: the first column counts the tokens"),
    ],
)
def test_a_faulty_conll_file_is_refused_with_its_line(text, error_pattern):
    with pytest.raises(conll.ConllError, match=f"^{error_pattern}"):
        conll.read_sentences(text)


def test_tokens_become_a_text_and_spans_become_tags():
    tagged_text = rows.tag_row(["Ann", "Lee", "ran"], [1, 2, 0], {"0": "O", "1": "B-PER", "2": "I-PER"})
    assert (tagged_text.text, tagged_text.words, tagged_text.tags) == (
        "Ann Lee ran",
        [(0, 3), (4, 7), (8, 11)],
        ["B-PER", "I-PER", "O"],
    )
    chinese = rows.tag_row(list("他在北京。"), ["O", "O", "B-LOC", "I-LOC", "O"], {})
    assert chinese.text == "他在北京。" and chinese.words[2] == (2, 3)
    text = "In New York, Ann's."
    spans = [{"start": 13, "end": 16, "label": "PER"}, {"start": 3, "end": 11, "label": "LOC"}]
    doccano = [{"start_offset": span["start"], "end_offset": span["end"], "label": span["label"]} for span in spans]
    for entities in (spans, doccano, [list(span.values()) for span in spans], json.dumps(spans)):
        tagged_text = rows.tag_row(text, entities, {})
        assert [text[a:b] for a, b in tagged_text.words] == ["In", "New", "York", ",", "Ann", "'", "s", "."]
        assert (
            tagged_text.tags == ["O", "B-LOC", "I-LOC", "O", "B-PER", "O", "O", "O"]
            and not tagged_text.widened_entities
        )
    inside = rows.tag_row("Bobby and", [[0, 3, "PER"]], {})
    assert inside.tags == ["B-PER", "O"] and inside.widened_entities == [("Bob", "Bobby")]


@pytest.mark.parametrize(
    ("text", "label", "error_pattern"),
    [
        (["a", "b"], ["O"], "has 2 tokens and 1 tags"),
        (["a"], ["NN"], "has 'NN' as a tag"),
        (["a"], [3], "has '3' as a tag.*data.label_names says what numbers mean"),
        ([1], ["O"], "has a token that is no text"),
        ("ab", [[0, 3, "X"]], "has an entity from 0 to 3, in a text of 2 characters"),
        ("ab cd", [[0, 4, "X"], [3, 5, "Y"]], "has two entities at character 3"),
        ("ab", [[0, 1]], r"has \[0, 1\] as an entity"),
        ("ab", ["X"], "has 'X' as an entity"),
        ("ab", [{"start": 0, "end": 1, "tags": ["X"]}], "has {'start': 0, 'end': 1, 'tags': \\['X'\\]} as an entity"),
        ("ab", [{"start": 0, "end": 1, "labels": ["X", "Y"]}], "should be .* one label"),
        ("ab cd", [{"start": 0, "end": 2, "label": "X", "text": "xy"}], "has 'ab' at 0 to 2, not the entity 'xy'"),
        ("ab", None, "has no list of entities; write \\[\\] for a text without any"),
        ("ab", 1, "it should have a list of tokens and one of tags, or a text"),
    ],
)
def test_a_faulty_row_is_refused(text, label, error_pattern):
    with pytest.raises(ValueError, match=error_pattern):
        rows.tag_row(text, label, {})


#: Texts before a name, in which the counts of characters, UTF-16 units and bytes differ, or are equal.
PREFIXES = ("\U0001f600 ", "", "Zo\u00eb: ", "\U0001f389\U0001f389 ")


def rows_with_offsets(encoding: str | None, size: int, shifts: tuple[int, int], has_text: bool) -> list[tuple]:
    """Return 40 rows of a text, its only span in units of an encoding, and the entity."""
    rows_with_spans = []
    for number in range(40):
        name = ("Nils Lee", "Cork")[number % 2]
        text = f"{PREFIXES[number // 2 % 4]}the mayor of {name} met us {number}"
        start, end = text.index(name), text.index(name) + len(name)
        if encoding:
            start, end = (len(text[:place].encode(encoding)) // size for place in (start, end))
        span = {"start": start + shifts[0], "end": end + shifts[1], "label": "X"}
        rows_with_spans.append((text, [{**span, "text": name} if has_text else span], name))
    return rows_with_spans


def entity_texts(text: str, tagged_text: rows.TaggedText) -> list[str]:
    return [
        text[tagged_text.words[first][0] : tagged_text.words[end - 1][1]]
        for first, end, _ in tags.entities(tagged_text.tags)
    ]


@pytest.mark.parametrize("has_text", [True, False])
@pytest.mark.parametrize(
    ("encoding", "size", "shifts", "is_moved"),
    [
        (None, 1, (0, 0), False),
        (None, 1, (0, -1), True),
        (None, 1, (1, 1), True),
        ("utf-16-le", 2, (0, 0), True),
        ("utf-16-le", 2, (0, -1), True),
        ("utf-8", 1, (0, 0), True),
    ],
)
def test_offsets_are_found_in_every_counting_unit(encoding, size, shifts, is_moved, has_text):
    rows_with_spans = rows_with_offsets(encoding, size, shifts, has_text)
    counting = rows.counting_in([(text, spans) for text, spans, _ in rows_with_spans])
    read = [rows.tag_row(text, spans, {}, counting) for text, spans, _ in rows_with_spans]
    expected_entities = [[name] for _, _, name in rows_with_spans]
    assert [
        entity_texts(text, tagged_text) for (text, *_), tagged_text in zip(rows_with_spans, read, strict=True)
    ] == expected_entities
    assert any(tagged_text.moves for tagged_text in read) == is_moved


def test_entities_inside_words_are_not_taken_for_another_way_of_counting():
    texts = [f"Der Leipziger{number} ging nach Berlin" for number in range(40)]
    pairs = [(text, [[4, 11, "LOC"]]) for text in texts]
    assert rows.counting_in(pairs) == CHARACTERS


def test_moved_entities_are_counted_in_a_note(tmp_path):
    rows_with_spans = rows_with_offsets("utf-16-le", 2, (0, 0), True)
    lines = [json.dumps({"text": text, "entities": spans}) for text, spans, _ in rows_with_spans]
    (tmp_path / "train.jsonl").write_text("\n".join(lines))
    data = {"dataset": "json", "files": {"train": "train.jsonl"}, "max_length": 32, "stride": 8}
    settings = {**RECIPE, "data": {**data, "validation_fraction": 0.2}}
    (tmp_path / "ner.yaml").write_text(yaml.safe_dump(settings))
    recipe = load_recipe(tmp_path / "ner.yaml")
    tokens.load_splits(recipe)
    expected_note = "20 train entities are not where their offsets say and are found: 20 by offsets in UTF-16 units"
    assert any(note.startswith(expected_note) for note in recipe.findings.notes)


# -- windows --------------------------------------------------------------------------------------------------------


def test_each_word_is_labeled_once_at_its_first_token_far_from_the_edges():
    words = [f"w{number:03d}" for number in range(40)]
    text = " ".join(words)
    spans = [(5 * number, 5 * number + 4) for number in range(40)]
    labels = [number % 5 for number in range(40)]
    columns = [["", text, "ab"], [[], spans, [(0, 2)]], [[], labels, [3]]]
    windows = TaggedWindows(*columns, ByteTokenizer(), 50, 10, length=64, uses_cache=False)
    assert windows.text_of.tolist() == [1, 1, 1, 1, 1, 2] and windows.sizes.tolist() == [50, 50, 50, 50, 39, 2]
    for index in range(40):
        window, place = windows.window_of[index], windows.place_of[index]
        row = windows[window]
        assert row["labels"][place] == labels[index]
        assert bytes((row["input_ids"][place : place + 4] - 2).tolist()).decode() == words[index]
        assert (place >= 5 or window == 0) and (place < 45 or window == 4)
    window_rows = [windows[index] for index in range(len(windows))]
    assert sum((row["labels"] != -100).sum() for row in window_rows) == 41
    assert all((row["labels"][row["attention_mask"] == 0] == -100).all() for row in window_rows)
    predictions = np.stack([np.where(row["labels"] == -100, 0, row["labels"]) for row in window_rows])
    word_labels, shares = windows.of_words(predictions, np.ones(predictions.shape) / 2)
    assert [labels_of_text.tolist() for labels_of_text in word_labels] == [[], labels, [3]] and set(shares[1]) == {0.5}


def test_a_word_without_its_own_token_continues_the_previous_entity():
    one_token = SimpleNamespace(pad_token_id=0, encode_with_offsets=lambda text: ([7], [(0, len(text))]))
    windows = TaggedWindows(["don't"], [[(0, 3), (3, 4), (4, 5)]], None, one_token, 8, 2, uses_cache=False)
    assert windows.window_of.tolist() == [0, NO_POSITION, NO_POSITION]
    begin_labels, inside_labels, outside_labels = (
        windows.of_words(np.full((1, 8), n), np.ones((1, 8)))[0][0].tolist() for n in (3, 4, 0)
    )
    assert (begin_labels, inside_labels, outside_labels) == ([3, 4, 4], [4, 4, 4], [0, 0, 0])


def test_an_evaluation_omits_the_padding_of_labels():
    class Config:
        pad_token_id, model_type = 0, "ctrl"

    batch = {"input_ids": np.array([[5, 6, 0, 0]]), "attention_mask": np.array([[1, 1, 0, 0]])}
    labels = {"labels": np.array([[1, -100, -100, -100]]), "several": np.zeros((1, 4), np.float32)}
    cut = trim_padding({**batch, **labels}, Config())
    assert cut["labels"].shape == cut["input_ids"].shape != (1, 4) and cut["several"].shape == (1, 4)


# -- whole runs -----------------------------------------------------------------------------------------------------


def test_a_run_passes_its_gate_and_learns_like_a_linear_model(run):
    folder, output = run
    assert "PARITY" in output and "2 types of entities" in output
    results = json.loads((folder / "metrics.json").read_text())
    assert results["best"]["metric"] == "f1" and results["test"]["f1"] > 0.9
    assert results["baselines"][METHOD]["test"]["f1"] > 0.9 and METHOD in output
    low, high = results["intervals"]["test"]["f1"]
    assert low <= results["test"]["f1"] <= high
    assert evaluate(folder, Console(file=io.StringIO())) == pytest.approx(results["test"])
    read = list(read_predictions(folder / "predictions-test.csv"))
    counts = [[len(json.loads(row[name])) for row in read] for name in ("entities", "predicted_entities")]
    assert len(read) == 40 and sum(counts[1]) * results["test"]["precision"] == pytest.approx(
        sum(counts[0]) * results["test"]["recall"]
    )
    page, card = ((folder / name).read_text() for name in ("report.html", "README.md"))
    assert "Entities by type" in page and ">PER<" in page
    assert "pipeline_tag: token-classification" in card and 'head["classifier.weight"]' in card


def test_entities_of_a_text_and_of_a_file_equal_those_of_a_server(run, tmp_path):
    folder, _ = run
    output = io.StringIO()
    rows_of_test = list(read_predictions(folder / "predictions-test.csv"))[:3]
    texts = [*(row["text"] for row in rows_of_test), "so and", "in Rome " * 30]
    entities_by_text = predict(folder, Console(file=output, width=100), texts=texts)
    spans = [
        [(entity["start"], entity["end"], entity["label"], entity["text"]) for entity in expected_entities]
        for expected_entities in entities_by_text
    ]
    for row, expected_entities in zip(rows_of_test, spans, strict=False):
        assert expected_entities == [tuple(entity.values())[:4] for entity in json.loads(row["predicted_entities"])]
    assert all(
        text[start:end] == entity
        for text, expected_entities in zip(texts, spans, strict=True)
        for start, end, _, entity in expected_entities
    )
    assert entities_by_text[3] == [] and len(entities_by_text[4]) >= 25 and 0 < entities_by_text[4][0]["score"] <= 1
    assert "Rome" in output.getvalue() and "no entity: so and" in output.getvalue()
    source = tmp_path / "in.csv"
    with source.open("w", newline="") as file:
        csv.writer(file).writerows([["text"], *([text] for text in texts)])
    labeled_files = {}
    for kind in ("jsonl", "csv", "parquet"):
        target = label_file(folder, Console(file=io.StringIO()), source, tmp_path / f"out.{kind}", overwrite=False)
        labeled_files[kind] = target
    lines = [json.loads(line) for line in labeled_files["jsonl"].read_text().splitlines()]
    assert [[entity["text"] for entity in row["predicted_entities"]] for row in lines] == [
        [entity["text"] for entity in expected_entities] for expected_entities in entities_by_text
    ]
    with labeled_files["csv"].open(newline="") as file:
        assert [json.loads(row["predicted_entities"]) for row in csv.DictReader(file)] == [
            row["predicted_entities"] for row in lines
        ]
    service = make_service(load_run(folder))
    answer = service.answer({"text": texts}, lambda count: None)
    assert [row["predicted_entities"] for row in answer["predictions"]] == [row["predicted_entities"] for row in lines]


def test_a_page_without_any_entity_mentions_it(tmp_path):
    write_predictions(tmp_path / "x.csv", [{"row": 1, "text": "a", "entities": "[]", "predicted_entities": "[]"}])
    sections = [(section.title, *section.parts) for section in report_sections(tmp_path / "x.csv")]
    assert sections == [("Entities by type", "None in the data, and none found.")]


@pytest.mark.slow
@pytest.mark.parametrize("form", ["hf", "paddle", "onnx"])
def test_a_run_is_exported(run, tmp_path, form):
    if form == "onnx":
        pytest.importorskip("paddle2onnx")
        pytest.importorskip("onnxruntime")
    folder, _ = run
    export_dir = export_run(folder, form, tmp_path / form, Console(file=io.StringIO()), overwrite=False)
    about = json.loads((export_dir / "export.json").read_text())
    assert about["label_names"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"] and about["outputs"]


@pytest.mark.slow
def test_a_fault_in_the_head_stops_the_run_and_is_named(recipe_file, tmp_path):
    original_line = "logits = self.classifier(self.dropout(hidden_states))"
    edit = (original_line, f"{original_line} * 1.0001")
    source = copied_source(tmp_path, "models/reformer/modeling.py", edit)
    result = toolkit_in(source, "finetune", recipe_file, f"train.output_dir={tmp_path / 'run'}")
    assert result.returncode == 1 and "DRIFT" in result.stdout and "no training" in result.stderr, result.stderr


@pytest.mark.parametrize(
    ("overrides", "expected_error"),
    [
        (["data.stride=32"], "data.stride: windows of 32 tokens cannot overlap by 32; set at most a half"),
        (["data.label=[a, b]"], "data.label: several columns are for task classification"),
        (["data.files.train=wrong.conll"], "data.files.train: wrong.conll:2: 'DT' is no tag"),
        (["data.files.train=plain.conll"], "data.label: the train split has no entity"),
        (["data.validation_fraction=0.001"], "data.validation_fraction: 0.001 of 250 texts is 0"),
        (["model={name: ctrl}", "tokenizer={vocab_size: 50}"], "model.name: ctrl cannot do token_classification"),
        (["model.config.is_decoder=true", "model.config.local_num_chunks_after=0"], "needs each position to see"),
        (["train.save_best=macro_f1"], "'macro_f1' is not one of f1, precision, recall, accuracy, loss"),
    ],
)
def test_a_faulty_token_recipe_is_refused_at_its_line(recipe_file, monkeypatch, overrides, expected_error):
    monkeypatch.chdir(recipe_file.parent)
    (recipe_file.parent / "wrong.conll").write_text("a O\nThe DT\n")
    (recipe_file.parent / "plain.conll").write_text("a O\n\nb O\n")
    with pytest.raises(UserError, match=r"ner.yaml|command line") as error_info:
        recipe = load_recipe(recipe_file, overrides)
        check_model(recipe)
        check_data(recipe)
    assert expected_error in str(error_info.value)


# -- recipe new -----------------------------------------------------------------------------------------------------

LAYOUTS = {
    "set.bio": (conll_text([[("Ann", "S-PER"), ("ran", "O")], [("in", "O"), ("Rome", "S-LOC")]] * 9), {}),
    "set.txt": (conll_text([[("Ann", "I-PER"), ("ran", "O")], [("in", "O"), ("Rome", "I-LOC")]] * 9), {}),
    "spans.jsonl": (
        '{"text": "Ann ran", "spans": [[0, 3, "PER"]]}\n{"text": "in Rome", "spans": [[3, 7, "LOC"]]}\n' * 9,
        {"text": "text", "label": "spans"},
    ),
    "label_studio_min.json": (
        json.dumps(
            [
                {
                    "id": 1,
                    "text": "Ann ran",
                    "label": [{"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}],
                    "annotator": 1,
                },
                {
                    "id": 2,
                    "text": "in Rome",
                    "label": [{"start": 3, "end": 7, "text": "Rome", "labels": ["LOC"]}],
                    "annotator": 1,
                },
            ]
            * 9
        ),
        {"text": "text", "label": "label"},
    ),
    "label_studio.json": (
        json.dumps(
            [
                {
                    "id": 1,
                    "data": {"text": "Ann ran"},
                    "annotations": [
                        {
                            "id": 1,
                            "result": [
                                {"type": "labels", "value": {"start": 0, "end": 3, "text": "Ann", "labels": ["PER"]}}
                            ],
                        }
                    ],
                },
                {
                    "id": 2,
                    "data": {"text": "in Rome"},
                    "annotations": [
                        {
                            "id": 1,
                            "result": [
                                {"type": "labels", "value": {"start": 3, "end": 7, "text": "Rome", "labels": ["LOC"]}}
                            ],
                        }
                    ],
                },
            ]
            * 9
        ),
        {"text": "data.text", "label": "annotations"},
    ),
    "dataturks.json": (
        '{"content": "Ann ran", "annotation": [{"label": ["PER"], "points": [{"start": 0, "end": 2, "text": "Ann"}]}], '
        '"extras": null}\n'
        '{"content": "in Rome", "annotation": [{"label": ["LOC"],'
        ' "points": [{"start": 3, "end": 6, "text": "Rome"}]}], '
        '"extras": null}\n' * 9,
        {"text": "content", "label": "annotation"},
    ),
    "pairs.json": (
        json.dumps([["Ann ran", {"entities": [[0, 3, "PER"]]}], ["in Rome", {"entities": [[3, 7, "LOC"]]}]] * 9),
        {"columns": ["column1", "column2"], "text": "column1", "label": "column2.entities"},
    ),
    "rows.jsonl": (
        '{"tokens": ["Ann", "ran"], "pos": ["B-X", "O"], "ner_tags": ["B-PER", "O"]}\n'
        '{"tokens": ["in", "Rome"], "pos": ["B-X", "O"], "ner_tags": ["O", "B-LOC"]}\n' * 9,
        {"text": "tokens", "label": "ner_tags"},
    ),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_recipe_is_written_for_each_layout(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    content, columns = LAYOUTS[name]
    (tmp_path / name).write_text(content)
    new_files = new_recipe(tmp_path / name)
    recipe = load_recipe(new_files.paths[0])
    assert recipe.task == "token_classification" and "18 entities of 2 types (PER 9, LOC 9)" in " ".join(
        new_files.assumed
    )
    assert {key: getattr(recipe.data, key) for key in columns} == columns
    splits = tokens.load_splits(recipe)
    assert tags.types_of(splits["train"]["tags"][:]) == ["LOC", "PER"]
    assert not [note for note in recipe.findings.notes if "entities" in note]


@pytest.mark.parametrize(
    ("entities", "error_pattern"),
    [
        ([[0, 3, "PER"], [1, 3, "NAME"]], "row 3 of the train split has two entities at character 1"),
        ([[4, 8, "PER"]], "row 3 of the train split has an entity from 4 to 8, in a text of 7 characters; correct"),
        (None, r"row 3 of the train split has no list of entities; write \[\]"),
    ],
)
def test_one_wrong_row_of_entities_is_named(tmp_path, entities, error_pattern):
    valid_rows = [{"text": "Ann ran", "label": [[0, 3, "PER"]]}] * 20
    lines = [*valid_rows[:2], {"text": "Ann ran", "label": entities}, *valid_rows]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, lines)))
    with pytest.raises(UserError, match=error_pattern):
        new_recipe(tmp_path / "set.jsonl", tmp_path / "new.yaml")


def test_the_nearest_column_is_reported_with_its_faulty_row(tmp_path):
    lines = [{"text": f"Ann ran {number}", "marks": [{"from": 0, "to": 3, "kind": "PER"}]} for number in range(9)]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, lines)))
    error_pattern = r"with text and marks, the first row that does not fit has \{'from': 0, .* as an entity"
    with pytest.raises(UserError, match=error_pattern):
        new_recipe(tmp_path / "set.jsonl", tmp_path / "new.yaml", "token_classification")


@pytest.mark.parametrize(
    ("name", "content", "task", "error_pattern"),
    [
        ("set.conll", "Ann B-PER\nran\n", None, "set.conll:2: 'ran' stands alone"),
        ("set.csv", "text,label\na b,x\nc d,y\n", "token_classification", "wants a token and its tag on each line"),
    ],
)
def test_other_files_are_refused(tmp_path, name, content, task, error_pattern):
    (tmp_path / name).write_text(content)
    with pytest.raises(UserError, match=error_pattern):
        new_recipe(tmp_path / name, tmp_path / "new.yaml", task)
    assert not (tmp_path / "new.yaml").exists()
