"""Test the reports of a run: the predictions of each example, `report.html`, and the header of the model card."""

from __future__ import annotations

import csv
import html
import io
import json
import math
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
import test_train
import yaml
from huggingface_hub import ModelCard
from rich.console import Console

from toolkit import cli
from toolkit.errors import UserError
from toolkit.finetune.finetune import finetune
from toolkit.finetune.report.curves import curves
from toolkit.finetune.report.page import page
from toolkit.pages.bins import named_bins
from toolkit.pages.elements import MAX_LENGTH, excerpt, format_same_decimals, hide_folders, render_page
from toolkit.pages.plot import MAX_POINTS, Series, draw_lines
from toolkit.recipe.load import load_recipe
from toolkit.run_folder.predictions import read_predictions, write_predictions
from toolkit.tasks.classification import report as classification
from toolkit.tasks.language_modeling import report as language_modeling
from toolkit.tasks.question_answering import report as question_answering
from toolkit.training.trainer import Finetuner

LABELS = ("</script><script>alert(1)</script>", "<img src=http://x.test/a onerror=alert(2)>", 'a,"b"\n\x1b[31m', "=1+1")
SCORES = {"loss", "accuracy", "macro_f1"}


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> tuple[Path, list[str]]:
    """Return a finished run whose labels and texts would break a page, and its evaluations in order."""
    folder = tmp_path_factory.mktemp("report")
    for split_name, count in (("train", 8), ("validation", 3), ("test", 5)):
        with (folder / f"{split_name}.csv").open("w", newline="") as file:
            rows = csv.writer(file)
            rows.writerow(["text", "label"])
            rows.writerows([f"{label} text {number}\r\n" * 9, label] for number in range(count) for label in LABELS)
    values = {**test_train.RECIPE, "data": {**test_train.RECIPE["data"]}, "train": {**test_train.RECIPE["train"]}}
    # The first step is at rate 0, the second spoils the weights: the best evaluation is not the last evaluation.
    values["train"] |= {"max_steps": 2, "eval_steps": 1, "learning_rate": 1.0, "save_best": "loss"}
    values["card"] = {"license": "apache-2.0", "language": ["de", "zh"]}
    (folder / "x.yaml").write_text(yaml.safe_dump(values))
    evaluated_splits = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("TOOLKIT_CACHE", str(tmp_path_factory.mktemp("cache")))
        evaluate = Finetuner.evaluate

        def recording_evaluate(self, *arguments, **options):
            evaluated_splits.append(options.get("metric_key_prefix", "validation"))
            return evaluate(self, *arguments, **options)

        patch.setattr(Finetuner, "evaluate", recording_evaluate)
        recipe = load_recipe(folder / "x.yaml", [f"train.output_dir={folder / 'run'}"])
        return finetune(recipe, "</title><b>a test", Console(file=io.StringIO())), evaluated_splits


class Page(HTMLParser):
    """Parse the elements, text and attributes of a page, and check that every element is closed."""

    VOID = ("meta",)

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str]]] = []
        self.text = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag, attributes) -> None:
        self.elements.append((tag, dict(attributes)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        self.text += data

    def all(self, tag: str) -> list[dict[str, str]]:
        return [attributes for element, attributes in self.elements if element == tag]


def render_sections(sections) -> str:
    """Return sections as HTML, and check that all its elements are closed."""
    text = render_page("pages/document.html", title="", sections=list(sections))
    Page(text)
    return text[text.index("<main>") :]


# -- predictions ------------------------------------------------------------------------------------------------------


def test_predictions_match_the_metrics_without_an_extra_evaluation(run):
    from sklearn.metrics import accuracy_score, f1_score

    folder, evaluated_splits = run
    assert evaluated_splits == ["validation", "validation", "test"]  # two in training, and the test split at the end
    results = json.loads((folder / "metrics.json").read_text())
    assert results["best"]["step"] == 1
    for split_name, count in (("validation", 12), ("test", 20)):
        rows = list(read_predictions(folder / f"predictions-{split_name}.csv"))
        label, predicted_labels = ([row[name] for row in rows] for name in ("label", "predicted_label"))
        assert len(rows) == count and set(label) == {name.replace("\r\n", "\n") for name in LABELS}
        assert accuracy_score(label, predicted_labels) == results[split_name]["accuracy"]
        assert f1_score(label, predicted_labels, average="macro", zero_division=0) == results[split_name]["macro_f1"]
        for row in rows:
            shares = [float(row[f"probability_{name}"]) for name in LABELS]
            assert sum(shares) == pytest.approx(1, abs=1e-5) and max(shares) == float(row["probability"])
            assert row["predicted_label"] == LABELS[int(np.argmax(shares))] and row["text"].count(row["label"]) == 9


def test_missing_predictions_are_written_again(run, tmp_path, capsys):
    folder = shutil.copytree(run[0], tmp_path / "run")
    initial_files = {path.name: path.read_bytes() for path in folder.glob("predictions-*.csv")}
    for name in (*initial_files, "report.html"):
        (folder / name).unlink()
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["report", str(folder)])
    assert (exit_info.value.code, capsys.readouterr().err) == (0, "")
    assert (
        initial_files == {path.name: path.read_bytes() for path in folder.glob("predictions-*.csv")}
        and len(initial_files) == 2
    )
    assert (folder / "report.html").read_bytes() == (run[0] / "report.html").read_bytes()


def test_a_foreign_folder_and_damaged_predictions_are_reported_in_one_line(run, tmp_path, capsys):
    folder = shutil.copytree(run[0], tmp_path / "run")
    file, page_before = folder / "predictions-test.csv", (folder / "report.html").read_bytes()
    for damage in (b"", b"text,label\r\n1\r\n", b"\xff\xfe", file.read_bytes().replace(b"0.", b"zero", 1)):
        file.write_bytes(damage)
        with pytest.raises(SystemExit) as exit_info:
            cli.main(["report", str(folder)])
        error = capsys.readouterr().err
        assert (
            exit_info.value.code == 2 and f"{file}: is damaged" in error and "toolkit report writes it again" in error
        )
        assert error.count("\n") == 1 and (folder / "report.html").read_bytes() == page_before
    with pytest.raises(SystemExit) as exit_info:
        cli.main(["report", str(tmp_path)])
    assert exit_info.value.code == 2 and "is not a run folder" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["report", "evaluate"])
@pytest.mark.parametrize("damage", ["missing", "binary", "cut"])
def test_lost_rows_of_the_curves_are_reported_in_one_line(run, tmp_path, capsys, command, damage):
    folder = shutil.copytree(run[0], tmp_path / "run")
    path = folder / "metrics.jsonl"
    if damage == "missing":
        path.unlink()
    else:
        path.write_bytes(b"\x80\0" * 99 if damage == "binary" else path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(SystemExit) as exit_info:
        cli.main([command, str(folder)])
    output = capsys.readouterr().out
    assert exit_info.value.code == 0 and output.count("note: ") == 1
    assert f"note: {path}: " in output and "; lost are the train rows of " in output


DAMAGES = (b"", b"{", b"[]", b"null", b'{"a": 1}', b'{"best": 3, "test": [], "training": null}', b"\xff\x00" * 9)
FILES = ("metrics.json", "metrics.jsonl", "versions.json", "identity.json", "recipe.yaml", "parity/starts.json")


def test_a_damaged_file_of_the_run_is_reported_or_ignored(run, tmp_path, capsys):
    folder = shutil.copytree(run[0], tmp_path / "run")
    for name in FILES:
        intact_content = (folder / name).read_bytes()
        for damage in (*DAMAGES, intact_content[: len(intact_content) // 2]):
            (folder / name).write_bytes(damage)
            with pytest.raises(SystemExit) as exit_info:
                cli.main(["report", str(folder)])
            error = capsys.readouterr().err
            assert exit_info.value.code == (2 if error else 0), (name, damage, error)
            assert all(line.startswith(f"error: {folder}") for line in error.splitlines()), (name, damage, error)
        (folder / name).write_bytes(intact_content)


def test_a_file_of_predictions_is_complete_or_unchanged(tmp_path):
    file = tmp_path / "predictions-test.csv"
    write_predictions(file, iter([{"text": "old\0\ud800\r", "f1": 1 / 3}]))

    def interrupted_rows():
        yield {"text": "new", "f1": 0.0}
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_predictions(file, interrupted_rows())
    assert list(read_predictions(file)) == [{"text": "old\\x00\\ud800\r", "f1": "0.333333"}]
    assert list(tmp_path.iterdir()) == [file]
    write_predictions(file, [{"text": "x" * 200_000}])  # more than the csv module reads by default
    assert len(next(read_predictions(file))["text"]) == 200_000 and csv.field_size_limit() == 131_072


# -- the page ---------------------------------------------------------------------------------------------------------


def test_the_page_loads_nothing_and_labels_stay_text(run):
    text = (run[0] / "report.html").read_text(encoding="utf-8")
    parsed_page = Page(text)
    (policy,) = (
        attributes_of_meta["content"]
        for attributes_of_meta in parsed_page.all("meta")
        if "http-equiv" in attributes_of_meta
    )
    assert policy.startswith("default-src 'none'")
    tags = {tag for tag, _ in parsed_page.elements}
    assert not tags & {"script", "img", "link", "base", "iframe", "object", "form", "image"}
    addresses = {
        value for _, attributes in parsed_page.elements for value in attributes.values() if "http" in str(value)
    }
    assert all("<img src=http://x.test/a" in value for value in addresses)  # in the titles of cells
    loading = {"src", "href", "srcset", "xlink:href"}
    targets = {attributes[key] for _, attributes in parsed_page.elements for key in loading & attributes.keys()}
    assert {target for target in targets if not target.startswith("#")} == {"predictions-test.csv"}
    assert "<b>a test" not in text
    style = re.search(r"<style>(.*?)</style>", text, re.DOTALL)[1]
    assert not re.search(r"url\(|@import|http", style)
    assert all(label.split("\n")[0] in parsed_page.text for label in LABELS) and "\x1b" not in text
    assert "Parity gate skipped before training: </title><b>a test" in parsed_page.text


def test_the_page_can_be_read_by_a_screen_reader(run):
    text = (run[0] / "report.html").read_text(encoding="utf-8")
    parsed_page = Page(text)
    assert parsed_page.all("html") == [{"lang": "en"}] and len(parsed_page.all("h1")) == 1
    pictures = re.findall(r"<svg[^>]*role=\"img\".*?</svg>", text, re.DOTALL)
    assert len(pictures) == 2 and all("<title>" in picture and "<desc>" in picture for picture in pictures)
    assert "train: " in pictures[0] and "best: step" in pictures[0] and "learning rate" in pictures[0]
    assert all(attributes.get("scope") in ("col", "row") for attributes in parsed_page.all("th"))
    assert all("aria-hidden" in attributes or "role" in attributes for attributes in parsed_page.all("svg"))
    for name in ("Learning curves", "Which labels are confused", "How good each label is", "Recipe", "Made of"):
        assert f">{name}</h2>" in text
    assert (
        "hidden_size: 32" in parsed_page.text and "paddlepaddle" in parsed_page.text and "SHA-256" in parsed_page.text
    )


def test_a_passed_gate_is_mentioned_and_its_report_linked(run, tmp_path):
    folder = shutil.copytree(run[0], tmp_path / "run")
    (folder / "parity/parity.html").write_text("")
    starts = [
        {"after_step": 0, "passed": None, "skipped": "no time"},
        {"after_step": 1, "passed": "7 tensors <agree>", "skipped": None},
    ]
    recipe, results = load_recipe(folder / "recipe.yaml"), json.loads((folder / "metrics.json").read_text())
    for selected_starts, style in ((starts, "skipped"), (starts[1:], "passed")):
        (folder / "parity/starts.json").write_text(json.dumps(selected_starts))
        parsed_page = Page(page(recipe, folder, results))
        assert parsed_page.all("header") == [{"class": style}]
        assert {"href": "parity/parity.html"} in parsed_page.all("a") and "7 tensors <agree>" in parsed_page.text
    (folder / "parity/starts.json").unlink()
    assert "Parity unknown" in Page(page(recipe, folder, results)).text


def test_the_page_begins_with_the_main_figure_and_the_baseline_that_wins(run):
    folder, _ = run
    recipe, results = load_recipe(folder / "recipe.yaml"), json.loads((folder / "metrics.json").read_text())
    results["best"]["metric"], results["test"]["accuracy"] = "accuracy", 0.25
    results["intervals"] = {"test": {"accuracy": [0.1, 0.4375]}}
    for baseline, expected_text, styles in (
        (0.5, "the simpler method is better here", [{"class": "warning"}]),
        (0.25, "the simpler method is as good here", [{"class": "warning"}]),
        (0.125, "the model is better", []),
    ):
        results["baselines"] = {"a guess": {"test": {"accuracy": baseline}}, "worse": {"test": {"accuracy": 0.0}}}
        text = page(recipe, folder, results)
        band = text[text.index('<div class="key-figures">') : text.index("</header>")]
        assert [
            attributes for attributes in Page(band).all("div") if attributes.get("class") == "warning"
        ] == styles and expected_text in band
        assert "95% interval 0.1000 to 0.4375" in band and "the best simple method: a guess" in band
    assert "Most often confused: " in band and "Never predicted: " in band and "calibration error" in band
    assert "Cut because they are too long: 32 of 32 in train" in band
    del results["baselines"]
    assert "simple method" not in page(recipe, folder, results)


def test_the_contents_link_to_every_section(run):
    text = (run[0] / "report.html").read_text(encoding="utf-8")
    contents = re.findall(r'<li><a href="#([^"]+)">', text[text.index("<nav") : text.index("</nav>")])
    headings = re.findall(r'<h2 id="([^"]+)">', text)
    assert contents == headings and len(set(headings)) == len(headings) > 8


def test_the_recipe_begins_with_values_that_differ_from_the_defaults(run):
    text = (run[0] / "report.html").read_text(encoding="utf-8")
    different, whole_text = map(
        html.unescape, re.findall(r"<pre>(.*?)</pre>", text[text.index('id="recipe"') :], re.DOTALL)
    )
    different_values, values = yaml.safe_load(different), yaml.safe_load(whole_text)
    assert different_values["train"]["learning_rate"] == 1.0 and "label_smoothing" not in different_values["train"]
    assert "weight_decay" in values["train"] and "weight_decay" not in different_values["train"]
    assert different_values["data"]["files"]["train"] == values["data"]["files"]["train"] == "…/train.csv"
    assert str(run[0].parent) not in text


def test_charts_ignore_the_home_and_settings_of_the_user(tmp_path):
    """Test a read-only home, and user settings that would draw with LaTeX on a display."""
    (tmp_path / "matplotlibrc").write_text("backend: TkAgg\ntext.usetex: True\nsvg.fonttype: path\n")
    code = (
        "from toolkit.pages.plot import Series, draw_lines\n"
        "print(draw_lines('Loss', [Series('train', [(1.0, 2.0), (2.0, 1.0)])], 'step'))"
    )
    environment = {"HOME": "/proc/none", "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-W", "ignore", "-c", code]
    result = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment, timeout=120)
    assert (result.returncode, result.stderr) == (0, "")
    chart = draw_lines("Loss", [Series("train", [(1.0, 2.0), (2.0, 1.0)])], "step")
    assert result.stdout == f"{chart}\n" and ">step</text>" in chart


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="chromium is absent")
def test_a_browser_logs_no_complaint(run, tmp_path):
    """Check the browser's log, where it would report violations of the page's policy."""
    switches = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-background-networking", "--no-first-run"]
    switches += [f"--user-data-dir={tmp_path}", "--enable-logging=stderr", "--dump-dom"]
    logs = []
    for text in ((run[0] / "report.html").read_text(encoding="utf-8"), "<script>console.error('CONTROL')</script>"):
        (tmp_path / "page.html").write_text(text, encoding="utf-8")
        command = ["chromium", *switches, (tmp_path / "page.html").as_uri()]
        browser = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert browser.returncode == 0, browser.stderr
        logs.append((browser.stdout, browser.stderr))
    assert "CONTROL" in logs[1][1]  # a complaint would have been seen
    assert "CONSOLE" not in logs[0][1] and "Learning curves" in logs[0][0] and "alert(1)" in logs[0][0]


def test_the_data_and_the_speed_are_on_the_page_and_an_old_run_has_its_rows(run):
    folder, _ = run
    results = json.loads((folder / "metrics.json").read_text())
    facts = results["data"]
    assert [facts[split_name]["labels"] for split_name in facts] == [
        dict.fromkeys(LABELS, count) for count in (8, 3, 5)
    ]
    tokens = [int(row["tokens"]) for row in read_predictions(folder / "predictions-test.csv")]
    assert facts["test"]["tokens"] == sum(tokens) and facts["test"]["cut"] == 20
    assert (
        facts["test"]["lengths"] == np.quantile(tokens, [0, 0.25, 0.5, 0.75, 0.95, 1], method="inverted_cdf").tolist()
    )
    results["training"] |= {"seconds": 2.0, "epochs": 0.5}
    text = page(load_recipe(folder / "recipe.yaml"), folder, results)
    data, (speed,) = text[text.index('id="data"') :], re.findall(r"tokens a second</th><td>([\d,]+)<", text)
    assert re.search(r">test</th><td>20</td><td>20</td><td>64</td>", data)
    assert 'label</th><th scope="col">train (32)<' in data and data.count('class="bar"') == 3 * len(LABELS)
    assert "examples a second</th><td>8.0<" in text and speed == f"{0.5 * facts['train']['tokens'] / 2:,.0f}"
    del results["data"]  # as an earlier version wrote it
    text = page(load_recipe(folder / "recipe.yaml"), folder, results)
    assert re.search(r">test</th><td>20</td></tr>", text) and "tokens a second" not in text and "median" not in text


# -- its parts --------------------------------------------------------------------------------------------------------


def write_labeled_predictions(folder: Path, pairs: list[tuple[str, str]], names: list[str]) -> Path:
    """Write a file of predictions with these labels and predicted labels."""
    write_predictions(
        folder / "predictions-test.csv",
        (
            {
                "row": row, "text": f"text {row}", "tokens": row, "label": label, "predicted_label": predicted_label,
                "probability": row / 1000, **{f"probability_{name}": 0.5 for name in names},
            }
            for row, (label, predicted_label) in enumerate(pairs, start=1)
        ),
    )  # fmt: skip
    return folder / "predictions-test.csv"


def test_only_the_worst_of_many_labels_are_shown(tmp_path):
    names = [f"class{number}" for number in range(80)]
    pairs = [(name, name) for name in names] + [("class7", "class3")] * 5 + [("class70", "class71")] * 2
    text = render_sections(classification.report_sections(write_labeled_predictions(tmp_path, pairs, names), {}))
    matrix = re.search(r'<table class="matrix.*?</table>', text, re.DOTALL)[0]
    assert matrix.count("<tr>") == 31 and "The 30 labels of 80 with the most mistakes" in matrix
    assert 'title="class7 taken for class3: 5 of 6"' in matrix and 'title="class70 taken for class71: 2 of 3"' in matrix
    shown_pairs = re.findall(
        r"class(\d+)</span></th><td><span class=\"name\">class(\d+)</span>.*?(\d)</span></td>", text
    )
    assert shown_pairs[:2] == [("7", "3", "5"), ("70", "71", "2")]
    assert re.search(r"class7</span></th><td>1\.000</td><td>0\.167</td>", text)  # precision and recall, lowest F1 first
    first = re.search(r"times given.*?<span class=\"name\">(\w+)<", text, re.DOTALL)
    assert first[1] in ("class3", "class7")  # both have the same score
    assert "the label with the lowest F1 first: 16 of 80" in text and "<summary>64 more</summary>" in text
    rest = text[text.index("The matrix of all 80 labels") :].partition("</table>")[0]
    assert rest.count("<tr>") == 81 and 'title="class70 taken for class71: 2 of 3"' in rest


def test_the_surest_mistakes_come_first_and_lengths_are_counted(tmp_path):
    pairs = [("a", "a")] * 50 + [("a", "b")] * 50
    text = render_sections(classification.report_sections(write_labeled_predictions(tmp_path, pairs, ["a", "b"]), {}))
    mistakes = re.search(r"The most confident mistakes.*?</table>", text, re.DOTALL)[0]
    rows = [int(row) for row in re.findall(r'<th scope="row">(\d+)</th>', mistakes)]
    assert rows == list(range(100, 100 - classification.MISTAKES_SHOWN, -1)) and "text 100" in mistakes
    lengths = re.search(r"Length and accuracy.*?</table>", text, re.DOTALL)[0]
    assert sum(map(int, re.findall(r"</th><td>(\d+)</td>", lengths))) == 100
    assert "1 to 13" in lengths and "0.000</span>" in lengths and "1.000</span>" in lengths


def test_the_surest_correct_text_of_a_label_is_next_to_its_surest_mistake(tmp_path):
    pairs = [("a", "a")] * 3 + [("b", "b")] + [("a", "b")] * 2 + [("c", "a")]
    text = render_sections(
        classification.report_sections(write_labeled_predictions(tmp_path, pairs, ["a", "b", "c"]), {})
    )
    (row,) = re.findall(r"<tr>(.*?)</tr>", text[text.index("Right beside wrong") :].split("</table>")[0])[1:]
    assert re.findall(r">([^<>]+)<", row) == ["a", "0.003", "text 3", "b", " 0.006", "text 6"]


def test_a_model_without_mistakes_has_none_listed(tmp_path):
    text = render_sections(
        classification.report_sections(write_labeled_predictions(tmp_path, [("a", "a"), ("b", "b")], ["a", "b"]), {})
    )
    assert "No text has been given a wrong label" in text and "mistakes</h2>" not in text


QUESTION = {
    "id": "q", "question": "In which <b>year</b>?", "prediction": "191", "answers": '["1914"]', "exact_match": 0.0,
    "f1": 0.0, "score": 1.0, "probability": 0.75, "start": 103, "answer_start": 103, "context_tokens": 40,
    "passage_start": 100, "passage": "in 1914 <it> began",
}  # fmt: skip


def test_wrong_answers_are_marked_in_their_passage(tmp_path):
    far = {**QUESTION, "id": "far", "start": 5, "prediction": "the cat", "question": "¿Quién lo dijo?"}
    no_answer = {**QUESTION, "id": "none", "start": "", "prediction": "", "probability": 0.5, "question": "何年ですか"}
    correct_answer = {
        **QUESTION,
        "id": "right",
        "prediction": "1914",
        "exact_match": 1.0,
        "f1": 1.0,
        "question": "How many?",
    }
    rows = [QUESTION, far, no_answer, correct_answer]
    write_predictions(tmp_path / "p.csv", rows)
    text = render_sections(question_answering.report_sections(tmp_path / "p.csv"))
    assert '…in <mark class="ours theirs">191</mark><mark class="theirs">4</mark> &lt;it&gt; began' in text
    assert text.count("(the model&#39;s answer stands elsewhere)") == 1 and text.count("<article") == 3
    words = re.findall(r'<th scope="row">(which|quién|others|how many)</th><td>(\d)', text)
    assert sorted(words) == [("how many", "1"), ("others", "1"), ("quién", "1"), ("which", "1")]
    assert "In which &lt;b&gt;year&lt;/b&gt;?" in text


@pytest.mark.parametrize(
    ("question", "word"),
    [
        ("Who's there?", "who's"), ("To whom?", "whom"), ("how much is it", "how much"), ("How?", "how"),
        ("What, when?", "what"), ("", "others"), ("Wann war das?", "wann"), ("???", "others"),
    ],
)  # fmt: skip
def test_the_question_word_is_found(question, word):
    assert question_answering.question_word(question) == word


def test_a_language_model_is_shown_by_control_code(tmp_path):
    rows = [
        {"block": number, "control_code": code, "tokens": tokens, "loss": loss, "perplexity": 1.0, "text": f"t{number}"}
        for number, (code, tokens, loss) in enumerate(
            [("<Books>", 30, 2.0), ("Code", 10, 1.0), ("<Books>", 10, 4.0)], 1
        )
    ]
    write_predictions(tmp_path / "p.csv", rows)
    samples = [{"control": "<Books>", "prompt": "Once", "texts": {"greedy": "</script> upon"}}]
    (tmp_path / "samples.json").write_text(json.dumps(samples))
    text = render_sections(language_modeling.report_sections(tmp_path, tmp_path / "p.csv", {}))
    assert re.search(r"&lt;Books&gt;</span></th><td>2</td><td>40</td><td>2\.5000</td>", text)
    assert f"{math.exp(2.5):.2f}</span>" in text and "&lt;/script&gt; upon" in text
    least_text, most_text = (
        re.search(rf"expected {order}.*?</table>", text, re.DOTALL)[0] for order in ("least", "most")
    )
    assert re.findall(r">t(\d)<", least_text) == ["3", "1", "2"] and re.findall(r">t(\d)<", most_text) == [
        "2",
        "1",
        "3",
    ]
    (tmp_path / "samples.json").write_text("[{}]")
    with pytest.raises(UserError, match=r"samples\.json: is damaged"):
        render_sections(language_modeling.report_sections(tmp_path, tmp_path / "p.csv", {}))


def test_curves_accept_all_rows_that_a_run_can_write():
    rows = [
        {"step": step, "epoch": 0, "split": "train", "loss": 1.0 / step, "learning_rate": 0.1}
        for step in range(1, 5000)
    ]
    rows += [{"step": 10, "split": "validation", "loss": None, "accuracy": 0.5}, {"step": 20, "split": "validation"}]
    text = render_sections(curves(rows, 10))
    loss, metrics = re.findall(r"<svg[^>]*role=\"img\".*?</svg>", text, re.DOTALL)
    assert loss.count("L ") < 3 * MAX_POINTS and "accuracy: 0.5 at step 10" in metrics and "best: step 10" in metrics
    assert 'class="curve-blue smoothed"' in loss and "nan" not in text and "not finite" in text
    assert len(text) < 150_000
    assert list(curves([], None)) == [] and draw_lines("empty", [Series("x", [(1.0, math.nan)])], "step") is None


def test_numbers_of_a_row_have_the_same_number_of_decimals():
    assert format_same_decimals([0.205, 0.93461, None]) == ["0.2050", "0.9346", ""]
    assert format_same_decimals([1234.5, 2.0]) == ["1,234.50", "2.00"] and format_same_decimals([0.0]) == ["0"]
    assert format_same_decimals([12.3456, 0.1]) == ["12.35", "0.10"] and float(format_same_decimals([2e-7])[0]) == 2e-7


@pytest.mark.parametrize(
    ("text", "hidden_text"),
    [
        ("file: /home/ann/data/train.csv", "file: …/train.csv"), ("[/a/b/c.json, '/d/e']", "[…/c.json, '…/e']"),
        ("https://x.test/a/b", "https://x.test/a/b"), ("runs/x/y", "runs/x/y"), ("org/name", "org/name"),
        ("~/data/x.csv", "…/x.csv"), ("1/2 and/or", "1/2 and/or"),
    ],
)  # fmt: skip
def test_a_page_reveals_no_folder_of_the_machine(text, hidden_text):
    assert hide_folders(text) == hidden_text


def test_bins_hold_every_value_once():
    for values in ([], [5], [3] * 40, list(range(100)), [1] * 30 + [9], [2, 1]):
        bins = named_bins(values)
        assert sorted(place for places in bins.values() for place in places) == list(range(len(values)))
        assert len(bins) <= 8


def test_a_long_text_opens_on_a_click():
    assert excerpt("short").strip() == '<span dir="auto">short</span>'
    text = excerpt("word " * 100_000)
    assert "<summary" in text and len(text) < MAX_LENGTH + 1000 and "more characters" in text


# -- the card ---------------------------------------------------------------------------------------------------------


def test_the_hub_reads_the_numbers_of_a_card(run):
    folder, _ = run
    data = ModelCard((folder / "README.md").read_text(encoding="utf-8")).data
    results = json.loads((folder / "metrics.json").read_text())
    results_by_metric = {(result.dataset_split, result.metric_name): result for result in data.eval_results}
    assert set(results_by_metric) == {(split_name, name) for split_name in ("validation", "test") for name in SCORES}
    for (split_name, name), result in results_by_metric.items():
        assert result.metric_value == results[split_name][name] and result.task_type == "text-classification"
    assert (
        results_by_metric["test", "macro_f1"].metric_type == "f1"
        and results_by_metric["test", "accuracy"].dataset_type == "csv"
    )
    assert (data.model_name, data.library_name, data.tags) == ("run", "transformers", ["reformer", "paddle"])
    assert (data.license, data.language, data.datasets) == ("apache-2.0", ["de", "zh"], None)
